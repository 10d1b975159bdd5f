"""Look at a SQLite file, with SQLite, before anything is done to it."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from sqlalchemy import URL

from qstore.arguments import text
from qstore.engines.guard import IN_USE, opening_with_sqlite, turso_has, uri
from qstore.engines.results import BUSY_TIMEOUT, looking, primary, translated
from qstore.errors import FormatError
from qstore.formats import FORMATS, Format, Found, recognise
from qstore.naming import NATIVE, Naming

__all__ = [
    "ASYNC_TURSO",
    "FLOOR",
    "TURSO",
    "check_version",
    "log_waits",
    "on_turso",
    "patiently",
    "recognise_file",
    "refuse_other_files",
    "store_of",
    "uri",
]

T = TypeVar("T")

FLOOR = (3, 35, 0)
"""The oldest SQLite: the first with RETURNING."""

TURSO, ASYNC_TURSO = "sqlite+qstore_turso", "sqlite+qstore_aioturso"
"""The drivers' names that SQLAlchemy knows qstore's own dialects by."""

# The last, after ten seconds, of a log that begins as none does, for one who may not write to its index. SQLite takes
# such a log for empty where it may: a disk that failed leaves one.
NOT_SO = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL)
"""What SQLite says of a file that is to be opened in another mode."""

SMALLEST = 512
"""Bytes: no SQLite database has a smaller page."""


def check_version(target: Callable[[], str]) -> None:
    """Refuse a SQLite older than the floor."""
    if sqlite3.sqlite_version_info < FLOOR:
        raise FormatError(
            "this Python's SQLite library is too old",
            found=f"SQLite {sqlite3.sqlite_version}",
            supported=f"SQLite {'.'.join(map(str, FLOOR))} or newer",
            target=target(),
        )


def on_turso(url: URL) -> bool:
    """Whether an engine's URL is one of turso's."""
    return url.drivername in (TURSO, ASYNC_TURSO)


def recognise_file(path: str, fmt: Format, naming: Naming, *, turso: bool = False) -> Found | None:
    """What a file holds of a format; None without a file. FormatError if it is somebody else's. Changes nothing.

    `turso`: it may be in use with turso, and is asked with that then.
    """
    check_version(lambda: path)
    refuse_other_files(path)
    return _look(path, lambda query: recognise(query, fmt, naming, path), turso=turso)


def refuse_other_files(path: str) -> None:
    """Refuse what SQLite itself would not: a directory, or a file too short for a database. Looks at its size alone."""
    try:
        found = os.stat(path)
    except OSError:
        return
    if not stat.S_ISREG(found.st_mode) or 0 < found.st_size < SMALLEST:
        raise FormatError(
            "the file is not a SQLite database",
            found=f"{found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "no regular file",
            supported="a SQLite database, or an absent or empty file",
            target=path,
        )


def store_of(path: str, *, turso: bool = False) -> str | None:
    """Which store a native file holds, by what is in it, or by its name if it is new; None if it cannot be told.

    FormatError if it is another application's database. `turso` as in `recognise_file`.
    """
    text("path", path, or_empty=True)
    refusals = []
    for store, fmt in FORMATS.items():
        try:
            found = recognise_file(path, fmt, NATIVE, turso=turso)
        except FormatError as error:
            refusals.append(error)
        else:
            if found is not None and found.present:
                return store
    stem = os.path.splitext(os.path.basename(path))[0]
    if refusals and stem not in FORMATS:
        raise refusals[0]
    return stem if stem in FORMATS else None


def _look(path: str, see: Callable[[Callable[[str], list[Any]]], T], *, turso: bool) -> T | None:
    """Run queries on a file without changing it or leaving anything beside it. None if there is no file.

    Where a write-ahead log waits beside the file, closing a writable connection would write it back into the file: then
    the file is opened read-only. Where none waits, a read-only connection would leave an empty one behind. Where one
    waits without its index (a copy of the two files), the index would stay behind: then they are linked to elsewhere.
    """
    if not os.path.exists(path):
        return None
    deadline = time.monotonic() + BUSY_TIMEOUT
    while turso:
        if turso_has(path):
            from qstore.engines.turso import looked  # noqa: PLC0415  needs the extra

            return looked(path, see)
        try:
            with opening_with_sqlite(path, patience=0):
                return _looked(path, see)
        except FormatError as error:
            if error.found != IN_USE or time.monotonic() > deadline:  # or else somebody is about to open it with turso
                raise
        time.sleep(0.002)
    with opening_with_sqlite(path):
        return _looked(path, see)


def _looked(path: str, see: Callable[[Callable[[str], list[Any]]], T]) -> T:
    modes = ("mode=ro&readonly_shm=1", "mode=ro", "mode=rw") if log_waits(path) else ("mode=rw", "mode=ro")
    if log_waits(path) and not os.path.exists(path + "-shm"):
        with suppress(OSError), TemporaryDirectory(prefix=".qstore-", dir=os.path.dirname(path)) as elsewhere:
            linked = os.path.join(elsewhere, "store")
            os.link(path, linked)
            os.link(path + "-wal", linked + "-wal")
            with translated(path):
                return patiently(lambda: _see(linked, "mode=ro", see))
    with translated(path):
        for mode in modes[:-1]:
            try:
                return patiently(lambda mode=mode: _see(path, mode, see))  # type: ignore[misc]  # mypy has no type for a lambda's default
            except sqlite3.OperationalError as error:
                if primary(error) not in NOT_SO:
                    raise
        return patiently(lambda: _see(path, modes[-1], see))


def _see(path: str, mode: str, see: Callable[[Callable[[str], list[Any]]], T]) -> T:
    with (
        closing(sqlite3.connect(uri(path, mode), uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)) as connection,
        looking(path),
    ):
        connection.execute("BEGIN")  # one snapshot for all queries
        return see(lambda query: connection.execute(query).fetchall())


def log_waits(path: str) -> bool:
    """Whether a write-ahead log with something in it lies beside the file. Looks at its size alone."""
    try:
        return os.stat(path + "-wal").st_size > 0
    except FileNotFoundError:
        return False


def patiently(attempt: Callable[[], T]) -> T:
    """Repeat what SQLite refuses as busy without waiting itself (WAL set-up and recovery), for as long as it would."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    pause = 0.001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
