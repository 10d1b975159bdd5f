"""What is not there yet, or not whole yet, is made or completed; with create=False it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from qstore import FormatError, LocalKvRepository, LocalQueueRepository, TransportRepository, migrate
from tests.backends import MOUNTED
from tests.migration.file_state import opened, schema, table_names, unchanged
from tests.migration.seed_files import FILLING, MARKERS, STORES, TABLES, crash, make, make_newest, rows, run, statements
from tests.migration.ways_in import WAYS, host_engine, open_store

MAKING = ("open", "upgrade")
BEGINNINGS = [(store, count) for store in STORES for count in range(1, len(statements(store)))]


@pytest.mark.parametrize("way", MAKING)
@pytest.mark.parametrize("store", STORES)
def test_an_absent_file_is_new(tmp_path: Path, store: str, way: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    WAYS[way](path, store)
    assert schema(path) == schema(make_newest(tmp_path / "whole", store))


@pytest.mark.parametrize("way", MAKING)
@pytest.mark.parametrize("store", STORES)
def test_a_zero_byte_file_is_new(tmp_path: Path, store: str, way: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    path.touch()
    WAYS[way](path, store)
    assert schema(path) == schema(make_newest(tmp_path / "whole", store))


@pytest.mark.parametrize("way", MAKING)
@pytest.mark.parametrize("store", STORES)
def test_a_database_without_tables_is_new(tmp_path: Path, store: str, way: str) -> None:
    path = run(tmp_path / f"{store}.sqlite", "CREATE TABLE gone (a)", "DROP TABLE gone")
    assert path.stat().st_size > 0
    WAYS[way](path, store)
    assert schema(path) == schema(make_newest(tmp_path / "whole", store))


@pytest.mark.parametrize("repository", [LocalKvRepository, LocalQueueRepository, TransportRepository])
def test_with_create_false_an_absent_file_is_refused_and_nothing_is_created(
    tmp_path: Path, repository: type[LocalKvRepository | LocalQueueRepository]
) -> None:
    with unchanged(tmp_path), pytest.raises(FormatError) as refused:
        repository.open(tmp_path / "new" / "deep", create=False)
    assert refused.value.found == "no file"
    assert refused.value.supported in MARKERS.values()


@pytest.mark.parametrize("store", STORES)
def test_with_create_false_a_zero_byte_file_is_refused_and_stays_so(tmp_path: Path, store: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    path.touch()
    with unchanged(tmp_path), pytest.raises(FormatError) as refused:
        open_store(path, store, create=False)
    assert refused.value.supported == MARKERS[store]


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
@pytest.mark.parametrize(("store", "count"), BEGINNINGS)
def test_with_create_false_a_part_of_a_store_is_refused_and_left_as_it_was(
    tmp_path: Path, store: str, count: int, journal_mode: str
) -> None:
    path = run(tmp_path / f"{store}.sqlite", *statements(store)[:count], journal_mode=journal_mode)
    with unchanged(tmp_path), pytest.raises(FormatError) as refused:
        open_store(path, store, create=False)
    assert refused.value.found == "no complete store"


@pytest.mark.parametrize("way", MAKING)
@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
@pytest.mark.parametrize(("store", "count"), BEGINNINGS)
def test_what_the_seed_left_between_its_statements_is_completed(
    tmp_path: Path, store: str, count: int, crashed: bool, way: str
) -> None:
    path = tmp_path / f"{store}.sqlite"
    (crash if crashed else run)(path, *statements(store)[:count])
    WAYS[way](path, store)
    whole = (make if way == "open" else make_newest)(tmp_path / "whole", store)
    assert schema(path) == schema(whole)
    assert rows(path, store) == rows(whole, store)


@pytest.mark.parametrize(("store", "missing"), [("localkv", "meta"), ("localqueue", "meta"), ("transport", "groups")])
def test_a_missing_table_is_made_and_the_rows_of_the_other_stay(tmp_path: Path, store: str, missing: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store, filled=True)
    other = next(table for table in TABLES[store] if table != missing)
    before = rows(path, store)[other]
    run(path, f"DROP TABLE {missing}")
    open_store(path, store).close()
    assert schema(path) == schema(make(tmp_path / "seed", store))
    assert rows(path, store)[other] == before


@pytest.mark.parametrize("store", ["localkv", "localqueue"])
def test_a_missing_marker_is_written_and_other_rows_of_meta_stay(tmp_path: Path, store: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store)
    run(path, "UPDATE meta SET key = 'note', value = 'mine'")
    open_store(path, store).close()
    assert rows(path, store)["meta"] == [("format", MARKERS[store]), ("note", "mine")]


@pytest.mark.parametrize("way", WAYS)
def test_a_store_whose_tables_have_other_case_is_the_store_and_works(tmp_path: Path, way: str) -> None:
    """SQLite folds the case of names, for the seed's statements too."""
    script = [each.replace("EXISTS messages", "EXISTS Messages") for each in statements("transport")]
    path = run(tmp_path / "transport.sqlite", *script)
    WAYS[way](path, "transport")
    with open_store(path, "transport", create=False) as transport:
        assert transport.claim("w", 1) is None
    assert table_names(path) >= {"Messages", "groups"}


@pytest.mark.parametrize("store", STORES)
def test_added_indexes_tables_and_rows_of_meta_do_not_make_a_store_foreign(tmp_path: Path, store: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store, filled=True)
    run(path, f"CREATE INDEX mine ON {TABLES[store][1]} (1)", "CREATE TABLE notes (text)", "CREATE VIEW v AS SELECT 1")
    before = rows(path, store)
    open_store(path, store).close()
    assert rows(path, store) == before
    assert {"notes", "v"} <= table_names(path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("store", STORES)
def test_a_store_that_is_whole_is_taken_by_every_way_in(tmp_path: Path, store: str, way: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store, filled=True)
    before = rows(path, store)
    WAYS[way](path, store)
    assert rows(path, store) == before


@pytest.mark.parametrize("store", STORES)
def test_opening_an_up_to_date_store_changes_no_table_and_no_row(tmp_path: Path, store: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    open_store(path, store).close()
    with opened(path) as connection:
        for statement, values in FILLING[store]:
            connection.execute(statement, values).fetchall()
    with unchanged(tmp_path):
        for _ in range(3):
            open_store(path, store).close()
            open_store(path, store, create=False).close()


def test_a_store_that_was_stamped_before_its_tables_were_made_is_completed(tmp_path: Path) -> None:
    """A version row alone is no store: Alembic's plan would be empty."""
    path = tmp_path / "localkv.sqlite"
    run(
        path,
        "CREATE TABLE qstore_alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
        "INSERT INTO qstore_alembic_version VALUES ('localkv.v1')",
    )
    with open_store(path, "localkv") as kv:
        assert kv.put("k", b"v")


@pytest.mark.parametrize("way", MAKING)
@pytest.mark.parametrize(
    ("store", "lost"),
    [
        ("localqueue", "DROP INDEX idx_messages_visible"),
        ("localqueue", "DROP TABLE messages"),
        ("localkv", "DROP TABLE kv"),
        ("localkv", "DELETE FROM meta"),
        ("transport", "DROP TABLE groups"),
        ("transport", "DROP TABLE turns"),
        ("transport", "DROP TABLE messages"),
        ("transport", "DROP INDEX idx_messages_group"),
        ("transport", "DROP TRIGGER turns_message_lock"),
        ("localqueue", "DROP TABLE redelivery_mark"),
        ("localqueue", "DROP TRIGGER redeliveries_update"),
    ],
)
def test_what_was_lost_from_an_up_to_date_store_is_made_again(tmp_path: Path, store: str, lost: str, way: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    open_store(path, store).close()
    run(path, lost, journal_mode="wal")
    WAYS[way](path, store)
    whole = make_newest(tmp_path / "whole", store)
    assert schema(path) == schema(whole)
    assert rows(path, store) == rows(whole, store)


def test_a_mounted_store_that_lost_a_table_is_made_whole_by_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "host.sqlite"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        run(path, "DROP TABLE qstore_localkv_kv")
        assert migrate.check(engine, naming=MOUNTED) != ()
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()
