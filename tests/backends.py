"""The ways to have a store, for tests that must hold on all of them.

A `Backend` hands out repositories on one directory of real files, and lets a test look at them with plain sqlite3.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from shutil import copyfile
from typing import Any, cast

import psycopg
from sqlalchemy import URL, Engine, create_engine, event
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
from qstore.formats import FORMATS
from tests import postgres, turso
from tests.awaiting import EventLoop
from tests.made_files import HOSTS, made, made_v1

TWINS: dict[Any, Any] = {
    TransportRepository: AsyncTransportRepository,
    LocalKvRepository: AsyncLocalKvRepository,
    LocalQueueRepository: AsyncLocalQueueRepository,
}
MOUNTED = HOSTS
STORES = ("transport", "localkv", "localqueue")
SEEDS_COLUMNS = {
    ("transport", "messages"): "seq, group_id, event, locked_by, lock_expiry",
    ("transport", "groups"): "group_id, last_claimed_at, priority",
    ("localkv", "kv"): "key, value, expires_at",
    ("localqueue", "messages"): "id, payload_type, payload_data, enqueued_at, visible_at, attempt, receipt_handle",
}


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

    def by_hand(self, store: str, statement: str, *values: Any) -> None:
        """Change rows as another hand would that leaves the store as it must be: with what a server's tables add."""
        self.sql(store, statement, *values)

    def refuse(self, store: str, when: str, resolution: str = "ABORT") -> None:
        """Make the database itself refuse what a trigger's event and condition say, by the name `refused here`."""
        self.sql(store, f"CREATE TRIGGER refuse {when} BEGIN SELECT RAISE({resolution}, 'refused here'); END")

    def relent(self, store: str, when: str) -> None:
        """Refuse it no more."""
        self.sql(store, "DROP TRIGGER refuse")

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


class ServerBackend(Backend):
    """All stores mounted in one database of a PostgreSQL server, on an engine made with SQLAlchemy's defaults."""

    naming = MOUNTED
    one_writer = False
    driver = "psycopg"

    def __init__(self, directory: Path, url: URL | None = None) -> None:
        super().__init__(directory)
        self.url = url or postgres.database()
        if url is None:
            self._closing.insert(0, lambda: postgres.drop(self.url))

    def make(self, store: str) -> None:
        """It is there."""

    def sql(self, store: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """As for SQLite: `?` is a value, and `*` the seed's columns, without those that a server's tables add."""
        with closing(postgres.connect(self.url)) as connection:
            return self._run(connection, store, statement, values)

    def by_hand(self, store: str, statement: str, *values: Any) -> None:
        with closing(postgres.connect(self.url)) as connection, connection.transaction():
            self._run(connection, store, statement, values)
            for repair in FORMATS[store].fill.get("postgresql", ()):
                connection.execute(self.naming.of(store).render(repair).encode())

    def refuse(self, store: str, when: str, resolution: str = "ABORT") -> None:
        assert resolution == "ABORT"
        event, _, condition = when.partition(" WHEN ")
        body = "BEGIN RAISE EXCEPTION 'refused here'; END"
        self.sql(store, f"CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        self.sql(
            store, f"CREATE TRIGGER refuse {event} FOR EACH ROW WHEN ({condition or 'true'}) EXECUTE FUNCTION refuse()"
        )

    def relent(self, store: str, when: str) -> None:
        table = when[when.index("{") : when.index("}") + 1]
        self.sql(store, f"DROP TRIGGER refuse ON {table}")

    def _run(
        self, connection: psycopg.Connection, store: str, statement: str, values: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        for (of, table), columns in SEEDS_COLUMNS.items():
            if of == store:
                statement = statement.replace(f"SELECT * FROM {{{table}}}", f"SELECT {columns} FROM {{{table}}}")
        rendered = self.naming.of(store).render(statement).replace("%", "%%").replace("?", "%s")
        cursor = connection.execute(rendered, values)
        return cursor.fetchall() if cursor.description else []

    def _create_engine(self, store: str) -> Engine:
        return create_engine(self.url)

    def _create_async_engine(self, store: str) -> AsyncEngine:
        return create_async_engine(self.url.set(drivername=f"postgresql+{self.driver}"))


class PostgresBackend(ServerBackend, HostBackend):
    """Bound to an Engine of a host's on a server."""


class OpenedServerBackend(ServerBackend):
    """Opened on a server by its URL: statements go to the driver."""

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        repository = kind.open(self.url, **arguments)
        self._closing.append(repository.close)
        return repository


class AsyncOpenedServerBackend(ServerBackend, AsyncBackend):
    """The async twins, opened on a server by its URL."""

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        url = self.url.set(drivername=f"postgresql+{self.driver}")
        repository = self.loop.run(TWINS[kind].open(url, **arguments))
        self._closing.append(lambda: self.loop.run(repository.close()))
        return self.loop.sync(repository)


class AsyncpgOpenedServerBackend(AsyncOpenedServerBackend):
    """The async twins, opened on a server through asyncpg."""

    driver = "asyncpg"


class ServerWatchedBackend(PostgresBackend):
    """Bound to an Engine of a host's on a server, with a listener: statements go through SQLAlchemy."""

    def _create_engine(self, store: str) -> Engine:
        engine = super()._create_engine(store)
        event.listen(engine, "before_cursor_execute", lambda *_: None)
        return engine


class PostgresSessionBackend(ServerBackend, SessionBackend):
    """Bound to a Session of a host's on a server."""

    @property
    def engine(self) -> Engine:
        """The host's engine."""
        return self._engine("host")


class AsyncPostgresBackend(ServerBackend, AsyncHostBackend):
    """The async twins on a server, through psycopg."""


class AsyncpgBackend(ServerBackend, AsyncHostBackend):
    """The async twins on a server, through asyncpg."""

    driver = "asyncpg"


class AsyncpgSessionBackend(ServerBackend, AsyncSessionBackend):
    """Bound to an AsyncSession of a host's on a server, through asyncpg."""

    driver = "asyncpg"


class TursoBackend(Backend):
    """Native files opened with turso, which other processes look at with turso, too."""

    def sql(self, store: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return turso.rows(self.path(store), self.naming.of(store).render(statement), values)

    def make(self, store: str) -> None:
        super().make(store)
        # As if it had been in use with turso before: the first opening waits for those who may use SQLite.
        Path(f"{self.path(store)}.lock").touch()

    def _repository(self, store: str, kind: Any, arguments: dict[str, Any]) -> Any:
        return super()._repository(store, kind, {"engine": "turso", **arguments})


class AsyncTursoBackend(TursoBackend, AsyncBackend):
    """The async twins on native files opened with turso."""


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
    "turso": TursoBackend,
    "async turso": AsyncTursoBackend,
    "postgres": PostgresBackend,
    "postgres session": PostgresSessionBackend,
    "async postgres": AsyncPostgresBackend,
    "asyncpg": AsyncpgBackend,
    "asyncpg session": AsyncpgSessionBackend,
    "opened on a server": OpenedServerBackend,
    "watched on a server": ServerWatchedBackend,
    "async opened on a server": AsyncOpenedServerBackend,
    "asyncpg opened on a server": AsyncpgOpenedServerBackend,
}
DEFAULT = (
    *("opened", "opened, v1", "host", "session", "async", "async session"),
    *("opened on a server", "postgres", "asyncpg"),
)
"""What a run has unless QSTORE_TEST_BACKENDS names others (`all`: every one). CI has the rest on the other Pythons,
but for those that differ from one of all these in one step alone."""

_named = os.environ.get("QSTORE_TEST_BACKENDS")
CHOSEN = tuple(BACKENDS) if _named == "all" else tuple(_named.split(";")) if _named else DEFAULT
"""The back ends of this run."""
ON_FILES = tuple(kind for kind in CHOSEN if BACKENDS[kind].one_writer)
"""Those whose database is SQLite's."""
OF_ANY_BYTES = tuple(kind for kind in ON_FILES if not issubclass(BACKENDS[kind], TursoBackend))
"""Those whose texts may be of any bytes. turso's are UTF-8, and one that is not cannot be read with it."""
ON_A_SERVER = tuple(kind for kind in CHOSEN if kind not in ON_FILES)
CHECKING = tuple(kind for kind in CHOSEN if kind in (*ON_FILES, "postgres"))
"""For what is decided before a statement is run or after: the same whatever a server is reached by."""
SETTLING = (*ON_FILES, *(kind for kind in ON_A_SERVER if not BACKENDS[kind].joins))
"""Those that set a claim stamp of the future right: on a server, only in a transaction of qstore's own."""
SHARED = tuple(kind for kind in CHOSEN if not BACKENDS[kind].joins)
"""Those whose repositories any number of threads may share: bound to an Engine."""


@contextmanager
def backend_of(kind: str, directory: Path) -> Iterator[Backend]:
    """A backend, closed at the end."""
    backend = BACKENDS[kind](directory)
    try:
        yield backend
    finally:
        backend.close()
