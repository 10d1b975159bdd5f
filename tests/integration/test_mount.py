"""Tables of the stores on a host's metadata: what they are called, what they are, and what is refused."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Column, Engine, Index, Integer, MetaData, String, Table, create_engine, inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, declarative_base
from sqlalchemy.schema import CreateTable

from qstore import BackendUnsupported, Event, InvalidInput, InvalidType, migrate, mount
from tests.integration.situations import disposed, host_engine, plain

TABLES = {
    "TransportMessage": "transport_messages",
    "TransportGroup": "transport_groups",
    "KvMeta": "localkv_meta",
    "KvEntry": "localkv_kv",
    "QueueMeta": "localqueue_meta",
    "QueueMessage": "localqueue_messages",
}


def _new_base() -> type[DeclarativeBase]:
    class Base(DeclarativeBase):
        pass

    return Base


def _layout(engine: Engine, version_table: str) -> dict[str, object]:
    """Tables, columns and indexes as SQLite itself tells them. INT and INTEGER are one type to it."""
    with plain(Path(engine.url.database or "")) as look:
        made = look.execute("SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'index')").fetchall()
        layout: dict[str, object] = {}
        for kind, name, sql in made:
            if version_table in name or name == "sqlite_sequence":
                continue
            columns = look.execute(f'PRAGMA {kind}_xinfo("{name}")').fetchall()
            columns = [tuple("INTEGER" if part == "INT" else part for part in column) for column in columns]
            layout[name] = kind, columns, "AUTOINCREMENT" in (sql or "")
        return layout


@pytest.mark.parametrize("prefix", ["qstore_", "app_", "A1", "_"])
def test_tables_and_indexes_carry_the_prefix_and_the_store(prefix: str) -> None:
    metadata = MetaData()
    stores = mount(metadata, prefix=prefix)
    beside = {"transport_turns", "localqueue_redeliveries", "localqueue_redelivery_mark"}
    assert set(metadata.tables) == {prefix + name for name in beside.union(TABLES.values())}
    assert {name: getattr(stores, name).__table__.name for name in TABLES} == {
        name: prefix + table for name, table in TABLES.items()
    }
    indexes = {index.name for table in metadata.tables.values() for index in table.indexes}
    assert indexes == {
        f"{prefix}{name}"
        for name in (
            "transport_idx_messages_group",
            "transport_idx_turns",
            "localqueue_idx_messages_visible",
            "localqueue_idx_messages_fresh",
            "localqueue_idx_messages_again",
            "localqueue_idx_redeliveries",
        )
    }
    assert stores.naming.version_table == f"{prefix}alembic_version"


def test_the_default_prefix_is_the_librarys_name() -> None:
    assert mount(_new_base()).naming.prefix == "qstore_"


@pytest.mark.parametrize("prefix", ["qstore_", "Orders_"])
def test_create_all_and_upgrade_make_the_same_tables(prefix: str, tmp_path: Path) -> None:
    metadata = MetaData()
    naming = mount(metadata, prefix=prefix).naming
    with disposed(host_engine(tmp_path / "a.sqlite")) as created, disposed(host_engine(tmp_path / "b.sqlite")) as moved:
        metadata.create_all(created)
        migrate.upgrade(moved, naming=naming)
        assert _layout(created, naming.version_table) == _layout(moved, naming.version_table)
        assert migrate.check(created, naming=naming) == ()
        migrate.upgrade(created, naming=naming)
        metadata.create_all(moved)
        for engine in (created, moved):
            assert migrate.check(engine, naming=naming) == ()
            assert migrate.current(engine, naming=naming) == ("localkv.v1", "localqueue.v1.1", "transport.v1.1")


def test_tables_of_create_all_have_their_markers_and_work_without_a_migration(tmp_path: Path) -> None:
    metadata = MetaData()
    stores = mount(metadata)
    with disposed(host_engine(tmp_path / "host.sqlite")) as engine:
        metadata.create_all(engine)
        with plain(tmp_path / "host.sqlite") as look:
            for store in ("localkv", "localqueue"):
                [marker] = look.execute(f"SELECT key, value FROM qstore_{store}_meta").fetchall()
                assert marker == ("format", f"{store}.v1")
        stores.transport(engine).publish("g", Event(kind="k"))
        stores.localkv(engine).put("k", b"v")
        assert stores.localqueue(engine).send("m") == 1
        metadata.create_all(engine)
        metadata.drop_all(engine)
        metadata.create_all(engine)
        assert stores.localkv(engine).get("k") is None


def test_mounting_again_gives_the_same_object_and_adds_what_is_missing() -> None:
    base = _new_base()
    first = mount(base, stores=["localkv"])
    entry = first.KvEntry
    assert mount(base.metadata, stores=("localkv",)) is first
    assert mount(base) is first
    assert first.KvEntry is entry
    assert first.stores == ("transport", "localkv", "localqueue")
    assert mount(base, prefix="other_") is not first
    assert mount(_new_base()) is not first


@pytest.mark.skipif(
    sqlalchemy.__version__.startswith("2.0."), reason="SQLAlchemy 2.0 itself keeps a copied table with a server default"
)
def test_a_metadata_that_nobody_has_any_more_is_not_kept_by_the_cache() -> None:
    def dropped(mounting: bool) -> weakref.ref[MetaData]:
        base = _new_base()
        if mounting:
            mount(base)
        return weakref.ref(base.metadata)

    kept = [dropped(False), dropped(True)]
    gc.collect()
    assert [reference() for reference in kept] == [None, None]


def test_two_prefixes_live_in_one_database(tmp_path: Path) -> None:
    base = _new_base()
    one, two = mount(base, prefix="one_"), mount(base, prefix="two_")
    with disposed(host_engine(tmp_path / "host.sqlite")) as engine:
        base.metadata.create_all(engine)
        migrate.upgrade(engine, naming=one.naming)
        assert migrate.check(engine, naming=one.naming) == ()
        assert migrate.current(engine, naming=two.naming) == ()
        migrate.upgrade(engine, naming=two.naming)
        one.localkv(engine).put("k", b"1")
        two.localkv(engine).put("k", b"2")
        one.transport(engine).publish("g", Event(kind="k"))
        one.localqueue(engine).send("m")
        assert (one.localkv(engine).get("k"), two.localkv(engine).get("k")) == (b"1", b"2")
        assert two.transport(engine).claim("w", 5) is None
        assert two.localqueue(engine).receive() == []
        migrate.downgrade(engine, naming=two.naming, drop_data=True)
        assert migrate.check(engine, naming=one.naming) == ()
        assert one.localkv(engine).get("k") == b"1"


@pytest.mark.parametrize(
    "given", ["localqueue", ["localqueue"], iter(["localqueue"])], ids=["name", "list", "iterator"]
)
def test_a_subset_of_stores_brings_only_its_tables(given: Any, tmp_path: Path) -> None:
    metadata = MetaData()
    stores = mount(metadata, stores=given)
    tables = ("meta", "messages", "redeliveries", "redelivery_mark")
    assert set(metadata.tables) == {f"qstore_localqueue_{table}" for table in tables}
    assert not hasattr(stores, "KvEntry")
    with disposed(host_engine(tmp_path / "host.sqlite")) as engine:
        metadata.create_all(engine)
        migrate.upgrade(engine, naming=stores.naming, stores=stores.stores)
        assert migrate.check(engine, naming=stores.naming, stores=stores.stores) == ()
        assert stores.localqueue(engine).send("m") == 1
        for other in (stores.transport, stores.localkv):
            with pytest.raises(InvalidInput, match="found localqueue"):
                other(engine)


@pytest.mark.parametrize(
    "prefix", ["", "1a", "a-b", 'a"; DROP TABLE orders; --', "a b", "é", "a\n", "a.b", "p" * 31, "\x00"]
)
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    metadata = MetaData()
    with pytest.raises(InvalidInput) as caught:
        mount(metadata, prefix=prefix)
    assert caught.value.field == "prefix"
    assert not metadata.tables


@pytest.mark.parametrize("prefix", [None, 7, b"qstore_"])
def test_a_prefix_that_is_no_text_is_refused(prefix: Any) -> None:
    """None too: without a prefix two stores would want the same table."""
    metadata = MetaData()
    with pytest.raises(InvalidType) as caught:
        mount(metadata, prefix=prefix)
    assert caught.value.field == "prefix"
    assert not metadata.tables


@pytest.mark.parametrize("schema", ["", "a.b", 'a"b', "s" * 64, "1a"])
def test_a_bad_schema_is_refused(schema: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        mount(MetaData(), schema=schema)
    assert caught.value.field == "schema"


@pytest.mark.parametrize("stores", [(), ["kv"], "kv", ["transport", "transports"], [b"localkv"], [None], [[]], None, 5])
def test_stores_that_are_none_of_them_are_refused(stores: Any) -> None:
    metadata = MetaData()
    with pytest.raises(InvalidInput) as caught:
        mount(metadata, stores=stores)
    assert caught.value.field == "stores"
    assert not metadata.tables


@pytest.mark.parametrize("base", [None, "Base", object(), create_engine("sqlite://"), Table("t", MetaData())])
def test_what_is_neither_a_base_nor_a_metadata_is_refused(base: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        mount(base)
    assert caught.value.field == "base"


def test_every_kind_of_base_is_taken() -> None:
    bases: list[Any] = [_new_base(), declarative_base(), MetaData()]
    for base in bases:
        assert len(mount(base).stores) == 3


@pytest.mark.parametrize("taken", ["qstore_transport_messages", "qstore_localqueue_messages"])
def test_a_table_of_the_hosts_under_the_name_is_refused_and_nothing_is_mounted(taken: str) -> None:
    metadata = MetaData()
    table = Table(taken, metadata, Column("id", Integer, primary_key=True))
    with pytest.raises(InvalidInput, match=taken) as caught:
        mount(metadata)
    assert caught.value.field == "prefix"
    assert dict(metadata.tables) == {taken: table}
    assert len(mount(metadata, prefix="other_").stores) == 3


def test_a_table_of_the_hosts_in_the_schema_is_refused() -> None:
    metadata = MetaData()
    Table("qstore_localkv_kv", metadata, Column("id", Integer, primary_key=True), schema="app")
    with pytest.raises(InvalidInput, match="qstore_localkv_kv"):
        mount(metadata, schema="app")


def test_a_schema_is_in_every_name_and_sqlite_refuses_it(tmp_path: Path) -> None:
    metadata = MetaData()
    stores = mount(metadata, schema="app")
    assert {table.schema for table in metadata.tables.values()} == {"app"}
    dialect: Any = postgresql.dialect
    made = str(CreateTable(metadata.tables["app.qstore_localkv_kv"]).compile(dialect=dialect()))
    assert "CREATE TABLE app.qstore_localkv_kv" in made
    with disposed(host_engine(tmp_path / "host.sqlite")) as engine:
        for repository in (stores.transport, stores.localkv, stores.localqueue):
            with pytest.raises(BackendUnsupported, match="schema='app'"):
                repository(engine)
        with pytest.raises(BackendUnsupported, match="schema='app'"):
            migrate.upgrade(engine, naming=stores.naming)


def test_a_metadata_with_a_schema_of_its_own_does_not_move_the_tables_away_from_their_repositories() -> None:
    metadata = MetaData(schema="app")
    stores = mount(metadata)
    assert {table.schema for table in metadata.tables.values()} == {stores.naming.schema}


def test_a_metadatas_naming_convention_changes_no_name(tmp_path: Path) -> None:
    conventions = {
        "ix": "ix_%(column_0_label)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
    }
    metadata = MetaData(naming_convention=conventions)
    orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("name", String, index=True))
    stores = mount(metadata)
    assert {index.name for index in stores.QueueMessage.__table__.indexes} == {  # type: ignore[attr-defined]  # a Table
        f"qstore_localqueue_idx_messages_{name}" for name in ("visible", "fresh", "again")
    }
    with disposed(host_engine(tmp_path / "host.sqlite")) as engine:
        metadata.create_all(engine)
        migrate.upgrade(engine, naming=stores.naming)
        assert migrate.check(engine, naming=stores.naming) == ()
        names = {index["name"] for index in inspect(engine).get_indexes("orders")}
        assert names == {index.name for index in orders.indexes if isinstance(index, Index)} == {"ix_orders_name"}
