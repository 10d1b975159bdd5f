"""Tables on PostgreSQL that another hand has made, or has broken: adopted, refused with the difference, or mended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import URL, Engine, MetaData, select
from sqlalchemy.orm import DeclarativeBase, Session

from qstore import Event, FormatError, MountedStores, TransportRepository, migrate, mount
from tests.backends import MOUNTED
from tests.migration.postgres_schema import ALL, Schema, catalog, execute, tables


def fill(stores: MountedStores, engine: Engine) -> None:
    """A leased message, a parked one and a free one, a key, and a delivered message."""
    transport = stores.transport(engine)
    transport.publish_many([("a", Event(kind="1")), ("b", Event(kind="2")), ("c", Event(kind="3"), 4)])
    assert transport.claim("w", 60)
    lease = transport.claim("w", 60)
    assert lease is not None
    transport.nack(lease, delay=60)
    stores.localkv(engine).put("k", b"v")
    stores.localqueue(engine).send_many(["a", "b"])
    assert stores.localqueue(engine).receive()


def works_on(stores: MountedStores, engine: Engine) -> None:
    """What `fill` left is still handed out, and the models find it."""
    lease = stores.transport(engine).claim("w", 60)
    assert lease is not None
    assert lease.event.kind == "3"
    stores.transport(engine).ack(lease)
    assert stores.transport(engine).claim("w", 60) is None
    assert stores.localkv(engine).get("k") == b"v"
    assert [message.payload for message in stores.localqueue(engine).receive(5)] == ["b"]
    with Session(engine) as session:
        assert session.scalars(select(stores.TransportMessage.group_id).order_by("seq")).all() == ["a", "b"]
        assert session.scalars(select(stores.TransportGroup.group_id).order_by("group_id")).all() == ["a", "b"]
        assert session.scalars(select(stores.QueueMessage.attempt)).all() == [1, 1]


@pytest.mark.parametrize("act", [migrate.upgrade, migrate.stamp])
def test_tables_of_create_all_are_adopted_with_their_rows(
    url: URL, engine: Engine, whole: Schema, act: Callable[..., None]
) -> None:
    class Base(DeclarativeBase):
        pass

    stores = mount(Base)
    Base.metadata.create_all(engine)
    assert (migrate.current(engine, naming=MOUNTED), migrate.check(engine, naming=MOUNTED)) == ((), ())
    fill(stores, engine)
    for _ in range(2):
        act(engine, naming=MOUNTED)
        assert (migrate.current(engine, naming=MOUNTED), migrate.check(engine, naming=MOUNTED)) == (ALL, ())
        Base.metadata.create_all(engine)
    assert _alike(catalog(url)) == _alike(whole)
    works_on(stores, engine)


def _alike(schema: Schema) -> Schema:
    """A schema without what SQLAlchemy spells otherwise and means the same: the zero of a double."""
    columns = [
        tuple("0.0" if value == "'0'::double precision" else value for value in row) for row in schema["columns"]
    ]
    return {**schema, "columns": columns}


BARE = {
    "transport": """
        CREATE TABLE qstore_transport_messages (seq BIGSERIAL PRIMARY KEY, group_id TEXT COLLATE "C" NOT NULL,
            event TEXT NOT NULL, locked_by TEXT, lock_expiry DOUBLE PRECISION);
        CREATE TABLE qstore_transport_groups (group_id TEXT COLLATE "C" PRIMARY KEY,
            last_claimed_at DOUBLE PRECISION NOT NULL DEFAULT 0.0, priority INTEGER NOT NULL DEFAULT 0);""",
    "localkv": """
        CREATE TABLE qstore_localkv_meta (key TEXT COLLATE "C" PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE qstore_localkv_kv (key TEXT COLLATE "C" PRIMARY KEY, value BYTEA NOT NULL, expires_at BIGINT);""",
    "localqueue": """
        CREATE TABLE qstore_localqueue_meta (key TEXT COLLATE "C" PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE qstore_localqueue_messages (id BIGSERIAL PRIMARY KEY, payload_type TEXT NOT NULL,
            payload_data TEXT NOT NULL, enqueued_at BIGINT NOT NULL, visible_at BIGINT NOT NULL,
            attempt INTEGER NOT NULL DEFAULT 0, receipt_handle TEXT);""",
}
"""The seeds' columns alone, as a hand that knows nothing of the rest would make them."""


def test_tables_with_the_seeds_columns_alone_are_completed(url: URL, engine: Engine, whole: Schema) -> None:
    execute(url, "".join(BARE.values()))
    before = catalog(url)
    assert len(migrate.check(engine, naming=MOUNTED)) == 3
    with pytest.raises(FormatError, match="not whole"):
        migrate.stamp(engine, naming=MOUNTED)
    assert catalog(url) == before
    migrate.upgrade(engine, naming=MOUNTED)
    assert (migrate.check(engine, naming=MOUNTED), catalog(url)) == ((), whole)
    stores = mount(MetaData())
    fill(stores, engine)
    works_on(stores, engine)


def test_rows_that_were_there_before_the_state_of_their_groups_are_handed_out(url: URL, engine: Engine) -> None:
    execute(url, BARE["transport"])
    event = Event(kind="old").model_dump_json()
    execute(
        url,
        "INSERT INTO qstore_transport_messages (group_id, event, locked_by, lock_expiry) VALUES"
        f" ('a', '{event}', NULL, NULL), ('a', '{event}', NULL, NULL), ('b', '{event}', 'w', 9e9);"
        "INSERT INTO qstore_transport_groups (group_id, priority) VALUES ('a', 3), ('b', 0);",
    )
    migrate.upgrade(engine, naming=MOUNTED)
    assert migrate.check(engine, naming=MOUNTED) == ()
    _drained(engine, [("a", 1), ("a", 2)])


def _drained(engine: Engine, expected: list[tuple[str, int]]) -> None:
    transport = TransportRepository(engine, naming=MOUNTED)
    found = []
    while (lease := transport.claim("w", 60)) is not None:
        found.append((lease.group_id, lease.seq))
        transport.ack(lease)
    assert found == expected


FOREIGN = {
    "other columns": ("CREATE TABLE qstore_localkv_kv (key TEXT PRIMARY KEY, data BYTEA)", "data"),
    "one column more": (BARE["localkv"].replace("expires_at BIGINT", "expires_at BIGINT, owner TEXT"), "owner"),
    "another type": (BARE["localkv"].replace("expires_at BIGINT", "expires_at INTEGER"), "expires_at integer"),
    "a state column of another type": (
        BARE["transport"].replace("DEFAULT 0)", "DEFAULT 0, ready TEXT)"),
        "ready text",
    ),
    "a view": ("CREATE VIEW qstore_localqueue_messages AS SELECT 1 AS id", "qstore_localqueue_messages"),
    "a sequence": ("CREATE SEQUENCE qstore_transport_groups", "qstore_transport_groups"),
    "no primary key": (BARE["localkv"].replace(' PRIMARY KEY, value BYTEA', ", value BYTEA"), "PRIMARY KEY"),
    "an id that is not given": (BARE["localqueue"].replace("BIGSERIAL", "BIGINT"), "id"),
    "a value that may be NULL": (BARE["localkv"].replace("BYTEA NOT NULL", "BYTEA"), "value"),
    "no default": (BARE["localqueue"].replace("NOT NULL DEFAULT 0", "NOT NULL"), "attempt"),
    "an index of the name on other columns": (
        BARE["localkv"] + "CREATE INDEX qstore_localkv_idx_kv_expires ON qstore_localkv_kv (key)",
        "qstore_localkv_idx_kv_expires",
    ),
    "an index of the name on another table": (
        BARE["localkv"] + "CREATE TABLE t (i BIGINT); CREATE INDEX qstore_localkv_idx_kv_expires ON t (i)",
        "qstore_localkv_idx_kv_expires",
    ),
}  # fmt: skip
"""Tables of the stores' names that are not the stores', and what of them a refusal names."""


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_somebody_elses_is_refused_with_the_difference_and_nothing_changes(
    url: URL, engine: Engine, kind: str
) -> None:
    made, named = FOREIGN[kind]
    execute(url, made)
    before = catalog(url)
    [store] = [store for store in BARE if f"qstore_{store}_" in made]
    for act in (migrate.upgrade, partial(migrate.upgrade, stores=[store]), partial(migrate.stamp, stores=[store])):
        with pytest.raises(FormatError) as caught:
            act(engine, naming=MOUNTED)
        assert named.lower() in str(caught.value).lower()
        assert catalog(url) == before
    assert any(named.lower() in wrong.lower() for wrong in migrate.check(engine, naming=MOUNTED))


def test_a_marker_of_another_version_is_refused_and_nothing_changes(url: URL, engine: Engine) -> None:
    migrate.upgrade(engine, naming=MOUNTED)
    execute(url, "UPDATE qstore_localqueue_meta SET value = 'localqueue.v2'; DROP TABLE qstore_localkv_kv")
    before = catalog(url)
    for act in (migrate.upgrade, migrate.stamp):
        with pytest.raises(FormatError) as caught:
            act(engine, naming=MOUNTED)
        assert "localqueue.v2" in caught.value.found or act is migrate.stamp
        assert catalog(url) == before
    assert any("localqueue.v2" in wrong for wrong in migrate.check(engine, naming=MOUNTED))
    assert execute(url, "SELECT value FROM qstore_localqueue_meta") == [("localqueue.v2",)]


def test_a_revision_that_this_version_does_not_know_is_refused_by_name(url: URL, engine: Engine) -> None:
    migrate.upgrade(engine, naming=MOUNTED)
    execute(url, "UPDATE qstore_alembic_version SET version_num = 'localkv.v9' WHERE version_num LIKE 'localkv.%'")
    with pytest.raises(FormatError, match=r"localkv\.v9"):
        migrate.upgrade(engine, naming=MOUNTED)
    assert any("localkv" in wrong for wrong in migrate.check(engine, naming=MOUNTED))


def test_a_table_named_alembic_version_that_is_not_alembics_is_no_business_of_the_stores(
    url: URL, engine: Engine
) -> None:
    execute(url, "CREATE TABLE alembic_version (id INTEGER)")
    migrate.upgrade(engine, naming=MOUNTED)
    assert (migrate.check(engine, naming=MOUNTED), migrate.current(engine, naming=MOUNTED)) == ((), ALL)


SABOTAGE = {
    "an index of the groups": "DROP INDEX qstore_transport_idx_groups_ready",
    "an index of the messages": "DROP INDEX qstore_transport_idx_messages_next",
    "an index of the queue": "DROP INDEX qstore_localqueue_idx_messages_waiting",
    "an index of the keys": "DROP INDEX qstore_localkv_idx_kv_expires",
    "a state column of the groups": "ALTER TABLE qstore_transport_groups DROP COLUMN head",
    "all state of the groups": (
        "ALTER TABLE qstore_transport_groups DROP COLUMN head, DROP COLUMN tail, DROP COLUMN holder,"
        " DROP COLUMN until, DROP COLUMN ready"
    ),
    "the state column of the queue": "ALTER TABLE qstore_localqueue_messages DROP COLUMN ready",
    "a marker": "DELETE FROM qstore_localkv_meta",
    "a marker's table": "DROP TABLE qstore_localqueue_meta",
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_what_was_lost_is_told_and_upgrade_makes_it_whole(url: URL, engine: Engine, whole: Schema, what: str) -> None:
    """Whole means that the rows that are there are still handed out."""
    migrate.upgrade(engine, naming=MOUNTED)
    stores = mount(MetaData())
    fill(stores, engine)
    execute(url, SABOTAGE[what])
    [wrong] = migrate.check(engine, naming=MOUNTED)
    assert "missing" in wrong
    migrate.upgrade(engine, naming=MOUNTED)
    assert (migrate.check(engine, naming=MOUNTED), catalog(url)) == ((), whole)
    works_on(stores, engine)


def test_a_lost_table_is_told_and_made_again(url: URL, engine: Engine, whole: Schema) -> None:
    migrate.upgrade(engine, naming=MOUNTED)
    execute(url, "DROP TABLE qstore_localkv_kv, qstore_localqueue_messages, qstore_transport_messages")
    assert len(migrate.check(engine, naming=MOUNTED)) == 3
    migrate.upgrade(engine, naming=MOUNTED)
    assert (migrate.check(engine, naming=MOUNTED), catalog(url)) == ((), whole)


def test_messages_whose_table_of_groups_was_lost_are_handed_out(url: URL, engine: Engine) -> None:
    migrate.upgrade(engine, naming=MOUNTED)
    fill(mount(MetaData()), engine)
    execute(url, "DROP TABLE qstore_transport_groups")
    migrate.upgrade(engine, naming=MOUNTED)
    _drained(engine, [("c", 3)])


def test_opening_by_url_looks_before_it_makes(url: URL) -> None:
    execute(url, "CREATE TABLE qstore_transport_messages (id INTEGER)")
    with pytest.raises(FormatError, match="qstore_transport_messages"):
        TransportRepository.open(url)
    with pytest.raises(FormatError):
        TransportRepository.open(url, create=False)
    assert tables(url) == {"qstore_transport_messages"}
