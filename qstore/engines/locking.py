"""SQLite's write lock, taken before anything else is done, in whichever way a connection runs its transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from qstore.errors import BackendUnsupported

__all__ = ["by_hand", "in_transaction", "savepoint", "write_locked"]

# The one statement that takes the write lock without a table to name. It waits for it as any first write does.
WRITE_NOTHING = "PRAGMA incremental_vacuum(1)"


@contextmanager
def by_hand(driver: Any) -> Iterator[None]:
    """One transaction on a driver's connection that is in none: BEGIN IMMEDIATE to COMMIT, or ROLLBACK on any error."""
    driver.execute("BEGIN IMMEDIATE")
    try:
        yield
        driver.execute("COMMIT")
    except BaseException:
        if driver.in_transaction:  # SQLite may have rolled back by itself, a full disk for one
            driver.execute("ROLLBACK")
        raise


@contextmanager
def write_locked(connection: Connection) -> Iterator[None]:
    """Hold the write lock from here to the end of the connection's transaction.

    Three kinds of hosts. The driver is in a transaction already (SQLAlchemy's documented BEGIN recipe,
    `autocommit=False`, or an earlier write): a write that changes nothing takes the lock. It is not, as in its legacy
    mode before the first write: BEGIN IMMEDIATE, and SQLAlchemy's commit or rollback ends it. It commits each statement
    by itself (AUTOCOMMIT): BEGIN IMMEDIATE, ended here.
    """
    if in_transaction(connection):
        connection.exec_driver_sql(WRITE_NOTHING)
        yield
        return
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    if not _autocommits(connection):
        yield
        return
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        if in_transaction(connection):
            connection.exec_driver_sql("ROLLBACK")
        raise


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo what is done inside if it fails, and leave the rest of the transaction to its owner."""
    connection.exec_driver_sql("SAVEPOINT qstore_operation")
    try:
        yield
    except BaseException:
        if in_transaction(connection):
            connection.exec_driver_sql("ROLLBACK TO qstore_operation")
            connection.exec_driver_sql("RELEASE qstore_operation")
        raise
    connection.exec_driver_sql("RELEASE qstore_operation")


def in_transaction(connection: Connection) -> bool:
    """Whether the driver, not only SQLAlchemy, is in a transaction."""
    try:
        return bool(connection.connection.driver_connection.in_transaction)  # type: ignore[union-attr]
    except AttributeError as error:
        raise BackendUnsupported(
            f"expected a SQLite driver that tells whether it is in a transaction, found {connection.dialect.driver}"
        ) from error


def _autocommits(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return driver.isolation_level is None or getattr(driver, "autocommit", None) is True
