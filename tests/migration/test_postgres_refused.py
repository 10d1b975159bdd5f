"""Tables on PostgreSQL that have the stores' names and are not the stores': refused with the difference."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import URL, Engine

from qstore import FormatError, TransportRepository, migrate
from tests.backends import MOUNTED
from tests.migration.postgres_schema import BARE, catalog, execute, tables

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
    "an index that was not finished": (
        BARE["localkv"] + "CREATE INDEX qstore_localkv_idx_kv_expires ON qstore_localkv_kv (expires_at) WHERE"
        " expires_at IS NOT NULL; UPDATE pg_index SET indisvalid = false WHERE indexrelid ="
        " 'qstore_localkv_idx_kv_expires'::regclass",
        "not valid",
    ),
    "an index in descending order": (
        BARE["localkv"] + "CREATE INDEX qstore_localkv_idx_kv_expires ON qstore_localkv_kv (expires_at DESC) WHERE"
        " expires_at IS NOT NULL",
        "expires_at desc",
    ),
    "an index without its predicate": (
        BARE["localkv"] + "CREATE INDEX qstore_localkv_idx_kv_expires ON qstore_localkv_kv (expires_at)",
        "WHERE expires_at",
    ),
    "a table of an index's name": (
        BARE["localkv"] + "CREATE TABLE qstore_localkv_idx_kv_expires (i BIGINT)",
        "qstore_localkv_idx_kv_expires",
    ),
    "an id that may not be given": (
        BARE["localqueue"].replace("BIGSERIAL", "BIGINT GENERATED ALWAYS AS IDENTITY"),
        "id bigint",
    ),
    "a key that is put off": (
        BARE["localkv"].replace("KEY, value BYTEA", "KEY DEFERRABLE, value BYTEA"), "DEFERRABLE"
    ),
    "a rule more": (BARE["localkv"].replace("value BYTEA NOT NULL", "value BYTEA NOT NULL UNIQUE"), "UNIQUE (value)"),
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


def test_keys_in_the_order_of_a_language_are_refused_and_in_that_of_bytes_taken(url: URL, engine: Engine) -> None:
    execute(url, "".join(BARE.values()).replace(' COLLATE "C"', ""))
    with engine.connect() as connection:
        collate = "UPDATE pg_database SET datcollate = '{}' WHERE datname = current_database()"
        connection.exec_driver_sql(collate.format("C.UTF-8"))
        assert [wrong for wrong in migrate.check(connection, naming=MOUNTED) if "not this store's" in wrong] == []
        connection.exec_driver_sql(collate.format("en_US.UTF-8"))
        wrong = migrate.check(connection, naming=MOUNTED)
        assert len([each for each in wrong if "not this store's" in each and 'COLLATE "C"' in each]) == 3
        connection.rollback()


def test_opening_by_url_looks_before_it_makes(url: URL) -> None:
    execute(url, "CREATE TABLE qstore_transport_messages (id INTEGER)")
    with pytest.raises(FormatError, match="qstore_transport_messages"):
        TransportRepository.open(url)
    with pytest.raises(FormatError):
        TransportRepository.open(url, create=False)
    assert tables(url) == {"qstore_transport_messages"}
