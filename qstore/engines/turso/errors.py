"""turso's errors as sqlite3's, with SQLite's result codes, so that they mean the same to all who handle those.

turso's own lie in several trees, some cannot be imported, and most carry a text alone: here, and nowhere else, an error
is told by its class's name and its text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["as_sqlite", "kept_waiting"]

_KINDS: dict[str, tuple[type[sqlite3.Error], str]] = {
    "Busy": (sqlite3.OperationalError, "SQLITE_BUSY"),
    "BusySnapshot": (sqlite3.OperationalError, "SQLITE_BUSY_SNAPSHOT"),
    "Constraint": (sqlite3.IntegrityError, "SQLITE_CONSTRAINT"),
    "Corrupt": (sqlite3.DatabaseError, "SQLITE_CORRUPT"),
    "DatabaseFull": (sqlite3.OperationalError, "SQLITE_FULL"),
    "Interrupt": (sqlite3.OperationalError, "SQLITE_INTERRUPT"),
    "IoError": (sqlite3.OperationalError, "SQLITE_IOERR"),
    "SyncError": (sqlite3.OperationalError, "SQLITE_IOERR_FSYNC"),
    "Misuse": (sqlite3.ProgrammingError, "SQLITE_MISUSE"),
    "NotAdb": (sqlite3.DatabaseError, "SQLITE_NOTADB"),
    "Readonly": (sqlite3.OperationalError, "SQLITE_READONLY"),
}

_TEXTS = {
    "query_only mode": "Readonly",
    "No space left": "DatabaseFull",
    "storage full": "DatabaseFull",
    "File too large": "DatabaseFull",
    # As Rust names what the system says.
    "StorageFull": "DatabaseFull",
    "QuotaExceeded": "DatabaseFull",
    "FileTooLarge": "DatabaseFull",
    "ReadOnlyFilesystem": "Readonly",
    "database is locked": "Busy",
    "not a database": "NotAdb",
    "constraint failed": "Constraint",
    "schema changed": "BusySnapshot",  # in a transaction; outside of one the statement is prepared anew
}
"""What a generic error is, where its text has this."""


@contextmanager
def as_sqlite() -> Iterator[None]:
    """Raise what turso raises as sqlite3 would."""
    try:
        yield
    except Exception as error:
        found = error.__context__ if type(error).__module__ == "turso.lib" and error.__context__ else error
        if not type(found).__module__.startswith("turso"):
            raise
        raise _known(type(found).__name__, str(found)) from error


def kept_waiting() -> sqlite3.Error:
    """What sqlite3 raises where another connection has the lock."""
    return _known("Busy", "database is locked")


def _known(name: str, text: str) -> sqlite3.Error:
    if name == "IoError" and text.startswith("sync"):  # whatever the reason: what was to be synced may be on the disk
        name = "SyncError"
    elif name not in _KINDS or name == "IoError":
        name = next((known for part, known in _TEXTS.items() if part in text), name)
    kind, code = _KINDS.get(name, (sqlite3.OperationalError, "SQLITE_ERROR"))
    error = kind(text)
    error.sqlite_errorname = code
    error.sqlite_errorcode = getattr(sqlite3, code)
    return error
