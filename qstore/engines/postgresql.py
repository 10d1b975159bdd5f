"""PostgreSQL: engines on a server, and the lock under which one upgrade waits for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection
from sqlalchemy import create_engine as create_sync_engine
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DBAPIError

from qstore.capabilities import capabilities
from qstore.engines import locking
from qstore.engines.forking import Sockets, renewed_in_children
from qstore.engines.lending import AsyncLendingPool, LendingPool, Lent, lend
from qstore.engines.results import described, sqlstate
from qstore.errors import BackendUnsupported, StoreBusy

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = [
    "EXTRAS",
    "beginning",
    "check_encoding",
    "commits_each",
    "committed",
    "committing",
    "connected",
    "create",
    "create_async",
    "driver_extra",
    "lent",
    "upgrading",
]

EXTRAS = {"psycopg": "postgres", "asyncpg": "asyncpg"}
"""The extra that brings each driver."""

# The first 8 bytes of SHA-256("qstore:upgrade").
UPGRADE_LOCK = "SELECT pg_advisory_xact_lock(2148425870211470387)"


LOWEST = "read committed"
"""The level at which each statement sees what was committed before it."""

# A table, a column, an index or a row that this transaction's snapshot does not have, and that is there.
MADE_ALREADY = ("42P07", "42701", "42710", "23505")

_READ_ONLY = {"default_transaction_read_only": "on"}
_READING = {"options": "-c default_transaction_read_only=on"}


def create(url: URL, *, read_only: bool) -> Engine:
    """An engine on a server's database. Nothing is connected yet."""
    if url.get_driver_name() != "psycopg":
        raise BackendUnsupported(
            f"expected a driver that is not async, found {url.drivername}: see open_async_engine, and the Async twins"
        )
    with driver_extra(url):
        engine = create_sync_engine(url, connect_args=_READING if read_only else {}, poolclass=LendingPool)
    renewed_in_children(engine, forget=Sockets(engine.pool).let_go)
    return engine


def create_async(url: URL, *, read_only: bool) -> AsyncEngine:
    """An async engine on a server's database. Nothing is connected yet."""
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  needs the extra

    reading = _READING if url.get_driver_name() == "psycopg" else {"server_settings": _READ_ONLY}
    with driver_extra(url):
        engine = create_async_engine(url, connect_args=reading if read_only else {}, poolclass=AsyncLendingPool)
    renewed_in_children(engine.sync_engine, forget=Sockets(engine.sync_engine.pool).let_go)
    return engine


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """A connection of the engine's pool. BackendUnsupported where SQLAlchemy cannot even read the server's version."""
    try:
        connection = engine.connect()
    except TypeError as error:
        raise _unreadable(engine, error) from error
    with connection:
        yield connection


def lent(engine: Engine) -> Lent:
    """A connection of the engine's pool, to be given back, on which each statement commits by itself."""
    try:
        return lend(engine)
    except TypeError as error:
        raise _unreadable(engine, error) from error


def _unreadable(engine: Engine, error: TypeError) -> BackendUnsupported:
    # From SQL_ASCII psycopg gives bytes for text, the first of which is the server's version.
    if all(frame.f_code.co_name != "_get_server_version_info" for frame, _ in walk_tb(error.__traceback__)):
        raise error
    return _unfit(engine, "SQL_ASCII")


def check_encoding(connection: Connection) -> None:
    """Refuse a server's database that cannot hold all text."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise _unfit(connection.engine, encoding)


def _unfit(engine: Engine, encoding: str) -> BackendUnsupported:
    return BackendUnsupported(
        f"{described(engine)}: expected a database with the encoding UTF8, which holds all text, found {encoding}:"
        " make another one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
    )


@contextmanager
def committing(connection: Connection) -> Iterator[None]:
    """Have each statement commit by itself, in one round trip. The connection goes back as it was found.

    On the driver's own attribute: SQLAlchemy's AUTOCOMMIT sets the isolation level too, and later not to what it was.
    """
    driver: Any = connection.connection.dbapi_connection
    if driver.autocommit:
        yield
        return
    driver.commit()  # what a listener has begun on it
    driver.autocommit = True
    try:
        yield
    finally:
        if not connection.invalidated:
            driver.autocommit = False


class Closable(Protocol):
    """A connection that what interrupts it may close."""

    @property
    def invalidated(self) -> bool:
        """Whether it is closed."""


@contextmanager
def committed(connection: Closable, execute: Callable[[str], object]) -> Iterator[None]:
    """A transaction on a server's connection that otherwise commits each statement."""
    execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        yield
    except BaseException:
        if not connection.invalidated:
            execute("ROLLBACK")
        raise
    execute("COMMIT")


def commits_each(connection: Connection) -> bool:
    """Whether a caller's connection is in AUTOCOMMIT, so that each statement is a transaction."""
    driver: Any = connection.connection.dbapi_connection
    return bool(driver.autocommit)


@contextmanager
def driver_extra(url: URL) -> Iterator[None]:
    """Import what a URL's driver needs."""
    try:
        yield
    except ImportError as error:
        driver = url.get_driver_name()
        extra = EXTRAS.get(driver, driver)
        raise BackendUnsupported(
            f"expected the driver {driver}, found no package {error.name}: pip install 'qstore[{extra}]'"
        ) from error


def beginning(connection: Connection) -> AbstractContextManager[object]:
    """A transaction of qstore's own on a connection of its own, at the level that upgrades need."""
    if not capabilities(connection.dialect).one_writer:
        # At a higher level the snapshot is taken with the lock's statement, and what another upgrade made while this
        # one waited stays unseen.
        connection.execution_options(isolation_level="READ COMMITTED")
    return connection.begin()


@contextmanager
def upgrading(connection: Connection, *, savepoint: bool = False) -> Iterator[None]:
    """Hold the lock that upgrades wait for, to the end of the transaction. `savepoint`: it is the caller's."""
    if capabilities(connection.dialect).one_writer:
        with locking.write_locked(connection), locking.savepoint(connection) if savepoint else nullcontext():
            yield
        return
    with connection.begin_nested() if savepoint else nullcontext():
        level = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() if savepoint else LOWEST
        connection.exec_driver_sql(UPGRADE_LOCK)
        try:
            yield
        except DBAPIError as error:
            if level == LOWEST or sqlstate(error) not in MADE_ALREADY:
                raise
            raise StoreBusy(
                f"{described(connection.engine)}: another upgrade has made the tables since this transaction first"
                f" read, so that it cannot see them. Nothing was changed: roll back and repeat the whole transaction,"
                f" or upgrade at {LOWEST} (isolation {level})"
            ) from error
