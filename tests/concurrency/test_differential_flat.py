"""Semantics 14 and 26 at transport.v1.1 and localqueue.v1.1: the seed's row, whatever others write, and whenever.

A short run. `python -m tests.concurrency.differential` is the long one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qstore import NATIVE
from qstore.formats import ADDITIONS
from qstore.localqueue import statements as localqueue
from qstore.statement import Statement
from qstore.transport import statements as transport
from tests.concurrency import histories
from tests.concurrency.differential import KINDS, pair

MODULES: dict[str, Any] = {"transport": transport, "localqueue": localqueue}


@pytest.mark.parametrize("store", KINDS)
def test_whatever_others_write_the_row_is_the_seeds_and_the_side_table_is_right(tmp_path: Path, store: str) -> None:
    with pair(KINDS[store], tmp_path) as stores:
        for seed in histories.chosen(30):
            stores[seed % 2].run(seed)
        assert sum(each.found for each in stores) > 0


@pytest.mark.parametrize(
    ("store", "name", "right", "wrong"),
    [
        ("transport", "CLAIM_FLAT", ":min_priority <= 2", ":min_priority < 2"),
        ("transport", "CLAIM_FLAT", "ORDER BY at, head", "ORDER BY head, at"),
        ("transport", "CLAIM_FLAT", "id = 0 AND until > :now", "id = 0 AND until > :now + 1000"),
        ("transport", "CLAIM_FLAT", "slot = -1 AND at < :now", "slot = -1 AND at < :now - 1"),
        ("localqueue", "DUE_FLAT", "enqueued_at <= :now", "enqueued_at < :now"),
        ("localqueue", "DUE_FLAT", "ORDER BY enqueued_at, id", "ORDER BY id"),
        ("localqueue", "DUE_FLAT", "m.id = r.id) <= :now", "m.id = r.id) < :now"),
        ("localqueue", "DUE_FLAT", "AND visible_at <= :now)", "AND visible_at <= :now - 5)"),
    ],
)
def test_a_statement_that_differs_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, name: str, right: str, wrong: str
) -> None:
    text = getattr(MODULES[store], name)._text
    assert right in text
    monkeypatch.setattr(MODULES[store], name, Statement(text.replace(right, wrong)))
    with pair(KINDS[store], tmp_path) as stores:
        assert histories.first_failure(stores[0].run, within=60) is not None


@pytest.mark.parametrize(
    ("store", "trigger"), [(store, trigger) for store in KINDS for trigger in ADDITIONS[store].triggers]
)
def test_a_trigger_that_is_left_out_is_caught(tmp_path: Path, store: str, trigger: str) -> None:
    hostile = KINDS[store](tmp_path / "store.sqlite", NATIVE)
    hostile.ours.execute(f"DROP TRIGGER {trigger}")
    try:
        hostile.tx._shared.version = hostile.ours.execute("PRAGMA schema_version").fetchone()[0]
        hostile.tx._shared.whole = True  # or else the claim would go the way of v1
        assert histories.first_failure(hostile.run, within=60) is not None
    finally:
        hostile.close()
