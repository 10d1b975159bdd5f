"""A file as this process has it open with turso: one connection, for all who use it one after the other.

A second connection to the file, or a use of one by two threads at the same time, can end the process, and so can any
use of one in a forked child.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import re
import sqlite3
import sys
import time
from contextlib import suppress
from itertools import count
from threading import Condition, RLock
from types import ModuleType
from typing import Any

from qstore.engines.guard import Guard
from qstore.engines.results import BUSY_TIMEOUT, busy
from qstore.engines.turso.errors import as_sqlite, kept_waiting
from qstore.engines.turso.prepared import Result, Statements, Values
from qstore.errors import BackendUnsupported, FormatError

__all__ = ["OpenedFile", "imported", "leave", "use"]

FEATURES = "multiprocess_wal"
"""Without it turso takes a file for its process's own. A name that it does not know is ignored without a word."""

_LOOK = "SELECT 1 FROM sqlite_master LIMIT 1"

TRIES = 5
"""How often an opening is tried, or a beginning, that meets another process's."""


class OpenedFile:
    """A file that is open, and who has its connection."""

    def __init__(self, path: str) -> None:
        turso = imported()
        self.path = path
        self.process = os.getpid()
        self.users = 0
        self._owner: object = None
        self._free = Condition()
        self._settings: dict[str, str] = {}
        self._guard = Guard(path)
        try:
            self._connection = self._guard.enter(lambda: _connected(turso, path))
            self._native: Any = self._connection._conn
            self._statements = Statements(turso, self._native)
            _check_index(path)
        except BaseException:
            self.close()
            raise

    def run(self, user: object, settings: dict[str, str], sql: str, values: Values) -> Result:
        """Run a statement for a user, who keeps the connection for as long as it is in a transaction then."""
        self.acquire(user, float(settings["busy_timeout"]) / 1000)
        idle = self._native.get_auto_commit()
        try:
            with as_sqlite():
                for name, value in settings.items():
                    if self._settings.get(name) != value:
                        self._statements.run(f"PRAGMA {name} = {value}")
                        self._settings[name] = value
                return self._statements.run(sql, values)
        except BaseException:
            if idle and not self._native.get_auto_commit():  # as some a BEGIN leaves it that fails
                self._statements.run("ROLLBACK")
            raise
        finally:
            if self._native.get_auto_commit():
                self.release(user)

    def see_schema(self, user: object, settings: dict[str, str], begin: str) -> None:
        """See to it that a transaction has the schema as it is now, by beginning it again.

        turso sees what another process has changed of it only outside of transactions: in one all statements fail then.
        """
        for _ in range(TRIES):
            try:
                self.run(user, settings, _LOOK, ())
                return
            except sqlite3.OperationalError as error:
                if "schema changed" not in str(error):
                    raise
            self.run(user, settings, "ROLLBACK", ())
            self.run(user, settings, _LOOK, ())
            self.run(user, settings, begin, ())

    def acquire(self, user: object, patience: float) -> None:
        """Have the connection. SQLITE_BUSY after so many seconds."""
        self.check()
        with self._free:
            if not self._free.wait_for(lambda: self._owner in (None, user), patience):
                raise kept_waiting()
            self._owner = user

    def release(self, user: object) -> None:
        """Let the next one have it."""
        with self._free:
            if self._owner is user:
                self._owner = None
                self._free.notify()

    def undo(self, user: object) -> None:
        """Roll back what the user is about."""
        if self._owner is user:
            with as_sqlite():
                self._statements.run("ROLLBACK")
            self.release(user)

    def owned_by(self, user: object) -> bool:
        """Whether the transaction that is under way is this user's."""
        return self._owner is user

    def check(self) -> None:
        """BackendUnsupported in a forked child."""
        if self.process != os.getpid():
            raise _forked(self.path)

    def close(self) -> None:
        """Close the file. turso lets go of it when nothing refers to its connection any more."""
        try:
            if hasattr(self, "_statements"):
                self._statements.close()
                del self._statements
            if hasattr(self, "_connection"):
                with suppress(Exception):  # the log, which it writes back now, has all that was committed
                    self._connection.close()
                self._native = None
                del self._connection
        finally:
            self._guard.close()

    def leave_to_parent(self) -> None:
        """In a forked child: not even its end may touch what its parent has open."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        self._guard.close()


_lock = RLock()
_open: dict[str, OpenedFile] = {}
_parents: set[str] = set()
"""What was open in the parent when this process was forked."""


def use(path: str) -> OpenedFile:
    """A file, opened unless it is already. Each use is to be left."""
    path = os.path.realpath(path)
    if path in _parents:
        raise _forked(path)
    with _lock:
        opened = _open.get(path)
        if opened is None:
            opened = _open[path] = OpenedFile(path)
        opened.users += 1
        return opened


def leave(opened: OpenedFile, user: object) -> None:
    """Use it no more; a transaction that is under way is rolled back. The last one closes the file."""
    if opened.process != os.getpid():
        return
    with _lock:
        opened.undo(user)
        opened.users -= 1
        if not opened.users:
            _open.pop(opened.path, None)
            opened.close()


def _leave_to_parent() -> None:
    global _lock  # noqa: PLW0603  another thread of the parent's may have held it
    _lock = RLock()
    for opened in _open.values():
        opened.leave_to_parent()
    _parents.update(_open)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def imported() -> ModuleType:
    """Turso's module. BackendUnsupported where there is none."""
    if sys.platform == "win32":
        raise BackendUnsupported("turso has no multi-process mode on Windows: use SQLite (sqlite:///), which does")
    if sys.platform == "linux" and platform.libc_ver()[0] != "glibc":
        raise BackendUnsupported("there is no pyturso for this C library (musl): use SQLite (sqlite:///)")
    try:
        return importlib.import_module("turso")
    except ImportError as error:
        raise BackendUnsupported(
            "expected the package of the extra `turso` (pyturso), found none: pip install 'qstore[turso]'"
        ) from error


def _connected(turso: ModuleType, path: str) -> Any:
    """A connection. One that is opened while others open, or change the schema, may have to try again."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    for tried in count(1):
        try:
            with as_sqlite():
                connection = turso.connect(path, experimental_features=FEATURES, isolation_level=None)
                connection.execute("PRAGMA temp_store = MEMORY")  # or else each claim makes files, in milliseconds
                return connection
        except sqlite3.Error as error:
            if encoding := re.search(r"text encoding: (UTF-\w+)", str(error)):
                raise FormatError(
                    "the database keeps text in another encoding", found=encoding[1], supported="UTF-8", target=path
                ) from error
            passing = busy(error) or "coordination" in str(error)
            if time.monotonic() > deadline or (tried >= TRIES and not passing):
                raise
        time.sleep(0.005 * min(tried, 10))
    raise AssertionError


def _check_index(path: str) -> None:
    if not os.path.exists(path + "-tshm"):
        raise BackendUnsupported(
            f"{path}: expected turso to keep an index for several processes beside the file (-tshm), found none: this"
            " pyturso cannot share a file. pip install 'qstore[turso]'"
        )


def _forked(path: str) -> BackendUnsupported:
    return BackendUnsupported(
        f"{path}: expected a process that was not forked while the file was open with turso, found one that was. Start"
        " processes with the method spawn or forkserver, or open the store only after the fork"
    )
