"""The `alembic` command refuses what is not a store in one line, and nothing on disk changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migration.alembic_command import alembic, refusal
from tests.migration.file_state import unchanged
from tests.migration.foreign_files import FOREIGN, in_state
from tests.migration.seed_files import run


@pytest.mark.parametrize(
    ("name", "state", "command"),
    [
        ("a later format", "delete", "upgrade heads"),
        ("a later format", "wal", "upgrade heads"),
        ("a later format", "crashed", "upgrade heads"),
        ("a later format", "delete", "stamp heads"),
        ("a later format", "delete", "downgrade base"),
        ("a later format", "wal", "current"),
        ("a later format", "delete", "check"),
        ("another application's messages", "delete", "upgrade heads"),
        ("another application's messages", "wal", "stamp heads"),
        ("another application's tables", "delete", "upgrade heads"),
        ("another application's tables", "delete", "stamp heads"),
    ],
)
def test_a_foreign_database_in_a_stores_place_is_refused_and_left_as_it_was(
    tmp_path: Path, name: str, state: str, command: str
) -> None:
    foreign = FOREIGN[name]
    path = in_state(tmp_path / f"{foreign.store}.sqlite", foreign, state)
    with unchanged(tmp_path):
        done = alembic("-x", f"url={path}", *command.split(), cwd=tmp_path)
    said = refusal(done)
    assert str(path) in said
    assert foreign.found in said


@pytest.mark.parametrize("state", ["delete", "wal", "crashed"])
@pytest.mark.parametrize("command", ["upgrade heads", "upgrade localkv@head", "stamp heads", "downgrade base"])
def test_another_applications_database_of_any_name_is_refused_and_left_as_it_was(
    tmp_path: Path, state: str, command: str
) -> None:
    path = in_state(tmp_path / "app.db", FOREIGN["another application's tables"], state)
    with unchanged(tmp_path):
        done = alembic("-x", f"url={path}", *command.split(), cwd=tmp_path)
    refusal(done)


@pytest.mark.parametrize("content", [b"Dear diary,\n" * 500, b"SQLite format 3\x00" + b"\xaa" * 9000])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "localkv.sqlite"
    path.write_bytes(content)
    with unchanged(tmp_path):
        done = alembic("-x", f"url={path}", "upgrade", "heads", cwd=tmp_path)
    assert str(path) in refusal(done)


def test_the_foreign_file_of_a_directory_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = run(tmp_path / "localqueue.sqlite", *FOREIGN["a later format of the queue"].script)
    before = path.read_bytes()
    done = alembic("-x", f"data_dir={tmp_path}", "upgrade", "heads", cwd=tmp_path)
    assert "localqueue.v2" in refusal(done)
    assert path.read_bytes() == before
    assert [beside.name for beside in tmp_path.glob("localqueue.sqlite-*")] == []
