"""SQLite through the standard library's driver: an engine on one file, with the settings of every store."""

from __future__ import annotations

import ctypes
import os
import sqlite3
from contextlib import suppress
from typing import Any, Literal
from weakref import WeakSet

from sqlalchemy import URL, Engine, Pool, create_engine, event

from qstore.arguments import one_of
from qstore.engines.files import check_version, log_waits, patiently, refuse_other_files, uri
from qstore.engines.forking import renewed_in_children
from qstore.engines.guard import opening_with_sqlite
from qstore.engines.holding import HoldingPool
from qstore.engines.line import Line
from qstore.engines.results import BUSY_TIMEOUT, looking, moved, translated
from qstore.engines.turns import Turns
from qstore.errors import BackendUnsupported, FormatError, InvalidInput

__all__ = ["Durability", "File", "FileConnection", "create", "engine_on", "prepare", "refuse_memory"]

Durability = Literal["full", "normal"]

WAL_LIMIT = 64 * 1024 * 1024
"""Bytes that the write-ahead log keeps on disk after a checkpoint; a reader that stays open can make it grow beyond."""

PAGE_SIZE = 1024
"""Bytes of a page in a new file: a claim writes to about 19 pages, and each goes into the log whole."""

CHECKPOINT = 2 * 1024 * 1024
"""Bytes of log after which SQLite writes it back. A log that still grows costs each full commit one more sync."""

_SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL"}


def create(path: str, *, read_only: bool, durability: Durability, fair: bool, exists: bool = False) -> Engine:
    """An engine on one file, given by its absolute path. Nothing is opened before the first connection.

    With `exists` it is the file that is there now, and no other one is ever made in its place.
    """
    check_version(lambda: path)
    return engine_on(File(path, read_only=read_only, durability=durability, fair=fair), exists=exists)


def engine_on(file: File, *, exists: bool = False, pool: type[Pool] = HoldingPool) -> Engine:
    """An engine whose connections a file opens. Otherwise as `create`."""
    if exists:
        file.identify()
    engine = create_engine(
        URL.create(file.driver, database=file.path),
        creator=file.connect,
        poolclass=pool,
        execution_options={"qstore_file": file},
    )
    if isinstance(engine.pool, HoldingPool):
        engine.pool.closing = file.turns.close
    prepare(engine, file)
    return engine


def prepare(engine: Engine, file: File) -> None:
    """Make an engine on the file, whose connections are new, one that the stores can count on."""
    # The driver begins a transaction with the first write, so that what was read before is not part of it, and the end
    # of a savepoint commits. Begin it where SQLAlchemy does.
    setattr(engine.dialect, "do_begin", _begin)  # noqa: B010  a method of this one instance
    event.listen(engine.pool, "checkout", lambda *_: file.check())
    renewed_in_children(engine, before=file.close_idle, forget=file.forget)


def refuse_memory(database: str | None) -> None:
    """Refuse a database in memory: each connection would have its own, and none of them would last."""
    if not database or database == ":memory:" or database.startswith("file:"):
        raise InvalidInput(
            "target",
            f"expected the path of a file, found {database or 'no path'!r}. A database in memory would be another one"
            " in each connection: for a throw-away store use a file in tempfile.TemporaryDirectory()",
        )


_in_use: set[tuple[int, int]] = set()
"""Files of which this process has, from its parent, connections that were in use when that one forked."""


class FileConnection(sqlite3.Connection):
    """A connection that can be referred to weakly, and tells whether it is open."""

    opened = True

    def close(self) -> None:
        """As any connection's; and tell so."""
        super().close()
        self.opened = False


class File:
    """Opens connections to one file, and sees to it that they all have the same one."""

    driver, async_driver = "sqlite", "sqlite+aiosqlite"
    kind: type[FileConnection] = FileConnection

    def __init__(self, path: str, *, read_only: bool, durability: Durability, fair: bool) -> None:
        one_of("durability", durability, _SYNCHRONOUS)
        self.path = path
        self.read_only = read_only
        self.synchronous = _SYNCHRONOUS[durability]
        self.identity: tuple[int, int] | None = None
        self.lost = False
        self.look_again = 0.0
        """When, by `time.monotonic`, a read is to check again, and whether the log wants to be told of it."""
        self.logged = False
        self.connections: WeakSet[Any] = WeakSet()
        self.line = Line()
        self.turns = Turns(path, fair=fair)

    def connect(self) -> sqlite3.Connection:
        """A new connection with the settings of every store."""
        self.check()
        refuse_other_files(self.path)
        if self.read_only and not os.path.exists(self.path):
            raise self._nothing_there()
        with translated(self.path), opening_with_sqlite(self.path):
            connection = sqlite3.connect(
                uri(self.path, self._mode()),
                uri=True,
                timeout=BUSY_TIMEOUT,
                check_same_thread=False,  # the pool hands a connection to one thread at a time
                factory=self.kind,
            )
            self.connections.add(connection)
            try:
                with looking(self.path):
                    patiently(lambda: self._set(connection))
            except BaseException:
                connection.close()
                raise
        if self.identity is None:
            self.identify()
        return connection

    def _nothing_there(self) -> FormatError:
        return FormatError("there is nothing to read", found="no file", supported="a SQLite database", target=self.path)

    def _mode(self) -> str:
        if not self.read_only:
            return "mode=rwc" if self.identity is None else "mode=rw"
        # A read-only connection leaves an empty log behind where there was none, a writable one clears it away; but
        # where a log waits, the writable one would write it back into the file. Either way PRAGMA query_only holds.
        return "mode=ro" if log_waits(self.path) else "mode=rw"

    def identify(self) -> None:
        """From now on, the file that is there now is the one."""
        self.identity = self._found()
        self.lost = self.identity is None

    def check(self) -> None:
        """Refuse to go on with a file that nobody can find any more, or that a fork has left in use.

        Looks at the path alone: never opens the file.
        """
        found = self._found() if _in_use or self.identity is not None else None
        if self.identity is not None and found != self.identity:
            self.lost = True  # for good: a new file may well get the old one's number
        if self.lost:
            raise moved(self.path)
        if found in _in_use:
            raise BackendUnsupported(
                f"{self.path}: expected a process that was forked between two operations, found one whose parent had a"
                " connection in use (a transaction of its own, or another thread). SQLite cannot be used in it: fork"
                " when nothing is under way, or start it afresh (multiprocessing's spawn or forkserver)"
            )

    def close_idle(self, engine: Engine) -> None:
        """Close what nobody uses, before a fork.

        SQLite counts the locks of a process in its memory, and a child has that memory, but not the locks. While the
        child took them for its own, others would clear away the log that it writes to.
        """
        if not engine.dialect.is_async:
            with suppress(sqlite3.Error):
                engine.dispose()

    def forget(self) -> None:
        """Leave the connections to the parent of this process.

        Not even the end of the child may close one: SQLite would take it for the last, and clear away the log under
        those who write to it.
        """
        for connection in self.connections:
            if self._leave(connection) and self.identity is not None:
                _in_use.add(self.identity)
        self.connections = WeakSet()
        self.look_again = 0.0
        self.line = Line()  # the threads that wait in it are the parent's

    def _leave(self, connection: Any) -> bool:
        """Leave a connection to the parent, never to be collected here. Whether the file is of no use with it."""
        if connection.opened:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        return bool(connection.opened)

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _set(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
        # Or else SQLite asks the system for 64 KiB, and gives them back, with each statement that has triggers.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # the first look at the file itself
        if self.read_only:
            connection.execute("PRAGMA query_only = ON")
            return
        if not _number(connection, "PRAGMA page_count"):  # a new file; of another one it would change the next VACUUM
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        self._set_journal(connection)
        pages = CHECKPOINT // _number(connection, "PRAGMA page_size")
        connection.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchall()

    def _set_journal(self, connection: sqlite3.Connection) -> None:
        if _journal_mode(connection, "PRAGMA journal_mode") == "wal":
            return
        mode = _journal_mode(connection, "PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise FormatError(
                "SQLite could not switch the file to a write-ahead log; network drives cannot hold one",
                found=f"journal mode {mode}",
                supported="journal mode wal, on a local disk",
                target=self.path,
            )


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(pragma).fetchone()[0])


def _journal_mode(connection: sqlite3.Connection, pragma: str) -> str:
    return str(connection.execute(pragma).fetchone()[0])


def _begin(connection: Any) -> None:
    """Begin a deferred transaction, unless the host asked for AUTOCOMMIT (then the driver's level is None)."""
    driver = getattr(connection, "driver_connection", connection)
    if driver.isolation_level is not None and not driver.in_transaction:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        cursor.close()
