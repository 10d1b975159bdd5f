"""`qstore.migrate` on an Engine and in a caller's transaction: whole or not at all, and as often as you like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from qstore import (
    NATIVE,
    BackendUnsupported,
    FormatError,
    InvalidInput,
    InvalidType,
    LocalKvRepository,
    Naming,
    QstoreError,
    migrate,
)
from tests.backends import MOUNTED
from tests.migration.file_state import dump, journal_mode, opened, schema, table_names, unchanged
from tests.migration.seed_files import ADDED, NEWEST, STORES, TABLES, make, make_newest, run
from tests.migration.ways_in import host_engine, open_store, qstore_engine

MOUNTED_TABLES = {f"qstore_{store}_{table}" for store in STORES for table in (*TABLES[store], *ADDED[store])} | {
    "qstore_alembic_version"
}
ALL = tuple(sorted(NEWEST.values()))

IN_TRANSACTION: dict[str, Callable[[Engine], Any]] = {"connection": Engine.connect, "session": Session}


@pytest.mark.parametrize("store", STORES)
def test_upgrade_makes_a_native_store_and_notes_its_revision(tmp_path: Path, store: str) -> None:
    with qstore_engine(tmp_path / "any.db") as engine:
        migrate.upgrade(engine, stores=[store])
        assert migrate.current(engine) == (NEWEST[store],)
        assert migrate.check(engine) == ()
    assert schema(tmp_path / "any.db") == schema(make_newest(tmp_path / "whole", store))


@pytest.mark.parametrize("store", STORES)
def test_upgrade_tells_a_new_native_files_store_by_its_name(tmp_path: Path, store: str) -> None:
    with qstore_engine(tmp_path / f"{store}.sqlite") as engine:
        migrate.upgrade(engine)
        assert migrate.current(engine) == (NEWEST[store],)


@pytest.mark.parametrize("store", STORES)
def test_upgrade_tells_a_native_files_store_by_its_content_before_its_name(tmp_path: Path, store: str) -> None:
    path = make(tmp_path / ("localqueue.sqlite" if store != "localqueue" else "localkv.sqlite"), store)
    with qstore_engine(path) as engine:
        migrate.upgrade(engine)
        assert migrate.current(engine) == (NEWEST[store],)
        assert migrate.check(engine) == ()


def test_upgrade_asks_for_the_store_where_nothing_tells_it(tmp_path: Path) -> None:
    with qstore_engine(tmp_path / "new.db") as engine, unchanged(tmp_path):
        for function in (migrate.upgrade, migrate.stamp, migrate.check, migrate.downgrade):
            with pytest.raises(InvalidInput, match=r"new\.db") as refused:
                function(engine)
            assert refused.value.field == "stores"


def test_upgrade_mounts_all_stores_in_a_hosts_database(tmp_path: Path) -> None:
    with host_engine(tmp_path / "host.db") as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.current(engine, naming=MOUNTED) == ALL
        assert migrate.check(engine, naming=MOUNTED) == ()
    assert table_names(tmp_path / "host.db") == MOUNTED_TABLES


def test_upgrade_mounts_the_chosen_stores_and_later_the_others(tmp_path: Path) -> None:
    with host_engine(tmp_path / "host.db") as engine:
        migrate.upgrade(engine, naming=MOUNTED, stores=["localkv"])
        assert migrate.current(engine, naming=MOUNTED) == ("localkv.v1",)
        assert len(migrate.check(engine, naming=MOUNTED)) == 2
        migrate.upgrade(engine, naming=MOUNTED, stores=("localqueue", "localkv"))
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.current(engine, naming=MOUNTED) == ALL


@pytest.mark.parametrize("naming", [NATIVE, MOUNTED], ids=["native", "mounted"])
def test_upgrade_and_stamp_again_change_not_a_byte(tmp_path: Path, naming: Naming) -> None:
    with host_engine(tmp_path / "localkv.sqlite") as engine:
        migrate.upgrade(engine, naming=naming, stores=["localkv"])
        with unchanged(tmp_path):
            for _ in range(3):
                migrate.upgrade(engine, naming=naming, stores=["localkv"])
                migrate.stamp(engine, naming=naming, stores=["localkv"])


@pytest.mark.parametrize("kind", IN_TRANSACTION)
@pytest.mark.parametrize("commits", [False, True], ids=["rolled back", "committed"])
@pytest.mark.parametrize("before", ["nothing", "a read", "a write"])
def test_upgrade_in_a_callers_transaction_shares_its_fate(
    tmp_path: Path, kind: str, commits: bool, before: str
) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with host_engine(path) as engine, IN_TRANSACTION[kind](engine) as bind:
        if before == "a read":
            bind.execute(text("SELECT count(*) FROM orders"))
        elif before == "a write":
            bind.execute(text("INSERT INTO orders VALUES (1)"))
        migrate.upgrade(bind, naming=MOUNTED)
        assert migrate.current(bind, naming=MOUNTED) == ALL
        bind.execute(text("INSERT INTO orders VALUES (2)"))
        assert bind.in_transaction()
        assert table_names(path) == {"orders"}
        bind.commit() if commits else bind.rollback()
    assert table_names(path) == ({"orders"} | MOUNTED_TABLES if commits else {"orders"})
    with opened(path) as connection:
        expected = [] if not commits else [(1,), (2,)] if before == "a write" else [(2,)]
        assert connection.execute("SELECT id FROM orders").fetchall() == expected


@pytest.mark.parametrize("kind", IN_TRANSACTION)
def test_a_refused_upgrade_leaves_the_callers_transaction_usable(tmp_path: Path, kind: str) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE orders (id INTEGER)", "CREATE TABLE qstore_localkv_kv (other)")
    with host_engine(path) as engine, IN_TRANSACTION[kind](engine) as bind:
        bind.execute(text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(FormatError):
            migrate.upgrade(bind, naming=MOUNTED)
        bind.execute(text("INSERT INTO orders VALUES (2)"))
        bind.commit()
    assert table_names(path) == {"orders", "qstore_localkv_kv"}
    with opened(path) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(1,), (2,)]


def test_a_refused_store_keeps_the_others_of_the_same_upgrade_from_being_made(tmp_path: Path) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE qstore_localqueue_messages (other)")
    with host_engine(path) as engine, unchanged(tmp_path), pytest.raises(FormatError, match="other"):
        migrate.upgrade(engine, naming=MOUNTED)


def test_upgrade_on_a_connection_that_commits_each_statement_is_whole_or_nothing(tmp_path: Path) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE qstore_localqueue_messages (other)")
    with host_engine(path) as engine:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            with unchanged(tmp_path), pytest.raises(FormatError):
                migrate.upgrade(connection, naming=MOUNTED)
            connection.execute(text("DROP TABLE qstore_localqueue_messages"))
            migrate.upgrade(connection, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()


def test_two_mounts_with_different_prefixes_share_a_database_and_nothing_else(tmp_path: Path) -> None:
    first, second = Naming("a_"), Naming("b_")
    path = tmp_path / "host.db"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=first)
        migrate.upgrade(engine, naming=second, stores=["localkv"])
        assert migrate.current(engine, naming=first) == ALL
        assert migrate.current(engine, naming=second) == ("localkv.v1",)
        migrate.downgrade(engine, naming=second, stores=["localkv"])
        assert migrate.check(engine, naming=first) == ()
        assert migrate.current(engine, naming=second) == ()


def test_a_mount_beside_a_native_store_in_one_file_is_whole_or_refused(tmp_path: Path) -> None:
    """Both keep their revisions in `qstore_alembic_version`."""
    path = tmp_path / "localkv.sqlite"
    with open_store(path, "localkv") as kv:
        kv.put("k", b"v")
    with host_engine(path) as engine:
        try:
            migrate.upgrade(engine, naming=MOUNTED)
        except FormatError:
            assert "qstore_localkv_kv" not in table_names(path)
        else:
            assert migrate.check(engine, naming=MOUNTED) == ()
        assert migrate.check(engine, stores=["localkv"]) == ()
    with open_store(path, "localkv", create=False) as kv:
        assert kv.get("k") == b"v"


def test_a_mount_in_an_attached_database_is_refused(tmp_path: Path) -> None:
    """A transaction over two files is not kept whole when the power goes."""
    naming = Naming("qstore_", schema="side")
    with host_engine(tmp_path / "host.db") as engine, engine.connect() as connection:
        connection.execute(text(f"ATTACH DATABASE '{tmp_path / 'side.db'}' AS side"))
        connection.commit()
        with pytest.raises(BackendUnsupported, match="schema='side'"):
            migrate.upgrade(connection, naming=naming)
        with pytest.raises(BackendUnsupported, match="schema='side'"):
            LocalKvRepository(engine, naming=naming)
        connection.commit()
    assert table_names(tmp_path / "side.db") == set()
    assert table_names(tmp_path / "host.db") == set()


def test_a_host_engines_journal_mode_is_left_alone(tmp_path: Path) -> None:
    path = run(tmp_path / "host.db", "CREATE TABLE orders (id INTEGER)")
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
    assert journal_mode(path) == "delete"


@pytest.mark.parametrize("stores", [["jobs"], "jobs", ["localkv", "LocalKv"], [""], [None]])
def test_unknown_stores_are_refused_by_name_before_anything_is_touched(tmp_path: Path, stores: Any) -> None:
    with host_engine(tmp_path / "host.db") as engine:
        functions: list[Callable[..., Any]] = [migrate.upgrade, migrate.check, migrate.stamp, migrate.downgrade]
        for function in functions:
            with unchanged(tmp_path), pytest.raises(InvalidInput, match="localqueue") as refused:
                function(engine, naming=MOUNTED, stores=stores)
            assert refused.value.field == "stores"


@pytest.mark.parametrize("stores", [7, [7], 3.5])
def test_stores_of_a_wrong_type_are_refused_by_name(tmp_path: Path, stores: Any) -> None:
    with host_engine(tmp_path / "host.db") as engine, unchanged(tmp_path), pytest.raises(InvalidInput):
        migrate.upgrade(engine, naming=MOUNTED, stores=stores)


@pytest.mark.parametrize("bind", ["sqlite:///x.db", None, 7])
def test_a_bind_of_a_wrong_type_is_refused_by_name(bind: Any) -> None:
    for function in (migrate.upgrade, migrate.current, migrate.check, migrate.stamp):
        with pytest.raises(InvalidType):
            function(bind, naming=MOUNTED)


def test_a_naming_of_a_wrong_type_is_refused_by_name(tmp_path: Path) -> None:
    wrong: Any = "qstore_"
    with host_engine(tmp_path / "host.db") as engine, unchanged(tmp_path), pytest.raises(InvalidType):
        migrate.upgrade(engine, naming=wrong)


def test_two_stores_do_not_fit_into_a_native_file(tmp_path: Path) -> None:
    with qstore_engine(tmp_path / "both.db") as engine:
        with pytest.raises(QstoreError):
            migrate.upgrade(engine, stores=["localkv", "localqueue"])
        assert migrate.current(engine) == ()


def test_a_revision_that_this_version_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "localkv.sqlite"
    open_store(path, "localkv").close()
    run(path, "UPDATE qstore_alembic_version SET version_num = 'localkv.v9'", journal_mode="wal")
    before = dump(path)
    with qstore_engine(path) as engine:
        for function in (migrate.upgrade, migrate.stamp, migrate.downgrade):
            with pytest.raises(FormatError, match=r"localkv\.v9"):
                function(engine)
        assert migrate.check(engine) != ()
    assert dump(path) == before


def test_current_and_check_create_nothing(tmp_path: Path) -> None:
    with host_engine(tmp_path / "host.db") as engine:
        assert migrate.current(engine, naming=MOUNTED) == ()
        assert len(migrate.check(engine, naming=MOUNTED)) == 3
    assert table_names(tmp_path / "host.db") == set()


@pytest.mark.parametrize(
    "wrong",
    [
        ["DROP INDEX idx_messages_visible"],
        ["DROP INDEX idx_messages_visible", "CREATE INDEX idx_messages_visible ON messages (attempt)"],
        ["DROP TABLE messages"],
        ["DELETE FROM meta"],
        ["UPDATE meta SET value = 'localqueue.v2'"],
        ["ALTER TABLE messages RENAME COLUMN receipt_handle TO receipt"],
        ["ALTER TABLE messages ADD COLUMN extra TEXT"],
        ["DROP TABLE qstore_alembic_version"],
        ["DELETE FROM qstore_alembic_version"],
    ],
    ids="; ".join,
)
def test_check_names_what_is_wrong(tmp_path: Path, wrong: list[str]) -> None:
    path = tmp_path / "localqueue.sqlite"
    open_store(path, "localqueue").close()
    run(path, *wrong, journal_mode="wal")
    with qstore_engine(path) as engine:
        [sentence] = migrate.check(engine, stores=["localqueue"])
    assert "localqueue" in sentence


def test_a_connection_is_not_left_open(tmp_path: Path) -> None:
    with host_engine(tmp_path / "host.db") as engine:
        pool: Any = engine.pool
        migrate.upgrade(engine, naming=MOUNTED)
        migrate.current(engine, naming=MOUNTED)
        migrate.check(engine, naming=MOUNTED)
        assert pool.checkedout() == 0
        with engine.connect() as connection:
            migrate.check(connection, naming=MOUNTED)
            assert isinstance(connection, Connection)
            assert not connection.closed
