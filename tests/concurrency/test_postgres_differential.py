"""On a server one session's random history gives what the seeds' texts give, step by step. Semantics 8, 13, 14, 26."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from qstore import Lease, LocalQueueRepository, StaleLease, StaleReceipt, TransportRepository
from qstore.localqueue import postgresql as queue_statements
from qstore.statement import Statement
from qstore.transport import statements_postgresql as statements
from tests import postgres
from tests.backends import MOUNTED, ManualClock
from tests.concurrency.postgres_account import wrong_states
from tests.concurrency.postgres_models import QueueModel, Sent, TransportModel

PAST = (-0.3, -1, -4)
FUTURE = (0, 0, 0.001, 0.5, 2, 2, 8)


class TransportHistory:
    """The transport and the model, led through one history."""

    def __init__(self, url: URL, engine: Engine, seed: int, *, back: bool) -> None:
        self.claims = self.found = self.settled = 0
        self._random = Random(seed)
        self._url = url
        self._engine = engine
        self._back = back
        """Whether the clock also goes back."""
        self._clock = ManualClock(1_800_000_000.0)
        self._own: TransportRepository[str] = self._bound(engine)
        self._model = TransportModel()
        self._leases: list[Lease[str]] = []

    def run(self, steps: int) -> None:
        actions = {self.publish: 30, self.publish_many: 3, self.claim: 37, self.settle: 20, self.move_clock: 10}
        for number, action in enumerate(self._random.choices([*actions], [*actions.values()], k=steps)):
            action()
            if number % 100 == 99:
                self.compare()
        self.compare()

    def publish(self) -> None:
        group, priority = f"g{self._random.randrange(14)}", self._random.randrange(5)
        with self._any_bind() as transport:
            seq = transport.publish(group, "event", priority)
        self._model.publish(seq, group, priority)

    def publish_many(self) -> None:
        messages = [
            (f"g{self._random.randrange(14)}", "event", self._random.randrange(5))
            for _ in range(self._random.randrange(1, 6))
        ]
        with self._any_bind() as transport:
            seqs = transport.publish_many(messages)
        assert seqs == sorted(seqs)
        for seq, (group, _, priority) in zip(seqs, messages, strict=True):
            self._model.publish(seq, group, priority)

    def claim(self) -> None:
        floor, visibility = self._random.choice((0, 0, 0, 1, 2, 3, 4)), self._random.choice((1, 5, 5, 30))
        expected = self._model.claim("w", visibility, floor, self._clock.now)
        with self._any_bind() as transport:
            lease = transport.claim("w", visibility, floor)
        found = lease and (lease.seq, lease.group_id, lease.worker_id, lease.lock_expiry)
        assert found == expected, f"with min_priority {floor}"
        self.claims += 1
        if lease is not None:
            self.found += 1
            self._leases.append(lease)

    def settle(self) -> None:
        if not self._leases:
            return
        lease = self._leases.pop(self._random.randrange(len(self._leases)))
        if self._random.random() < 0.1:
            self._leases.append(lease)  # to be used again, when it is stale or its message gone
        fence = lease.seq, lease.group_id, lease.worker_id, lease.lock_expiry
        now, choice, delay = self._clock.now, self._random.random(), self._random.choice((0.5, 3.0, 20.0))
        with self._any_bind() as transport:
            if choice < 0.55:
                expected, found = self._model.ack(fence, now), _answer(lambda: transport.ack(lease))
            elif choice < 0.7:
                expected, found = self._model.relock(fence, None, None, now), _answer(lambda: transport.nack(lease))
            elif choice < 0.85:
                expected = self._model.relock(fence, "__parked__", now + delay, now)
                found = _answer(lambda: transport.nack(lease, delay))
            else:
                expected = self._model.relock(fence, "w", now + delay, now)
                found = _answer(lambda: self._leases.append(transport.extend(lease, delay)))
                expected = "stale" if expected == "gone" else expected
        assert found == ("stale" if expected == "stale" else "done")
        self.settled += 1

    def move_clock(self) -> None:
        self._clock.advance(self._random.choice((*FUTURE, *PAST) if self._back else FUTURE))

    def compare(self) -> None:
        rows = MOUNTED.of("transport").render(
            "SELECT seq, group_id, locked_by, lock_expiry FROM {messages} ORDER BY seq"
        )
        with postgres.connect(self._url) as connection:
            assert connection.execute(rows.encode()).fetchall() == self._model.rows()
        # The clock of the query of states is the server's, long before this one.
        assert [state for state in wrong_states(self._url) if state[6:8] != state[2:4]] == []

    @contextmanager
    def _any_bind(self) -> Iterator[TransportRepository[str]]:
        """In a transaction of qstore's own, or in a caller's, which commits."""
        if self._random.random() < 0.7:
            yield self._own
            return
        with Session(self._engine) as session:
            yield self._bound(session)
            session.commit()

    def _bound(self, bind: Any) -> TransportRepository[str]:
        return TransportRepository(bind, event_type=str, naming=MOUNTED, clock=self._clock)


def _answer(call: Any) -> str:
    try:
        call()
    except StaleLease:
        return "stale"
    return "done"


@pytest.mark.parametrize("back", [False, True], ids=["a clock that goes on", "a clock that also goes back"])
def test_in_a_random_history_each_claim_is_the_seeds(url: URL, engine: Engine, *, back: bool) -> None:
    history = TransportHistory(url, engine, 5 + back, back=back)
    history.run(1500 if back else 3000)
    assert history.claims > 450
    assert history.found > 200
    assert history.settled > 200


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("CLAIM", "ORDER BY g.last_claimed_at, g.head LIMIT 1 FOR", "ORDER BY g.head LIMIT 1 FOR"),
        ("CLAIM", "ORDER BY w.until LIMIT 1) >= coalesce(", "ORDER BY w.until LIMIT 1) > coalesce(0, "),
        ("CLAIM_FLOOR", "BETWEEN 1 AND 2", "BETWEEN 1 AND 3"),
        ("RELOCK", "AND g.until = CAST(:lock_expiry AS double precision)", "AND CAST(:lock_expiry AS float8) > 0"),
    ],
)
def test_the_history_catches_a_statement_that_differs(
    url: URL, engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str
) -> None:
    text = getattr(statements, name)._text
    assert right in text
    monkeypatch.setattr(statements, name, Statement(text.replace(right, wrong)))
    with pytest.raises(AssertionError):
        TransportHistory(url, engine, 5, back=False).run(3000)


def queue_history(engine: Engine, steps: int, seed: int) -> int:
    """The queue and the model, led through one history. Returns how many messages were delivered."""
    random, clock, model, delivered = Random(seed), ManualClock(1_800_000_000.0), QueueModel(), 0
    own = LocalQueueRepository(engine, naming=MOUNTED, clock=clock)
    receipts: list[tuple[int, str]] = []
    for _ in range(steps):
        now = int(clock.now * 1000 + 0.5)
        with Session(engine) as session:
            joined = LocalQueueRepository(session, naming=MOUNTED, clock=clock)
            queue = own if random.random() < 0.6 else joined
            choice = random.random()
            if choice < 0.3:
                count = random.choice((1, 1, 3))
                for id in queue.send_many(["p"] * count) if count > 1 else [queue.send("p")]:
                    model.messages[id] = Sent(now, now)
            elif choice < 0.65:
                most, timeout = random.choice((1, 1, 2, 5, 10)), random.choice((0, 500, 3000, 20000))
                expected = model.due(most, now)
                received = queue.receive(most, visibility_timeout=timeout / 1000)
                assert [message.id for message in received] == expected
                for message in received:
                    sent = model.messages[message.id]
                    sent.visible_at, sent.attempt, sent.receipt = (
                        now + timeout,
                        sent.attempt + 1,
                        message.receipt_handle,
                    )
                    assert message.attempt == sent.attempt
                    receipts.append((message.id, message.receipt_handle))
                delivered += len(received)
            elif choice < 0.9 and receipts:
                id, receipt = receipts.pop(random.randrange(len(receipts)))
                acking, answer, found = random.random() < 0.6, model.answer(id, receipt), "done"
                try:
                    (queue.ack if acking else queue.nack)(receipt)
                except StaleReceipt:
                    found = "stale"
                assert found == ("stale" if answer == "stale" else "done")
                if answer == "good" and acking:
                    del model.messages[id]
                elif answer == "good":
                    model.messages[id].visible_at = now
            else:
                clock.advance(random.choice((0, 0, 0.001, 0.3, 2, -0.2, -5)))
            with suppress(StaleReceipt):
                session.commit()
    return delivered


def test_in_a_random_history_each_receive_is_the_seeds(engine: Engine) -> None:
    assert queue_history(engine, 1500, 3) > 600


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("RECEIVE", "LIMIT 1) > t.now, true)", "LIMIT 1) > 0, true)"),
        ("RECEIVE", "ORDER BY m.enqueued_at, m.id", "ORDER BY m.id DESC"),
        ("RECEIVE_LAPSED", "w.visible_at <= (SELECT", "w.visible_at < (SELECT"),
        ("NACK", "SET visible_at = ", "SET visible_at = 1 + "),
    ],
)
def test_the_history_catches_a_receive_that_differs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str
) -> None:
    text = getattr(queue_statements, name)._text
    assert right in text
    monkeypatch.setattr(queue_statements, name, Statement(text.replace(right, wrong)))
    with pytest.raises(AssertionError):
        queue_history(engine, 1500, 3)
