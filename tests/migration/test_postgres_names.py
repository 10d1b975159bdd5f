"""Several mounts in one PostgreSQL database, in schemas and under odd names, and the upgrade as a script."""

from __future__ import annotations

import subprocess
from shutil import which
from typing import Any

import pytest
from sqlalchemy import URL, Engine, MetaData, select
from sqlalchemy.orm import Session

from qstore import Event, Naming, migrate, mount
from tests import postgres
from tests.backends import MOUNTED
from tests.migration.postgres_schema import ALL, Schema, catalog, engine_on, execute, tables


def works(engine: Engine, value: bytes, **mounting: Any) -> None:
    """Each operation's statements find the tables of this mount, and no message but its own."""
    stores = mount(MetaData(), **mounting)
    transport, kv, queue = stores.transport(engine), stores.localkv(engine), stores.localqueue(engine)
    assert transport.publish_many([("g", Event(kind="a")), ("h", Event(kind="b"))]) == [1, 2]
    lease = transport.claim("w", 30)
    assert lease is not None
    transport.ack(transport.extend(lease, 60))
    assert (kv.put("k", value), kv.get("k")) == (True, value)
    assert queue.send_many([value.decode(), "b"]) == [1, 2]
    [first, second] = queue.receive(5)
    assert first.payload == value.decode()
    queue.ack(first.receipt_handle)
    queue.nack(second.receipt_handle)
    with Session(engine) as session:
        assert session.scalars(select(stores.KvEntry.value)).all() == [value]
        assert session.scalars(select(stores.TransportMessage.seq)).all() == [2]


def test_two_prefixes_in_one_database_know_nothing_of_each_other(url: URL, engine: Engine, whole: Schema) -> None:
    one, two = Naming("one_"), Naming("two_")
    migrate.upgrade(engine, naming=one)
    assert (migrate.current(engine, naming=one), migrate.current(engine, naming=two)) == (ALL, ())
    assert len(migrate.check(engine, naming=two)) == 3
    migrate.upgrade(engine, naming=two)
    works(engine, b"1", prefix="one_")
    works(engine, b"2", prefix="two_")
    migrate.downgrade(engine, naming=two, drop_data=True)
    assert migrate.check(engine, naming=one) == ()
    assert tables(url) == {name.replace("qstore_", "one_") for name in _tables_of(whole)} | {"two_alembic_version"}


def test_prefixes_that_differ_by_case_alone_are_two(engine: Engine) -> None:
    migrate.upgrade(engine, naming=Naming("Shop_"))
    assert len(migrate.check(engine, naming=Naming("shop_"))) == 3
    migrate.upgrade(engine, naming=Naming("shop_"))
    works(engine, b"1", prefix="Shop_")
    works(engine, b"2", prefix="shop_")


@pytest.mark.parametrize("prefix", ["Shop_", "order", "SELECT", "_", "p" * 30])
def test_a_prefix_that_needs_quotes_makes_the_same_tables(url: URL, engine: Engine, whole: Schema, prefix: str) -> None:
    naming = Naming(prefix)
    migrate.upgrade(engine, naming=naming)
    migrate.upgrade(engine, naming=naming)
    assert (migrate.check(engine, naming=naming), migrate.current(engine, naming=naming)) == ((), ALL)
    assert tables(url) == {name.replace("qstore_", prefix) for name in _tables_of(whole)}
    works(engine, b"v", prefix=prefix)
    migrate.downgrade(engine, naming=naming, drop_data=True)
    assert tables(url) == {f"{prefix}alembic_version"}


@pytest.mark.parametrize("schema", ["app", "App"])
def test_a_schema_of_its_own_has_all_tables_and_the_version_table(
    url: URL, engine: Engine, whole: Schema, schema: str
) -> None:
    execute(url, f'CREATE SCHEMA "{schema}"')
    naming = Naming("qstore_", schema)
    for _ in range(2):
        migrate.upgrade(engine, naming=naming)
        assert (migrate.check(engine, naming=naming), migrate.current(engine, naming=naming)) == ((), ALL)
    found = catalog(url, schema)
    assert {about: _bare(rows, schema) for about, rows in found.items()} == whole
    assert tables(url) == set()
    assert len(migrate.check(engine, naming=MOUNTED)) == 3
    migrate.upgrade(engine, naming=MOUNTED)
    works(engine, b"1", schema=schema)
    works(engine, b"2")
    migrate.downgrade(engine, naming=naming, drop_data=True)
    assert migrate.check(engine, naming=MOUNTED) == ()
    assert tables(url, schema) == {"qstore_alembic_version"}


def test_a_schema_that_is_not_there_is_refused_by_name(url: URL, engine: Engine) -> None:
    with pytest.raises(Exception, match="absent"):
        migrate.upgrade(engine, naming=Naming("qstore_", "absent"))
    assert tables(url) == set()


def test_the_hosts_search_path_says_where_the_tables_are(url: URL, whole: Schema) -> None:
    execute(url, "CREATE SCHEMA app")
    with engine_on(url, connect_args={"options": "-c search_path=app"}) as engine:
        for _ in range(2):
            migrate.upgrade(engine, naming=MOUNTED)
            assert (migrate.check(engine, naming=MOUNTED), migrate.current(engine, naming=MOUNTED)) == ((), ALL)
        works(engine, b"v")
        migrate.stamp(engine, naming=MOUNTED)
    assert tables(url) == set()
    assert tables(url, "app") == _tables_of(whole)


def test_tables_further_on_in_the_search_path_are_the_ones_that_statements_find(url: URL) -> None:
    """A second set in the schema before would hide what is stored."""
    execute(url, "CREATE SCHEMA app")
    with engine_on(url) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        mount(MetaData()).localkv(engine).put("k", b"v")
    with engine_on(url, connect_args={"options": "-c search_path=app,public"}) as engine:
        kv = mount(MetaData()).localkv(engine)
        assert kv.get("k") == b"v"
        migrate.upgrade(engine, naming=MOUNTED)
        assert kv.get("k") == b"v"


@pytest.mark.parametrize("made", ["by create_all", "as the seeds' columns", "in part"])
def test_an_upgrade_makes_no_second_set_before_the_tables_that_are_there(url: URL, made: str) -> None:
    execute(url, "CREATE SCHEMA app")
    with engine_on(url) as engine:
        metadata = MetaData()
        mount(metadata)
        metadata.create_all(engine)
        if made != "by create_all":
            execute(url, "ALTER TABLE qstore_transport_groups DROP COLUMN head, DROP COLUMN ready")
        if made == "in part":
            execute(url, "DROP TABLE qstore_localqueue_messages")
    with engine_on(url, connect_args={"options": "-c search_path=app,public"}) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()
        works(engine, b"v")
    lost = {"qstore_localqueue_messages"} if made == "in part" else set()
    assert tables(url, "app") == {"qstore_alembic_version"} | lost


@pytest.mark.parametrize(
    "naming", [MOUNTED, Naming("Shop_"), Naming("qstore_", "App")], ids=["plain", "case", "schema"]
)
def test_the_script_makes_what_an_upgrade_makes(url: URL, naming: Naming) -> None:
    schema = naming.schema or "public"
    upgraded = postgres.empty_database()
    for database in (url, upgraded):
        execute(database, f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    with engine_on(upgraded) as engine:
        migrate.upgrade(engine, naming=naming)
    execute(url, migrate.sql("postgresql", naming=naming))
    assert catalog(url, schema) == catalog(upgraded, schema)
    with engine_on(url) as engine:
        assert (migrate.check(engine, naming=naming), migrate.current(engine, naming=naming)) == ((), ALL)
        migrate.upgrade(engine, naming=naming)
        works(engine, b"v", prefix=naming.prefix, schema=naming.schema)


def test_the_script_of_one_store_makes_that_one(url: URL, engine: Engine) -> None:
    execute(url, migrate.sql("postgresql", naming=MOUNTED, stores=["localkv"]))
    assert tables(url) == {"qstore_alembic_version", "qstore_localkv_kv", "qstore_localkv_meta"}
    assert migrate.current(engine, naming=MOUNTED) == ("localkv.v1",)


def test_the_script_is_one_transaction(url: URL) -> None:
    execute(url, "CREATE TABLE qstore_localqueue_messages (id INTEGER)")
    with pytest.raises(Exception, match="does not exist"):
        execute(url, migrate.sql("postgresql", naming=MOUNTED))
    assert tables(url) == {"qstore_localqueue_messages"}


@pytest.mark.skipif(which("psql") is None, reason="psql is not installed here; the other tests run the same script")
def test_psql_runs_the_script(url: URL, whole: Schema) -> None:
    done = subprocess.run(
        ["psql", "-v", "ON_ERROR_STOP=1", "-q", url.set(drivername="postgresql").render_as_string(hide_password=False)],
        input=migrate.sql("postgresql", naming=MOUNTED),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert catalog(url) == whole


def _tables_of(whole: Schema) -> set[str]:
    return {row[0] for row in whole["options"]}


def _bare(rows: list[tuple[Any, ...]], schema: str) -> list[tuple[Any, ...]]:
    """Rows without the names of the schema, which the catalog quotes where it must."""
    without = (f'"{schema}".', f"{schema}.")
    return [tuple(_without(each, without) for each in row) for row in rows]


def _without(value: Any, parts: tuple[str, ...]) -> Any:
    for part in parts if isinstance(value, str) else ():
        value = value.replace(part, "")
    return value
