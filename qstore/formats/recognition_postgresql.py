"""Recognise a store in a PostgreSQL database by its marker and by what its tables are, with queries alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from qstore.errors import FormatError
from qstore.formats.format import Format
from qstore.formats.layout_postgresql import NEXT_ID, Column, Layout, Table, layout_of, plain_default
from qstore.formats.localkv_v1 import LOCALKV_V1
from qstore.formats.localqueue_v1 import LOCALQUEUE_V1
from qstore.formats.recognition import Found, Query
from qstore.formats.transport_v1 import TRANSPORT_V1
from qstore.naming import Naming

__all__ = ["recognise_on_server", "server_additions"]

# All that compare code points, as UTF-8's bytes do: by name, or the database's own where a column says nothing
# (as JSON, since PostgreSQL 14 has no such column).
_C = "('C', 'POSIX', 'C.UTF-8', 'C.utf8')"
_FORMATS = (TRANSPORT_V1, LOCALKV_V1, LOCALQUEUE_V1)

_BY_BYTES = (
    f"l.collprovider = 'b' OR l.collcollate IN {_C} OR l.collname = 'default'"
    f" AND CASE to_jsonb(b) ->> 'datlocprovider' WHEN 'b' THEN true WHEN 'i' THEN false ELSE b.datcollate IN {_C} END"
)


@dataclass(frozen=True, slots=True)
class _Relation:
    oid: int
    kind: str
    """`r` or `p`: a table."""


def recognise_on_server(query: Query, fmt: Format, naming: Naming, target: str) -> Found:
    """Tell what the database holds of the format, or refuse it.

    Reads only, and looks where a statement would: in the schema of the naming, or along the search path. FormatError
    if a table or an index of the store's name is another one, or if the marker is.
    """

    def refused(message: str, found: str) -> FormatError:
        return FormatError(message, found=found, supported=fmt.marker, target=target)

    layout = layout_of(fmt)
    relations = _relations(query, naming, [naming.name(fmt.store, table) for table in fmt.tables])
    ours = {table: relations[name] for table in fmt.tables if (name := naming.name(fmt.store, table)) in relations}
    for table, relation in ours.items():
        if relation.kind not in "rp":
            name = naming.name(fmt.store, table)
            raise refused("the name of a table of this store is taken", f"{name}, which is no table")
    missing = {naming.name(fmt.store, table) for table in fmt.tables if table not in ours}
    stateless = bool(ours and missing)
    described = _tables(query, layout, {table: relation.oid for table, relation in ours.items()})
    for table, it in described.items():
        lost = layout.added.get(table, frozenset()) - {column.name for column in it.columns}
        if it != layout.tables[table].without(lost):
            name = naming.name(fmt.store, table)
            raise refused(f"table {name} is not this store's, which would be {layout.tables[table]}", str(it))
        missing |= {f"{naming.name(fmt.store, table)}.{column}" for column in lost}
        stateless = stateless or bool(lost)
    marker = _marker(query, naming, fmt) if "meta" in ours else None
    if marker not in (None, fmt.marker):
        raise refused("the store has another format", repr(marker))
    if fmt.marked and marker is None:
        missing.add("the marker")
    there = _indexes(query, ours.values(), [naming.name(fmt.store, index) for index in layout.indexes])
    for index, (table, on) in layout.indexes.items():
        name = naming.name(fmt.store, index)
        if name not in there:
            missing.add(name)
        elif there[name] != (ours[table].oid if table in ours else None, _plain(f"btree {on}")):
            raise refused(
                f"index {name} is not this store's, which would be on {naming.name(fmt.store, table)} {on}; drop it,"
                " and upgrade makes it",
                f"{there[name][1]}, or on another table",
            )
    return Found(
        tables=frozenset(ours),
        missing=frozenset(missing),
        revisions=_revisions(query, naming),
        stateless=stateless,
    )


def server_additions(naming: Naming) -> set[tuple[str, str]]:
    """What the stores have beside their models: pairs of a table and the name of a column or index of it."""
    found = set()
    for fmt in _FORMATS:
        layout = layout_of(fmt)
        found |= {(naming.name(fmt.store, table), column) for table, names in layout.added.items() for column in names}
        found |= {
            (naming.name(fmt.store, table), naming.name(fmt.store, index))
            for index, (table, _) in layout.indexes.items()
        }
    return found


def _relations(query: Query, naming: Naming, names: Iterable[str]) -> dict[str, _Relation]:
    """Those of the names that a statement would find."""
    schema = "" if naming.schema is None else f'"{naming.schema}".'
    listed = ", ".join(f"""('{name}', '{schema}"{name}"')""" for name in names)
    rows = query(
        f"SELECT n.name, c.oid::bigint, c.relkind::text FROM (VALUES {listed}) AS n (name, quoted)"  # noqa: S608  checked names
        " JOIN pg_catalog.pg_class AS c ON c.oid = pg_catalog.to_regclass(n.quoted)"
    )
    return {name: _Relation(oid, kind) for name, oid, kind in rows}


def _tables(query: Query, layout: Layout, oids: dict[str, int]) -> dict[str, Table]:
    if not oids:
        return {}
    listed = ", ".join(map(str, oids.values()))
    columns = query(
        "SELECT a.attrelid::bigint, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,"  # noqa: S608  checked
        f" pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attidentity::text, {_BY_BYTES}"
        " FROM pg_catalog.pg_attribute AS a"
        " JOIN pg_catalog.pg_database AS b ON b.datname = pg_catalog.current_database()"
        " LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        " LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation"
        f" WHERE a.attrelid IN ({listed}) AND a.attnum > 0 AND NOT a.attisdropped"
    )
    keys = query(
        "SELECT i.indrelid::bigint, i.indisprimary, i.indimmediate, pg_catalog.pg_get_indexdef(i.indexrelid)"  # noqa: S608  numbers
        f" FROM pg_catalog.pg_index AS i WHERE i.indrelid IN ({listed})"
        " AND (i.indisprimary OR i.indisunique OR i.indisexclusion)"
    )
    exact = {(table, column.name) for table, it in layout.tables.items() for column in it.columns if column.exact}
    return {
        table: Table(
            frozenset(
                Column(name, kind, bool(by_bytes) and (table, name) in exact, notnull, _given(identity, default))
                for of, name, kind, notnull, default, identity, by_bytes in columns
                if of == oid
            ),
            frozenset(_key(*key) for of, *key in keys if of == oid),
        )
        for table, oid in oids.items()
    }


def _key(primary: bool, immediate: bool, definition: str) -> str:
    on = definition.partition(" USING btree ")[2] or definition
    return f"{'PRIMARY KEY' if primary else 'UNIQUE'} {on}{'' if immediate else ' DEFERRABLE'}"


def _given(identity: str, default: str | None) -> str | None:
    if identity == "a":
        return "no id but the next"  # GENERATED ALWAYS: rows that are moved here could not keep theirs
    return NEXT_ID if identity or (default or "").startswith("nextval(") else plain_default(default)


def _indexes(query: Query, beside: Iterable[_Relation], names: list[str]) -> dict[str, tuple[int | None, str]]:
    """What of the names is beside the tables: of an index its table and what it is on."""
    listed = ", ".join(str(relation.oid) for relation in beside)
    if not listed:
        return {}
    named = ", ".join(f"'{name}'" for name in names)
    rows = query(
        "SELECT c.relname, i.indrelid::bigint, i.indisvalid, pg_catalog.pg_get_indexdef(i.indexrelid), i.indisunique"  # noqa: S608  numbers
        " FROM pg_catalog.pg_class AS c LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = c.oid"
        f" WHERE c.relnamespace IN (SELECT o.relnamespace FROM pg_catalog.pg_class AS o WHERE o.oid IN ({listed}))"
        f" AND c.relname IN ({named})"
    )
    return {name: (table, _on(*rest)) for name, table, *rest in rows}


def _on(valid: bool | None, definition: str | None, unique: bool | None) -> str:
    if definition is None:
        return "no index"
    on = _plain(definition.partition(" USING ")[2])
    return f"{'unique ' if unique else ''}{on}{'' if valid else ', which is not valid'}"


def _plain(expression: str) -> str:
    """An expression without the parentheses that the server adds."""
    return " ".join(re.sub(r"[()]", " ", expression).split())


def _marker(query: Query, naming: Naming, fmt: Format) -> Any:
    rows = query(f"SELECT value FROM {naming.of(fmt.store)['meta']} WHERE key = 'format'")  # noqa: S608  a quoted name
    return rows[0][0] if rows else None


def _revisions(query: Query, naming: Naming) -> frozenset[str]:
    """The revisions that are noted: in qstore's own version table, or in the host's where its Alembic runs them."""
    return frozenset(
        each for each in _noted(query, naming) if each.partition(".")[0] in {fmt.store for fmt in _FORMATS}
    )


def _noted(query: Query, naming: Naming) -> Iterator[str]:
    tables = _relations(query, naming, (naming.version_table, *(() if naming.native else ("alembic_version",))))
    if not tables:
        return
    listed = ", ".join(str(table.oid) for table in tables.values())
    alembics = query(
        f"SELECT attrelid::bigint FROM pg_catalog.pg_attribute WHERE attname = 'version_num' AND attrelid IN ({listed})"  # noqa: S608  numbers
    )
    schema = "" if naming.schema is None else f'"{naming.schema}".'
    for name, table in tables.items():
        if (table.oid,) in {tuple(row) for row in alembics}:
            yield from (str(revision) for (revision,) in query(f'SELECT version_num FROM {schema}"{name}"'))  # noqa: S608  a checked name
