"""Recognise a store in a PostgreSQL database by its marker and its columns, with queries alone."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from qstore.errors import FormatError
from qstore.formats.format import Format
from qstore.formats.localkv_v1 import LOCALKV_V1
from qstore.formats.localqueue_v1 import LOCALQUEUE_V1
from qstore.formats.recognition import Found, Query
from qstore.formats.transport_v1 import TRANSPORT_V1
from qstore.naming import Naming

__all__ = ["recognise_on_server", "server_additions"]

_TYPES = {"BIGSERIAL": "bigint", "BIGINT": "bigint", "INTEGER": "integer", "DOUBLE PRECISION": "double precision"}

_CREATED = re.compile(r"CREATE TABLE IF NOT EXISTS \{(\w+)\} \(\n(.*)\n\)", re.DOTALL)
_COLUMN = re.compile(r"(\w+)\s+(DOUBLE PRECISION|\w+)")
_ADDED = re.compile(r"ALTER TABLE \{(\w+)\}\s+ADD COLUMN")
_ADDED_COLUMN = re.compile(r"ADD COLUMN IF NOT EXISTS (\w+)\s+(DOUBLE PRECISION|\w+)")
_INDEX = re.compile(r"CREATE INDEX IF NOT EXISTS \{(\w+)\} ON \{(\w+)\}")

_FORMATS = (TRANSPORT_V1, LOCALKV_V1, LOCALQUEUE_V1)


def recognise_on_server(query: Query, fmt: Format, naming: Naming, target: str) -> Found:
    """Tell what the database holds of the format, or refuse it.

    Reads only. FormatError if a table of the store's name is another one, or if the marker is.
    """
    wanted, added, indexes = _layout(fmt)
    schema = "current_schema()" if naming.schema is None else f"'{naming.schema}'"
    relations = _relations(query, schema)
    ours = {table: naming.name(fmt.store, table) for table in fmt.tables}
    for name in ours.values():
        if relations.get(name, "r") not in "rp":
            raise FormatError(
                "the name of a table of this store is taken",
                found=f"{name}, which is no table",
                supported=fmt.marker,
                target=target,
            )
    present = frozenset(table for table, name in ours.items() if name in relations)
    whole = True
    for table in present:
        columns = _columns(query, schema, ours[table])
        base = {name: kind for name, kind in columns.items() if name not in added.get(table, {})}
        if base != wanted[table] or any(columns.get(name, kind) != kind for name, kind in added.get(table, {}).items()):
            raise FormatError(
                f"table {ours[table]} is not this store's, which would be ({_shown(wanted[table])})",
                found=f"({_shown(columns)})",
                supported=fmt.marker,
                target=target,
            )
        whole = whole and added.get(table, {}).keys() <= columns.keys()
    marker = _marker(query, naming, fmt) if "meta" in present else None
    if marker not in (None, fmt.marker):
        raise FormatError("the store has another format", found=repr(marker), supported=fmt.marker, target=target)
    return Found(
        tables=present,
        complete=whole
        and len(present) == len(fmt.tables)
        and all(relations.get(naming.name(fmt.store, index)) == "i" for index in indexes)
        and (marker is not None or not fmt.marked),
        revisions=_revisions(query, naming, relations),
    )


def server_additions(naming: Naming) -> set[tuple[str, str]]:
    """What the stores have beside their models: pairs of a table and the name of a column or index of it."""
    found = set()
    for fmt in _FORMATS:
        _, added, indexes = _layout(fmt)
        found |= {(naming.name(fmt.store, table), column) for table, columns in added.items() for column in columns}
        found |= {(naming.name(fmt.store, table), naming.name(fmt.store, index)) for index, table in indexes.items()}
    return found


@cache
def _layout(fmt: Format) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]], dict[str, str]]:
    """What the frozen DDL makes: the columns of each table, those that are added to it, and the indexes."""
    created: dict[str, dict[str, str]] = {}
    added: dict[str, dict[str, str]] = {}
    indexes: dict[str, str] = {}
    for statement in fmt.ddl["postgresql"]:
        if match := _CREATED.match(statement):
            created[match[1]] = {name: _type(kind) for name, kind in map(_parts, match[2].splitlines())}
        elif match := _ADDED.match(statement):
            added[match[1]] = {name: _type(kind) for name, kind in _ADDED_COLUMN.findall(statement)}
        elif match := _INDEX.match(statement):
            indexes[match[1]] = match[2]
    return created, added, indexes


def _parts(line: str) -> tuple[str, str]:
    [(name, kind)] = _COLUMN.findall(line.strip())[:1]
    return name, kind


def _type(kind: str) -> str:
    return _TYPES.get(kind, kind.lower())


def _relations(query: Query, schema: str) -> dict[str, str]:
    rows = query(
        "SELECT c.relname, c.relkind::text FROM pg_catalog.pg_class AS c"  # noqa: S608  a checked name
        f" JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = {schema}"
    )
    return dict(map(tuple, rows))


def _columns(query: Query, schema: str, table: str) -> dict[str, str]:
    rows = query(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute AS a"  # noqa: S608  as above
        " JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = {schema} AND c.relname = '{table}' AND a.attnum > 0 AND NOT a.attisdropped"
    )
    return dict(map(tuple, rows))


def _marker(query: Query, naming: Naming, fmt: Format) -> Any:
    rows = query(f"SELECT value FROM {naming.of(fmt.store)['meta']} WHERE key = 'format'")  # noqa: S608  a quoted name
    return rows[0][0] if rows else None


def _revisions(query: Query, naming: Naming, relations: dict[str, str]) -> frozenset[str]:
    """The revisions that are noted: in qstore's own version table, or in the host's where its Alembic runs them."""
    schema = "" if naming.schema is None else f'"{naming.schema}".'
    noted = set[str]()
    for table in (naming.version_table, *(() if naming.native else ("alembic_version",))):
        if table in relations:
            noted |= {str(revision) for (revision,) in query(f'SELECT version_num FROM {schema}"{table}"')}  # noqa: S608  as above
    return frozenset(each for each in noted if each.partition(".")[0] in ("transport", "localkv", "localqueue"))


def _shown(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
