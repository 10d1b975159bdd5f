"""Alembic's environment for qstore's own files: the `alembic` command comes here, `qstore.migrate` does not.

`-x data_dir=DIR` runs a command on all three files of a directory, `-x url=URL` on one, or on a server's database.
`-x prefix=` and `-x schema=` name mounted tables, `-x drop_data=yes` lets a downgrade drop rows. Logging is left as the
caller has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, MetaData, create_engine

from qstore import engines, migrate, revisions
from qstore.autogenerate import include_name, include_object
from qstore.engines.files import on_turso, recognise_file
from qstore.engines.target import in_directory, of_file
from qstore.errors import QstoreError
from qstore.formats import FORMATS, newest
from qstore.localkv.models import KvBase
from qstore.localqueue.models import QueueBase
from qstore.mounting import mount
from qstore.naming import SERVER, Naming
from qstore.transport.models import TransportBase

Plan = Callable[[Any, Any], list[MigrationStep]]

METADATA = {"transport": TransportBase.metadata, "localkv": KvBase.metadata, "localqueue": QueueBase.metadata}
WRITING = {"upgrade", "downgrade", "stamp"}
ARGUMENTS = {"data_dir", "url", "prefix", "schema", "drop_data"}


class Command:
    """One call of the `alembic` command."""

    def __init__(self) -> None:
        self.given = context.get_x_argument(as_dictionary=True)
        if unknown := self.given.keys() - ARGUMENTS:
            raise CommandError(f"-x {', '.join(sorted(unknown))} is unknown; known are {', '.join(sorted(ARGUMENTS))}")
        if self.given.get("drop_data", "yes") != "yes":
            raise CommandError("-x drop_data takes yes, or is left out")
        self.naming = Naming(self.given.get("prefix"), self.given.get("schema"))
        self.plan: Plan = context._proxy.context_opts["fn"]  # type: ignore[attr-defined]  # what the command does, given a database's revisions
        self.name = self.plan.__qualname__.partition(".")[0]  # the command's function has it within

    def run(self) -> None:
        """Run the command on each database, or print its SQL."""
        if data_dir := self.given.get("data_dir"):
            for store in FORMATS:
                self.run_on(in_directory(data_dir, f"{store}.sqlite"), store)
        elif target := self.given.get("url"):
            url = of_file(target)
            if url.get_backend_name() == "postgresql":
                self.run_on_server(url)
                return
            self.run_on(url, self.only_store(url) if self.naming.native else None)
        elif context.is_offline_mode():
            self.write_script(None)
        else:
            raise CommandError(
                "which database? Pass -x data_dir=DIR (three files) or -x url=URL (one) before the command"
            )

    def only_store(self, url: URL) -> str | None:
        """The store that a native file holds, or is to hold."""
        path = url.database or ""
        there = migrate.store_of(path, turso=on_turso(url))
        if self.name != "upgrade":
            return there
        wanted = set().union(*map(stores_of, self.plan((), None)))
        if wanted == {there} or (there in wanted and len(wanted) > 1):
            return there
        if len(wanted) == 1 and not (os.path.exists(path) and there is not None):
            return wanted.pop()
        raise CommandError(
            f"{path} {f'is for {there}' if there else 'is new'}, and a native file holds one store: upgrade"
            f" {there or 'localkv'}@head"
        )

    def run_on(self, url: URL, store: str | None) -> None:
        """Run the command on one file. One that only reads changes no file, and only an upgrade makes one."""
        path = url.database or ""
        if context.is_offline_mode():
            self.write_script(store, f"-- {path}")
            return
        if not os.path.exists(path):
            if self.name in ("stamp", "check"):
                raise CommandError(f"{path}: no file to {self.name}; upgrade makes one")
            if self.name != "upgrade" or not self.steps(store, (), None):
                context.config.print_stdout("%s: no file", path)
                return
            os.makedirs(os.path.dirname(path), exist_ok=True)
        elif store is not None:
            recognise_file(
                path, FORMATS[store], self.naming, turso=on_turso(url)
            )  # connecting would change a foreign file's journal mode
        engine = self.engine(url)
        try:
            with engine.connect() as connection:
                self.work_in(connection, store)
        finally:
            engine.dispose()

    def run_on_server(self, url: URL) -> None:
        """Run the command on a server's database, where the tables are prefixed."""
        if self.naming.native:
            self.naming = SERVER
        if context.is_offline_mode():
            self.write_script(None, dialect="postgresql")
            return
        engine = engines.open_engine(url)
        try:
            with engine.connect() as connection:
                self.work_in(connection, None)
        finally:
            engine.dispose()

    def engine(self, url: URL) -> Engine:
        """An engine of qstore's own for its own files, and one that changes no setting for a host's."""
        if self.naming.native:
            return engines.open_engine(url, read_only=self.name not in WRITING)
        return create_engine(url)

    def work_in(self, connection: Connection, store: str | None) -> None:
        """Run the command's steps: under the write lock, and all of them or none, if it writes."""
        with ExitStack() as stack:
            if self.name in WRITING:
                stack.enter_context(engines.beginning(connection))
                stack.enter_context(engines.upgrading(connection))
            self.configure(store, connection=connection, **self.compared(store))
            self.migrate()
            stores = tuple(FORMATS) if store is None else (store,)
            if self.name == "check" and (wrong := migrate.check(connection, naming=self.naming, stores=stores)):
                raise CommandError("; ".join(wrong))  # what the models lack: triggers, a server's columns and indexes
            if self.name == "upgrade":
                noted = context.get_context().get_current_heads()
                has = {revision.partition(".")[0] for revision in noted}
                revisions.complete(connection, self.naming, [each for each in stores if each in has])

    def compared(self, store: str | None) -> dict[str, Any]:
        """What `alembic check` holds the database against, and that it leaves all other tables out of it."""
        if self.naming.native:
            return {"target_metadata": METADATA[store] if store is not None else MetaData()}
        metadata = MetaData()
        mount(metadata, prefix=self.naming.prefix or "", schema=self.naming.schema)
        tables = {table.name for table in metadata.tables.values()}
        beside = include_name(metadata, self.naming)
        return {
            "target_metadata": metadata,
            "include_name": lambda name, kind, parents: (
                (kind != "table" or name in tables) and beside(name, kind, parents)
            ),
            "include_object": include_object(self.naming),
        }

    def write_script(self, store: str | None, *first_lines: str, dialect: str = "sqlite") -> None:
        """Print the SQL instead of running it."""
        self.configure(store, dialect_name=dialect, literal_binds=True, transactional_ddl=True)
        for line in first_lines:
            context.get_context().impl.static_output(line)
        self.migrate()

    def configure(self, store: str | None, **options: Any) -> None:
        """Tell Alembic of one database."""
        context.configure(
            version_table=self.naming.version_table,
            version_table_schema=self.naming.schema,
            fn=lambda current, it: self.steps(store, current, it),
            **options,
        )

    def migrate(self) -> None:
        """Run the steps on the database that Alembic was told of."""
        drop_data = "drop_data" in self.given
        with context.begin_transaction():
            context.run_migrations(context=context.get_context(), naming=self.naming, drop_data=drop_data)

    def steps(self, store: str | None, current: Any, it: MigrationContext | None) -> list[MigrationStep]:
        """The command's steps, of one store alone where a file has one."""
        if store is not None and self.name == "check":  # it wants every branch at its head, and this file has one
            current = tuple({*current, *(newest(other) for other in FORMATS if other != store)})
        steps = [step for step in self.plan(current, it) if store is None or store in stores_of(step)]
        if self.name == "stamp" and it is not None and it.connection is not None:
            for step in steps:
                for stamped in step.to_revisions_no_deps:
                    revisions.check_complete(it.connection, self.naming, stamped)
        return steps


def stores_of(step: MigrationStep) -> set[str]:
    """The stores whose revisions a step goes from or to."""
    return {revision.partition(".")[0] for revision in (*step.from_revisions_no_deps, *step.to_revisions_no_deps)}


try:
    Command().run()
except QstoreError as error:
    raise CommandError(str(error)) from error
except (OSError, *engines.ERRORS) as error:
    raise CommandError(engines.in_one_line(error)) from error
