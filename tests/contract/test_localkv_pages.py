"""LocalKv: a page by its cursor is what the format's offset gives, also where its beginning was remembered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qstore import LocalKvRepository
from qstore.localkv import operations, statements
from qstore.transaction import DriverTransaction, Transaction
from tests.backends import Backend, ManualClock
from tests.concurrency import histories
from tests.contract.twins import each_twin, on_engine
from tests.made_files import made

PLAIN = """
SELECT key, CAST(value AS BLOB) FROM kv
WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key LIMIT ? OFFSET ?"""
BEGINNINGS = ("a", "ab", "b", "c/", "é", "\U0010ffff", "\ud7ff")
ENDS = ("", "1", "2", "a", "é", "\uffff", "\U0010ffff", "%", "_", "A")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "localkv.sqlite"
    path.write_bytes(made("localkv").read_bytes())
    return path


def fill(kv: Any, keys: int) -> None:
    kv.put_many({f"k/{number:05}": b"v" for number in range(keys)})


def walk(kv: Any, limit: int) -> Iterator[tuple[str, Any]]:
    """Every page of the prefix, with the cursor that it was asked for."""
    cursor = None
    while True:
        page = kv.scan_prefix("k/", limit=limit, cursor=cursor)
        yield cursor or "0", page.items
        if (cursor := page.next_cursor) is None:
            return


@pytest.fixture
def skipped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets that were counted through."""
    seen: list[int] = []

    def spied(whole: Any) -> Any:
        def run(tx: Any, statement: Any, **binds: Any) -> Any:
            if statement in (statements.SKIP, statements.SCAN) and binds.get("offset"):
                seen.append(binds["offset"])
            return whole(tx, statement, **binds)

        return run

    monkeypatch.setattr(Transaction, "rows", spied(Transaction.rows))
    monkeypatch.setattr(DriverTransaction, "row", spied(DriverTransaction.row))
    return seen


@each_twin
def test_a_walk_of_an_unchanged_store_counts_through_no_offset(path: Path, skipped: list[int], twin: str) -> None:
    with on_engine(twin, "localkv", path) as (kv, _):
        fill(kv, 95)
        pages = list(walk(kv, 10))
    assert [cursor for cursor, _ in pages] == [str(offset) for offset in range(0, 100, 10)]
    assert [key for _, items in pages for key, _ in items] == [f"k/{number:05}" for number in range(95)]
    assert skipped == []


def test_after_a_change_an_offset_is_counted_through_once(path: Path, skipped: list[int]) -> None:
    with on_engine("sync", "localkv", path) as (kv, _), closing(sqlite3.connect(path, isolation_level=None)) as other:
        fill(kv, 50)
        pages = walk(kv, 10)
        next(pages)
        next(pages)
        other.execute("INSERT INTO kv (key, value) VALUES ('k/00000a', x'00')")
        assert next(pages)[1][0] == ("k/00019", b"v")
        assert next(pages)[1][0] == ("k/00029", b"v")
    assert skipped == [20]


def test_a_far_page_that_is_asked_for_again_is_counted_through_once(path: Path, skipped: list[int]) -> None:
    with on_engine("sync", "localkv", path) as (kv, _):
        fill(kv, 50)
        for limit in (10, 3, 10):
            assert kv.scan_prefix("k/", limit=limit, cursor="30").items[0] == ("k/00030", b"v")
        assert kv.scan_prefix("k/", limit=10, cursor="60").items == []
    assert skipped == [30, 60]


@pytest.mark.parametrize("moved", [-1, 10])
def test_a_page_is_not_remembered_beyond_a_key_that_expires_or_a_clock_that_goes_back(
    path: Path, clock: ManualClock, skipped: list[int], moved: int
) -> None:
    with on_engine("sync", "localkv", path, clock=clock) as (kv, _):
        fill(kv, 30)
        kv.put("k/00003", b"v", ttl=5)
        pages = walk(kv, 10)
        next(pages)
        clock.advance(moved)
        assert next(pages)[1][0][0] == ("k/00010" if moved < 0 else "k/00011")
    assert skipped == [10]


def test_a_transaction_of_the_callers_counts_through_the_offset(backend: Backend, skipped: list[int]) -> None:
    kv = backend.localkv()
    fill(kv, 30)
    assert len(list(walk(kv, 10))) == 3
    if backend.joins and backend.one_writer:  # a server is asked with the offset in any case
        assert skipped == [10, 20]


@pytest.mark.parametrize("twin", ["sync"])
def test_no_more_is_remembered_than_a_few_pages(path: Path, twin: str) -> None:
    with on_engine(twin, "localkv", path) as (kv, engine):
        fill(kv, 300)
        list(walk(kv, 3))
        pool: Any = engine.pool
        assert 0 < max(len(held._memory) for held in pool._held) <= 16


def test_in_random_histories_each_page_is_that_of_the_plain_offset(path: Path, clock: ManualClock) -> None:
    with on_engine("sync", "localkv", path, clock=clock) as (kv, engine):
        with engine.connect() as ours, closing(sqlite3.connect(path, isolation_level=None)) as theirs:
            theirs.execute("PRAGMA synchronous = OFF")
            hits = sum(_history(seed, kv, ours, theirs, clock) for seed in histories.chosen(60))
        assert hits > 100


def _history(seed: int, kv: LocalKvRepository, ours: Any, theirs: sqlite3.Connection, clock: ManualClock) -> int:
    steps: list[str] = []
    with histories.replayable(seed, steps) as random:
        clock.now = 1000.0
        theirs.execute("DELETE FROM kv")
        cursor: tuple[str, int] = ("", 0)
        compared = 0
        for _ in range(80):
            if random.random() < 0.45:
                _change(random, kv, ours, theirs, clock, steps)
                continue
            prefix, offset = random.choice(
                (cursor, cursor, cursor, (random.choice(("", *BEGINNINGS)), 0), (cursor[0], random.randrange(40)))
            )
            limit = random.choice((1, 2, 3, 7, 50))
            found = kv.scan_prefix(prefix, limit=limit, cursor=str(offset))
            steps.append(f"scan_prefix({prefix!r}, limit={limit}, cursor={offset})")
            values = (prefix, operations._end(prefix), round(clock.now * 1000), limit + 1, offset)
            expected = theirs.execute(PLAIN, values).fetchall()
            assert found.items == expected[:limit]
            assert found.next_cursor == (str(offset + limit) if len(expected) > limit else None)
            compared += offset > 0
            cursor = (prefix, int(found.next_cursor or 0))
        return compared


def _change(
    random: Random, kv: LocalKvRepository, ours: Any, theirs: sqlite3.Connection, clock: ManualClock, steps: list[str]
) -> None:
    now = round(clock.now * 1000)
    key = random.choice(BEGINNINGS) + random.choice(ENDS) + str(random.randrange(12))
    expiries = (None, None, None, now, now + 1, now + 5, now + 50, now - 1, 0, "abc", b"z", now + 0.5, 2**63 - 1)
    put = "INSERT INTO kv VALUES (?, x'00', ?) ON CONFLICT (key) DO UPDATE SET expires_at = excluded.expires_at"
    what = random.choice(("put", "theirs", "theirs", "delete", "purge", "undone", "clock", "clock", "vacuum"))
    steps.append(f"{what} {key!r}")
    match what:
        case "put":
            kv.put(key, b"v", ttl=random.choice((None, None, 0, 0.001, 0.05)))
        case "theirs":
            for number in range(random.choice((1, 1, 20))):
                theirs.execute(put, (f"{key}{number}", random.choice(expiries)))
        case "delete":
            kv.delete(key)
        case "purge":
            kv.purge_expired()
        case "undone":
            with ours.begin() as transaction:
                LocalKvRepository(ours).put(key, b"undone")
                transaction.rollback()
        case "clock":
            clock.advance(random.choice((0, 1, 1, 5, 50, -1, -5, -50)) / 1000)
        case _:
            theirs.execute("VACUUM" if random.random() < 0.1 else "PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
