"""Semantics 13 and 14: qstore's transport does what the seed's text does, in every state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qstore import NATIVE, Lease, TransportRepository
from qstore.statement import Statement
from qstore.transport import statements
from tests.backends import Backend, ManualClock, backend_of
from tests.concurrency import histories
from tests.concurrency.seed import ForgivingSeedTransport, SeedLease, SeedTransport

START = 1_700_000_000.0
GROUPS = ("a", "b", "c", "d", "é")
DURATIONS = (0.5, 1, 2, 8)
# All exact in binary, so that a clock often stands at the very instant of an expiry.
STEPS = (0, 0.5, 0.5, 1, 1, 2, 8, -0.5, -2, 500, -500)
MESSAGES = "SELECT seq, group_id, event, locked_by, lock_expiry FROM {messages} ORDER BY seq"
GROUP_ROWS = "SELECT group_id, last_claimed_at, priority FROM {groups} ORDER BY group_id"


class Pair:
    """qstore on one file and the seed on another, led through one history."""

    def __init__(self, backend: Backend, path: Path) -> None:
        self.clock = ManualClock(START)
        self.backend = backend
        self.qstore: TransportRepository[str] = backend.transport(clock=self.clock, event_type=str)
        self.look = sqlite3.connect(backend.path("transport"), isolation_level=None)
        self.seed = ForgivingSeedTransport.create(path, self.clock)
        self.seed.connection.execute("PRAGMA synchronous = OFF")
        self.steps: list[str] = []
        self.leases: dict[int, tuple[Lease[str], SeedLease]] = {}

    def run(self, seed: int, length: int = 50) -> None:
        self.reset()
        with histories.replayable(seed, self.steps) as random:
            often = {self.publish: 6, self.claim: 8, self.ack: 4, self.nack: 3, self.move_clock: 4}
            seldom = {self.crash_in_publish: 0.6, self.crash_in_ack: 0.6}
            for action in random.choices([*often, *seldom], [*often.values(), *seldom.values()], k=length):
                action(random)
                self.compare()

    def reset(self) -> None:
        self.clock.now = START
        self.steps.clear()
        self.leases.clear()
        for statement in ("DELETE FROM {messages}", "DELETE FROM {groups}", "DELETE FROM sqlite_sequence"):
            self.in_both(statement)

    def compare(self) -> None:
        for statement in (MESSAGES, GROUP_ROWS):
            ours, theirs = self.in_both(statement)
            assert ours == theirs, f"after {self.steps[-1]}"

    def in_both(self, statement: str, *values: object) -> tuple[list[object], list[object]]:
        """Run a statement on both files in plain sqlite3."""
        ours = self.look.execute(self.backend.naming.of("transport").render(statement), values).fetchall()
        theirs = self.seed.connection.execute(NATIVE.of("transport").render(statement), values).fetchall()
        return ours, theirs

    def close(self) -> None:
        self.look.close()
        self.seed.close()

    def publish(self, random: Random) -> None:
        group, priority, event = random.choice(GROUPS), random.randint(0, 4), f"event {len(self.steps)}"
        self.steps.append(f"publish({group!r}, {event!r}, {priority})")
        assert self.qstore.publish(group, event, priority) == self.seed.publish(group, f'"{event}"', priority)

    def claim(self, random: Random) -> None:
        worker, visibility = random.choice("xyz"), random.choice(DURATIONS)
        floor = random.choice((0, 0, 0, 1, 2, 4))
        self.steps.append(f"claim({worker!r}, {visibility}, {floor})")
        ours, theirs = self.qstore.claim(worker, visibility, floor), self.seed.claim(worker, visibility, floor)
        if ours is None or theirs is None:
            assert (ours, theirs) == (None, None), f"qstore claims {ours}, the seed {theirs}"
            return
        found = (ours.seq, ours.group_id, f'"{ours.event}"', ours.lock_expiry)
        assert found == theirs, f"qstore claims {found}, the seed {theirs}"
        self.leases[ours.seq] = ours, theirs

    def ack(self, random: Random) -> None:
        if lease := self.current_lease(random):
            self.steps.append(f"ack({lease[0].seq})")
            self.qstore.ack(lease[0])
            self.seed.ack(lease[1])

    def nack(self, random: Random) -> None:
        if lease := self.current_lease(random):
            delay = random.choice((0, 0, *DURATIONS))
            self.steps.append(f"nack({lease[0].seq}, {delay})")
            self.qstore.nack(lease[0], delay)
            self.seed.nack(lease[1], delay)

    def move_clock(self, random: Random) -> None:
        seconds = random.choice(STEPS)
        self.steps.append(f"clock {seconds:+}")
        self.clock.advance(seconds)

    def crash_in_publish(self, random: Random) -> None:
        """A seed dies between its two commits, on both files."""
        group = random.choice(GROUPS)
        self.steps.append(f"crash in publish({group!r})")
        self.in_both("INSERT INTO {messages} (group_id, event) VALUES (?, ?)", group, '"half"')

    def crash_in_ack(self, random: Random) -> None:
        if lease := self.current_lease(random):
            self.steps.append(f"crash in ack({lease[0].seq})")
            self.in_both("DELETE FROM {messages} WHERE seq = ?", lease[0].seq)

    def current_lease(self, random: Random) -> tuple[Lease[str], SeedLease] | None:
        """A lease that no other one has followed. Of the others only qstore is wary (semantics 17)."""
        return self.leases.pop(random.choice(sorted(self.leases))) if self.leases else None


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


def test_in_random_histories_qstore_claims_what_the_seed_claims_and_leaves_the_same_rows(pair: Pair) -> None:
    for seed in histories.chosen(30):
        pair.run(seed)


@pytest.mark.parametrize("revision", ["transport.v1", "transport.v1.1"])
def test_in_random_states_qstore_claims_what_the_seeds_statement_selects(
    tmp_path: Path, clock: ManualClock, revision: str
) -> None:
    """States that no history reaches as well: a lock without an expiry, an expiry without a lock."""
    path = tmp_path / "transport.sqlite"
    if revision == "transport.v1":
        SeedTransport.create(path).close()
    with (
        TransportRepository.open(path, clock=clock, event_type=str, durability="normal") as qstore,
        ForgivingSeedTransport(path, clock) as seed,
    ):
        for number in histories.chosen(500):
            steps: list[str] = []
            with histories.replayable(number, steps) as random:
                floor = random.randint(0, 4)
                _set_state(seed, random, steps)
                expected = seed.select(clock.now, floor)
                found = qstore.claim("w", 1, floor)
                assert (found and found.seq) == (expected and expected[0]), f"with min_priority {floor}"


def _set_state(seed: SeedTransport, random: Random, steps: list[str]) -> None:
    now = seed.clock()
    instants = (None, now - 1, now - 0.5, now, now + 0.5, now + 1, float("inf"))
    workers = (None, None, None, "x", "__parked__")
    messages = [
        (random.choice(GROUPS), '""', random.choice(workers), random.choice(instants))
        for _ in range(random.randint(0, 12))
    ]
    stamps = (0.0, 0.0, -1.0, now - 1, now, now + 1, now + 2)
    groups = [(group, random.choice(stamps), random.randint(-1, 5)) for group in GROUPS if random.random() < 0.8]
    steps.append(f"messages {messages}, groups {groups}")
    run = seed.connection
    run.execute("BEGIN")
    run.execute("DELETE FROM messages")
    run.execute("DELETE FROM groups")
    run.executemany("INSERT INTO messages (group_id, event, locked_by, lock_expiry) VALUES (?, ?, ?, ?)", messages)
    run.executemany("INSERT INTO groups (group_id, last_claimed_at, priority) VALUES (?, ?, ?)", groups)
    run.execute("COMMIT")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("CLAIM", "lock_expiry >= :now)", "lock_expiry > :now)"),
        ("CLAIM", "locked_by IS NOT NULL AND lock_expiry", "locked_by != '__parked__' AND lock_expiry"),
        ("CLAIM", "g.priority >= :min_priority", "g.priority > :min_priority - 2"),
        ("CLAIM", " ASC, m.seq ASC", " ASC, g.group_id ASC, m.seq ASC"),
        ("SETTLE_STAMPS", "last_claimed_at > :now", "last_claimed_at > :now + 1"),
    ],
)
def test_the_histories_catch_a_claim_that_differs(
    first_pair: Pair, monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str
) -> None:
    text = getattr(statements, name)._text
    assert right in text
    monkeypatch.setattr(statements, name, Statement(text.replace(right, wrong)))
    assert histories.first_failure(first_pair.run, within=100) is not None


def test_the_histories_catch_an_ack_that_drops_a_group_with_messages(
    first_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "ACK_GROUP", Statement("DELETE FROM {groups} WHERE group_id = :group_id"))
    assert histories.first_failure(first_pair.run, within=100) is not None


def test_the_seeds_own_text_starves_a_group_stamped_by_a_clock_that_was_ahead(
    tmp_path: Path, clock: ManualClock
) -> None:
    """The trap of semantics 8: why the yardstick makes its one exception."""
    with SeedTransport.create(tmp_path / "seed.sqlite", clock) as seed:
        _stamp_unlucky_by_a_clock_that_is_ahead(seed, clock)
        assert {_serve(seed, clock) for _ in range(19)} == {"lucky"}


def test_a_group_stamped_by_a_clock_that_was_ahead_is_served_while_another_group_is_busy(
    settling_backend: Backend, clock: ManualClock
) -> None:
    """Semantics 8, with a clock that goes on after it was set right, as clocks do."""
    transport = settling_backend.transport(clock=clock, event_type=str)
    _stamp_unlucky_by_a_clock_that_is_ahead(transport, clock)
    assert "unlucky" in {_serve(transport, clock) for _ in range(19)}


def test_a_stamp_that_lies_in_the_future_counts_as_now(settling_backend: Backend, clock: ManualClock) -> None:
    transport = settling_backend.transport(clock=clock, event_type=str)
    _stamp_unlucky_by_a_clock_that_is_ahead(transport, clock)
    assert [_serve(transport, clock, seconds=0) for _ in range(2)] == ["lucky", "unlucky"]


def _stamp_unlucky_by_a_clock_that_is_ahead(transport: Any, clock: ManualClock) -> None:
    for number in range(2):
        transport.publish("unlucky", str(number))
    clock.advance(86_400)
    _serve(transport, clock)
    clock.advance(-86_400)
    for number in range(20):
        transport.publish("lucky", str(number))


def _serve(transport: Any, clock: ManualClock, seconds: float = 60) -> str:
    lease = transport.claim("w", 5)
    assert lease is not None
    transport.ack(lease)
    clock.advance(seconds)
    return str(lease.group_id)
