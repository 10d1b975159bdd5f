"""Run the Alembic revisions, on a connection or into a script.

Alembic is run without its environment: `alembic.op` and `alembic.context` are one per process, so that two threads that
open stores, or a host that upgrades qstore from within a revision of its own, would take them from each other.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from qstore import engines
from qstore.engines.files import recognise_file
from qstore.engines.locking import savepoint, write_locked
from qstore.errors import FormatError, InvalidInput
from qstore.formats import FORMATS, Format, Found, recognise
from qstore.naming import Names, Naming

__all__ = ["create", "downgrade", "drop", "found", "location", "script_directory", "sql", "stamp", "upgrade"]

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


def upgrade(bind: Engine | Connection | Session, naming: Naming, stores: Stores) -> None:
    """Bring stores up to the newest revision: all of them or, on any error, none."""
    _under_lock(
        bind, naming, stores, lambda connection: _run(connection, naming, [f"{store}@head" for store in stores])
    )


def downgrade(
    bind: Engine | Connection | Session, naming: Naming, stores: Stores, to: str = "base", *, drop_data: bool = False
) -> None:
    """Take stores down to a revision. InvalidInput, and nothing changed, if rows would go and `drop_data` is False."""
    _under_lock(
        bind,
        naming,
        stores,
        lambda connection: _run(
            connection, naming, [f"{store}@{to}" for store in stores], down=True, drop_data=drop_data
        ),
    )


def stamp(bind: Engine | Connection | Session, naming: Naming, stores: Stores) -> None:
    """Note the newest revision of stores that have all its tables already, made by another hand."""

    def work(connection: Connection) -> None:
        for store in stores:
            if not found(connection, naming, store).complete:
                raise FormatError(
                    "cannot stamp a store that is not there, or not whole: upgrade makes what is missing",
                    found="no complete store",
                    supported=FORMATS[store].marker,
                    target=engines.described(connection.engine),
                )
            _context(connection, naming).stamp(script_directory(), f"{store}@head")

    _under_lock(bind, naming, stores, work)


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


def found(connection: Connection, naming: Naming, store: str) -> Found:
    """What a database holds of a store. FormatError if a table of that name is somebody else's."""
    return recognise(
        lambda query: connection.exec_driver_sql(query).fetchall(),
        FORMATS[store],
        naming,
        engines.described(connection.engine),
    )


# What a revision calls. Its `given` is what run_migrations was given: ours, or nothing in a host's own environment.


def create(fmt: Format, *, context: MigrationContext, naming: Naming, **_: Given) -> None:
    """Make a format's tables where they are missing, after a look at what is there."""
    names = naming.of(fmt.store)
    if context.connection is not None:  # none while a script is written
        found(context.connection, naming, fmt.store)
    for statement in fmt.statements(names, context.dialect.name):
        context.execute(statement)


def drop(fmt: Format, *, context: MigrationContext, naming: Naming, drop_data: bool = False, **_: Given) -> None:
    """Drop a format's tables. InvalidInput if they hold rows and `drop_data` is False."""
    names = naming.of(fmt.store)
    data = [table for table in fmt.tables if table != "meta"]
    if context.connection is not None and not drop_data:
        rows = {table: _count(context.connection, names, table) for table in data}
        lost = ", ".join(f"{count:,} rows of {table}" for table, count in rows.items() if count)
        if lost:
            raise InvalidInput(
                "drop_data",
                f"the downgrade of {fmt.marker} would drop {lost};"
                " pass drop_data=True (alembic -x drop_data=yes) if they may go",
            )
    for table in reversed(fmt.tables):
        context.execute(f"DROP TABLE {names[table]}")


def _count(connection: Connection, names: Names, table: str) -> int:
    return int(connection.exec_driver_sql(f"SELECT count(*) FROM {names[table]}").scalar_one())  # noqa: S608  a quoted name


def _run(
    connection: Connection, naming: Naming, destinations: Iterable[str], down: bool = False, **given: Given
) -> None:
    context = _context(connection, naming, fn=_steps(destinations, down=down))
    try:
        context.run_migrations(context=context, naming=naming, **given)
    except CommandError as error:
        raise FormatError(
            f"the revisions cannot be run: {error}",
            found=f"revisions {', '.join(context.get_current_heads()) or 'none'}",
            supported=", ".join(script_directory().get_heads()),
            target=engines.described(connection.engine),
        ) from error


def _steps(destinations: Iterable[str], down: bool = False) -> Callable[..., list[MigrationStep]]:
    script = script_directory()
    plan = script._downgrade_revs if down else script._upgrade_revs  # what alembic's own commands call
    return lambda current, _context: [step for each in destinations for step in plan(each, current)]


def _context(connection: Connection, naming: Naming, **more: Any) -> MigrationContext:
    return MigrationContext.configure(connection, opts={**_options(naming), **more})


def _options(naming: Naming) -> dict[str, Any]:
    return {"version_table": naming.version_table, "version_table_schema": naming.schema}


def _under_lock(
    bind: Engine | Connection | Session, naming: Naming, stores: Stores, work: Callable[[Connection], T]
) -> T:
    """Work with the write lock held, so that what is looked at stays as it is. All of it or nothing."""
    if not isinstance(bind, Engine):
        connection = bind if isinstance(bind, Connection) else bind.connection()
        if not connection.in_transaction():
            connection.begin()  # what SQLAlchemy does by itself with the first statement
        with engines.translated(engines.described(connection.engine)), write_locked(connection), savepoint(connection):
            return work(connection)
    if (path := engines.opened_path(bind)) is not None:
        for store in stores:
            recognise_file(path, FORMATS[store], naming)  # connecting would change a foreign file's journal mode
    with (
        engines.translated(engines.described(bind)),
        bind.connect() as connection,
        connection.begin(),
        write_locked(connection),
    ):
        return work(connection)
