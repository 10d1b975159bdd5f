"""No hot operation takes a statement, a page of log or many calls more than `costs.txt` says. Issue 6."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstore import LocalKvRepository
from qstore.localkv import operations as localkv
from qstore.transaction import Transaction
from tests.plans import costs
from tests.plans.costs import Cost, Operations

SLACK = 1.1
"""Of calls: libraries take a few more or less from version to version."""

HOW = "if that is meant: python -m tests.plans.costs > tests/plans/costs.txt"


@pytest.fixture(scope="module")
def found() -> dict[str, Cost]:
    return costs.table()


@pytest.fixture
def operations(tmp_path: Path) -> Iterator[Operations]:
    with costs.operations(str(tmp_path)) as operations:
        yield operations


def test_every_hot_operation_is_written_down(found: dict[str, Cost]) -> None:
    assert list(costs.written()) == list(found), HOW


def test_a_call_runs_as_many_statements_and_writes_as_many_pages_as_is_written_down(found: dict[str, Cost]) -> None:
    assert {name: cost[:2] for name, cost in found.items()} == {
        name: cost[:2] for name, cost in costs.written().items()
    }, HOW


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="how many calls there are depends on Python's version")
def test_a_call_takes_hardly_more_calls_than_is_written_down(found: dict[str, Cost]) -> None:
    more = {name: cost.calls for name, cost in found.items() if cost.calls > costs.written()[name].calls * SLACK}
    assert not more, HOW


def test_what_is_printed_is_what_is_read(
    found: dict[str, Cost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "COSTS", tmp_path / "costs.txt")
    costs.COSTS.write_text(costs.shown(found), encoding="utf-8")
    assert costs.written() == found


def test_a_statement_more_is_counted(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    get = localkv.get

    def get_and_look(tx: Transaction, key: str) -> object:
        localkv.exists(tx, key)
        return get(tx, key)

    engine, _ = operations["localkv get"]
    before = costs.counted(engine, lambda: LocalKvRepository(engine).get("k5"))
    monkeypatch.setattr(localkv, "get", get_and_look)
    after = costs.counted(engine, lambda: LocalKvRepository(engine).get("k5"))
    assert (after.statements, after.pages) == (before.statements + 1, before.pages)
    assert after.calls > before.calls * SLACK


def test_a_page_more_is_counted(found: dict[str, Cost]) -> None:
    """A trigger is two statements: that it fires, and its step."""
    noting = "CREATE TABLE noted (at INTEGER);"
    noting += "CREATE TRIGGER note AFTER UPDATE ON {} BEGIN INSERT INTO noted VALUES (1); END"
    more = costs.table(noting)
    assert {
        name: (more[name].statements - before.statements, more[name].pages - before.pages)
        for name, before in found.items()
        if more[name][:2] != before[:2]
    } == {
        "localkv put, overwriting": (2, 1),
        "transport claim": (2, 1),
        "localqueue receive(1)": (2, 1),
        "localqueue receive(10)": (20, 1),
    }
