"""A host, or a person with a shell, rebuilds a store's table: a new one, the rows copied, the old one dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, MetaData, Table

from qstore import NATIVE, Naming, TransportRepository, migrate
from qstore.formats import FORMATS
from tests.backends import MOUNTED
from tests.migration.ways_in import host_engine, open_store

TABLES = [(store, table) for store, fmt in FORMATS.items() for table in fmt.tables]


def rebuild(connection: Connection, table: str) -> None:
    """As a batch migration of Alembic's does it."""
    reflected = Table(table, MetaData(), autoload_with=connection)
    with Operations(MigrationContext.configure(connection)).batch_alter_table(
        table, recreate="always", copy_from=reflected, table_kwargs={"sqlite_autoincrement": table.endswith("messages")}
    ):
        pass


@pytest.mark.parametrize(("store", "table"), TABLES)
@pytest.mark.parametrize("naming", [NATIVE, MOUNTED], ids=["native", "mounted"])
def test_any_table_of_a_store_can_be_rebuilt_and_upgrade_makes_it_whole(
    tmp_path: Path, store: str, table: str, naming: Naming
) -> None:
    path = tmp_path / f"{store}.sqlite"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=naming, stores=[store])
        with engine.begin() as connection:
            rebuild(connection, naming.name(store, table))
        told = migrate.check(engine, naming=naming, stores=[store])
        assert bool(told) == (store != "localkv" and table != "meta")
        migrate.upgrade(engine, naming=naming, stores=[store])
        assert migrate.check(engine, naming=naming, stores=[store]) == ()


@pytest.mark.parametrize("table", ["messages", "groups"])
@pytest.mark.parametrize("naming", [NATIVE, MOUNTED], ids=["native", "mounted"])
def test_what_is_claimed_after_a_rebuild_is_right_before_and_after_the_upgrade(
    tmp_path: Path, table: str, naming: Naming
) -> None:
    path = tmp_path / "transport.sqlite"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=naming, stores=["transport"])
        transport = TransportRepository(engine, naming=naming, event_type=str)
        for number in range(3):
            transport.publish("first", f"first {number}")
        assert transport.claim("w", 1000) is not None
        with engine.begin() as connection:
            rebuild(connection, naming.name("transport", table))
        transport.publish("second", "second 0")
        lease = transport.claim("w", 1000)
        assert lease is not None
        assert lease.event == "second 0"
        assert transport.claim("w", 1000) is None
        transport.publish("second", "second 1")
        migrate.upgrade(engine, naming=naming, stores=["transport"])
        assert transport.claim("w", 1000) is None
        transport.ack(lease)
        lease = transport.claim("w", 1000)
        assert lease is not None
        assert lease.event == "second 1"


@pytest.mark.parametrize("table", ["messages", "groups"])
def test_opening_a_file_whose_table_was_rebuilt_makes_it_whole(tmp_path: Path, table: str) -> None:
    path = tmp_path / "transport.sqlite"
    open_store(path, "transport").close()
    with host_engine(path) as engine:
        with engine.begin() as connection:
            rebuild(connection, table)
        TransportRepository(engine, event_type=str).publish("g", "e")
        assert migrate.check(engine) != ()
        open_store(path, "transport").close()
        assert migrate.check(engine) == ()
        assert TransportRepository(engine, event_type=str).claim("w", 5) is not None


@pytest.mark.parametrize("table", ["messages", "groups"])
def test_triggers_that_went_with_a_table_that_was_renamed_are_not_taken_for_the_stores(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "transport.sqlite"
    open_store(path, "transport").close()
    with host_engine(path) as engine:
        with engine.begin() as connection:
            created = connection.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE name = '{table}'").scalar_one()
            connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {table}_before")
            connection.exec_driver_sql(created)
            connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM {table}_before")
        transport = TransportRepository(engine, event_type=str)
        transport.publish("g", "e")
        assert migrate.check(engine) != ()
        assert transport.claim("w", 5) is not None
