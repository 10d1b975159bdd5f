"""turso as a driver like sqlite3, errors included: what the dialect and the stores' transactions run on."""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from qstore.engines.locking import WRITE_NOTHING
from qstore.engines.results import BUSY_TIMEOUT
from qstore.engines.turso.opened import leave, use
from qstore.engines.turso.prepared import Result, Values

__all__ = ["Connection", "Cursor"]

_SETTING = re.compile(
    r"\s*PRAGMA\s+(busy_timeout|synchronous|query_only|foreign_keys)\s*=\s*(\w+)\s*;?\s*", re.IGNORECASE
)
_WORDS = {"on": "1", "yes": "1", "true": "1", "off": "0", "no": "0", "false": "0"}
_versions = count()


class Cursor:
    """A cursor, which has read all rows when its statement returns."""

    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._rows: Iterator[tuple[Any, ...]] = iter(())

    def execute(self, sql: str, values: Values = ()) -> Cursor:
        """Run a statement and read its rows."""
        self._take(self.connection._run(sql, values))
        return self

    def executemany(self, sql: str, several: Iterable[Values]) -> Cursor:
        """Run a statement once for each."""
        changed = 0
        for values in several:
            changed += self.connection._run(sql, values).changed
        self._take(Result([], (), changed, None))
        return self

    def fetchone(self) -> Any:
        """The next row, or None."""
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next rows."""
        return list(islice(self._rows, self.arraysize if size is None else size))

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return list(self._rows)

    def close(self) -> None:
        """Forget the rows."""
        self._rows = iter(())

    def setinputsizes(self, *_: Any) -> None:
        """Nothing."""

    def setoutputsize(self, *_: Any) -> None:
        """Nothing."""

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def _take(self, result: Result) -> None:
        self._rows = iter(result.rows)
        self.description = tuple((name, *[None] * 6) for name in result.columns) or None
        self.rowcount = result.changed
        if result.given is not None:
            self.lastrowid = result.given


class Connection:
    """A connection that shares its process's only one to the file with all others, in turns."""

    def __init__(self, path: str) -> None:
        self._opened: Any = use(path)
        self._settings = {
            "busy_timeout": f"{BUSY_TIMEOUT * 1000:.0f}",
            "synchronous": "FULL",
            "query_only": "0",
            "foreign_keys": "1",
        }
        self.isolation_level: str | None = ""
        """None for SQLAlchemy's AUTOCOMMIT. The driver itself never begins a transaction."""
        self._fresh = False  # a transaction was begun, and nothing read in it
        self.row_factory = None
        self.text_factory = str

    @property
    def in_transaction(self) -> bool:
        """Whether this one is in a transaction."""
        return self._opened is not None and self._opened.owned_by(self)

    @property
    def total_changes(self) -> int:
        """Nothing that tells of changes: see `data_version`."""
        return 0

    def cursor(self, factory: Any = Cursor) -> Any:
        """A new cursor."""
        return factory(self)

    def execute(self, sql: str, values: Values = ()) -> Cursor:
        """Run a statement."""
        return Cursor(self).execute(sql, values)

    def executemany(self, sql: str, several: Iterable[Values]) -> Cursor:
        """Run a statement once for each."""
        return Cursor(self).executemany(sql, several)

    def commit(self) -> None:
        """Commit, if there is a transaction."""
        if self.in_transaction:
            self._run("COMMIT", ())

    def rollback(self) -> None:
        """Roll back, if there is a transaction."""
        if self.in_transaction:
            self._run("ROLLBACK", ())

    def close(self) -> None:
        """Roll back, and use the file no more. Twice is fine."""
        opened, self._opened = self._opened, None
        if opened is not None:
            leave(opened, self)

    def __del__(self) -> None:
        if getattr(self, "_opened", None) is not None:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, source=self, stacklevel=1)
            self.close()

    def interrupt(self) -> None:
        """Nothing: what is under way may be another one's."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def _run(self, sql: str, values: Values) -> Result:
        if self._opened is None:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        if setting := _SETTING.fullmatch(sql):  # each connection's own
            name, value = setting.groups()
            self._settings[name.lower()] = _WORDS.get(value.lower(), value.upper())
            return Result([], (), -1, None)
        if sql == "PRAGMA data_version":  # turso does not tell what has changed: so anything may have
            return Result([(next(_versions),)], ("data_version",), -1, None)
        if sql == WRITE_NOTHING:
            return self._take_lock()
        word = sql.split(None, 1)[0].upper() if sql else ""
        if self._fresh and word not in ("COMMIT", "END", "ROLLBACK"):
            self._opened.see_schema(self, self._settings, "BEGIN")
        result: Result = self._opened.run(self, self._settings, sql, values)
        self._fresh = sql == "BEGIN"
        if word == "BEGIN" and not self._fresh:
            self._opened.see_schema(self, self._settings, sql)
        return result

    def _take_lock(self) -> Result:
        """Take the write lock in a transaction. The statement that does so in SQLite does nothing here."""
        if not self._fresh:
            [(version,)] = self._run("PRAGMA user_version", ()).rows
            return self._run(f"PRAGMA user_version = {version}", ())
        self._run("ROLLBACK", ())  # nothing was read yet: so it may wait for the lock
        try:
            return self._run("BEGIN IMMEDIATE", ())
        except BaseException:
            self.rollback()
            self._run("BEGIN", ())
            raise
