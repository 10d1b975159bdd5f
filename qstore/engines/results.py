"""What the errors of drivers and of SQLAlchemy are in qstore's tree: by SQLite's result codes, never by their text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from qstore.errors import BackendUnsupported, FormatError, InvalidInput, QstoreError, StoreBusy, StoreFull

__all__ = [
    "BUSY_TIMEOUT",
    "ERRORS",
    "LOCK_TAKEN",
    "SNAPSHOT_LOST",
    "busy",
    "conflict",
    "described",
    "in_one_line",
    "kept_out",
    "looking",
    "moved",
    "opened_path",
    "primary",
    "translate",
    "translated",
    "unreadable",
    "unsure",
    "without_passwords",
]

BUSY_TIMEOUT = 5.0
"""Seconds that a writer waits for the write lock."""

SNAPSHOT_LOST = (
    "{target}: another connection has written since this transaction first read, so it cannot write any more. Nothing"
    " was changed: roll back and repeat the whole transaction, and write, or take the write lock, before reading"
    " (qstore.write_session; BEGIN IMMEDIATE) ({name})"
)

LOCK_TAKEN = (
    "{target}: another connection has the write lock. SQLite does not wait for it where a transaction has read before"
    " it writes. Nothing was changed: roll back and repeat the whole transaction, and write, or take the write lock,"
    " before reading (qstore.write_session; BEGIN IMMEDIATE) (SQLITE_BUSY)"
)

NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE)


CONFLICTS = ("40001", "40P01")

ERRORS = (sqlite3.Error, SQLAlchemyError)
"""What a statement, a transaction or the pool can raise."""


@contextmanager
def translated(target: str) -> Iterator[None]:
    """Raise in qstore's tree what qstore knows, and pass the rest through unchanged."""
    try:
        yield
    except ERRORS as error:
        if (known := translate(error, target)) is None:
            raise
        raise known from error


def translate(error: BaseException, target: str) -> QstoreError | None:
    """A driver's or SQLAlchemy's error in qstore's tree; None if it is not one that qstore knows."""
    if isinstance(error, DBAPIError):
        return None if error.orig is None else translate(error.orig, target)
    if isinstance(error, PoolTimeout):
        return StoreBusy(f"{target}: no connection of the pool came free in time. Nothing was changed: {error}")
    if isinstance(error, sqlite3.Error):
        return _of_sqlite(error, target)
    return _of_server(error, target)


def severity(error: BaseException) -> str | None:
    """How serious a server says that an error is, in English."""
    for told in (error, error.__cause__):  # SQLAlchemy's, of an async driver's own
        if (found := getattr(told, "severity_en", None) or getattr(told, "diag", None)) is not None:
            return str(getattr(found, "severity_nonlocalized", found))
    return None


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE that a server's driver gives, if it does."""
    orig = error.orig if isinstance(error, DBAPIError) else error
    found: str | None = getattr(orig, "sqlstate", None)
    return found


def conflict(error: BaseException) -> bool:
    """Whether a server has refused a transaction for what another one does at the same time: it may be repeated."""
    return sqlstate(error) in CONFLICTS


def _of_server(error: BaseException, target: str) -> QstoreError | None:
    match state := sqlstate(error):
        case "40001" | "40P01" | "55P03":
            return StoreBusy(
                f"{target}: in conflict with another transaction. Nothing was changed: repeat the call, or in a"
                f" transaction of yours roll back and repeat the whole of it (SQLSTATE {state})"
            )
        case "53300":
            return StoreBusy(f"{target}: the server has no connection left. Nothing was changed (SQLSTATE {state})")
        # Where its log finds no room the server panics, in a commit say: nobody knows then what was written.
        case "53100" if severity(error) != "PANIC":
            return StoreFull(f"{target}: no room on the server's disk. Nothing was written: make room, then repeat")
        case "25006":
            return BackendUnsupported(f"{target}: expected a writable database, found one that is read-only ({state})")
        case _:
            return None


def _of_sqlite(error: sqlite3.Error, target: str) -> QstoreError | None:
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", "")
    match primary(error):
        case None:
            return None
        case sqlite3.SQLITE_BUSY if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return StoreBusy(SNAPSHOT_LOST.format(target=target, name=name))
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return kept_out(target, name)
        # SQLite has no code of its own for a log that may not grow, or an index of it that finds no room.
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR if code in NO_ROOM:
            return StoreFull(
                f"{target}: no room on the disk, or a limit of the file's size is reached. Nothing was written:"
                f" make room, then repeat the call ({name})"
            )
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return unreadable(f"{error} ({name})", target)
        case sqlite3.SQLITE_READONLY if code == sqlite3.SQLITE_READONLY_DBMOVED:
            return moved(target)
        case sqlite3.SQLITE_READONLY if code == sqlite3.SQLITE_READONLY:
            return BackendUnsupported(f"{target}: expected a writable store, found one that is read-only ({name})")
        case sqlite3.SQLITE_TOOBIG:
            return InvalidInput(
                "payload", f"larger than {target} takes in one value or row. Nothing was written ({name})"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY:
            return FormatError(
                "the file cannot be opened. The file must be readable, and its directory must exist and be writable"
                " for the -wal and -shm files beside it",
                found=f"{error} ({name})",
                supported="a file in a writable directory on a local disk",
                target=target,
            )
        case _:
            return None


def unreadable(found: str, target: str) -> FormatError:
    """The error for a file that SQLite cannot make sense of."""
    return FormatError(
        "the file is not a readable SQLite database",
        found=found,
        supported="a SQLite database, or an absent or empty file",
        target=target,
    )


@contextmanager
def looking(target: str) -> Iterator[None]:
    """Where a file is looked at for the first time, with statements that have no error of their own.

    Of a file in a format that it does not know SQLite says SQLITE_ERROR, as of any mistake in a statement, and the
    driver has no code at all for a schema that is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as error:  # the driver's, for what SQLite says of a damaged schema
        raise unreadable(f"a schema that is not UTF-8: {error}", target) from error
    except sqlite3.Error as error:
        if primary(error) not in (None, sqlite3.SQLITE_ERROR):
            raise
        raise unreadable(f"{error} ({getattr(error, 'sqlite_errorname', '')})", target) from error


def kept_out(target: str, name: str = "SQLITE_BUSY") -> StoreBusy:
    """The error for one who has not had the write lock in time."""
    return StoreBusy(
        f"{target}: another connection kept the write lock for the whole of the wait"
        f" ({BUSY_TIMEOUT:g} s unless set otherwise). Nothing was changed: repeat the call ({name})"
    )


def moved(target: str) -> FormatError:
    """The error for a file that was deleted or replaced while it was open."""
    return FormatError(
        "the file was deleted or replaced while this engine had it open. Close the engine and open the store again",
        found="another file, or none",
        supported="the file that was opened",
        target=target,
    )


def busy(error: BaseException) -> bool:
    """Whether SQLite says that another connection has a lock."""
    return isinstance(error, sqlite3.Error) and primary(error) == sqlite3.SQLITE_BUSY


def unsure(error: BaseException | None) -> bool:
    """Whether nobody knows what became of a commit that failed with this: what was to be synced may be on the disk."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or unsure(error.orig)
    return (
        isinstance(error, sqlite3.Error)
        and primary(error) == sqlite3.SQLITE_IOERR
        and getattr(error, "sqlite_errorcode", None) not in NO_ROOM
    )


def primary(error: sqlite3.Error) -> int | None:
    """The primary result code; None for an error that is the driver's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def in_one_line(error: BaseException) -> str:
    """What a driver or the system says, without the statement and its values."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return f"{' '.join(str(said).split())} ({type(said).__name__})"


def opened_path(engine: Engine) -> str | None:
    """The path of the file, if qstore opened the engine."""
    file: Any = engine.get_execution_options().get("qstore_file")
    return None if file is None else str(file.path)


def described(engine: Engine) -> str:
    """The database's name for messages: the file, or the URL without its passwords."""
    return opened_path(engine) or without_passwords(engine.url)


def without_passwords(url: URL) -> str:
    """A URL for messages, without its passwords, also those in parameters."""
    hidden = {name: "..." for name in url.query if "password" in name.lower()}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)
