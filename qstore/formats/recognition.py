"""Recognise a store in a database by its marker and its columns, with queries alone."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from qstore.errors import FormatError
from qstore.formats.addition import Addition
from qstore.formats.additions import ADDITIONS
from qstore.formats.format import Format
from qstore.formats.spelling import without_comments, words
from qstore.naming import NATIVE, TURSO_INTERNAL, Naming

__all__ = ["Found", "Query", "recognise"]

_INTERNAL = ("sqlite_", TURSO_INTERNAL)  # the engines' own tables

Query = Callable[[str], Sequence[Sequence[Any]]]
"""Runs one SELECT or PRAGMA and returns all its rows."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a database holds of a store.

    `missing`: what is not there of the tables, indexes, columns and the marker of the format, and of what a revision
    that is noted adds.
    `added`, `lacking`: which parts of the format's addition are there as they should be, and which are not.
    `stateless`: there are tables, and not all of the state that the format keeps in them on a server.
    """

    tables: frozenset[str]
    missing: frozenset[str]
    revisions: frozenset[str]
    added: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    stateless: bool = False

    @property
    def complete(self) -> bool:
        """Whether all of the format is there, and all that a revision which is noted adds."""
        return not self.missing

    @property
    def present(self) -> bool:
        """Whether any of the store's tables is there."""
        return bool(self.tables)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: str
    notnull: bool
    default: str | None
    key: int
    hidden: int
    exact: bool
    """Whether texts that differ are different to it: no NOCASE, no RTRIM."""

    def __str__(self) -> str:
        parts = [self.name, self.kind, "NOT NULL" * self.notnull, "PRIMARY KEY" * bool(self.key)]
        if self.default is not None:
            parts.append(f"DEFAULT {self.default}")
        if not self.exact:
            parts.append("of a collation that takes different texts for equal")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as SQLite describes it: what a reader or writer of the format relies on."""

    columns: tuple[_Column, ...]
    unique: frozenset[tuple[str, ...]]
    autoincrement: bool

    def __str__(self) -> str:
        parts = [*map(str, self.columns), *(f"UNIQUE ({', '.join(index)})" for index in sorted(self.unique))]
        return f"({', '.join(parts)}){' AUTOINCREMENT' if self.autoincrement else ''}"


@dataclass(frozen=True, slots=True)
class _Layout:
    """A format, described by SQLite itself from the frozen DDL: no second description can drift."""

    tables: dict[str, _Table]
    indexes: dict[str, tuple[str, ...]]


def recognise(query: Query, fmt: Format, naming: Naming, target: str) -> Found:
    """Tell what the database holds of the format, or refuse it.

    Reads only. FormatError if a table or index of the store's name is another one, if the marker is, or if a native
    file belongs to somebody else.
    """
    layout = _layout(fmt)
    [(encoding,)] = query("PRAGMA encoding")
    if encoding != "UTF-8":
        raise FormatError(
            "the database keeps text in another encoding", found=encoding, supported="UTF-8", target=target
        )
    kinds = {str(name).lower(): str(kind) for name, kind in query("SELECT name, type FROM sqlite_master")}
    tables = {name for name, kind in kinds.items() if kind == "table" and not name.startswith(_INTERNAL)}
    ours = {table: naming.name(fmt.store, table).lower() for table in fmt.tables}  # SQLite folds the case of names
    present = frozenset(table for table, name in ours.items() if name in tables)
    for name in ours.values():
        if kinds.get(name, "table") != "table":
            raise FormatError(
                "the name of a table of this store is taken",
                found=f"{kinds[name]} {name}",
                supported=fmt.marker,
                target=target,
            )
    marker = _marker(query, naming.name(fmt.store, "meta").lower(), tables) if fmt.marked or naming.native else None
    if marker not in (None, fmt.marker):
        raise FormatError(
            "the store has another format",
            found=marker if isinstance(marker, str) else repr(marker),
            supported=fmt.marker,
            target=target,
        )
    for table in present:
        found = _table(query, ours[table])
        if found != layout.tables[table]:
            raise FormatError(
                f"table {ours[table]} is not this store's, which would be {layout.tables[table]}",
                found=str(found),
                supported=fmt.marker,
                target=target,
            )
    addition = ADDITIONS.get(fmt.store)
    ours |= {} if addition is None else {table: naming.name(fmt.store, table).lower() for table in addition.tables}
    views = {name for name, kind in kinds.items() if kind == "view"}
    others = (tables | views) - set(ours.values()) - {naming.version_table.lower()}
    if naming.native and others and marker is None and present <= {"meta"}:
        raise FormatError(
            "this is another application's database, and a native file holds one store alone; where a store is mounted"
            " in it, pass the naming that it was mounted with",
            found=f"tables {', '.join(sorted(others))}",
            supported=fmt.marker,
            target=target,
        )
    revisions = _revisions(query, naming, tables)
    added = frozenset() if addition is None else frozenset(_added(query, addition, naming))
    lacking = frozenset() if addition is None else frozenset(addition.parts) - added
    missing = {name for table, name in ours.items() if table in fmt.tables and table not in present}
    missing |= {
        name
        for name in map(partial(naming.name, fmt.store), layout.indexes)
        if not _indexed(query, name, kinds, fmt, target)
    }
    if fmt.marked and marker is None:
        missing.add("the marker")
    if addition is not None and addition.revision in revisions:
        missing |= {naming.name(fmt.store, part) for part in lacking}
    return Found(tables=present, missing=frozenset(missing), revisions=revisions, added=added, lacking=lacking)


def _marker(query: Query, meta: str, tables: set[str]) -> object:
    """The marker of the store, or in a native file of whichever store it is; None without one."""
    if meta not in tables or [column.name for column in _table(query, meta).columns] != ["key", "value"]:
        return None  # somebody else's table of that name is refused where it matters
    rows = query(f"SELECT value FROM {_quoted(meta)} WHERE key = 'format'")  # noqa: S608  a quoted name, no value
    return rows[0][0] if rows else None


def _revisions(query: Query, naming: Naming, tables: set[str]) -> frozenset[str]:
    """The revisions that are noted: in qstore's own version table, or in the host's where its Alembic runs them."""
    versions = {naming.version_table.lower(), *(() if naming.native else ("alembic_version",))} & tables
    noted = set[str]()
    for table in versions:
        if any(column[1] == "version_num" for column in query(f"PRAGMA table_xinfo({_quoted(table)})")):
            noted |= {str(revision) for (revision,) in query(f"SELECT version_num FROM {_quoted(table)}")}  # noqa: S608  as above
    hosts = {revision for revision in noted if revision.partition(".")[0] not in ("transport", "localkv", "localqueue")}
    return frozenset(noted - hosts)


def _added(query: Query, addition: Addition, naming: Naming) -> Iterator[str]:
    """The parts of an addition that are there: tables and indexes by what they are, triggers by their text."""
    wanted = _layout_of_addition(addition)
    master = query("SELECT type, name, lower(tbl_name), sql FROM sqlite_master")
    created = {str(name).lower(): (kind, table, sql) for kind, name, table, sql in master}
    names, places = naming.of(addition.format.store), addition.places
    for kind, parts in (("table", addition.tables), ("index", addition.indexes), ("trigger", addition.triggers)):
        for part, text in parts.items():
            name = naming.name(addition.format.store, part).lower()
            found, table, sql = created.get(name, (None, "", ""))
            if found != kind or table != naming.name(addition.format.store, places[part]).lower():
                continue
            if kind == "trigger":
                [spelled] = addition.rendered(names, (text.replace(" IF NOT EXISTS", "", 1),))
                if sql.split() == spelled.split() or words(sql) == words(spelled):
                    yield part
            elif wanted[part] == (_table(query, name) if kind == "table" else _added_index(query, name, sql)):
                yield part


def _added_index(query: Query, name: str, sql: str) -> tuple[object, ...]:
    return _index(query, name), " WHERE " in " ".join(sql.split()).upper()


def _indexed(query: Query, name: str, kinds: dict[str, str], fmt: Format, target: str) -> bool:
    """Whether an index is there. FormatError if it has other columns."""
    if kinds.get(name.lower()) != "index":
        return False
    found = _index(query, name)
    wanted = next(columns for index, columns in _layout(fmt).indexes.items() if name.endswith(index))
    if found != wanted:
        raise FormatError(
            f"index {name} is not this store's, which would be on ({', '.join(wanted)}); drop it, and upgrade makes it",
            found=f"an index on ({', '.join(found)})",
            supported=fmt.marker,
            target=target,
        )
    return True


def _index(query: Query, name: str) -> tuple[str, ...]:
    return tuple(
        f"{part[2]}{' DESC' if part[3] else ''}{'' if part[4] == 'BINARY' else f' COLLATE {part[4]}'}"
        for part in query(f"PRAGMA index_xinfo({_quoted(name)})")
        if part[5]
    )


def _table(query: Query, table: str) -> _Table:
    columns = tuple(
        _Column(
            name,
            "INTEGER" if kind.upper() == "INT" else kind.upper(),
            bool(notnull),
            default,
            key,
            hidden,
            _exact(query, table, name),
        )
        for _, name, kind, notnull, default, key, hidden in query(f"PRAGMA table_xinfo({_quoted(table)})")
    )
    unique = frozenset(_index(query, index[1]) for index in query(f"PRAGMA index_list({_quoted(table)})") if index[2])
    [(created,)] = query(f"SELECT sql FROM sqlite_master WHERE lower(name) = '{table}' AND type IN ('table', 'view')")  # noqa: S608  as above
    return _Table(columns, unique, bool(re.search(r"\bAUTOINCREMENT\b", without_comments(created), re.IGNORECASE)))


def _exact(query: Query, table: str, column: str) -> bool:
    """Whether a column keeps texts apart that differ: a UNION keeps apart what its collation does."""
    texts = "SELECT 'a' UNION SELECT 'A' UNION SELECT 'a '"
    return len(query(f"SELECT {_quoted(column)} FROM {_quoted(table)} WHERE 0 UNION {texts}")) == 3  # noqa: S608  quoted names


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@cache
def _layout_of_addition(addition: Addition) -> dict[str, object]:
    """An addition's tables and indexes, as SQLite describes them."""
    with closing(sqlite3.connect(":memory:")) as connection:

        def query(statement: str) -> list[Any]:
            return connection.execute(statement).fetchall()

        names = NATIVE.of(addition.format.store)
        for statement in (*addition.format.statements(names, addition.dialect), *addition.ddl(names)):
            connection.execute(statement)
        created = dict(query("SELECT name, sql FROM sqlite_master"))
        return {table: _table(query, table) for table in addition.tables} | {
            index: _added_index(query, index, created[index]) for index in addition.indexes
        }


@cache
def _layout(fmt: Format) -> _Layout:
    with closing(sqlite3.connect(":memory:")) as connection:

        def query(statement: str) -> list[Any]:
            return connection.execute(statement).fetchall()

        for statement in fmt.statements(NATIVE.of(fmt.store), "sqlite"):
            connection.execute(statement)
        indexes = query("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        return _Layout(
            {table: _table(query, table) for table in fmt.tables}, {name: _index(query, name) for (name,) in indexes}
        )
