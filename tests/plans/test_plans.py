"""What SQLite makes of the hot statements: the intended index, no scan of messages, no temporary b-tree."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from qstore import NATIVE, Naming
from qstore.formats import ADDITIONS, FORMATS
from qstore.localkv import statements as localkv
from qstore.localqueue import statements as localqueue
from qstore.statement import Statement
from qstore.transport import statements as transport
from tests.backends import MOUNTED

MESSAGES = 3000
NOW = 1_700_000_000

NUMBERS = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {MESSAGES})"
FILL = {
    "transport": (
        f"""{NUMBERS} INSERT INTO {{messages}} (group_id, event, locked_by, lock_expiry)
        SELECT 'g' || (i % 300), 'e', CASE WHEN i < 100 THEN 'w' END, CASE WHEN i < 100 THEN {NOW} + i END FROM n""",
        f"""INSERT INTO {{groups}} (group_id, priority, last_claimed_at)
        SELECT group_id, min(seq) % 5, {NOW} - min(seq) FROM {{messages}} GROUP BY group_id""",
    ),
    "localqueue": (
        f"""{NUMBERS} INSERT INTO {{messages}} (payload_type, payload_data, enqueued_at, visible_at)
        SELECT 'text', 'p', {NOW} + i, {NOW} + i + CASE WHEN i % 3 = 0 THEN i ELSE 0 END FROM n""",
    ),
    "localkv": (f"{NUMBERS} INSERT INTO {{kv}} (key, value) SELECT printf('k%06d', i), x'00' FROM n",),
}
MODULES: dict[str, Any] = {"transport": transport, "localqueue": localqueue, "localkv": localkv}
# What looks at everything, on purpose: the texts for stores at v1, the sweeps, and what a clock that went back costs.
SLOW = {
    "transport": {"CLAIM", "SETTLE_STAMPS", "SETTLE_CLOCK"},
    "localqueue": {"DUE", "PURGE", "MARK_BACK"},
    "localkv": {"PURGE_EXPIRED"},
}
INTENDED = {
    "CLAIM_FLAT": {"idx_turns", "INTEGER PRIMARY KEY"},
    "UNSETTLED": {"idx_turns", "INTEGER PRIMARY KEY"},
    "SETTLE_LAPSED": {"idx_turns", "idx_messages_group", "INTEGER PRIMARY KEY"},
    "ACK_GROUP": {"idx_messages_group"},
    "DUE_FLAT": {"idx_messages_fresh", "idx_redeliveries", "idx_messages_again", "INTEGER PRIMARY KEY"},
    "UNMARKED": {"idx_messages_again"},
    "MARK_ON": {"idx_messages_again"},
}
WRONG = re.compile(r"TEMP B-TREE|AUTOMATIC|BLOOM|SCAN (?!CONSTANT ROW|\(subquery|\(join)\S+")
# The mark is one row, and of the redeliveries the first ones are taken, in the order of their index.
HARMLESS = re.compile(r"SCAN \w*redelivery_mark$|SCAN r USING COVERING INDEX \w*idx_redeliveries$")


@pytest.fixture(params=[NATIVE, MOUNTED], ids=["native", "mounted"])
def naming(request: pytest.FixtureRequest) -> Naming:
    naming: Naming = request.param
    return naming


@pytest.fixture(params=MODULES)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["stock", "analyzed"])
def filled(request: pytest.FixtureRequest, tmp_path: Path, store: str, naming: Naming) -> Iterator[sqlite3.Connection]:
    """A store of some size at its newest revision."""
    names = naming.of(store)
    with closing(sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)) as connection:
        for statement in FORMATS[store].statements(names, "sqlite"):
            connection.execute(statement)
        for statement in FILL[store]:
            connection.execute(names.render(statement))
        if addition := ADDITIONS.get(store):
            for statement in (*addition.ddl(names), *addition.rendered(names, addition.fill)):
                connection.execute(statement)
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        yield connection


def hot(store: str) -> dict[str, list[Statement]]:
    every = {
        name: [found] if isinstance(found, Statement) else list(found)
        for name, found in vars(MODULES[store]).items()
        if name.isupper() and not name.startswith("_") and isinstance(found, (Statement, tuple))
    }
    return {name: found for name, found in every.items() if name not in SLOW[store]}


def plan(connection: sqlite3.Connection, statement: Statement, store: str, naming: Naming) -> list[str]:
    sql = f"EXPLAIN QUERY PLAN {statement.rendered(naming.of(store))}"
    return [row[3] for row in connection.execute(sql, defaultdict(lambda: 1)).fetchall()]


def test_no_hot_statement_scans_or_sorts(filled: sqlite3.Connection, store: str, naming: Naming) -> None:
    for name, statements in hot(store).items():
        for line in chain.from_iterable(plan(filled, statement, store, naming) for statement in statements):
            assert not WRONG.search(line) or HARMLESS.search(line), f"{name}: {line}"


def test_the_intended_indexes_are_used(filled: sqlite3.Connection, store: str, naming: Naming) -> None:
    for name, statements in hot(store).items():
        lines = " ".join(chain.from_iterable(plan(filled, statement, store, naming) for statement in statements))
        for index in INTENDED.get(name, ()):
            assert index in lines, f"{name}: {lines}"


def test_the_seeds_own_text_scans_all_messages(filled: sqlite3.Connection, store: str, naming: Naming) -> None:
    """The check sees a scan, and a sort, where there is one."""
    if store == "localkv":
        pytest.skip("has no such text")
    lines = plan(filled, transport.CLAIM if store == "transport" else localqueue.DUE, store, naming)
    assert any(WRONG.search(line) for line in lines)
