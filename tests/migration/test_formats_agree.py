"""The seed's text, the models, the revisions and `open` make one and the same schema."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import MetaData

from qstore import migrate
from qstore.formats import ADDITIONS, FORMATS, newest
from qstore.localkv.models import KvBase
from qstore.localqueue.models import QueueBase
from qstore.transport.models import TransportBase
from tests.backends import MOUNTED
from tests.migration.file_state import Schema, opened, schema, table_names
from tests.migration.seed_files import (
    ADDED,
    MARKERS,
    NEWEST,
    STORES,
    TABLES,
    create_statements,
    make,
    make_newest,
    run,
    statements,
)
from tests.migration.ways_in import host_engine, open_store, qstore_engine

METADATA: dict[str, MetaData] = {
    "transport": TransportBase.metadata,
    "localkv": KvBase.metadata,
    "localqueue": QueueBase.metadata,
}


def by_the_models(path: Path, store: str) -> None:
    with host_engine(path) as engine:
        METADATA[store].create_all(engine)


def by_the_revisions_on_a_hosts_engine(path: Path, store: str) -> None:
    with host_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])


def by_the_revisions_on_qstores_engine(path: Path, store: str) -> None:
    with qstore_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])


def by_open(path: Path, store: str) -> None:
    open_store(path, store).close()


MAKERS: list[Callable[[Path, str], None]] = [
    by_the_models,
    by_the_revisions_on_a_hosts_engine,
    by_the_revisions_on_qstores_engine,
    by_open,
]
MAKERS_OF_TEXT = MAKERS[1:]
"""Those that run the seed's text; SQLAlchemy words the models' statements in its own way."""


def created(path: Path) -> list[str]:
    with opened(path) as connection:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name NOT LIKE '%alembic_version'"
            " AND name != 'sqlite_sequence' ORDER BY rowid"
        ).fetchall()
    return [str(sql) for (sql,) in rows]


def test_the_golden_text_has_every_table_of_the_seed() -> None:
    found = {store: len(statements(store)) for store in STORES}
    assert found == {"transport": 2, "localkv": 3, "localqueue": 4}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("made", MAKERS, ids=lambda made: str(made.__name__))
def test_the_schema_is_the_seeds_in_every_column_default_and_index(
    tmp_path: Path, store: str, made: Callable[[Path, str], None]
) -> None:
    expected = schema(make_newest(tmp_path / "whole.sqlite", store))
    assert set(expected) - {"sqlite_sequence"} == {*TABLES[store], *ADDED[store]}
    for table, description in schema(make(tmp_path / "seed.sqlite", store)).items():
        assert expected[table]["columns"] == description["columns"]
    made(tmp_path / "made.sqlite", store)
    found = schema(tmp_path / "made.sqlite")
    if made is by_the_models:  # SQLAlchemy has no triggers
        for each in expected.values():
            each["objects"] = [one for one in each["objects"] if one[0] != "trigger"]
    assert set(found) == set(expected)
    for table, description in expected.items():
        for subject, lines in description.items():
            assert found[table][subject] == lines, f"{table}: {subject}"


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        (("expires_at INTEGER", "expires_at INT"), "columns"),
        (("value BLOB NOT NULL", "value BLOB"), "columns"),
        (("value BLOB NOT NULL", "value BLOB NOT NULL DEFAULT x''"), "columns"),
        (("key TEXT PRIMARY KEY,\nvalue BLOB", "key TEXT COLLATE NOCASE PRIMARY KEY,\nvalue BLOB"), "index columns"),
        (("no expiry\n)", "no expiry\n) WITHOUT ROWID"), "kind"),
    ],
)
def test_the_comparison_sees_a_schema_that_differs_by_one_thing(
    tmp_path: Path, change: tuple[str, str], subject: str
) -> None:
    expected = schema(make(tmp_path / "seed.sqlite", "localkv"))
    changed = [each.replace(*change) for each in statements("localkv")]
    assert changed != statements("localkv")
    found: Schema = schema(run(tmp_path / "other.sqlite", *changed))
    assert found["kv"][subject] != expected["kv"][subject]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("made", MAKERS_OF_TEXT, ids=lambda made: str(made.__name__))
def test_the_create_statements_in_the_file_are_the_seeds_and_then_the_golden_ones_word_for_word(
    tmp_path: Path, store: str, made: Callable[[Path, str], None]
) -> None:
    assert created(make(tmp_path / "seed.sqlite", store)) == create_statements(store)
    made(tmp_path / "made.sqlite", store)
    found = created(tmp_path / "made.sqlite")
    assert found[: len(create_statements(store))] == create_statements(store)
    assert found == created(make_newest(tmp_path / "whole.sqlite", store))


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("made", MAKERS_OF_TEXT, ids=lambda made: str(made.__name__))
def test_the_marker_is_the_seeds_and_the_only_row(
    tmp_path: Path, store: str, made: Callable[[Path, str], None]
) -> None:
    path = tmp_path / "made.sqlite"
    made(path, store)
    with opened(path) as connection:
        if "meta" in TABLES[store]:
            assert connection.execute("SELECT * FROM meta").fetchall() == [("format", MARKERS[store])]
        for table in set(TABLES[store]) - {"meta"}:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]


@pytest.mark.parametrize("store", STORES)
def test_a_native_file_holds_the_seeds_tables_and_one_version_table(tmp_path: Path, store: str) -> None:
    path = tmp_path / "made.sqlite"
    by_open(path, store)
    assert table_names(path) == {*TABLES[store], *ADDED[store], "qstore_alembic_version"}
    with opened(path) as connection:
        assert connection.execute("SELECT * FROM qstore_alembic_version").fetchall() == [(NEWEST[store],)]


def test_the_formats_name_the_seeds_markers_and_tables() -> None:
    assert {store: fmt.marker for store, fmt in FORMATS.items()} == MARKERS
    assert {store: fmt.tables for store, fmt in FORMATS.items()} == TABLES


def test_the_additions_name_all_that_they_create_and_nothing_else(tmp_path: Path) -> None:
    for store, addition in ADDITIONS.items():
        before = named(make(tmp_path / f"seed {store}", store))
        assert named(make_newest(tmp_path / f"whole {store}", store)) - before == {
            *(("table", name) for name in addition.tables),
            *(("index", name) for name in addition.indexes),
            *(("trigger", name) for name in addition.triggers),
        }
        assert newest(store) == NEWEST[store]


def named(path: Path) -> set[tuple[str, str]]:
    with opened(path) as connection:
        return set(connection.execute("SELECT type, name FROM sqlite_master WHERE sql IS NOT NULL").fetchall())


@pytest.mark.parametrize("store", STORES)
def test_mounted_tables_are_the_seeds_but_for_their_names(tmp_path: Path, store: str) -> None:
    native = schema(make_newest(tmp_path / "whole.sqlite", store))
    with host_engine(tmp_path / "host.sqlite") as engine:
        migrate.upgrade(engine, naming=MOUNTED, stores=[store])
    mounted = schema(tmp_path / "host.sqlite")
    prefix = f"qstore_{store}_"
    assert set(mounted) - {"sqlite_sequence"} == {prefix + table for table in (*TABLES[store], *ADDED[store])}
    for table in (*TABLES[store], *ADDED[store]):
        described = repr(mounted[prefix + table]).replace(f"sqlite_autoindex_{prefix}", "sqlite_autoindex_")
        assert described.replace(prefix, "") == repr(native[table])


def test_mounted_create_statements_are_the_seeds_but_for_their_names(tmp_path: Path) -> None:
    with host_engine(tmp_path / "host.sqlite") as engine:
        migrate.upgrade(engine, naming=MOUNTED)
    expected = [mounted_text(store, text) for store in STORES for text in create_statements(store)]
    for store in STORES:
        added = created(make_newest(tmp_path / store, store))[len(create_statements(store)) :]
        expected += [mounted_addition(store, text) for text in added]
    assert sorted(created(tmp_path / "host.sqlite")) == sorted(expected)


def mounted_text(store: str, text: str) -> str:
    names = r"(?<=^CREATE TABLE )\w+|(?<=^CREATE INDEX )\w+|(?<=visible ON )\w+"
    return re.sub(names, lambda name: f'"qstore_{store}_{name[0]}"', text)


def mounted_addition(store: str, text: str) -> str:
    names = r"\b(?:turns_\w+|turns|messages|groups|idx_\w+|redeliver\w+)\b"
    return re.sub(names, lambda name: f'"qstore_{store}_{name[0]}"', text)
