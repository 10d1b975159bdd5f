"""The tables of cases and guarantees name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent
CASES = (TESTS / "README.md").read_text(encoding="utf-8")
README = (TESTS.parent / "README.md").read_text(encoding="utf-8")


@cache
def _defined(file: str) -> frozenset[str]:
    """The tests in a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _named(line: str) -> list[tuple[str, str]]:
    """The tests that a line of a table names: a file, and those in it."""
    parts = re.findall(r"`(?:tests/)?(\w+/test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)", line)
    return [(file, test) for file, tests in parts for test in re.findall(r"`(\w+)`", tests)]


def test_every_case_from_practice_but_two_has_tests() -> None:
    rows = {case: _named(row) for row in CASES.splitlines() for case in re.findall(r"^\| (H\d\d|D\d) \|", row)}
    cases = {*(f"H{number:02}" for number in range(1, 41)), *(f"D{number}" for number in range(1, 7))}
    assert rows.keys() == cases - {"H26", "D4"}
    for case, tests in rows.items():
        assert tests, case
        assert [test for file, test in tests if test not in _defined(file)] == [], case


def test_every_guarantee_names_the_tests_that_show_it() -> None:
    [table] = re.findall(r"## Guarantees\n\n((?:\|.*\n)+)", README)
    rows = table.splitlines()[2:]
    assert len(rows) >= 7
    for row in rows:
        assert _named(row), row
        assert [test for file, test in _named(row) if test not in _defined(file)] == [], row
