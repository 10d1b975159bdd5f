"""turso as an optional engine: for stores that are shared with other programs which use it.

It is pinned to one version, since the way in which its processes share a file may change with any release.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from sqlalchemy import Engine, NullPool
from sqlalchemy.dialects import registry

from qstore.engines.files import ASYNC_TURSO, TURSO, patiently, refuse_other_files
from qstore.engines.results import translated
from qstore.engines.sqlite import Durability, File, engine_on
from qstore.engines.turso.driver import Connection
from qstore.engines.turso.opened import imported

__all__ = ["TursoFile", "create", "looked", "view"]

T = TypeVar("T")

# As the entry points do, for those who have qstore without its metadata.
registry.register(TURSO.replace("+", "."), "qstore.engines.turso.dialect", "TursoDialect")
registry.register(ASYNC_TURSO.replace("+", "."), "qstore.engines.turso.asynchronous", "AsyncTursoDialect")


def create(path: str, *, read_only: bool, durability: Durability, fair: bool, exists: bool = False) -> Engine:
    """As the same of SQLite's. BackendUnsupported without the extra, or where turso has no multi-process mode."""
    imported()
    return engine_on(TursoFile(path, read_only=read_only, durability=durability, fair=fair), exists=exists)


def view(path: str) -> Engine:
    """An engine that only reads, commits by itself, and has the file open only while it reads."""
    imported()
    file = TursoFile(path, read_only=True, durability="full", fair=False)
    return engine_on(file, pool=NullPool).execution_options(isolation_level="AUTOCOMMIT")


def looked(path: str, see: Callable[[Callable[[str], list[Any]]], T]) -> T:
    """Run queries on a file."""

    def look() -> T:
        connection.rollback()
        connection.execute("BEGIN")  # one snapshot for all of them
        return see(lambda query: connection.execute(query).fetchall())

    with translated(path), closing(Connection(path)) as connection:
        return patiently(look)


class TursoFile(File):
    """Opens connections to one file with turso."""

    driver, async_driver = TURSO, ASYNC_TURSO

    def connect(self) -> Any:
        """A new connection with the settings of every store."""
        self.check()
        refuse_other_files(self.path)
        if self.read_only and not os.path.exists(self.path):
            raise self._nothing_there()
        with translated(self.path):
            connection = Connection(self.path)
        self.connections.add(connection)
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute(f"PRAGMA query_only = {self.read_only:d}")
        if self.identity is None:
            self.identify()
        return connection

    def close_idle(self, engine: Engine) -> None:
        """Nothing: a file that is open stays open, and its process's children are refused it."""

    def _leave(self, connection: Any) -> bool:
        """As of SQLite's. Who uses the file in the child is told by turso's own connections."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        return False
