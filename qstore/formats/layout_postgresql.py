"""What the frozen DDL makes on PostgreSQL, read from its text: no second description can drift."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from qstore.formats.format import Format

__all__ = ["NEXT_ID", "Column", "Layout", "Table", "layout_of", "plain_default"]

_CREATED = re.compile(r"CREATE TABLE IF NOT EXISTS \{(\w+)\} \(\n(.*)\n\)", re.DOTALL)
_ADDED = re.compile(r"ALTER TABLE \{(\w+)\}\s+ADD COLUMN")
_COLUMN = re.compile(
    r"""(?P<name>\w+)\s+(?P<kind>DOUBLE\ PRECISION|[A-Z]+)(?P<exact>\ COLLATE\ "C")?
        (?P<key>\ PRIMARY\ KEY)?(?P<notnull>\ NOT\ NULL)?(?:\ DEFAULT\ (?P<default>[\w.]+))?,?$""",
    re.VERBOSE | re.MULTILINE,
)
_INDEX = re.compile(r"CREATE INDEX IF NOT EXISTS \{(\w+)\} ON \{(\w+)\} (.*)", re.DOTALL)

NEXT_ID = "the next id"
"""The default of a column whose ids the server gives."""


@dataclass(frozen=True, slots=True)
class Column:
    """What a column is to readers and writers."""

    name: str
    kind: str
    exact: bool
    """Whether texts are compared by their bytes."""
    notnull: bool
    default: str | None

    def __str__(self) -> str:
        parts = [self.name, self.kind, 'COLLATE "C"' * self.exact, "NOT NULL" * self.notnull]
        if self.default is not None:
            parts.append(f"DEFAULT {self.default}")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns, and its primary key and other unique ones."""

    columns: frozenset[Column]
    keys: frozenset[str]

    def __str__(self) -> str:
        return f"({', '.join([*sorted(map(str, self.columns)), *sorted(self.keys)])})"

    def without(self, names: Iterable[str]) -> Table:
        """The table with fewer columns."""
        return Table(frozenset(column for column in self.columns if column.name not in names), self.keys)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the frozen DDL makes: the tables at the end, the columns that are added to them, and the indexes."""

    tables: dict[str, Table]
    added: dict[str, frozenset[str]]
    indexes: dict[str, tuple[str, str]]
    """Each one's table, and what it is on."""


@cache
def layout_of(fmt: Format) -> Layout:
    """The layout of a format."""
    columns: dict[str, list[re.Match[str]]] = {}
    added: dict[str, frozenset[str]] = {}
    indexes: dict[str, tuple[str, str]] = {}
    for statement in fmt.ddl["postgresql"]:
        if match := _CREATED.match(statement):
            columns[match[1]] = list(_COLUMN.finditer(match[2]))
        elif match := _ADDED.match(statement):
            more = list(_COLUMN.finditer(statement.replace("ADD COLUMN IF NOT EXISTS ", "\n")))
            columns[match[1]] += more
            added[match[1]] = frozenset(each["name"] for each in more)
        elif match := _INDEX.match(statement):
            indexes[match[1]] = match[2], " ".join(match[3].split())
    tables = {
        table: Table(
            frozenset(map(_wanted, matches)),
            frozenset(f"PRIMARY KEY ({each['name']})" for each in matches if "PRIMARY KEY" in each[0]),
        )
        for table, matches in columns.items()
    }
    return Layout(tables, added, indexes)


def _wanted(it: re.Match[str]) -> Column:
    serial = it["kind"] == "BIGSERIAL"
    return Column(
        it["name"],
        "bigint" if serial else it["kind"].lower(),
        it["exact"] is not None,
        "PRIMARY KEY" in it[0] or it["notnull"] is not None,
        NEXT_ID if serial else plain_default(it["default"]),
    )


def plain_default(expression: str | None) -> str | None:
    """A default as one of the spellings that mean the same: 0.0, '0'::double precision."""
    if expression is None:
        return None
    bare = re.sub(r"::[a-z ]+$", "", expression).strip("'()").lower()
    with suppress(ValueError):
        bare = f"{float(bare):g}"
    return bare
