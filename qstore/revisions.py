"""Run the Alembic revisions, on a connection or into a script.

Alembic is run without its environment: `alembic.op` and `alembic.context` are one per process, so that two threads that
open stores, or a host that upgrades qstore from within a revision of its own, would take them from each other.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from alembic import op
from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from qstore import engines, wholeness
from qstore.engines import Bind, found
from qstore.engines.files import recognise_file
from qstore.errors import FormatError, InvalidInput
from qstore.formats import FORMATS, Addition, Format, newest
from qstore.naming import Naming
from qstore.wholeness import check_complete, complete, count, refill, refuse_others

__all__ = [
    "add",
    "adopt",
    "check_complete",
    "complete",
    "create",
    "downgrade",
    "drop",
    "location",
    "naming_of_host",
    "repair",
    "script_directory",
    "sql",
    "stamp",
    "take_away",
    "under_lock",
    "upgrade",
]

T = TypeVar("T")

Stores = Sequence[str]
Given = Any


def location() -> str:
    """The absolute path of the revisions' directory."""
    return str(files("qstore.migrations"))


@cache
def script_directory() -> ScriptDirectory:
    """Alembic's view of the revisions."""
    return ScriptDirectory(location())


def upgrade(bind: Bind, naming: Naming, stores: Stores) -> None:
    """Bring stores up to the newest revision: all of them or, on any error, none."""

    def work(connection: Connection) -> None:
        _run(connection, naming, [f"{store}@head" for store in stores])
        complete(connection, naming, stores)

    under_lock(bind, naming, stores, work)


def adopt(bind: Bind, naming: Naming, store: str) -> None:
    """Make a store at its newest revision, or note the one of a store that is there. Make again what it has lost."""

    def work(connection: Connection) -> None:
        it = found(connection, naming, store)
        if not it.revisions:
            _run(connection, naming, [f"{store}@head" if it.added or not it.present else FORMATS[store].marker])
        complete(connection, naming, (store,))

    under_lock(bind, naming, (store,), work)


def downgrade(bind: Bind, naming: Naming, stores: Stores, *, drop_data: bool = False) -> None:
    """Take stores out. InvalidInput, and nothing changed, if rows would go and `drop_data` is False."""
    bases = [f"{store}@base" for store in stores]
    under_lock(bind, naming, stores, lambda it: _run(it, naming, bases, down=True, drop_data=drop_data))


def repair(bind: Bind, naming: Naming, stores: Stores) -> tuple[str, ...]:
    """Make right anew what stores keep beside the seeds' columns."""
    return under_lock(bind, naming, stores, lambda it: tuple(refill(it, naming, stores)))


def stamp(bind: Bind, naming: Naming, stores: Stores) -> None:
    """Note the newest revision that stores have all of already, made by another hand."""

    def work(connection: Connection) -> None:
        for store in stores:
            marker = FORMATS[store].marker
            check_complete(connection, naming, marker)
            context = _context(connection, naming)
            with _known(context):
                whole = not found(connection, naming, store).lacking
                context.stamp(script_directory(), newest(store) if whole else marker)

    under_lock(bind, naming, stores, work)


def sql(dialect: str, naming: Naming, stores: Stores) -> str:
    """The upgrade from nothing as a script, for a database that others look after."""
    script = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect,
        opts={
            **_options(naming),
            "as_sql": True,
            "output_buffer": script,
            "transactional_ddl": True,
            "fn": _steps([f"{s}@head" for s in stores]),
        },
    )
    with context.begin_transaction():
        context.run_migrations(context=context, naming=naming)
    return script.getvalue()


# What a revision calls. Its `given` is what run_migrations was given: ours, or nothing in a host's own environment.


def create(fmt: Format, context: MigrationContext | None = None, naming: Naming | None = None, **_: Given) -> None:
    """Make a format's tables where they are missing, after a look at what is there."""
    if context is None or naming is None:
        context = op.get_context()
        naming, _drop_data = _given_by_host()
    if context.as_sql:
        for statement in fmt.statements(naming.of(fmt.store), context.dialect.name):
            context.execute(statement)
        return
    connection = _connection(context)
    with engines.upgrading(connection):
        wholeness.make(connection, naming, fmt, found(connection, naming, fmt.store))


def drop(
    fmt: Format,
    context: MigrationContext | None = None,
    naming: Naming | None = None,
    drop_data: bool = False,
    **_: Given,
) -> None:
    """Drop a format's tables. InvalidInput if they hold rows and `drop_data` is False."""
    if context is None or naming is None:
        context = op.get_context()
        naming, drop_data = _given_by_host()
    names = naming.of(fmt.store)
    if not context.as_sql:
        connection = _connection(context)
        tables = found(connection, naming, fmt.store).tables - {"meta"}
        rows = {table: count(connection, names, table) for table in sorted(tables)}
        lost = ", ".join(f"{count:,} rows of {table}" for table, count in rows.items() if count)
        if lost and not drop_data:
            raise InvalidInput(
                "drop_data",
                f"the downgrade of {fmt.marker} would drop {lost};"
                " pass drop_data=True (alembic -x drop_data=yes) if they may go",
            )
    for table in reversed(fmt.tables):
        context.execute(f"DROP TABLE IF EXISTS {names[table]}")


def add(addition: Addition, context: MigrationContext | None = None, naming: Naming | None = None, **_: Given) -> None:
    """Make what was added to a format, and fill it. Nothing on a dialect that the addition is not for."""
    if context is None or naming is None:
        context = op.get_context()
        naming, _drop_data = _given_by_host()
    if context.dialect.name != addition.dialect:
        return
    if not context.as_sql:
        connection = _connection(context)
        with engines.upgrading(connection):
            if not found(connection, naming, addition.format.store).complete:  # a trigger must find its table
                create(addition.format, context, naming)
            wholeness.add(connection, naming, addition)
        return
    names = naming.of(addition.format.store)
    for statement in (*addition.ddl(names), *addition.rendered(names, addition.fill)):
        context.execute(statement)


def take_away(
    addition: Addition, context: MigrationContext | None = None, naming: Naming | None = None, **_: Given
) -> None:
    """Drop what was added to a format. All that it holds can be had again from the format's own tables."""
    if context is None or naming is None:
        context = op.get_context()
        naming, _drop_data = _given_by_host()
    if context.dialect.name != addition.dialect:
        return
    with ExitStack() as locked:
        if not context.as_sql:
            locked.enter_context(engines.upgrading(_connection(context)))
            refuse_others(_connection(context), naming, addition)
        for statement in addition.drop(naming.of(addition.format.store)):
            context.execute(statement)


def naming_of_host(context: MigrationContext) -> Naming:
    """The names that a host's Alembic configuration gives: `qstore_prefix` (without: `qstore_`) and `qstore_schema`."""
    if context.environment_context is None:
        return Naming("qstore_")
    config = context.environment_context.config
    option = getattr(config, "get_alembic_option", config.get_main_option)  # from 1.16 on, pyproject.toml is read too
    return Naming(option("qstore_prefix") or "qstore_", option("qstore_schema"))


def _given_by_host() -> tuple[Naming, bool]:
    """What a host's own Alembic says: the names, and whether rows may be dropped (`-x drop_data=yes`)."""
    context = op.get_context()
    environment = context.environment_context
    drop_data = environment is not None and environment.get_x_argument(as_dictionary=True).get("drop_data") == "yes"
    return naming_of_host(context), drop_data


def _connection(context: MigrationContext) -> Connection:
    if context.connection is None:
        raise InvalidInput("context", "expected a connection, or a script to write to")
    return context.connection


def _run(connection: Connection, naming: Naming, targets: Iterable[str], down: bool = False, **given: Given) -> None:
    context = _context(connection, naming, fn=_steps(targets, down=down))
    with _known(context):
        known = {script.revision for script in script_directory().walk_revisions()}
        if any(noted not in known for noted in context.get_current_heads()):  # Alembic has no word for some of them
            raise CommandError("the version table notes another one")
        context.run_migrations(context=context, naming=naming, **given)


@contextmanager
def _known(context: MigrationContext) -> Iterator[None]:
    """Tell in qstore's errors of a revision that this version does not have."""
    try:
        yield
    except (CommandError, IntegrityError) as error:  # the latter of a version table that is damaged
        raise FormatError(
            f"the revisions cannot be run: {engines.in_one_line(error)}",
            found=f"revisions {', '.join(map(str, context.get_current_heads())) or 'none'}",
            supported=", ".join(script_directory().get_heads()),
            target=engines.described(_connection(context).engine),
        ) from error


def _steps(targets: Iterable[str], down: bool = False) -> Callable[..., list[MigrationStep]]:
    script = script_directory()
    plan = script._downgrade_revs if down else script._upgrade_revs  # what alembic's own commands call
    return lambda current, _context: [step for target in targets for step in plan(target, current)]


def _context(connection: Connection, naming: Naming, **more: Any) -> MigrationContext:
    return MigrationContext.configure(connection, opts={**_options(naming), **more})


def _options(naming: Naming) -> dict[str, Any]:
    return {"version_table": naming.version_table, "version_table_schema": naming.schema}


def under_lock(bind: Bind, naming: Naming, stores: Stores, work: Callable[[Connection], T]) -> T:
    """Work with the write lock held, so that what is looked at stays as it is. All of it or nothing."""
    if not isinstance(bind, Engine):
        with engines.translated("the caller's database"):
            connection = bind if isinstance(bind, Connection) else bind.connection()
            engines.check_back_end(connection.engine, naming)
            if not connection.in_transaction():
                connection.begin()  # what SQLAlchemy does by itself with the first statement
        with engines.translated(engines.described(connection.engine)), engines.upgrading(connection, savepoint=True):
            return work(connection)
    engines.check_back_end(bind, naming)
    if (path := engines.opened_path(bind)) is not None:
        turso = engines.on_turso(bind.url)
        for store in stores:
            # Connecting would change a foreign file's journal mode.
            recognise_file(path, FORMATS[store], naming, turso=turso)
    with (
        engines.translated(engines.described(bind)),
        engines.connected(bind) as connection,
        engines.beginning(connection),
        engines.upgrading(connection),
    ):
        return work(connection)
