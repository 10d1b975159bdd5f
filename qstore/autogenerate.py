"""What a host's `alembic revision --autogenerate` makes of qstore's tables. Alembic (from 1.18 on) finds this itself.

qstore's own revisions look after its tables, so that the host's neither drop nor create them, nor the version table.
Only where neither the runner nor the branch of revisions is in use, the host's create them, marker included.
Nothing of Alembic is imported before it calls: it imports this while it is imported itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, Index, MetaData

from qstore.formats import ADDITIONS, FORMATS, newest, server_additions, tables_of
from qstore.naming import PREFIX, TURSO_INTERNAL, Naming

__all__ = ["guard", "include_name", "include_object", "made_on", "names_of", "setup"]


def setup(plugin: Any) -> None:
    """Register with Alembic, to come after all its own comparisons of a schema."""
    from alembic.util import DispatchPriority  # noqa: PLC0415  once Alembic calls

    plugin.add_autogenerate_comparator(guard, "schema", priority=DispatchPriority.LAST)


def guard(autogen_context: Any, upgrade_ops: Any, _schemas: object) -> None:
    """Take qstore's tables out of what a host's revision would do, or give it what Alembic cannot see of them."""
    from qstore.mounting import namings_in  # noqa: PLC0415  once Alembic calls
    from qstore.revisions import naming_of_host  # noqa: PLC0415  once Alembic calls

    tables = autogen_context.sorted_tables
    in_metadata = {table.name for table in tables}
    in_database = set(autogen_context.inspector.get_table_names())
    namings = {naming_of_host(autogen_context.migration_context), *_noted(autogen_context.connection, in_database)}
    namings |= {naming for metadata in {table.metadata for table in tables} for naming in namings_in(metadata)}
    ours = {name for naming in namings for name in names_of(naming)}
    looked_after = _branch_in_use(autogen_context) or any(naming.version_table in in_database for naming in namings)
    dialect = autogen_context.dialect.name
    elsewhere = {index.name for table in tables for index in table.indexes if not made_on(index, dialect)}
    if dialect != "sqlite":
        elsewhere |= set().union(*map(_for_files, namings))
    if looked_after:
        elsewhere |= set(_later_indexes(in_database, namings))
    kept: list[Any] = []
    for operation in upgrade_ops.ops:
        name = getattr(operation, "table_name", None)
        if str(name).startswith(TURSO_INTERNAL):
            continue
        if name not in ours:
            kept.append(operation)
        elif name in in_metadata and (name in in_database or not looked_after):
            _leave_additions(operation, namings, elsewhere)
            if not {name, getattr(operation, "index_name", None)} & elsewhere:
                kept += [operation, *_markers(operation, namings, dialect)]
    if not looked_after and dialect == "sqlite":
        kept += _additions({getattr(operation, "table_name", None) for operation in kept} - in_database, namings)
    upgrade_ops.ops[:] = [each for each in kept if getattr(each, "ops", True)]


def include_name(metadata: MetaData, naming: Naming | None = None) -> Callable[[str | None, str, Any], bool]:
    """Guard a host's autogenerate before Alembic 1.18: `context.configure(…, include_name=include_name(metadata))`.

    Hides qstore's version table, and those of its tables that are not in the host's metadata.
    """
    named = naming or Naming("qstore_")
    hidden = names_of(named) - {table.name for table in metadata.tables.values()}
    beside = server_additions(named)

    def include(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "table":
            return name not in hidden and not str(name).startswith(TURSO_INTERNAL)
        return (parents.get("table_name"), name) not in beside

    return include


def include_object(naming: Naming | None = None) -> Callable[[Any, str | None, str, bool, Any], bool]:
    """The other half of it, on a server: `context.configure(…, include_object=include_object())`.

    Leaves out what the models of the stores have for SQLite alone: side tables, indexes, keys without NOT NULL.
    """
    named = naming or Naming("qstore_")
    ours = names_of(named)
    for_files = _for_files(named)

    def include(it: Any, name: str | None, kind: str, _reflected: bool, _compared: Any) -> bool:
        from alembic import context  # noqa: PLC0415  once Alembic calls

        table = name if kind == "table" else it.table.name
        if table not in ours or (dialect := context.get_context().dialect.name) == "sqlite":
            return True
        if kind == "column":
            return not it.primary_key
        return table not in for_files and (kind != "index" or made_on(it, dialect))

    return include


def _for_files(naming: Naming) -> set[str]:
    """The tables that SQLite alone has."""
    return {naming.name(store, table) for store, addition in ADDITIONS.items() for table in addition.tables}


def names_of(naming: Naming) -> set[str]:
    """All tables of a mount, its version table included."""
    return {
        naming.version_table,
        *(naming.name(store, table) for store in FORMATS for table in tables_of(store)),
    }


def _noted(connection: Connection, tables: set[str]) -> Iterator[Naming]:
    """The mounts whose version tables are in the database, whatever their prefixes."""
    ours = {fmt.marker for fmt in FORMATS.values()} | {newest(store) for store in FORMATS}
    for table in tables:
        prefix = table.removesuffix("alembic_version")
        if prefix not in ("", table) and PREFIX.fullmatch(prefix):
            rows = connection.exec_driver_sql(f'SELECT version_num FROM "{table}"').scalars().all()  # noqa: S608  a checked name
            if rows and set(rows) <= ours:
                yield Naming(prefix)


def made_on(index: Index, dialect: str) -> bool:
    """Whether an index is made on a dialect: Alembic does not ask for its `ddl_if`."""
    condition = index._ddl_if
    return condition is None or condition.dialect in (None, dialect)


def _leave_additions(operation: Any, namings: set[Naming], elsewhere: set[str | None]) -> None:
    """Leave on a server's tables what they have besides their models, and NOT NULL on their keys."""
    from alembic.operations import ops  # noqa: PLC0415  once Alembic calls

    beside = set().union(*map(server_additions, namings))

    def left(change: Any) -> bool:
        if isinstance(change, ops.DropColumnOp):
            return (operation.table_name, change.column_name) in beside
        if isinstance(change, ops.CreateIndexOp):
            return change.index_name in elsewhere
        if isinstance(change, ops.DropIndexOp):
            return (operation.table_name, change.index_name) in beside
        # The formats' keys are without NOT NULL on SQLite, and so are the models'.
        return isinstance(change, ops.AlterColumnOp) and change.modify_nullable is True

    if isinstance(operation, ops.ModifyTableOps):
        operation.ops[:] = [change for change in operation.ops if not left(change)]


def _branch_in_use(autogen_context: Any) -> bool:
    script = autogen_context.migration_context.script
    return script is not None and any(
        fmt.marker in {revision.revision for revision in script.walk_revisions()} for fmt in FORMATS.values()
    )


def _markers(operation: Any, namings: set[Naming], dialect: str) -> Iterator[Any]:
    """What follows the creation of a table: the marker, and on a server what the table has besides its model."""
    from alembic.operations import ops  # noqa: PLC0415  once Alembic calls

    if not isinstance(operation, ops.CreateTableOp):
        return
    for naming in namings:
        for store, fmt in FORMATS.items():
            names = naming.of(store)
            for table in fmt.tables:
                if naming.name(store, table) != operation.table_name:
                    continue
                if table == "meta":
                    undo = f"DELETE FROM {names['meta']} WHERE key = 'format'"  # noqa: S608  a quoted name, no value
                    yield _statement(
                        f"INSERT INTO {names['meta']} (key, value) VALUES ('format', '{fmt.marker}')",  # noqa: S608  as above
                        undo,
                    )
                elif dialect != "sqlite":
                    for statement in fmt.beside(names, dialect, table):
                        yield _statement(statement, "SELECT 1")  # all of it goes with the table


def _later_indexes(in_database: set[str], namings: set[Naming]) -> Iterator[str]:
    """The indexes that come with a store's next revision: it is still at v1."""
    for naming in namings:
        for store, addition in ADDITIONS.items():
            if not in_database & {naming.name(store, table) for table in addition.tables}:
                yield from (naming.name(store, index) for index in addition.indexes)


def _additions(created: set[Any], namings: set[Naming]) -> Iterator[Any]:
    """What follows the creation of the tables that were added to a format: their triggers, and what is in them."""
    for naming in namings:
        for store, addition in ADDITIONS.items():
            names = naming.of(store)
            if {naming.name(store, table) for table in addition.tables} <= created:
                for name, text in addition.triggers.items():
                    [undo] = addition.rendered(names, (f"DROP TRIGGER IF EXISTS {{{name}}}",))
                    [statement] = addition.rendered(names, (text,))
                    yield _statement(statement, undo)
                empty, *_ = statements = addition.rendered(names, addition.fill)
                for statement in statements:
                    yield _statement(statement, empty)


def _statement(sql: str, undo: str) -> Any:
    """An operation of a host's revision, with what its downgrade does in turn."""
    from alembic.operations import ops  # noqa: PLC0415  once Alembic calls

    class Statement(ops.ExecuteSQLOp):
        def reverse(self) -> ops.MigrateOperation:
            return ops.ExecuteSQLOp(undo)

    return Statement(sql)
