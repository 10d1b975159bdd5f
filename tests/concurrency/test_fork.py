"""Semantics 12: a store used after a fork has a connection of its own in the child, and the parent's is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.concurrency import forks

ROOT = Path(__file__).parents[2]

ENDS = ("_exit", "exit")
"""How a child ends: at once, or as a script does, with all objects finalized."""


SCENARIO = """
import sys; from pathlib import Path; from tests.concurrency import forks
getattr(forks, sys.argv[1])(Path(sys.argv[2]), sys.argv[3])
"""
UNPROTECTED = "import qstore.engines.forking as it; it._children.watch = lambda *_: None" + SCENARIO
INHERITING = (
    "import qstore.engines.sqlite as it; it.File.close_idle = lambda *_: None; it.FileConnection.opened = False"
    + SCENARIO
)


def _run(scenario: str, directory: Path, end: str, code: str = SCENARIO) -> None:
    """In a process that has no threads. Children that end without a close leave their own connection, as scripts do."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", code, scenario, str(directory), end],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize("end", ENDS)
def test_parent_and_child_go_on_with_one_repository(end: str, tmp_path: Path) -> None:
    _run(forks.both_go_on.__name__, tmp_path, end)


@pytest.mark.parametrize("end", [*ENDS, "close"])
def test_the_parents_write_lock_and_transaction_outlive_the_child(end: str, tmp_path: Path) -> None:
    _run(forks.the_parent_keeps_its_lock.__name__, tmp_path, end)


@pytest.mark.parametrize("end", ENDS)
def test_a_transaction_that_has_outgrown_the_cache_outlives_the_child(end: str, tmp_path: Path) -> None:
    _run(forks.a_large_transaction_outlives_the_child.__name__, tmp_path, end)


@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_outlives_its_parents_store_takes_nothing_away(end: str, tmp_path: Path) -> None:
    _run(forks.a_child_that_outlives_its_parents_store_takes_nothing_away.__name__, tmp_path, end)


@pytest.mark.parametrize("end", ENDS)
def test_the_child_has_a_connection_of_its_own(end: str, tmp_path: Path) -> None:
    _run(forks.the_child_has_a_connection_of_its_own.__name__, tmp_path, end)


def test_a_child_goes_on_after_its_parent_has_closed(tmp_path: Path) -> None:
    _run(forks.a_child_goes_on_after_its_parent_has_closed.__name__, tmp_path, "_exit")


def test_a_child_that_has_written_goes_on_beside_others(tmp_path: Path) -> None:
    _run(forks.a_child_that_has_written_goes_on_beside_others.__name__, tmp_path, "_exit")


def test_a_child_that_inherits_what_sqlite_knows_of_locks_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="what was committed is lost"):
        _run(forks.a_child_that_has_written_goes_on_beside_others.__name__, tmp_path, "_exit", INHERITING)


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        (forks.the_child_has_a_connection_of_its_own.__name__, "the child has its parent's connection"),
        (forks.a_child_goes_on_after_its_parent_has_closed.__name__, "what the child published is lost"),
    ],
)
def test_an_engine_that_keeps_its_connections_in_the_child_is_caught(scenario: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=told):
        _run(scenario, tmp_path, "_exit", UNPROTECTED)


def test_children_of_multiprocessing_use_the_parents_repository(tmp_path: Path) -> None:
    _run(forks.multiprocessing_forks.__name__, tmp_path, "_exit")


@pytest.mark.parametrize("end", ENDS)
def test_a_grandchild_uses_the_repository_too(end: str, tmp_path: Path) -> None:
    _run(forks.a_grandchild_works_too.__name__, tmp_path, end)
