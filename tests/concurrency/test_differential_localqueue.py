"""Semantics 26 and 27: qstore's queue does what the seed's text does, in every state."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from qstore import NATIVE, LocalQueueRepository, StaleReceipt
from qstore.localqueue import operations, statements
from qstore.statement import Statement
from tests.backends import Backend, ManualClock, backend_of
from tests.concurrency import histories
from tests.concurrency.seed import SeedLocalQueue, StaleInSeed

START = 1_700_000_000.0
TIMEOUTS = (0, 0.125, 0.5, 1, 4)
# Whole milliseconds, and exact in binary.
STEPS = (0, 0.125, 0.125, 0.5, 0.5, 1, 4, -0.125, -1, 300, -300)
ROWS = (
    "SELECT id, payload_type, payload_data, enqueued_at, visible_at, attempt, receipt_handle IS NULL"
    " FROM {messages} ORDER BY id"
)


class Pair:
    """qstore on one file and the seed on another, led through one history."""

    def __init__(self, backend: Backend, path: Path) -> None:
        self.clock = ManualClock(START)
        self.backend = backend
        self.qstore: LocalQueueRepository = backend.localqueue(clock=self.clock)
        self.look = sqlite3.connect(backend.path("localqueue"), isolation_level=None)
        self.seed = SeedLocalQueue.create(path, self.clock)
        self.seed.connection.execute("PRAGMA synchronous = OFF")
        self.steps: list[str] = []
        self.handles: list[tuple[str, str]] = []

    def run(self, seed: int, length: int = 50) -> None:
        self.reset()
        with histories.replayable(seed, self.steps) as random:
            actions = random.choices(
                [self.send, self.receive, self.ack, self.nack, self.move_clock, self.purge],
                weights=[6, 7, 4, 4, 5, 0.2],
                k=length,
            )
            for action in actions:
                action(random)
                ours, theirs = self.in_both(ROWS)
                assert ours == theirs, f"after {self.steps[-1]}"

    def reset(self) -> None:
        self.clock.now = START
        self.steps.clear()
        self.handles[:] = [("nonsense", "nonsense"), (":", ":"), ("1", "1"), ("99:gone", "99:gone")]
        for statement in ("DELETE FROM {messages}", "DELETE FROM sqlite_sequence"):
            self.in_both(statement)

    def in_both(self, statement: str) -> tuple[list[object], list[object]]:
        """Run a statement on both files in plain sqlite3."""
        ours = self.look.execute(self.backend.naming.of("localqueue").render(statement)).fetchall()
        theirs = self.seed.connection.execute(NATIVE.of("localqueue").render(statement)).fetchall()
        return ours, theirs

    def close(self) -> None:
        self.look.close()
        self.seed.close()

    def send(self, random: Random) -> None:
        payload, as_json = f"payload {len(self.steps)}", random.random() < 0.3
        self.steps.append(f"send({payload!r})")
        ours = self.qstore.send([payload] if as_json else payload)
        theirs = self.seed.send(f'["{payload}"]', "json") if as_json else self.seed.send(payload)
        assert ours == theirs

    def receive(self, random: Random) -> None:
        most, timeout = random.choice((1, 1, 2, 3, 10)), random.choice(TIMEOUTS)
        self.steps.append(f"receive({most}, visibility_timeout={timeout})")
        ours = self.qstore.receive(most, visibility_timeout=timeout)
        theirs = self.seed.receive(most, timeout)
        found = [(each.id, each.attempt, each.payload_type, each.payload_data) for each in ours]
        assert found == [(each.id, each.attempt, each.payload_type, each.payload_data) for each in theirs]
        assert all(each.receipt_handle.startswith(f"{each.id}:") for each in ours)
        self.handles += [(one.receipt_handle, other.receipt_handle) for one, other in zip(ours, theirs, strict=True)]

    def ack(self, random: Random) -> None:
        ours, theirs = self.any_handle(random)
        self.steps.append(f"ack({ours!r})")
        assert _stale(self.qstore.ack, ours) == _stale(self.seed.ack, theirs)

    def nack(self, random: Random) -> None:
        ours, theirs = self.any_handle(random)
        self.steps.append(f"nack({ours!r})")
        assert _stale(self.qstore.nack, ours) == _stale(self.seed.nack, theirs)

    def any_handle(self, random: Random) -> tuple[str, str]:
        """Current, late, stale, settled, or never issued; more often a recent one."""
        return random.choice(self.handles[-4:] if random.random() < 0.7 else self.handles)

    def move_clock(self, random: Random) -> None:
        seconds = random.choice(STEPS)
        self.steps.append(f"clock {seconds:+}")
        self.clock.advance(seconds)

    def purge(self, _: Random) -> None:
        self.steps.append("purge()")
        assert self.qstore.purge() == self.seed.purge()


def _stale(settle: Callable[[str], None], receipt_handle: str) -> bool:
    try:
        settle(receipt_handle)
    except (StaleReceipt, StaleInSeed):
        return True
    return False


@pytest.fixture
def pair(file_backend: Backend, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(file_backend, tmp_path / "seed.sqlite")
    yield pair
    pair.close()


@pytest.fixture
def first_pair(tmp_path: Path) -> Iterator[Pair]:
    with backend_of("opened, v1", tmp_path) as backend:
        pair = Pair(backend, tmp_path / "seed.sqlite")
        yield pair
        pair.close()


def test_in_random_histories_qstore_delivers_what_the_seed_delivers_and_leaves_the_same_rows(pair: Pair) -> None:
    """Order, attempts, visible_at, and which receipts are stale; the UUIDs themselves differ."""
    for seed in histories.chosen(30):
        pair.run(seed)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("DUE", "visible_at <= :now", "visible_at < :now"),
        ("DUE", "ORDER BY enqueued_at, id", "ORDER BY visible_at, id"),
        ("DUE", "ORDER BY enqueued_at, id", "ORDER BY id"),
        ("RECEIVE", "attempt = attempt + 1", "attempt = 1"),
        ("ACK", "AND receipt_handle = :receipt", "AND :receipt IS NOT NULL"),
        ("NACK", "visible_at = :now", "visible_at = :now, attempt = attempt - 1"),
        ("NACK", "visible_at = :now", "visible_at = :now, receipt_handle = NULL"),
    ],
)
def test_the_histories_catch_a_statement_that_differs(
    first_pair: Pair, monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str
) -> None:
    text = getattr(statements, name)._text
    assert right in text
    monkeypatch.setattr(statements, name, Statement(text.replace(right, wrong)))
    assert histories.first_failure(first_pair.run, within=100) is not None


def test_the_histories_catch_receipts_that_are_not_fresh(first_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "uuid4", lambda: "always the same")
    assert histories.first_failure(first_pair.run, within=100) is not None
