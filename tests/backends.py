"""The ways to have a store, for tests that must hold on all of them.

A `Backend` hands out repositories on one directory of real files, and lets a test look at them with plain sqlite3.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from shutil import copyfile
from typing import Any, cast

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from typing_extensions import override

from qstore import (
    NATIVE,
    AsyncLocalKvRepository,
    AsyncLocalQueueRepository,
    AsyncTransportRepository,
    LocalKvRepository,
    LocalQueueRepository,
    TransportRepository,
    open_async_engine,
    open_engine,
)
from tests import postgres
from tests.awaiting import EventLoop
from tests.made_files import HOSTS, made, made_v1

TWINS: dict[Any, Any] = {
    TransportRepository: AsyncTransportRepository,
    LocalKvRepository: AsyncLocalKvRepository,
    LocalQueueRepository: AsyncLocalQueueRepository,
}
MOUNTED = HOSTS
STORES = ("transport", "localkv", "localqueue")


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Backend:
    """Repositories as `open` makes them: native files, statements on the driver's connection."""

    naming = NATIVE
    joins = False
    """Whether repositories join a transaction of the caller's."""
    one_writer = True
    """Whether the database is SQLite's: one writer at a time, and looked at with sqlite3."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._closing: list[Callable[[], None]] = []
        self._engines: dict[str, Engine] = {}

    def transport(self, **arguments: Any) -> TransportRepository[Any]:
        repository: TransportRepository[Any] = self._repository("transport", TransportRepository, arguments)
        return repository

    def localkv(self, **arguments: Any) -> LocalKvRepository:
        repository: LocalKvRepository = self._repository("localkv", LocalKvRepository, arguments)
        return repository

    def localqueue(self, **arguments: Any) -> LocalQueueRepository:
        repository: LocalQueueRepository = self._repository("localqueue", LocalQueueRepository, arguments)
        return repository

    def path(self, store: str) -> Path:
        """The file that holds the store."""
        return self.directory / f"{store}.sqlite"

    def table(self, store: str, table: str) -> str:
        """The table's name, quoted."""
        return f'"{self.naming.name(store, table)}"'

    def sql(self, store: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement on the store's file with plain sqlite3. `{messages}` and the like stand for its tables."""
        with closing(sqlite3.connect(self.path(store), timeout=5, isolation_level=None)) as connection:
            return connection.execute(self.naming.of(store).render(statement), values).fetchall()

    def close(self) -> None:
        for close in reversed(self._closing):
            close()

    def make(self, store: str) -> None:
        """Make the store's file, as the revisions do, unless it is there: a copy, as it takes a while."""
        if not self.path(store).exists():
            copyfile(made(store if self.naming.native else "host"), self.path(store))

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        self.make(store)
        repository = kind.open(self.path(store) if store == "transport" else self.directory, **arguments)
        self._closing.append(repository.close)
        return repository


class FirstRevisionBackend(Backend):
    """Native files at the first revision of their formats, as other implementations make them."""

    @override
    def make(self, store: str) -> None:
        if not self.path(store).exists():
            copyfile(made_v1(store), self.path(store))


class WatchedBackend(Backend):
    """Native files on an engine of qstore's with a listener: statements go through SQLAlchemy."""

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        return kind(self._engine(store), naming=self.naming, **arguments)

    def _engine(self, store: str) -> Engine:
        if store not in self._engines:
            engine = self._engines[store] = self._create_engine(store)
            self._closing.append(engine.dispose)
            self.make(store)
        return self._engines[store]

    def _create_engine(self, store: str) -> Engine:
        engine = open_engine(self.path(store))
        event.listen(engine, "before_cursor_execute", lambda *_: None)
        return engine


class HostBackend(WatchedBackend):
    """All stores mounted in one database of a host, on an engine that the host made with SQLAlchemy's defaults."""

    naming = MOUNTED

    def path(self, store: str) -> Path:
        return self.directory / "host.sqlite"

    def _engine(self, store: str) -> Engine:
        return super()._engine("host")

    def _create_engine(self, store: str) -> Engine:
        return create_engine(f"sqlite:///{self.path(store)}")


class ConnectionBackend(HostBackend):
    """Bound to a Connection of a host's, which commits after each call (and rolls back after a failed one)."""

    joins = True

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        connection = self._engine(store).connect()
        self._closing.append(connection.close)
        return _committing(kind(connection, naming=self.naming, **arguments), connection)


class SessionBackend(HostBackend):
    """Bound to a Session of a host's, which commits after each call (and rolls back after a failed one)."""

    joins = True

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        session = Session(self._engine(store))
        self._closing.append(session.close)
        return _committing(kind(session, naming=self.naming, **arguments), session)


def _committing(repository: Any, transaction: Any) -> Any:
    class Committing:
        def __getattr__(self, name: str) -> Any:
            method = getattr(repository, name)

            @wraps(method)
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    result = method(*args, **kwargs)
                    if isinstance(result, Iterator):
                        result = iter(list(result))
                except BaseException:
                    transaction.rollback()
                    raise
                transaction.commit()
                return result

            return call

    return cast(Any, Committing())


class AsyncBackend(Backend):
    """The async twins as `open` makes them: native files, each operation in a thread."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.loop = EventLoop()
        self._closing.append(self.loop.close)

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        self.make(store)
        target = self.path(store) if store == "transport" else self.directory
        repository = self.loop.run(TWINS[kind].open(target, **arguments))
        self._closing.append(lambda: self.loop.run(repository.close()))
        return self.loop.sync(repository)


class AsyncWatchedBackend(AsyncBackend):
    """Native files on an async engine of qstore's with a listener: statements go through SQLAlchemy."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._async_engines: dict[str, AsyncEngine] = {}

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        return self.loop.sync(TWINS[kind](self._async_engine(store), naming=self.naming, **arguments))

    def _async_engine(self, store: str) -> AsyncEngine:
        if store not in self._async_engines:
            engine = self._async_engines[store] = self._create_async_engine(store)
            self._closing.append(lambda: self.loop.run(engine.dispose()))
            self.make(store)
        return self._async_engines[store]

    def _create_async_engine(self, store: str) -> AsyncEngine:
        engine = open_async_engine(self.path(store))
        event.listen(engine.sync_engine, "before_cursor_execute", lambda *_: None)
        return engine


class AsyncHostBackend(AsyncWatchedBackend):
    """All stores mounted in one database of a host, on an async engine that the host made with the defaults."""

    naming = MOUNTED

    def path(self, store: str) -> Path:
        return self.directory / "host.sqlite"

    def _async_engine(self, store: str) -> AsyncEngine:
        return super()._async_engine("host")

    def _create_async_engine(self, store: str) -> AsyncEngine:
        return create_async_engine(f"sqlite+aiosqlite:///{self.path(store)}")


class AsyncConnectionBackend(AsyncHostBackend):
    """Bound to an AsyncConnection of a host's, which commits after each call (and rolls back after a failed one)."""

    joins = True

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        connection = self.loop.run(self._async_engine(store).connect())
        self._closing.append(lambda: self.loop.run(connection.close()))
        repository = self.loop.sync(TWINS[kind](connection, naming=self.naming, **arguments))
        return _committing(repository, self.loop.sync(connection))


class AsyncSessionBackend(AsyncHostBackend):
    """Bound to an AsyncSession of a host's, which commits after each call (and rolls back after a failed one)."""

    joins = True

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        session = AsyncSession(self._async_engine(store))
        self._closing.append(lambda: self.loop.run(session.close()))
        repository = self.loop.sync(TWINS[kind](session, naming=self.naming, **arguments))
        return _committing(repository, self.loop.sync(session))


class PostgresBackend(WatchedBackend):
    """All stores mounted in one database of a server, on an engine that the host made with SQLAlchemy's defaults."""

    naming = MOUNTED
    one_writer = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.url = postgres.database()

    def make(self, store: str) -> None:
        """It is there."""

    def sql(self, store: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(postgres.connect(self.url)) as connection:
            rendered = self.naming.of(store).render(statement).replace("%", "%%").replace("?", "%s")
            cursor = connection.execute(rendered, values)
            return cursor.fetchall() if cursor.description else []

    def _engine(self, store: str) -> Engine:
        return super()._engine("host")

    def _create_engine(self, store: str) -> Engine:
        return create_engine(self.url)


class PostgresSessionBackend(PostgresBackend, SessionBackend):
    """Bound to a Session of a host's on a server."""


class AsyncPostgresBackend(PostgresBackend, AsyncHostBackend):
    """The async twins on a server, through psycopg."""

    driver = "psycopg"

    def _create_async_engine(self, store: str) -> AsyncEngine:
        return create_async_engine(self.url.set(drivername=f"postgresql+{self.driver}"))


class AsyncpgBackend(AsyncPostgresBackend):
    """The async twins on a server, through asyncpg."""

    driver = "asyncpg"


class AsyncpgSessionBackend(AsyncpgBackend, AsyncSessionBackend):
    """Bound to an AsyncSession of a host's on a server, through asyncpg."""


BACKENDS: dict[str, type[Backend]] = {
    "opened": Backend,
    "opened, v1": FirstRevisionBackend,
    "watched": WatchedBackend,
    "host": HostBackend,
    "connection": ConnectionBackend,
    "session": SessionBackend,
    "async": AsyncBackend,
    "async watched": AsyncWatchedBackend,
    "async host": AsyncHostBackend,
    "async connection": AsyncConnectionBackend,
    "async session": AsyncSessionBackend,
    "postgres": PostgresBackend,
    "postgres session": PostgresSessionBackend,
    "async postgres": AsyncPostgresBackend,
    "asyncpg": AsyncpgBackend,
    "asyncpg session": AsyncpgSessionBackend,
}
SHARED = ("opened", "watched", "host", "async", "async watched", "async host", "postgres", "async postgres", "asyncpg")
"""Those whose repositories any number of threads may share: bound to an Engine."""


@contextmanager
def backend_of(kind: str, directory: Path) -> Iterator[Backend]:
    """A backend, closed at the end."""
    backend = BACKENDS[kind](directory)
    try:
        yield backend
    finally:
        backend.close()
