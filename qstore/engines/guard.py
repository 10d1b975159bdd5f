"""Who has a file open with turso: a file is for SQLite's engine or for turso's, and never for both at the same time.

Each keeps a log's index of its own (`-shm`, `-tshm`), and neither knows of the other's: what one of them has
acknowledged would be lost without a word. Processes with turso hold a shared lock (flock) on a small file beside the
store, its name and `.lock`. Who has that lock exclusively is alone; one who opens the file with SQLite has it for that
moment, but only where there is such a file: a store that never saw turso has none.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote

from qstore.engines.results import BUSY_TIMEOUT, busy, translated
from qstore.errors import FormatError, StoreBusy

try:
    import fcntl
except ImportError:  # Windows, where there is no turso either
    fcntl = None  # type: ignore[assignment]  # a module has no other type

__all__ = ["IN_USE", "Guard", "opening_with_sqlite", "turso_has", "uri"]

IN_USE = "a file in use with turso"
"""What FormatError says was found where SQLite is kept out."""

PATIENCE = 1.0
"""Seconds for which one waits for another engine to let go: it may only be looking."""

PAUSE = 0.002

FIRST = 0.05
"""Seconds after which whoever saw no guard file has opened the store."""


class Guard:
    """The lock that a process holds for as long as it has a file open with turso."""

    def __init__(self, path: str) -> None:
        self._path = path
        with _writing(path, "the lock beside the file cannot be had"):
            self._file, self._made = _made(path)

    def close(self) -> None:
        """Let go. In a forked child the lock stays its parent's."""
        os.close(self._file)

    def enter(self, opening: Callable[[], Any]) -> Any:
        """Open the file with turso, alone or while another process has it open: never two at once that are the first.

        Where no process has it, what a killed one left is taken away before, and a new file is made.
        """
        if self._made:
            time.sleep(FIRST)
        opened: Any = None
        deadline = time.monotonic() + BUSY_TIMEOUT
        while time.monotonic() < deadline:
            alone = opened is None and _locked(self._file, fcntl.LOCK_EX)
            if alone:
                if not turso_has(self._path):  # by a program that knows nothing of the guard
                    _prepare(self._path)
                opened = opening()
            if _locked(self._file, fcntl.LOCK_SH):
                return opening() if opened is None else opened
            time.sleep(PAUSE)
        if opened is not None:
            opened.close()
        raise StoreBusy(f"{self._path}: other processes are opening the file all the time. Repeat the call")


@contextmanager
def _writing(path: str, sentence: str) -> Iterator[None]:
    """Change something beside the file. FormatError where the system does not let one."""
    try:
        yield
    except OSError as error:
        raise FormatError(
            sentence, found=str(error), supported="a file in a writable directory on a local disk", target=path
        ) from error


@contextmanager
def opening_with_sqlite(path: str, patience: float = PATIENCE) -> Iterator[None]:
    """Open a file with SQLite inside, up to its first statement. FormatError if a process has it open with turso."""
    guarded = os.path.exists(path + ".lock")
    if fcntl is None or not (guarded or os.path.exists(path + "-tshm")):
        yield
        return
    file = -1
    if guarded:
        with suppress(OSError):  # one that this user may not read
            file = os.open(path + ".lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        began = time.monotonic()
        while (file >= 0 and not _locked(file, fcntl.LOCK_EX)) or turso_has(path):
            # Somebody has it open with turso, or is opening it with either engine.
            if time.monotonic() > began + (patience if turso_has(path) else BUSY_TIMEOUT):
                raise FormatError(
                    "another process, or this one, has the file open with turso, and the two engines must not share it."
                    " Close it there first, or open it with turso here: sqlite+turso:///, engine='turso'",
                    found=IN_USE,
                    supported="a file that is in use with SQLite alone",
                    target=path,
                )
            time.sleep(PAUSE)
        yield
    finally:
        if file >= 0:
            os.close(file)


def turso_has(path: str) -> bool:
    """Whether a process has the file open with turso, whoever wrote the program: it holds a lock on its index."""
    query = getattr(fcntl, "F_OFD_GETLK", None)
    try:
        file = os.open(path + "-tshm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if query is None:  # not Linux
            return not _locked_range(file)
        asked = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        [found] = struct.unpack_from("@h", fcntl.fcntl(file, query, asked))
        return bool(found != fcntl.F_UNLCK)
    finally:
        os.close(file)


def _locked_range(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except OSError:
        return False
    return True


def _locked(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _made(path: str) -> tuple[int, bool]:
    """The guard file, opened, and whether it is new."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    mode = 0o666
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode & 0o666  # whoever may write to the store
    try:
        made = os.open(path + ".lock", flags | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path + ".lock", flags, mode), False
    if os.path.exists(path):
        os.fchmod(made, mode)  # whatever the umask, as SQLite does with its own files
    return made, True


def _prepare(path: str) -> None:
    """Make the file one that turso can open. FormatError if a connection of SQLite's is open on it, in any process.

    Each of those holds a lock. A new file is made by SQLite, and one with another journal given a write-ahead log:
    while there is nothing in it, processes with turso would each make a database of their own.
    """
    _refuse_journal(path)
    deadline = time.monotonic() + PATIENCE
    while True:
        with (
            translated(path),
            closing(sqlite3.connect(uri(path, "mode=rwc"), uri=True, timeout=0, isolation_level=None)) as connection,
        ):
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN EXCLUSIVE")
                if connection.execute("PRAGMA schema_version").fetchone() == (0,):
                    connection.execute("CREATE TABLE made (made)")  # with which it has an encoding
                    connection.execute("DROP TABLE made")
                connection.execute("COMMIT")
                break
            except sqlite3.OperationalError as error:
                if not busy(error):
                    raise
        if time.monotonic() > deadline:
            raise FormatError(
                "a connection of SQLite's is open on the file, in this process or another, and the two engines must not"
                " share it. Close it first",
                found="a file in use with SQLite",
                supported="a file that is in use with turso alone",
                target=path,
            )
        time.sleep(PAUSE)
    # turso would refuse it where SQLite has written since a process was killed.
    with _writing(path, "an old index cannot be taken away"), suppress(FileNotFoundError):
        os.remove(path + "-tshm")


def _refuse_journal(path: str) -> None:
    with suppress(FileNotFoundError):
        if os.stat(path + "-journal").st_size:
            raise FormatError(
                "a journal with a transaction that was broken off lies beside the file, which turso would not undo."
                " Open the file once with SQLite (sqlite:///), which does",
                found=f"{path}-journal",
                supported="a file without a journal",
                target=path,
            )


def uri(path: str, mode: str) -> str:
    """SQLite's URI of a path: exactly that file, whatever characters it has."""
    return f"file:{quote(path)}?{mode}"
