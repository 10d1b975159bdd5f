"""SQLite through the standard library's driver: an engine on one file, with the settings of every store."""

from __future__ import annotations

import os
import sqlite3
from typing import Any, Literal
from weakref import WeakSet

from sqlalchemy import URL, Engine, QueuePool, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from qstore.engines.files import check_version, log_waits, patiently, uri
from qstore.engines.results import BUSY_TIMEOUT, moved, translated
from qstore.errors import FormatError, InvalidInput

__all__ = ["Durability", "create", "refuse_memory"]

Durability = Literal["full", "normal"]

WAL_LIMIT = 64 * 1024 * 1024
"""Bytes that the write-ahead log keeps on disk after a checkpoint; a reader that stays open can make it grow beyond."""

_SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL"}


def create(path: str, *, read_only: bool, durability: Durability) -> Engine:
    """An engine on one file, given by its absolute path. Nothing is opened before the first connection."""
    check_version(path)
    if durability not in _SYNCHRONOUS:
        raise InvalidInput("durability", f"expected 'full' or 'normal', found {durability!r}")
    file = _File(path, read_only=read_only, durability=durability)
    engine = create_engine(
        URL.create("sqlite", database=path),
        creator=file.connect,
        poolclass=QueuePool,
        execution_options={"qstore_read_only": read_only, "qstore_path": path},
    )
    # The driver begins a transaction with the first write, so that what was read before is not part of it, and the end
    # of a savepoint commits. Begin it where SQLAlchemy does.
    setattr(engine.dialect, "do_begin", _begin)  # noqa: B010  a method of this one instance
    event.listen(engine.pool, "checkout", file.check)
    _forget_in_children(engine)
    return engine


def refuse_memory(database: str | None) -> None:
    """Refuse a database in memory: each connection would have its own, and none of them would last."""
    if not database or database == ":memory:" or database.startswith("file:"):
        raise InvalidInput(
            "target",
            f"expected the path of a file, found {database or 'no path'!r}. A database in memory would be another one"
            " in each connection: for a throw-away store use a file in tempfile.TemporaryDirectory()",
        )


class _File:
    """Opens connections to one file, and sees to it that they all have the same one."""

    def __init__(self, path: str, *, read_only: bool, durability: Durability) -> None:
        self.path = path
        self.read_only = read_only
        self.synchronous = _SYNCHRONOUS[durability]
        self.identity: tuple[int, int] | None = None

    def connect(self) -> sqlite3.Connection:
        """A new connection with the settings of every store."""
        if self.identity is not None:
            self.check()
        with translated(self.path):
            connection = sqlite3.connect(
                uri(self.path, self._mode()),
                uri=True,
                timeout=BUSY_TIMEOUT,
                check_same_thread=False,  # the pool hands a connection to one thread at a time
            )
            try:
                patiently(lambda: self._set(connection))
            except BaseException:
                connection.close()
                raise
        self.identity = self.identity or self._identity()
        return connection

    def _mode(self) -> str:
        if not self.read_only:
            return "mode=rwc"
        # A read-only connection leaves an empty log behind where there was none, a writable one clears it away; but
        # where a log waits, the writable one would write it back into the file. Either way PRAGMA query_only holds.
        return "mode=ro" if log_waits(self.path) else "mode=rw"

    def check(
        self,
        _connection: object = None,
        _record: ConnectionPoolEntry | None = None,
        _proxy: PoolProxiedConnection | None = None,
    ) -> None:
        """Refuse to go on with a file that nobody can find any more. Looks at the path alone: never opens the file."""
        if self.identity is not None and self._identity() != self.identity:
            raise moved(self.path)

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _set(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # the first look at the file itself
        if self.read_only:
            connection.execute("PRAGMA query_only = ON")
            return
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


def _journal_mode(connection: sqlite3.Connection, pragma: str) -> str:
    return str(connection.execute(pragma).fetchone()[0])


def _begin(connection: Any) -> None:
    """Begin a deferred transaction, unless the host asked for AUTOCOMMIT (then the driver's level is None)."""
    driver = getattr(connection, "driver_connection", connection)
    if driver.isolation_level is not None and not driver.in_transaction:
        connection.cursor().execute("BEGIN").close()


_engines: WeakSet[Engine] = WeakSet()
_pools_of_parent: list[Any] = []


def _forget_in_children(engine: Engine) -> None:
    """See to it that a forked child opens connections of its own and leaves its parent's alone."""
    if not _engines and hasattr(os, "register_at_fork") and not _pools_of_parent:
        os.register_at_fork(after_in_child=_forget)
    _engines.add(engine)


def _forget() -> None:
    for engine in list(_engines):
        _pools_of_parent.append(engine.pool)  # kept, so that nothing closes its connections: that would drop locks
        engine.dispose(close=False)
