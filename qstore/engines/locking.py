"""SQLite's transactions and write lock, in whichever way a connection's host runs its transactions.

Three kinds of hosts. The driver is in a transaction when SQLAlchemy is (its documented BEGIN recipe, or
`autocommit=False`); or only from the first write on (the driver's legacy mode, SQLAlchemy's default); or never
(AUTOCOMMIT).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from inspect import isawaitable
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Transaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from qstore.engines.results import LOCK_TAKEN, SNAPSHOT_LOST, described
from qstore.errors import BackendUnsupported, StoreBusy
from qstore.suspending import sleep

__all__ = ["WRITE_NOTHING", "begun", "in_transaction", "savepoint", "unwaiting", "write_locked"]

# The one statement that takes the write lock without a table to name. It waits for it as any first write does. (With
# auto_vacuum=INCREMENTAL it also gives one free page back.)
WRITE_NOTHING = "PRAGMA incremental_vacuum(1)"

BRIEF = 4
"""Milliseconds that one who takes turns waits in SQLite: which does not wait at all where that would be in vain."""


def begun(connection: Connection) -> None:
    """Begin what the host's SQLAlchemy says has begun, so that what is read now is part of the transaction.

    Otherwise two that read, then write, would both succeed, and one of them lose its update without a word.
    """
    if not in_transaction(connection) and not _autocommits(connection):
        connection.exec_driver_sql("BEGIN")


@contextmanager
def write_locked(connection: Connection) -> Iterator[None]:
    """Hold the write lock from here to the end of the connection's transaction (in AUTOCOMMIT: to the end of this)."""
    if in_transaction(connection):
        _lift_savepoints(connection)
    if in_transaction(connection):
        _take_lock(connection)
        yield
        return
    if not _taken_in_turn(connection, "BEGIN IMMEDIATE"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if not _autocommits(connection):
        yield
        return
    try:
        yield
        if _can_undo(connection):  # unless the host has ended it itself
            connection.exec_driver_sql("COMMIT")
    except BaseException:
        if _can_undo(connection):
            connection.exec_driver_sql("ROLLBACK")
        raise


@contextmanager
def unwaiting(connection: Connection, milliseconds: int = 0) -> Iterator[tuple[Any, float]]:
    """Wait for no lock, or hardly, from before the connection's transaction to after it.

    Gives a cursor of the driver's, and how long it would have waited, in seconds.
    """
    # On the driver's connection: SQLAlchemy would begin the transaction first, and a host's recipe wait for the lock.
    cursor: Any = connection.connection.cursor()
    with closing(cursor):
        cursor.execute("PRAGMA busy_timeout")
        [timeout] = cursor.fetchone()
        cursor.execute(f"PRAGMA busy_timeout = {min(milliseconds, timeout)}")
        try:
            yield cursor, timeout / 1000
        finally:
            if not connection.invalidated:
                try:
                    cursor.execute(f"PRAGMA busy_timeout = {timeout}")
                except BaseException:  # whoever had it next would hardly wait
                    connection.invalidate()
                    raise


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo what is done inside if it fails, and leave the rest of the transaction to its owner."""
    connection.exec_driver_sql("SAVEPOINT qstore_operation")
    try:
        yield
    except BaseException:
        if _can_undo(connection):
            connection.exec_driver_sql("ROLLBACK TO qstore_operation")
            connection.exec_driver_sql("RELEASE qstore_operation")
        raise
    connection.exec_driver_sql("RELEASE qstore_operation")


def in_transaction(connection: Connection) -> bool:
    """Whether the driver, not only SQLAlchemy, is in a transaction."""
    try:
        return bool(_driver(connection).in_transaction)
    except AttributeError as error:
        raise BackendUnsupported(
            f"expected a SQLite driver that tells whether it is in a transaction, found {connection.dialect.driver}"
        ) from error


def _taken_in_turn(connection: Connection, statement: str) -> bool:
    """Take the lock with a statement, among those who take turns, if qstore opened the connection's engine."""
    file: Any = connection.engine.get_execution_options().get("qstore_file")
    transaction = connection.get_transaction()
    if file is None or file.driver != "sqlite" or transaction in _locked:
        return False
    with unwaiting(connection, BRIEF) as (cursor, patience):

        def told(error: sqlite3.Error) -> BaseException:
            return DBAPIError.instance(statement, (), error, sqlite3.Error, dialect=connection.dialect)

        def attempt() -> None:
            began = time.monotonic()
            try:
                cursor.execute(statement)
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
                    raise told(error) from error
                if _in_vain(error, time.monotonic() - began, min(BRIEF / 1000, patience)):
                    raise _taken(connection) from told(error)
                raise

        try:
            file.turns.take(attempt, patience, partial(sleep, connection.dialect))
        except sqlite3.Error as error:
            raise told(error) from error
    if transaction is not None:
        _locked.add(transaction)
    return True


_locked: WeakSet[Transaction] = WeakSet()
"""Transactions that have had the lock: they let nobody first any more."""


def _take_lock(connection: Connection) -> None:
    if _taken_in_turn(connection, WRITE_NOTHING):
        return
    began = time.monotonic()
    try:
        connection.exec_driver_sql(WRITE_NOTHING)
    except DBAPIError as error:
        waited = time.monotonic() - began
        patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() / 1000
        if not _in_vain(error.orig, waited, patience):
            raise
        raise _taken(connection) from error


def _in_vain(error: BaseException | None, waited: float, patience: float) -> bool:
    """Whether SQLite has not waited for the lock: the transaction has read before, and could not write after that."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY and waited < patience / 2


def _taken(connection: Connection) -> StoreBusy:
    return StoreBusy(LOCK_TAKEN.format(target=described(connection.engine)))


def _lift_savepoints(connection: Connection) -> None:
    """Put a transaction below savepoints that have none.

    In the driver's legacy mode a savepoint may be the first that SQLite hears of a transaction; its release would then
    commit, and the host's rollback find nothing to undo. While nothing is written yet they can be opened once more.
    What was read since they were opened must still hold then: otherwise the snapshot is lost, as it is without them.
    """
    driver = _driver(connection)
    nested: Any = connection.get_nested_transaction()
    if nested is None or not hasattr(driver, "backup") or _autocommits(connection):
        return
    seen = _data_version(connection)
    if _writing(connection):
        return
    names = []
    while nested is not None:
        names.append(nested._savepoint)
        nested = nested._previous_nested
    connection.exec_driver_sql(f"RELEASE {names[-1]}")
    try:
        if not in_transaction(connection):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        for name in reversed(names):
            connection.exec_driver_sql(f"SAVEPOINT {name}")
    if _data_version(connection) != seen:
        raise StoreBusy(SNAPSHOT_LOST.format(target=described(connection.engine), name="SQLITE_BUSY_SNAPSHOT"))


def _data_version(connection: Connection) -> object:
    """A number that changes with each commit of another connection. The first look begins the snapshot."""
    return connection.exec_driver_sql("PRAGMA data_version").scalar_one()


def _writing(connection: Connection) -> bool:
    """Whether the connection has written in its transaction. A backup is what tells: it is refused then."""

    class Told(Exception):
        pass

    found: list[int] = []

    def tell(status: int, _remaining: int, _total: int) -> None:
        found.append(status)
        raise Told

    databases = [name for _, name, _ in connection.exec_driver_sql("PRAGMA database_list").fetchall()]
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as nowhere:
        for name in databases:
            with suppress(Told):
                backup = _driver(connection).backup(nowhere, pages=1, progress=tell, name=name)
                if isawaitable(backup):  # aiosqlite's, which does it in the connection's thread
                    await_only(backup)
    return sqlite3.SQLITE_BUSY in found


def _can_undo(connection: Connection) -> bool:
    """Whether there is still a transaction. SQLAlchemy gives a connection up that was interrupted from the keyboard."""
    return not connection.closed and not connection.invalidated and in_transaction(connection)


def _autocommits(connection: Connection) -> bool:
    driver = _driver(connection)
    return driver.isolation_level is None or getattr(driver, "autocommit", None) is True


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection
