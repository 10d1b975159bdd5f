"""A downgrade never drops rows unless told, and leaves nothing of a store behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from qstore import FormatError, InvalidInput, migrate
from tests.backends import MOUNTED
from tests.migration.file_state import dump, opened, schema, table_names, unchanged
from tests.migration.seed_files import STORES, make, make_newest, rows, run
from tests.migration.ways_in import host_engine, open_store, qstore_engine

REMAINING = {"qstore_alembic_version"}


@pytest.mark.parametrize("store", STORES)
def test_a_downgrade_refuses_to_drop_rows_and_says_how_many_there_are(tmp_path: Path, store: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store, journal_mode="wal", filled=True)
    open_store(path, store).close()
    before = dump(path)
    count = {"transport": "2 rows of messages", "localkv": "3 rows of kv", "localqueue": "2 rows of messages"}[store]
    with qstore_engine(path) as engine:
        with pytest.raises(InvalidInput, match=count) as refused:
            migrate.downgrade(engine)
        assert refused.value.field == "drop_data"
        assert migrate.check(engine) == ()
    assert dump(path) == before


@pytest.mark.parametrize("store", STORES)
def test_a_downgrade_drops_rows_when_told(tmp_path: Path, store: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store, filled=True)
    with qstore_engine(path) as engine:
        migrate.upgrade(engine)
        migrate.downgrade(engine, drop_data=True)
        assert migrate.current(engine) == ()
    assert table_names(path) == REMAINING


@pytest.mark.parametrize("store", STORES)
def test_up_down_up_makes_the_same_store_again(tmp_path: Path, store: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    with qstore_engine(path) as engine:
        migrate.upgrade(engine)
        first = dump(path)
        for _ in range(2):
            migrate.downgrade(engine, stores=[store])
            assert migrate.current(engine) == ()
            assert table_names(path) == REMAINING
            migrate.upgrade(engine)
        assert migrate.check(engine) == ()
    assert sorted(dump(path)) == sorted(first)


def test_up_down_up_of_a_mounted_database_leaves_the_hosts_tables_alone(tmp_path: Path) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE orders (id INTEGER)", "INSERT INTO orders VALUES (1)")
    with host_engine(path) as engine:
        for _ in range(2):
            migrate.upgrade(engine, naming=MOUNTED)
            migrate.downgrade(engine, naming=MOUNTED)
            assert table_names(path) == REMAINING | {"orders"}
        with opened(path) as connection:
            assert connection.execute("SELECT * FROM orders").fetchall() == [(1,)]


def test_a_downgrade_of_one_mounted_store_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        migrate.downgrade(engine, naming=MOUNTED, stores=["localkv"])
        assert migrate.current(engine, naming=MOUNTED) == ("localqueue.v1.1", "transport.v1.1")
        assert migrate.check(engine, naming=MOUNTED, stores=["localqueue", "transport"]) == ()
    assert [name for name in table_names(path) if "localkv" in name] == []


def test_rows_in_one_store_keep_all_stores_of_the_same_downgrade(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO qstore_localqueue_messages VALUES (1, 'text', 'm', 0, 0, 0, NULL)"))
        with unchanged(tmp_path), pytest.raises(InvalidInput, match="1 rows of messages"):
            migrate.downgrade(engine, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()


def test_a_downgrade_in_a_callers_transaction_is_rolled_back_with_it(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        before = dump(path)
        with engine.connect() as connection:
            migrate.downgrade(connection, naming=MOUNTED)
            assert migrate.current(connection, naming=MOUNTED) == ()
            connection.rollback()
    assert dump(path) == before


def test_a_refused_downgrade_keeps_what_the_caller_did_before_it(tmp_path: Path) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE orders (id INTEGER)")
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        with engine.connect() as connection:
            connection.execute(text("INSERT INTO orders VALUES (1)"))
            connection.execute(text("INSERT INTO qstore_localkv_kv VALUES ('k', x'00', NULL)"))
            with pytest.raises(InvalidInput):
                migrate.downgrade(connection, naming=MOUNTED)
            connection.commit()
        assert migrate.check(engine, naming=MOUNTED) == ()
    with opened(path) as plain:
        assert plain.execute("SELECT * FROM orders").fetchall() == [(1,)]


@pytest.mark.parametrize("drop_data", [False, True])
def test_a_downgrade_of_a_store_that_is_not_there_does_nothing(tmp_path: Path, drop_data: bool) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE orders (id INTEGER)")
    with host_engine(path) as engine:
        migrate.downgrade(engine, naming=MOUNTED, drop_data=drop_data)
        assert migrate.current(engine, naming=MOUNTED) == ()
    assert table_names(path) - REMAINING == {"orders"}


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_was_never_noted_is_not_dropped(tmp_path: Path, store: str) -> None:
    """No revision of it has run here: the file is another implementation's."""
    path = make(tmp_path / f"{store}.sqlite", store, filled=True)
    before = rows(path, store)
    with host_engine(path) as engine:
        migrate.downgrade(engine, stores=[store])
    assert rows(path, store) == before


def test_a_downgrade_drops_no_table_that_only_has_the_stores_name(tmp_path: Path) -> None:
    """The version row says that a store is there; the tables say that it is somebody else's."""
    path = tmp_path / "host.db"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED, stores=["localkv"])
        run(path, "DROP TABLE qstore_localkv_kv", "CREATE TABLE qstore_localkv_kv (precious TEXT)")
        with unchanged(tmp_path), pytest.raises(FormatError, match="precious"):
            migrate.downgrade(engine, naming=MOUNTED, stores=["localkv"], drop_data=True)


def test_a_store_with_a_table_missing_can_be_downgraded(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        run(path, "DROP TABLE qstore_transport_groups")
        migrate.downgrade(engine, naming=MOUNTED)
    assert table_names(path) == REMAINING


def test_downgraded_ids_start_again_only_with_the_tables(tmp_path: Path) -> None:
    path = make(tmp_path / "localqueue.sqlite", "localqueue", filled=True)
    with qstore_engine(path) as engine:
        migrate.upgrade(engine)
        migrate.downgrade(engine, drop_data=True)
        migrate.upgrade(engine, stores=["localqueue"])
    assert schema(path) == schema(make_newest(tmp_path / "whole", "localqueue"))
    with open_store(path, "localqueue") as queue:
        assert queue.send("m") == 1
