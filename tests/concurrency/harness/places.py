"""Where a round's stores are, and how a process opens them: each kind of back end."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import URL, make_url

from qstore import (
    AsyncLocalKvRepository,
    AsyncLocalQueueRepository,
    AsyncTransportRepository,
    LocalKvRepository,
    LocalQueueRepository,
    TransportRepository,
)
from tests import postgres
from tests.awaiting import EventLoop
from tests.backends import MOUNTED

__all__ = ["KINDS", "Place", "Stores"]

Clock = Callable[[], float] | None


class Stores(NamedTuple):
    """The three stores, as a process has them open."""

    transport: Any
    localqueue: Any
    localkv: Any


class Place(ABC):
    """A round's stores. It goes to all processes."""

    on_files = True
    alone = False
    """Whether one process at a time has the stores."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    @contextmanager
    def opened(self, clock: Clock) -> Iterator[Stores]:
        """Open the stores as this kind of back end does."""

    def in_child(self, stores: Stores) -> Stores:
        """The same in a forked child."""
        return stores

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return Path(self.where)

    @property
    def url(self) -> URL:
        """Where the server's database is."""
        return make_url(self.where)

    def count(self, store: str, table: str) -> int:
        """How many rows a table has."""
        with closing(sqlite3.connect(self.directory / f"{store}.sqlite")) as connection:
            [(number,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(number)


class Files(Place):
    """Native files, opened by their paths."""

    more: Mapping[str, Any] = MappingProxyType({})
    """What is said besides."""

    def _targets(self) -> tuple[Any, Any]:
        return self.directory / "transport.sqlite", self.directory

    @contextmanager
    def opened(self, clock: Clock) -> Iterator[Stores]:
        one, others = self._targets()
        with ExitStack() as stack:
            enter = stack.enter_context
            yield Stores(
                enter(TransportRepository.open(one, event_type=str, clock=clock, **self.more)),
                enter(LocalQueueRepository.open(others, clock=clock, **self.more)),
                enter(LocalKvRepository.open(others, clock=clock, **self.more)),
            )


class AsyncFiles(Files):
    """The async twins on native files, in one event loop that many threads give calls to."""

    @contextmanager
    def opened(self, clock: Clock) -> Iterator[Stores]:
        one, others = self._targets()
        loop = EventLoop()
        with ExitStack() as stack:
            stack.callback(loop.close)

            def enter(opening: Any) -> Any:
                repository = loop.run(opening)
                stack.callback(lambda: loop.run(repository.close()))
                return _InLoop(repository, loop)

            yield Stores(
                enter(AsyncTransportRepository.open(one, event_type=str, clock=clock, **self.more)),
                enter(AsyncLocalQueueRepository.open(others, clock=clock, **self.more)),
                enter(AsyncLocalKvRepository.open(others, clock=clock, **self.more)),
            )

    def in_child(self, stores: Stores) -> Stores:
        loop = EventLoop()  # the parent's has no thread here
        return Stores(*(_InLoop(each.repository, loop) for each in stores))


class _InLoop:
    """An async repository whose methods are awaited by the call itself."""

    def __init__(self, repository: Any, loop: EventLoop) -> None:
        self.repository = repository
        self._sync = loop.sync(repository)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)


class Turso(Files):
    """Native files opened with turso.

    Of two processes that write, the death of one in its commit may lose what the other one was told.
    """

    alone = True
    more = MappingProxyType({"engine": "turso"})


class AsyncTurso(AsyncFiles, Turso):
    """The async twins on them."""


class Server(Files):
    """Opened by a server's URL."""

    on_files = False

    def _targets(self) -> tuple[Any, Any]:
        return self.where, self.where

    def count(self, store: str, table: str) -> int:
        with postgres.connect(self.url) as connection:
            counted = MOUNTED.of(store).render(f"SELECT count(*) FROM {{{table}}}")
            [(number,)] = connection.execute(counted.encode()).fetchall()
        return int(number)


class AsyncServer(AsyncFiles, Server):
    """The async twins, through psycopg."""


class Asyncpg(AsyncServer):
    """The async twins, through asyncpg."""

    def _targets(self) -> tuple[Any, Any]:
        url = make_url(self.where).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)
        return url, url


KINDS: dict[str, type[Place]] = {
    "opened": Files,
    "async": AsyncFiles,
    "turso": Turso,
    "async turso": AsyncTurso,
    "psycopg": Server,
    "async psycopg": AsyncServer,
    "asyncpg": Asyncpg,
}
