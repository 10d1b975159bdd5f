"""Recognise a store in a database by its marker and its columns, with queries alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qstore.errors import FormatError
from qstore.formats.format import Format
from qstore.naming import NATIVE, Names, Naming

__all__ = ["Found", "Query", "recognise"]

Query = Callable[[str], Sequence[Sequence[Any]]]
"""Runs one SELECT or PRAGMA and returns all its rows."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a database holds of a store. `complete`: every table, index and the marker are there."""

    present: bool
    complete: bool
    revisions: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A table as SQLite describes it: what a reader or writer of the format relies on."""

    columns: tuple[tuple[str, str, bool, str | None, int, int], ...]
    unique: frozenset[tuple[tuple[str, str], ...]]
    autoincrement: bool

    def __str__(self) -> str:
        columns = ", ".join(
            f"{name} {kind}"
            + (" NOT NULL" if notnull else "")
            + (f" DEFAULT {default}" if default is not None else "")
            + (" PRIMARY KEY" if key else "")
            for name, kind, notnull, default, key, _hidden in self.columns
        )
        uniques = "".join(
            f", UNIQUE ({', '.join(f'{name} COLLATE {collation}' for name, collation in index)})"
            for index in sorted(self.unique)
        )
        return f"({columns}{uniques}){' AUTOINCREMENT' if self.autoincrement else ''}"


def recognise(query: Query, fmt: Format, naming: Naming, target: str) -> Found:
    """Tell what the database holds of the format, or refuse it.

    Reads only. FormatError if a table of the store's name has other columns, if the marker is another one, or if a
    native file belongs to somebody else.
    """
    names = naming.of(fmt.store)
    kinds = {str(name).lower(): str(kind) for name, kind in query("SELECT name, type FROM sqlite_master")}
    tables = {name for name, kind in kinds.items() if kind in ("table", "view") and not name.startswith("sqlite_")}
    ours = {table: naming.name(fmt.store, table).lower() for table in fmt.tables}  # SQLite folds the case of names
    present = [table for table, name in ours.items() if name in tables]
    marker = _marker(query, fmt, names, tables)
    if marker not in (None, fmt.marker):
        raise FormatError(
            "the store has another format",
            found=marker if isinstance(marker, str) else repr(marker),
            supported=fmt.marker,
            target=target,
        )
    for table in present:
        found = _shape(query, ours[table])
        if found != (wanted := _shapes(fmt)[table]):
            raise FormatError(
                f"table {ours[table]} is not this store's, which would be {wanted}",
                found=str(found),
                supported=fmt.marker,
                target=target,
            )
    others = tables - set(ours.values()) - {naming.version_table.lower()}
    if naming.native and others and marker is None and set(present) <= {"meta"}:
        raise FormatError(
            "the file is another application's database, and a native file holds one store alone",
            found=f"tables {', '.join(sorted(others))}",
            supported=fmt.marker,
            target=target,
        )
    indexes = {naming.name(fmt.store, name).lower() for name in _index_names(fmt)}
    return Found(
        present=bool(present),
        complete=len(present) == len(fmt.tables) and indexes <= kinds.keys() and (marker is not None or not fmt.marked),
        revisions=_revisions(query, naming, tables),
    )


def _marker(query: Query, fmt: Format, names: Names, tables: set[str]) -> object:
    """The marker of the store, or in a native file of whichever store it is; None without one."""
    meta = names.naming.name(fmt.store, "meta").lower()
    if meta not in tables or not (fmt.marked or names.naming.native):
        return None
    if [column[0] for column in _shape(query, meta).columns] != ["key", "value"]:
        return None  # somebody else's table of that name; its shape is refused where it matters
    rows = query(f"SELECT value FROM {names['meta']} WHERE key = 'format'")  # noqa: S608  a quoted name, no value
    return rows[0][0] if rows else None


def _revisions(query: Query, naming: Naming, tables: set[str]) -> frozenset[str]:
    if naming.version_table.lower() not in tables:
        return frozenset()
    return frozenset(str(row[0]) for row in query(f'SELECT version_num FROM "{naming.version_table}"'))  # noqa: S608  as above


def _shape(query: Query, table: str) -> _Shape:
    columns = tuple(
        (name, kind.upper(), bool(notnull), default, key, hidden)
        for _id, name, kind, notnull, default, key, hidden in query(f'PRAGMA table_xinfo("{table}")')
    )
    unique = frozenset(
        tuple((part[2], part[4]) for part in query(f'PRAGMA index_xinfo("{index[1]}")') if part[5])
        for index in query(f'PRAGMA index_list("{table}")')
        if index[2]
    )
    created = query(f"SELECT sql FROM sqlite_master WHERE lower(name) = '{table}' AND type IN ('table', 'view')")  # noqa: S608  as above
    return _Shape(columns, unique, "AUTOINCREMENT" in str(created[0][0]).upper())


@cache
def _shapes(fmt: Format) -> dict[str, _Shape]:
    """The format's tables, described by SQLite itself from the frozen DDL: no second description can drift."""
    connection = _made(fmt)
    try:
        return {table: _shape(lambda sql: connection.execute(sql).fetchall(), table) for table in fmt.tables}
    finally:
        connection.close()


@cache
def _index_names(fmt: Format) -> frozenset[str]:
    connection = _made(fmt)
    try:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        return frozenset(str(name) for (name,) in rows.fetchall())
    finally:
        connection.close()


def _made(fmt: Format) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for statement in fmt.statements(NATIVE.of(fmt.store), "sqlite"):
        connection.execute(statement)
    return connection
