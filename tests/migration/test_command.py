"""The `alembic` command, as people run it: on a directory, on one file, and wrongly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qstore import migrate
from tests.backends import MOUNTED
from tests.migration.alembic_command import ROOT, alembic, refusal
from tests.migration.file_state import dump, opened, schema, table_names, unchanged
from tests.migration.seed_files import ADDED, NEWEST, STORES, make, make_newest, run
from tests.migration.ways_in import host_engine, open_store, qstore_engine


def succeed(*arguments: str, cwd: Path) -> str:
    done = alembic(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def all_stores(directory: Path, *, filled: bool = False) -> Path:
    """The three files of a data directory, made by the seeds and upgraded."""
    directory.mkdir()
    for store in STORES:
        make(directory / f"{store}.sqlite", store, filled=filled)
        with qstore_engine(directory / f"{store}.sqlite") as engine:
            migrate.upgrade(engine)
    return directory


def test_upgrade_makes_all_three_files_of_a_relative_directory_below_the_working_directory(tmp_path: Path) -> None:
    succeed("-x", "data_dir=./deep/data", "upgrade", "heads", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "deep" / "data").iterdir()) == sorted(
        f"{store}.sqlite" for store in STORES
    )
    for store in STORES:
        path = tmp_path / "deep" / "data" / f"{store}.sqlite"
        assert schema(path) == schema(make_newest(tmp_path / f"newest of {store}", store))
        open_store(path, store, create=False).close()


def test_upgrade_again_changes_not_a_byte(tmp_path: Path) -> None:
    all_stores(tmp_path / "data", filled=True)
    with unchanged(tmp_path):
        succeed("-x", "data_dir=data", "upgrade", "heads", cwd=tmp_path)


@pytest.mark.parametrize("store", STORES)
def test_upgrade_of_one_url_makes_that_store_alone(tmp_path: Path, store: str) -> None:
    succeed("-x", f"url=sqlite:///{store}.sqlite", "upgrade", "heads", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{store}.sqlite"]
    assert schema(tmp_path / f"{store}.sqlite") == schema(make_newest(tmp_path / "newest", store))


def test_upgrade_of_a_branch_makes_that_store_in_a_file_of_any_name(tmp_path: Path) -> None:
    succeed("-x", "url=sqlite:///any.db", "upgrade", "localkv@head", cwd=tmp_path)
    assert schema(tmp_path / "any.db") == schema(make(tmp_path / "seed", "localkv"))


def test_upgrade_of_all_heads_in_a_new_file_whose_name_tells_no_store_is_refused(tmp_path: Path) -> None:
    """A native file holds one store; the queue's and the transport's `messages` cannot share it."""
    done = alembic("-x", "url=sqlite:///any.db", "upgrade", "heads", cwd=tmp_path)
    refusal(done)
    assert list(tmp_path.iterdir()) == []


def test_upgrade_with_a_prefix_mounts_all_stores(tmp_path: Path) -> None:
    succeed("-x", "url=sqlite:///host.db", "-x", "prefix=app_", "upgrade", "heads", cwd=tmp_path)
    assert table_names(tmp_path / "host.db") == {
        "app_alembic_version",
        "app_transport_messages",
        "app_transport_groups",
        "app_localkv_meta",
        "app_localkv_kv",
        "app_localqueue_meta",
        "app_localqueue_messages",
        *(f"app_{store}_{table}" for store, tables in ADDED.items() for table in tables),
    }


@pytest.mark.parametrize("name", ["a b.sqlite", "a?b.sqlite", "a#b.sqlite", "a%20b.sqlite", "a%b.sqlite", "ünï😀"])
def test_exactly_the_named_file_is_made_whatever_characters_it_has(tmp_path: Path, name: str) -> None:
    succeed("-x", f"url={name}", "upgrade", "localkv@head", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_current_names_the_revision_of_every_file(tmp_path: Path) -> None:
    all_stores(tmp_path / "data")
    with unchanged(tmp_path):
        said = succeed("-x", "data_dir=data", "current", cwd=tmp_path)
    for revision in NEWEST.values():
        assert f"{revision} (head)" in said


def test_history_and_heads_need_no_database(tmp_path: Path) -> None:
    said = succeed("history", cwd=tmp_path) + succeed("heads", cwd=tmp_path)
    for store, revision in NEWEST.items():
        assert said.count(f"{revision} ({store}) (head)") >= 1, said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made", ["open", "command"])
def test_check_finds_nothing_on_stores_that_are_up_to_date(tmp_path: Path, made: str) -> None:
    if made == "open":
        all_stores(tmp_path / "data")
    else:
        succeed("-x", "data_dir=data", "upgrade", "heads", cwd=tmp_path)
    with unchanged(tmp_path):
        said = succeed("-x", "data_dir=data", "check", cwd=tmp_path)
    assert "No new upgrade operations detected" in said


def test_check_finds_nothing_on_mounted_stores_that_are_up_to_date(tmp_path: Path) -> None:
    mounted = ("-x", "url=sqlite:///host.db", "-x", "prefix=qstore_")
    run(tmp_path / "host.db", "CREATE TABLE orders (id INTEGER)")
    succeed(*mounted, "upgrade", "heads", cwd=tmp_path)
    succeed(*mounted, "check", cwd=tmp_path)


@pytest.mark.parametrize(
    ("store", "wrong", "named"),
    [
        ("localqueue", "DROP INDEX idx_messages_visible", "idx_messages_visible"),
        ("localqueue", "ALTER TABLE messages RENAME COLUMN receipt_handle TO receipt", "receipt"),
        ("localkv", "ALTER TABLE kv RENAME COLUMN expires_at TO due", "due"),
        ("localkv", "ALTER TABLE kv ADD COLUMN extra TEXT", "extra"),
        ("transport", "DROP TABLE groups", "groups"),
        ("transport", "DELETE FROM qstore_alembic_version", "up to date"),
    ],
)
def test_check_finds_what_is_wrong(tmp_path: Path, store: str, wrong: str, named: str) -> None:
    path = all_stores(tmp_path / "data") / f"{store}.sqlite"
    run(path, wrong, journal_mode="wal")
    with unchanged(tmp_path):
        done = alembic("-x", f"url={path}", "check", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert named in done.stdout + done.stderr


@pytest.mark.parametrize("store", STORES)
def test_check_of_a_directory_finds_what_is_wrong_in_any_of_its_files(tmp_path: Path, store: str) -> None:
    data = all_stores(tmp_path / "data")
    table = {"transport": "groups", "localkv": "kv", "localqueue": "messages"}[store]
    run(data / f"{store}.sqlite", f"ALTER TABLE {table} ADD COLUMN extra TEXT", journal_mode="wal")
    done = alembic("-x", "data_dir=data", "check", cwd=tmp_path)
    assert done.returncode != 0
    assert "extra" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["current", "check"])
@pytest.mark.parametrize("target", ["data_dir=data", "url=sqlite:///data/localkv.sqlite"])
def test_commands_that_read_create_nothing(tmp_path: Path, command: str, target: str) -> None:
    with unchanged(tmp_path):
        done = alembic("-x", target, command, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert "no file" in done.stdout


def test_downgrade_refuses_to_drop_rows_in_one_line_and_changes_nothing(tmp_path: Path) -> None:
    path = all_stores(tmp_path / "data", filled=True) / "localkv.sqlite"
    with unchanged(tmp_path):
        done = alembic("-x", f"url={path}", "downgrade", "base", cwd=tmp_path)
    said = refusal(done)
    assert "3 rows of kv" in said
    assert "drop_data=yes" in said


def test_downgrade_drops_rows_when_told(tmp_path: Path) -> None:
    path = all_stores(tmp_path / "data", filled=True) / "localkv.sqlite"
    succeed("-x", f"url={path}", "-x", "drop_data=yes", "downgrade", "base", cwd=tmp_path)
    assert table_names(path) == {"qstore_alembic_version"}


def test_downgrade_and_upgrade_of_a_directory_of_empty_stores_make_the_same_again(tmp_path: Path) -> None:
    data = all_stores(tmp_path / "data")
    before = {store: sorted(dump(data / f"{store}.sqlite")) for store in STORES}
    succeed("-x", "data_dir=data", "downgrade", "base", cwd=tmp_path)
    succeed("-x", "data_dir=data", "upgrade", "heads", cwd=tmp_path)
    assert {store: sorted(dump(data / f"{store}.sqlite")) for store in STORES} == before


@pytest.mark.parametrize("store", STORES)
def test_the_printed_sql_makes_the_store(tmp_path: Path, store: str) -> None:
    script = succeed("-x", f"url=sqlite:///{store}.sqlite", "upgrade", "heads", "--sql", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with opened(tmp_path / f"{store}.sqlite") as connection:
        connection.executescript(script)
    assert schema(tmp_path / f"{store}.sqlite") == schema(make_newest(tmp_path / "newest", store))
    succeed("-x", f"url=sqlite:///{store}.sqlite", "check", cwd=tmp_path)


def test_the_printed_sql_of_mounted_stores_makes_what_upgrade_makes(tmp_path: Path) -> None:
    mounted = ("-x", "url=sqlite:///host.db", "-x", "prefix=qstore_")
    script = succeed(*mounted, "upgrade", "heads", "--sql", cwd=tmp_path)
    with opened(tmp_path / "host.db") as connection:
        connection.executescript(script)
    with host_engine(tmp_path / "upgraded") as engine:
        migrate.upgrade(engine, naming=MOUNTED)
    assert schema(tmp_path / "host.db") == schema(tmp_path / "upgraded")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["upgrade", "heads"], "data_dir"),
        (["current"], "data_dir"),
        (["check"], "data_dir"),
        (["-x", "dir=data", "upgrade", "heads"], "data_dir"),
        (["-x", "url=", "upgrade", "heads"], "data_dir"),
        (["-x", "url=sqlite://", "upgrade", "heads"], "memory"),
        (["-x", "url=sqlite:///:memory:", "upgrade", "heads"], "memory"),
        (["-x", "url=mysql://host/x", "upgrade", "heads"], "mysql"),
        (["-x", "url=sqlite:///x.db", "-x", "prefix=no-good", "upgrade", "heads"], "prefix"),
        (["-x", "data_dir=data", "upgrade", "nothing@head"], "nothing"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line_and_creates_nothing(
    tmp_path: Path, arguments: list[str], named: str
) -> None:
    with unchanged(tmp_path):
        done = alembic(*arguments, cwd=tmp_path)
    assert named in refusal(done)


@pytest.mark.parametrize("target", ["data_dir=data", "url=sqlite:///localkv.sqlite"])
def test_a_downgrade_makes_no_file(tmp_path: Path, target: str) -> None:
    with unchanged(tmp_path):
        done = alembic("-x", target, "downgrade", "base", cwd=tmp_path)
    assert "Traceback" not in done.stderr


def test_stamp_of_a_file_without_a_store_is_refused(tmp_path: Path) -> None:
    """A store that is noted and not there would never be made: there would be nothing left to upgrade."""
    with unchanged(tmp_path):
        done = alembic("-x", "url=sqlite:///localkv.sqlite", "stamp", "heads", cwd=tmp_path)
    refusal(done)


def test_stamp_of_a_store_that_is_whole_notes_its_revision(tmp_path: Path) -> None:
    make(tmp_path / "localkv.sqlite", "localkv", filled=True)
    succeed("-x", "url=sqlite:///localkv.sqlite", "stamp", "heads", cwd=tmp_path)
    assert "localkv.v1 (head)" in succeed("-x", "url=sqlite:///localkv.sqlite", "current", cwd=tmp_path)
    with open_store(tmp_path / "localkv.sqlite", "localkv", create=False) as kv:
        assert kv.get("k") == b"\x00\xff"


def test_an_unknown_revision_in_the_file_is_answered_in_one_line(tmp_path: Path) -> None:
    path = all_stores(tmp_path / "data") / "localkv.sqlite"
    run(path, "UPDATE qstore_alembic_version SET version_num = 'localkv.v9'", journal_mode="wal")
    with unchanged(tmp_path):
        done = alembic("-x", f"url={path}", "upgrade", "heads", cwd=tmp_path)
    assert "localkv.v9" in refusal(done)


def test_the_command_works_while_the_store_is_in_use(tmp_path: Path) -> None:
    path = all_stores(tmp_path / "data") / "localkv.sqlite"
    with open_store(path, "localkv") as kv:
        kv.put("k", b"v")
        succeed("-x", f"url={path}", "upgrade", "heads", cwd=tmp_path)
        succeed("-x", f"url={path}", "current", cwd=tmp_path)
        succeed("-x", f"url={path}", "check", cwd=tmp_path)
        assert kv.get("k") == b"v"


def test_a_new_revision_file_is_written_from_the_shipped_template(tmp_path: Path) -> None:
    """On a copy: `alembic revision` writes beside the others."""
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "alembic.ini", tmp_path)
    done = alembic(
        *("revision", "--head", "localkv@head", "--rev-id", "localkv.v1.1", "-m", "an index"),
        cwd=tmp_path,
        ini=tmp_path / "alembic.ini",
    )
    assert done.returncode == 0, done.stderr
    [file] = set((tmp_path / "migrations" / "versions").glob("*an_index.py"))
    compile(file.read_text(), str(file), "exec")
    assert "down_revision = 'localkv.v1'" in file.read_text()
