"""A host's own transaction, which repositories join: its sync ones, and its async ones, driven from sync tests."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from typing_extensions import override

from qstore import open_async_engine, open_engine
from tests.awaiting import EventLoop
from tests.backends import MOUNTED, TWINS, AsyncHostBackend, Backend, HostBackend
from tests.contract.twins import KINDS

T = TypeVar("T")

PLAIN = "SQLAlchemy's defaults"
RECIPE = "BEGIN recipe"
OPENED = "an engine of qstore's"


def _recipe(engine: Engine) -> None:
    """SQLAlchemy's documented recipe for transactions that begin where SQLAlchemy begins them."""

    @event.listens_for(engine, "connect")
    def legacy_mode_off(driver: Any, _record: Any) -> None:
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def _engine(kind: str, path: Path) -> Engine:
    if kind == OPENED:
        return open_engine(path)
    engine = create_engine(f"sqlite:///{path}")
    if kind == RECIPE:
        _recipe(engine)
    return engine


def _async_engine(kind: str, path: Path) -> AsyncEngine:
    if kind == OPENED:
        return open_async_engine(path)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    if kind == RECIPE:
        _recipe(engine.sync_engine)
    return engine


class Savepoint(AbstractContextManager[object], Protocol):
    """A savepoint that was begun."""

    def rollback(self) -> None: ...


class Host(Backend):
    """A host's database with the stores mounted and a table of its own, and one transaction on it."""

    kind: str
    """What the host did to its engine."""
    engine: Engine
    """What SQLAlchemy tells its events of."""
    bind: Any
    """The Connection or Session; an async one is awaited by the call itself."""

    @abstractmethod
    def joined(self, store: str, **arguments: Any) -> Any:
        """A store's repository in the host's transaction."""

    @abstractmethod
    def nested(self) -> Savepoint:
        """A savepoint in the host's transaction."""

    @abstractmethod
    def elsewhere(self, look: Callable[[Connection], T]) -> T:
        """Look at the database in another connection of the host's engine."""

    def order(self, name: str) -> None:
        """Write in the host's transaction."""
        self.bind.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})

    def look(self) -> None:
        """Read in the host's transaction."""
        self.bind.execute(text("SELECT count(*) FROM orders")).all()

    def orders(self) -> list[str]:
        """The orders that were committed."""
        return [name for (name,) in self.sql("transport", "SELECT name FROM orders ORDER BY name")]


class SyncHost(Host, HostBackend):
    """A host that blocks."""

    def __init__(self, directory: Path, kind: str, bound: type[Connection] | type[Session]) -> None:
        super().__init__(directory)
        self.kind = kind
        self.engine = self._engine("host")
        self.sql("transport", "CREATE TABLE orders (name TEXT NOT NULL)")
        self.bind = self.engine.connect() if bound is Connection else Session(self.engine)
        self._closing.append(self.bind.close)

    @override
    def joined(self, store: str, **arguments: Any) -> Any:
        return KINDS[store](self.bind, naming=MOUNTED, **arguments)

    @override
    def nested(self) -> Savepoint:
        savepoint: Savepoint = self.bind.begin_nested()
        return savepoint

    @override
    def elsewhere(self, look: Callable[[Connection], T]) -> T:
        with self.engine.connect() as connection:
            return look(connection)

    @override
    def _create_engine(self, store: str) -> Engine:
        return _engine(self.kind, self.path(store))


class AsyncHost(Host, AsyncHostBackend):
    """A host that awaits."""

    def __init__(self, directory: Path, kind: str, bound: type[AsyncConnection] | type[AsyncSession]) -> None:
        super().__init__(directory)
        self.kind = kind
        self.engine = self._async_engine("host").sync_engine
        self.sql("transport", "CREATE TABLE orders (name TEXT NOT NULL)")
        self._bind = self._connected() if bound is AsyncConnection else AsyncSession(self._async_engine("host"))
        self.bind = self.loop.sync(self._bind)
        self._closing.append(self.bind.close)

    @override
    def joined(self, store: str, **arguments: Any) -> Any:
        return self.loop.sync(TWINS[KINDS[store]](self._bind, naming=MOUNTED, **arguments))

    @override
    def nested(self) -> Savepoint:
        return _AsyncSavepoint(self.loop, self.bind.begin_nested())

    @override
    def elsewhere(self, look: Callable[[Connection], T]) -> T:
        async def looked() -> T:
            async with self._async_engine("host").connect() as connection:
                return await connection.run_sync(look)

        return self.loop.run(looked())

    def _connected(self) -> AsyncConnection:
        return self.loop.run(self._async_engine("host").connect())

    @override
    def _create_async_engine(self, store: str) -> AsyncEngine:
        return _async_engine(self.kind, self.path(store))


class _AsyncSavepoint:
    def __init__(self, loop: EventLoop, savepoint: Any) -> None:
        self._loop = loop
        self._savepoint = savepoint

    def rollback(self) -> None:
        self._loop.run(self._savepoint.rollback())

    def __enter__(self) -> object:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.run(self._savepoint.__aexit__(kind, error, traceback))


SYNC_HOSTS: list[tuple[str, Any]] = [
    (kind, bound) for kind in (PLAIN, RECIPE, OPENED) for bound in (Connection, Session)
]
ASYNC_HOSTS: list[tuple[str, Any]] = [
    (PLAIN, AsyncConnection),
    (PLAIN, AsyncSession),
    (RECIPE, AsyncSession),
    (OPENED, AsyncConnection),
]
"""Each engine and each bind. How an async bind is taken apart does not depend on the engine, nor on the twin what is
done with it then, so that not each pair is a host of its own."""


def host_of(directory: Path, kind: str, bound: Any) -> Host:
    """A host's own transaction, sync or async by what repositories are bound to."""
    return (AsyncHost if (kind, bound) in ASYNC_HOSTS else SyncHost)(directory, kind, bound)
