"""Alembic's environment for qstore's own files: the `alembic` command comes here, `qstore.migrate` does not.

`-x data_dir=DIR` runs a command on all three files of a directory, `-x url=URL` on one. `-x prefix=` and `-x schema=`
name mounted tables, `-x drop_data=yes` lets a downgrade drop rows. Logging is left as the caller has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.util import CommandError
from sqlalchemy import URL, Engine, MetaData

from qstore import engines, migrate
from qstore.engines.files import recognise_file
from qstore.engines.locking import write_locked
from qstore.engines.target import in_directory, of_file
from qstore.errors import QstoreError
from qstore.formats import FORMATS
from qstore.localkv.models import KvBase
from qstore.localqueue.models import QueueBase
from qstore.naming import Naming
from qstore.transport.models import TransportBase

METADATA = {"transport": TransportBase.metadata, "localkv": KvBase.metadata, "localqueue": QueueBase.metadata}

given = context.get_x_argument(as_dictionary=True)
naming = Naming(given.get("prefix"), given.get("schema"))
options: dict[str, Any] = {"version_table": naming.version_table, "version_table_schema": naming.schema}
drop_data = given.get("drop_data") == "yes"
command = context.config.cmd_opts.cmd[0].__name__ if context.config.cmd_opts else ""
writes = command in ("upgrade", "downgrade", "stamp")


def databases() -> Iterator[tuple[str | None, URL]]:
    """The files to work on, each with the one store that it is for, where that can be told."""
    if data_dir := given.get("data_dir"):
        for store in FORMATS:
            yield store, in_directory(data_dir, f"{store}.sqlite")
    elif target := given.get("url"):
        url = of_file(target)
        yield (migrate.store_of(url.database or "") if naming.native else None), url
    else:
        raise CommandError("which database? Pass -x data_dir=DIR (three files) or -x url=URL (one), before the command")


def run_offline() -> None:
    """Print the SQL instead of running it."""
    for store, url in databases() if given.get("data_dir") or given.get("url") else [(None, None)]:
        context.configure(dialect_name="sqlite", literal_binds=True, transactional_ddl=True, **options)
        if url is not None:
            context.get_context().impl.static_output(f"-- {url.database}")
        run(store)


def run_online() -> None:
    """Run the command on each file; one that only reads changes none, and makes none."""
    for store, url in databases():
        path = url.database or ""
        if not os.path.exists(path):
            if not writes:
                context.config.print_stdout("%s: no file", path)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
        elif store is not None:
            recognise_file(path, FORMATS[store], naming)  # connecting would change a foreign file's journal mode
        engine = engines.open_engine(url, read_only=not writes)
        try:
            run_on(engine, store)
        finally:
            engine.dispose()


def run_on(engine: Engine, store: str | None) -> None:
    """Run the command on one file."""
    metadata = METADATA[store] if store is not None else MetaData()
    with engine.connect() as connection:
        if not writes:
            context.configure(connection=connection, target_metadata=metadata, **options)
            run(store)
            return
        with connection.begin(), write_locked(connection):
            context.configure(connection=connection, target_metadata=metadata, **options)
            run(store)


def run(store: str | None) -> None:
    """Run the command's steps, of one store only where a file has one."""
    migration_context = context.get_context()
    plan: Any = migration_context._migrations_fn  # what the command does with each database

    def steps_of_store(current: tuple[str, ...], it: MigrationContext) -> list[Any]:
        if store is None:
            return list(plan(current, it))
        if command == "check":  # it wants every branch at its head, and this file has one
            current = tuple({*current, *(fmt.marker for fmt in FORMATS.values() if fmt.store != store)})
        return [step for step in plan(current, it) if store in stores_of(step)]

    migration_context._migrations_fn = steps_of_store
    with context.begin_transaction():
        context.run_migrations(context=migration_context, naming=naming, drop_data=drop_data)


def stores_of(step: MigrationStep) -> set[str]:
    """The stores whose revisions a step goes from or to."""
    return {revision.partition(".")[0] for revision in (*step.from_revisions_no_deps, *step.to_revisions_no_deps)}


try:
    run_offline() if context.is_offline_mode() else run_online()
except QstoreError as error:
    raise CommandError(str(error)) from error
