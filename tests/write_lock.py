"""SQLite's write lock, asked for from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def is_free(path: Path) -> bool:
    """Whether the write lock can be had at once."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        return can_begin(connection)


def can_begin(connection: Any) -> bool:
    """The same on a connection that does not wait."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        return False
    connection.execute("ROLLBACK")
    return True
