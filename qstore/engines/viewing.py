"""Engines for those who only look: no connection stays open, no read stays unfinished, and nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlalchemy import URL, Engine, NullPool, create_engine

from qstore.engines import postgresql, turso
from qstore.engines.files import check_version, on_turso
from qstore.engines.sqlite import File, FileConnection, prepare
from qstore.errors import InvalidInput

__all__ = ["create", "define"]


def create(url: URL, *, immutable: bool = False) -> Engine:
    """An engine that commits by itself and reads every result to its end at once. Nothing is connected yet.

    So no reader keeps SQLite's log from being written back, whatever becomes of its result. `immutable`: SQLite takes
    the file for one that nobody changes, and needs no files beside it.
    """
    if url.get_backend_name() == "postgresql":
        if immutable:
            raise InvalidInput("immutable", "expected a file, found a server's URL")
        return postgresql.create(url, read_only=True).execution_options(isolation_level="AUTOCOMMIT")
    path = url.database or ""
    if on_turso(url):
        if immutable:
            raise InvalidInput("immutable", "expected a file that is opened with SQLite, found a URL of turso's")
        return turso.view(path)
    check_version(lambda: path)
    file = _Viewed(path, immutable=immutable)
    engine = create_engine(
        URL.create("sqlite", database=path),
        creator=file.connect,
        poolclass=NullPool,
        execution_options={"qstore_file": file},
    )
    prepare(engine, file)
    return engine


def define(engine: Engine, views: tuple[str, ...]) -> None:
    """Give each connection of an engine that `create` made some temporary views, where it is SQLite's."""
    file = engine.get_execution_options().get("qstore_file")
    if isinstance(file, _Viewed):
        file.views += views


class _Cursor(sqlite3.Cursor):
    """A cursor that has read all rows when its statement returns, so that the statement is over then."""

    _rows: Iterator[Any] = iter(())

    def execute(self, *arguments: Any) -> _Cursor:
        """Run a statement and read its rows."""
        super().execute(*arguments)
        self._rows = iter(super().fetchall())
        return self

    def fetchone(self) -> Any:
        """The next row, or None."""
        return next(self._rows, None)

    def fetchmany(self, size: int | None = 1) -> list[Any]:
        """The next rows."""
        return list(islice(self._rows, self.arraysize if size is None else size))

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return list(self._rows)

    def __iter__(self) -> _Cursor:
        return self

    def __next__(self) -> Any:
        return next(self._rows)


class _ViewingConnection(FileConnection):
    """A connection that begins no transaction by itself."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.isolation_level = None

    def cursor(self, factory: Any = _Cursor) -> Any:
        """A cursor that reads all rows at once."""
        return super().cursor(factory)


class _Viewed(File):
    """A file that is looked at."""

    kind = _ViewingConnection

    def __init__(self, path: str, *, immutable: bool) -> None:
        super().__init__(path, read_only=True, durability="full", fair=False)
        self._immutable = immutable
        self.views: tuple[str, ...] = ()

    def connect(self) -> sqlite3.Connection:
        """A new connection, with views that are its own: they are in its memory, and not in the file."""
        connection = super().connect()
        if self.views:
            connection.execute("PRAGMA query_only = OFF")
            for view in self.views:
                connection.execute(view)
            connection.execute("PRAGMA query_only = ON")
        return connection

    def _mode(self) -> str:
        return "mode=ro&immutable=1" if self._immutable else super()._mode()
