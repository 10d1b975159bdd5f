"""A database that is not the store asked for is refused by name, and nothing on disk changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from qstore import FormatError, LocalKvRepository, QstoreError, migrate, open_engine
from tests.integration.situations import disposed
from tests.made_files import made
from tests.migration.file_state import bytes_of, opened, unchanged
from tests.migration.foreign_files import FOREIGN, in_state
from tests.migration.seed_files import MARKERS, STORES, crash_in_commit, make, rows, run
from tests.migration.ways_in import REPOSITORIES, WAYS, host_engine, open_store, qstore_engine

SOME = ("a later format", "another application's messages", "another application's tables")


def unreadable(path: Path, kind: str) -> Path:
    """A file that is no database, or that was one."""
    if kind == "text":
        path.write_text("Dear diary,\n" * 1000)
    elif kind == "short text":
        path.write_text("Dear diary,\n")
    elif kind == "511 bytes":
        path.write_bytes(b"\xaa" * 511)
    elif kind == "header and garbage":
        path.write_bytes(b"SQLite format 3\x00" + bytes(range(256)) * 40)
    elif kind == "header alone":
        path.write_bytes(b"SQLite format 3\x00")
    else:
        make(path, path.stem, filled=True)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    return path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["delete", "wal"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_database_is_refused_and_left_as_it_was(tmp_path: Path, name: str, state: str, way: str) -> None:
    foreign = FOREIGN[name]
    path = in_state(tmp_path / f"{foreign.store}.sqlite", foreign, state)
    with unchanged(tmp_path), pytest.raises(FormatError) as refused:
        WAYS[way](path, foreign.store)
    assert refused.value.code == "BINDING_SETUP_FAILED"
    assert refused.value.target == str(path)
    assert foreign.found in refused.value.found
    assert refused.value.supported == MARKERS[foreign.store]
    for said in (refused.value.found, refused.value.supported, refused.value.target):
        assert said in str(refused.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["crashed", "crashed, no -shm"])
@pytest.mark.parametrize("name", SOME)
def test_a_foreign_database_with_a_log_of_a_crashed_process_is_refused_and_left_as_it_was(
    tmp_path: Path, name: str, state: str, way: str
) -> None:
    foreign = FOREIGN[name]
    path = in_state(tmp_path / f"{foreign.store}.sqlite", foreign, state)
    with unchanged(tmp_path), pytest.raises(FormatError) as refused:
        WAYS[way](path, foreign.store)
    assert foreign.found in refused.value.found


def test_looking_with_plain_sqlite_changes_what_a_crashed_process_left(tmp_path: Path) -> None:
    """The trap is real: closing a plain connection writes the log into the file."""
    path = in_state(tmp_path / "localkv.sqlite", FOREIGN["a later format"], "crashed")
    before = bytes_of(tmp_path)
    run(path, "SELECT value FROM meta", journal_mode="wal")
    assert bytes_of(tmp_path) != before


def test_a_foreign_database_that_a_process_left_half_written_is_refused_and_keeps_what_was_committed(
    tmp_path: Path,
) -> None:
    """SQLite itself rolls the other process's transaction back before it can look."""
    path = run(tmp_path / "localkv.sqlite", *FOREIGN["a later format"].script, "INSERT INTO kv VALUES ('k', x'00', 7)")
    crash_in_commit(path, "kv")
    with pytest.raises(FormatError) as refused:
        open_store(path, "localkv")
    assert refused.value.found == "localkv.v2"
    assert rows(path, "localkv") == {"meta": [("format", "localkv.v2")], "kv": [("k", b"\x00", 7)]}
    assert [beside.name for beside in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["text", "short text", "511 bytes", "header and garbage", "header alone", "half"])
@pytest.mark.parametrize("store", STORES)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(
    tmp_path: Path, store: str, kind: str, way: str
) -> None:
    path = unreadable(tmp_path / f"{store}.sqlite", kind)
    with unchanged(tmp_path), pytest.raises(FormatError) as refused:
        WAYS[way](path, store)
    assert refused.value.target == str(path)
    assert refused.value.found not in ("no file", "no complete store")
    assert "SQLite database" in refused.value.supported


@pytest.mark.parametrize("function", [migrate.upgrade, migrate.stamp])
@pytest.mark.parametrize("name", SOME)
def test_a_foreign_database_is_refused_when_the_store_is_told_by_the_files_name(
    tmp_path: Path, name: str, function: Callable[[Any], None]
) -> None:
    foreign = FOREIGN[name]
    path = run(tmp_path / f"{foreign.store}.sqlite", *foreign.script)
    with unchanged(tmp_path), qstore_engine(path) as engine, pytest.raises(FormatError):
        function(engine)


@pytest.mark.parametrize("function", [migrate.upgrade, migrate.stamp])
def test_a_database_whose_name_and_content_tell_no_store_is_left_as_it_was(
    tmp_path: Path, function: Callable[[Any], None]
) -> None:
    path = run(tmp_path / "app.db", *FOREIGN["another application's tables"].script)
    with unchanged(tmp_path), qstore_engine(path) as engine, pytest.raises(FormatError, match="orders"):
        function(engine)


@pytest.mark.parametrize("name", SOME)
def test_a_foreign_database_is_refused_on_a_hosts_engine_and_left_as_it_was(tmp_path: Path, name: str) -> None:
    foreign = FOREIGN[name]
    path = run(tmp_path / "app.db", *foreign.script)
    with unchanged(tmp_path), host_engine(path) as engine, pytest.raises(FormatError) as refused:
        migrate.upgrade(engine, stores=[foreign.store])
    assert foreign.found in refused.value.found


@pytest.mark.parametrize("store", STORES)
def test_a_repository_on_a_foreign_database_says_so(tmp_path: Path, store: str) -> None:
    """Binding looks at nothing: the first call finds out."""
    path = run(tmp_path / "app.db", *FOREIGN["another application's tables"].script)
    calls: dict[str, Callable[[Any], object]] = {
        "transport": lambda repository: repository.claim("w", 1),
        "localkv": lambda repository: repository.put("k", b"v"),
        "localqueue": lambda repository: repository.send("m"),
    }
    with unchanged(tmp_path), host_engine(path) as engine, pytest.raises(FormatError):
        calls[store](REPOSITORIES[store](engine))


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path) -> None:
    file = make(tmp_path / "localkv.sqlite", "localkv")
    with unchanged(tmp_path), pytest.raises(QstoreError, match="directory"):
        LocalKvRepository.open(file)


def test_a_directory_where_the_file_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "localkv.sqlite").mkdir()
    with unchanged(tmp_path), pytest.raises(FormatError):
        open_store(tmp_path / "localkv.sqlite", "localkv")


@pytest.mark.parametrize("noted", ["''", "x'00ff'", "'localkv.v9'", "7", "CAST(x'ff' AS TEXT)"])
def test_a_store_whose_noted_revision_nobody_knows_is_not_upgraded(tmp_path: Path, noted: str) -> None:
    path = tmp_path / "localkv.sqlite"
    copyfile(made("localkv"), path)
    run(path, f"UPDATE qstore_alembic_version SET version_num = {noted}")
    look = "SELECT hex(version_num), typeof(version_num) FROM qstore_alembic_version"
    with opened(path) as connection:
        before = connection.execute(look).fetchall()
    with disposed(open_engine(path)) as engine, pytest.raises(FormatError):
        migrate.upgrade(engine)
    with opened(path) as connection:
        assert connection.execute(look).fetchall() == before


@pytest.mark.parametrize("byte", [5, 9, 255])
def test_a_file_of_a_format_that_this_sqlite_does_not_know_is_refused_by_name_and_left_as_it_was(
    tmp_path: Path, byte: int
) -> None:
    """SQLite says of it only that there was an error."""
    path = tmp_path / "localkv.sqlite"
    file = bytearray(made("localkv").read_bytes())
    file[47] = byte
    path.write_bytes(file)
    with pytest.raises(FormatError):
        LocalKvRepository.open(tmp_path)
    with disposed(open_engine(path)) as engine, pytest.raises(FormatError), engine.connect():
        pass
    assert path.read_bytes() == file


def test_a_schema_that_is_not_utf8_is_refused_by_name_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "localkv.sqlite"
    path.write_bytes(made("localkv").read_bytes().replace(b"BLOB", b"BLO\xff"))
    before = path.read_bytes()
    with pytest.raises(FormatError):
        LocalKvRepository.open(tmp_path)
    assert path.read_bytes() == before
