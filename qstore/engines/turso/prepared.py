"""Statements that turso has prepared, each run to its end at once."""

from __future__ import annotations

import re
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

__all__ = ["Result", "Statements", "Values"]

MOST = 100
"""Statements that are kept."""

SCHEMAS = 10
"""How often a statement is prepared anew where the schema has changed meanwhile, as SQLite does by itself."""

Values = Sequence[Any] | Mapping[str, Any]

_QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^]]*\]|--[^\n]*|/\*.*?\*/"""
_PARAMETER = re.compile(rf"{_QUOTED}|([:@$]\w+|\?\d*)", re.DOTALL)
_NOTHING = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(rf"{_NOTHING.pattern}([A-Za-z]*)", re.DOTALL)

_INTEGERS = range(-(2**63), 2**63)


class Result(NamedTuple):
    """What a statement came to. `changed` is -1 for one that only reads, `given` the id of a row that was inserted."""

    rows: list[tuple[Any, ...]]
    columns: tuple[str, ...]
    changed: int
    given: int | None


class Statements:
    """The statements of one connection of turso's."""

    def __init__(self, turso: Any, connection: Any) -> None:
        self._status: Any = turso.lib.Status
        self._connection = connection
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()

    def run(self, sql: str, values: Values = ()) -> Result:
        """Run a statement. A change happens with the first step and not before, so that none is left undone."""
        for _ in range(SCHEMAS):
            try:
                return self._once(sql, values)
            except Exception as error:
                if "schema changed" not in str(error):  # which is found before anything is done
                    raise
        return self._once(sql, values)

    def _once(self, sql: str, values: Values) -> Result:
        prepared = self._prepared.get(sql) or self._prepare(sql)
        try:
            prepared.bind(values)
            result = self._drained(prepared)
            prepared.statement.reset()
        except BaseException:
            self._prepared.pop(sql, None)
            prepared.close()
            raise
        return result

    def close(self) -> None:
        """Let go of them and of the connection, which each keeps open: an error's traceback may refer to this."""
        while self._prepared:
            self._prepared.popitem()[1].close()
        self._connection = None

    def _drained(self, prepared: _Prepared) -> Result:
        status = self._status
        if prepared.columns == 0:
            while (result := prepared.statement.execute()).status == status.Io:
                prepared.statement.run_io()
            changed = int(result.rows_changed)
            return Result([], (), changed, self._given(prepared, changed))
        rows: list[tuple[Any, ...]] = []
        while (step := prepared.statement.step()) != status.Done:
            if step == status.Row:
                rows.append(tuple(prepared.statement.row()))
            else:
                prepared.statement.run_io()
        # As the schema is now: an older one was prepared anew.
        columns = tuple(prepared.statement.columns())
        changed = -1 if prepared.reads else len(rows)
        return Result(rows, columns, changed, self._given(prepared, changed))

    def _given(self, prepared: _Prepared, changed: int) -> int | None:
        return self._connection.last_insert_rowid() if prepared.inserts and changed > 0 else None

    def _prepare(self, sql: str) -> _Prepared:
        found = self._connection.prepare_first(sql)
        if found is None:  # nothing but a comment, which sqlite3 takes
            return self._prepare("SELECT 1 WHERE 0")
        statement, end = found
        if sql.isascii() and not _NOTHING.fullmatch(sql, end):
            statement.finalize()
            raise sqlite3.ProgrammingError("You can only execute one statement at a time.")
        prepared = self._prepared[sql] = _Prepared(sql, statement)
        if len(self._prepared) > MOST:
            self._prepared.popitem(last=False)[1].close()
        return prepared


class _Prepared:
    """A statement, and where its values go: by name, or in order."""

    __slots__ = ("_named", "_places", "columns", "inserts", "reads", "statement")

    def __init__(self, sql: str, statement: Any) -> None:
        self.statement: Any = statement
        self.columns = len(statement.columns())
        places = [place for place in _PARAMETER.findall(sql) if place]
        self._named = {place[1:]: statement.named_position(place) for place in places if place[0] != "?"}
        self._places = len(self._named) + sum(place[0] == "?" for place in places)
        found = _WORD.match(sql)
        word = found[1].upper() if found else ""
        self.inserts = word in ("INSERT", "REPLACE", "WITH")
        self.reads = word in ("SELECT", "PRAGMA", "EXPLAIN", "VALUES", "WITH")

    def close(self) -> None:
        """Let go of the statement."""
        with suppress(Exception):
            self.statement.finalize()
        self.statement = None

    def bind(self, values: Values) -> None:
        """Give it its values. turso itself takes NULL for one that is missing, and a float for a large integer."""
        bind = self.statement.bind_positional
        if isinstance(values, Mapping):
            for name, position in self._named.items():
                if name not in values:
                    raise sqlite3.ProgrammingError(f"You did not supply a value for binding parameter :{name}.")
                bind(position, _value(values[name]))
            return
        if len(values) != self._places:
            raise sqlite3.ProgrammingError(
                f"Incorrect number of bindings supplied. The statement uses {self._places}, and there are {len(values)}"
            )
        for position, value in enumerate(values, 1):
            bind(position, _value(value))


def _value(value: Any) -> Any:
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        return int(value)
    if isinstance(value, str):
        value.encode()  # what is no text to UTF-8 raises UnicodeEncodeError, as it does in sqlite3
        return value
    if value is None or isinstance(value, (float, bytes)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise sqlite3.ProgrammingError(f"Error binding parameter: type '{type(value).__name__}' is not supported")
