"""The write lock, seen and taken by another hand; and stores that wait for it only shortly."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from qstore import open_async_engine, open_engine
from qstore.engines import companion
from tests import postgres, turso, write_lock
from tests.backends import (
    CHOSEN,
    AsyncConnectionBackend,
    AsyncHostBackend,
    AsyncSessionBackend,
    AsyncWatchedBackend,
    Backend,
    ConnectionBackend,
    HostBackend,
    ServerBackend,
    SessionBackend,
    TursoBackend,
    WatchedBackend,
)
from tests.contract.contents import TABLES

PATIENCE = 0.1
"""Seconds that an impatient store waits."""


@contextmanager
def write_locked(backend: Backend, store: str) -> Iterator[None]:
    """Hold a store's write lock; on a server, a lock on each of its tables that keeps all writers out."""
    if isinstance(backend, ServerBackend):
        with closing(postgres.connect(backend.url)) as server, server.transaction():
            for table in TABLES[store]:
                server.execute(f"LOCK TABLE {backend.table(store, table)} IN EXCLUSIVE MODE")
            yield
        return
    if isinstance(backend, TursoBackend):
        with turso.locked(backend.path(store)):
            yield
        return
    with closing(sqlite3.connect(backend.path(store), timeout=5, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def lock_is_free(backend: Backend, store: str) -> bool:
    """Whether the write lock can be had at once; on a server, whether nobody holds a writer's lock on a table."""
    if isinstance(backend, ServerBackend):
        held = "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)"
        held += " WHERE a.datname = current_database() AND a.backend_type = 'client backend'"
        held += " AND l.mode IN ('RowExclusiveLock', 'RowShareLock', 'ExclusiveLock') AND l.relation IS NOT NULL"
        return backend.sql(store, held) == [(0,)]
    if isinstance(backend, TursoBackend):
        return turso.is_free(backend.path(store))
    return write_lock.is_free(backend.path(store))


class ImpatientOpened(WatchedBackend):
    """Native files on an engine of qstore's without a listener, as `open` has it."""

    def _create_engine(self, store: str) -> Engine:
        engine = open_engine(self.path(store))
        event.listen(engine.pool, "connect", _impatient)
        return engine


class ImpatientWatched(WatchedBackend):
    def _create_engine(self, store: str) -> Engine:
        engine = super()._create_engine(store)
        event.listen(engine.pool, "connect", _impatient)
        return engine


class ImpatientHost(HostBackend):
    def _create_engine(self, store: str) -> Engine:
        return create_engine(f"sqlite:///{self.path(store)}", connect_args={"timeout": PATIENCE})


class ImpatientConnection(ImpatientHost, ConnectionBackend):
    pass


class ImpatientSession(ImpatientHost, SessionBackend):
    pass


class ImpatientAsync(AsyncWatchedBackend):
    """Native files on an async engine of qstore's without a listener, as `open` has it."""

    def _create_async_engine(self, store: str) -> AsyncEngine:
        engine = open_async_engine(self._target(store))
        behind = companion(engine.sync_engine)
        assert behind is not None
        event.listen(behind.engine.pool, "connect", _impatient)
        return engine

    def _target(self, store: str) -> Any:
        return self.path(store)


class ImpatientAsyncWatched(AsyncWatchedBackend):
    def _create_async_engine(self, store: str) -> AsyncEngine:
        engine = super()._create_async_engine(store)
        event.listen(engine.sync_engine.pool, "connect", _impatient)
        return engine


class ImpatientAsyncHost(AsyncHostBackend):
    def _create_async_engine(self, store: str) -> AsyncEngine:
        return create_async_engine(f"sqlite+aiosqlite:///{self.path(store)}", connect_args={"timeout": PATIENCE})


class ImpatientAsyncConnection(ImpatientAsyncHost, AsyncConnectionBackend):
    pass


class ImpatientAsyncSession(ImpatientAsyncHost, AsyncSessionBackend):
    pass


class ImpatientTurso(TursoBackend, WatchedBackend):
    """Native files on an engine of qstore's on turso, without a listener."""

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        return WatchedBackend._repository(self, store, kind, arguments)

    def _create_engine(self, store: str) -> Engine:
        engine = open_engine(f"sqlite+turso:///{self.path(store)}")
        event.listen(engine.pool, "connect", _impatient)
        return engine


class ImpatientAsyncTurso(TursoBackend, ImpatientAsync):
    """The same for the async twins."""

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        return ImpatientAsync._repository(self, store, kind, arguments)

    def _target(self, store: str) -> str:
        return f"sqlite+turso:///{self.path(store)}"


IMPATIENT: dict[str, type[Backend]] = {
    "opened": ImpatientOpened,
    "watched": ImpatientWatched,
    "host": ImpatientHost,
    "connection": ImpatientConnection,
    "session": ImpatientSession,
    "async": ImpatientAsync,
    "async watched": ImpatientAsyncWatched,
    "async host": ImpatientAsyncHost,
    "async connection": ImpatientAsyncConnection,
    "async session": ImpatientAsyncSession,
    "turso": ImpatientTurso,
    "async turso": ImpatientAsyncTurso,
}
IMPATIENT = {kind: impatient for kind, impatient in IMPATIENT.items() if kind in CHOSEN}


def _impatient(driver: Any, _record: Any) -> None:
    cursor = driver.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")
    cursor.close()
