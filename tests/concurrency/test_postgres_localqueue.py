"""The queue and the key-value store on PostgreSQL under load. H30, semantics 5, 22, 26; the seed's conditional put."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from random import Random
from threading import Barrier
from typing import Any, NamedTuple

import pytest
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from qstore import AsyncLocalQueueRepository, LocalKvRepository, LocalQueueRepository, StaleReceipt
from qstore.localkv import postgresql as kv_statements
from qstore.localqueue import postgresql as queue_statements
from qstore.statement import Statement
from tests import postgres
from tests.awaiting import EventLoop
from tests.backends import MOUNTED

RECEIVERS = 8
MESSAGES = 800


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    engine = create_engine(url, pool_size=20)
    yield engine
    engine.dispose()


class Delivery(NamedTuple):
    """A message in the hands of a receiver, from the end of the receive to its end or the end of its visibility."""

    id: int
    receipt: str
    attempt: int
    start: float
    end: float


class Receiver:
    """One of those who take what there is until there is nothing left."""

    def __init__(self, queue: Any, number: int) -> None:
        self.deliveries: list[Delivery] = []
        self.acked: list[int] = []
        self.faults: list[str] = []
        self._queue = queue
        self._random = Random(number)

    def run(self, finished: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40
        while not finished() and time.monotonic() < deadline:
            self._step()

    def _step(self) -> None:
        most, timeout = self._random.choice((1, 3, 10)), self._random.choice((0.05, 5, 5, 5))
        began = time.monotonic()
        messages = self._queue.receive(most, visibility_timeout=timeout)
        start = time.monotonic()
        if len(messages) > most:
            self.faults.append(f"{len(messages)} messages instead of {most}")
        first = [message.id for message in messages if message.attempt == 1]
        if first != sorted(first):
            self.faults.append(f"out of order: {first}")
        if not messages:
            time.sleep(0.005)
        for message in messages:
            end = min(time.monotonic(), began + timeout)
            self.deliveries.append(Delivery(message.id, message.receipt_handle, message.attempt, start, end))
            try:
                if self._random.random() < 0.15:
                    self._queue.nack(message.receipt_handle)
                else:
                    self._queue.ack(message.receipt_handle)
                    if time.monotonic() < began + timeout:  # an ack of what is gone would be none
                        self.acked.append(message.id)
            except StaleReceipt:
                if time.monotonic() < began + timeout:
                    self.faults.append(f"stale before its time: {message.receipt_handle}")


def received(url: URL, receivers: int = RECEIVERS) -> Counter[str]:
    """So many receivers empty a queue, on two sync engines and an async one. Returns what was wrong."""
    loop = EventLoop()
    with ExitStack() as stack:
        engines = [create_engine(url) for _ in range(2)]
        for engine in engines:
            stack.callback(engine.dispose)
        through_asyncpg = create_async_engine(url.set(drivername="postgresql+asyncpg"))
        stack.callback(loop.close)
        stack.callback(lambda: loop.run(through_asyncpg.dispose()))
        queues: list[Any] = [LocalQueueRepository(engine, naming=MOUNTED) for engine in engines]
        queues.append(loop.sync(AsyncLocalQueueRepository(through_asyncpg, naming=MOUNTED)))
        sent = queues[0].send_many([f"payload {number}" for number in range(MESSAGES)])
        working = [Receiver(queues[number % 3], number) for number in range(receivers)]

        def finished() -> bool:
            with postgres.connect(url) as connection:
                connection.execute("SET default_transaction_isolation = 'read committed'")
                query = MOUNTED.of("localqueue").render("SELECT count(*) FROM {messages}")
                return connection.execute(query.encode()).fetchone() == (0,)

        with ThreadPoolExecutor(receivers) as threads:
            for future in [threads.submit(receiver.run, finished) for receiver in working]:
                future.result(60)
        left = not finished()
    return faults(sent, working, left=left)


def faults(sent: list[int], working: list[Receiver], *, left: bool) -> Counter[str]:
    deliveries = [each for receiver in working for each in receiver.deliveries]
    found = Counter(fault for receiver in working for fault in receiver.faults)
    found["left"] = int(left)
    found["never delivered"] = len(set(sent) - {each.id for each in deliveries})
    found["a receipt twice"] = len(deliveries) - len({each.receipt for each in deliveries})
    found["an attempt twice"] = len(deliveries) - len({(each.id, each.attempt) for each in deliveries})
    acked = Counter(id for receiver in working for id in receiver.acked)
    found["acked twice"] = sum(number > 1 for number in acked.values())
    by_message = defaultdict(list)
    for each in sorted(deliveries, key=lambda each: each.start):
        by_message[each.id].append(each)
    found["two at once"] = sum(
        later.start < earlier.end for each in by_message.values() for earlier, later in pairwise(each)
    )
    return +found


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_eight_receivers_get_each_message_once_a_visibility_window_and_never_more_than_they_asked_for(
    url: URL, isolation: str
) -> None:
    with postgres.connect(url) as connection:
        connection.execute(f"ALTER DATABASE {url.database} SET default_transaction_isolation = '{isolation}'".encode())
    assert received(url) == Counter()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("FOR UPDATE SKIP LOCKED", ""),
        ("LIMIT CAST(:max_messages AS bigint)", "LIMIT CAST(:max_messages AS bigint) + 1"),
    ],
)
def test_the_receivers_catch_a_receive_that_is_wrong(
    url: URL, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    text = queue_statements.RECEIVE._text
    assert right in text
    monkeypatch.setattr(queue_statements, "RECEIVE", Statement(text.replace(right, wrong)))
    assert any(received(url) for _ in range(5)), "they may pass each other by once"


def put_rounds(engine: Engine, rounds: int) -> list[int]:
    """Sixteen race for a key that is absent, or expired, or expired and being read. Returns the winners of each."""
    kv = LocalKvRepository(engine, naming=MOUNTED)
    start = Barrier(16)

    def race(number: int) -> list[int]:
        won = []
        for each in range(rounds):
            key = f"key {each}"
            if number == 0 and each % 3:
                kv.put(key, b"old", ttl=0)
            start.wait(20)
            if number == 1 and each % 3 == 2:
                kv.get(key)
            if kv.put(key, b"%d" % number, ttl=60, if_not_exists=True):
                won.append(each)
            start.wait(20)
        return won

    with ThreadPoolExecutor(16) as threads:
        won = [future.result(60) for future in [threads.submit(race, number) for number in range(16)]]
    winners = Counter(each for rounds in won for each in rounds)
    for each in range(rounds):
        value = kv.get(f"key {each}")
        if value is None or each not in won[int(value)]:
            winners[each] = 0  # what is there is not the winner's
    return [winners[each] for each in range(rounds)]


def test_of_sixteen_conditional_puts_exactly_one_wins_each_round_also_over_an_expired_value(engine: Engine) -> None:
    assert put_rounds(engine, 45) == [1] * 45


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("WHERE kv.expires_at IS NOT NULL AND kv.expires_at <=", "WHERE kv.expires_at IS NULL OR kv.expires_at >")],
)
def test_the_rounds_catch_a_conditional_put_that_is_wrong(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    text = kv_statements.PUT_IF_ABSENT._text
    assert right in text
    monkeypatch.setattr(kv_statements, "PUT_IF_ABSENT", Statement(text.replace(right, wrong)))
    assert put_rounds(engine, 3) != [1] * 3


@pytest.mark.parametrize("read", ["get", "exists"])
@pytest.mark.parametrize("fresh", ["put", "if_not_exists", "put_many"])
def test_the_lazy_delete_never_removes_a_row_that_is_put_again_just_before_it(
    engine: Engine, url: URL, read: str, fresh: str
) -> None:
    assert raced_by_a_put(engine, url, read, fresh) == b"fresh"


def test_a_lazy_delete_without_its_guard_would_remove_it(
    engine: Engine, url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    unguarded = Statement("DELETE FROM {kv} WHERE key = CAST(:key AS text) AND CAST(:now AS float8) IS NULL")
    monkeypatch.setattr(kv_statements, "DELETE_EXPIRED", unguarded)
    assert raced_by_a_put(engine, url, "get", "put") is None


def raced_by_a_put(engine: Engine, url: URL, read: str, fresh: str) -> bytes | None:
    """Read an expired key; between the look and the lazy delete somebody else puts it again."""
    kv = LocalKvRepository(engine, naming=MOUNTED)
    kv.put("k", b"expired", ttl=0)
    other_engine = create_engine(url)
    other = LocalKvRepository(other_engine, naming=MOUNTED)
    puts = []

    def put_first(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            puts.append(fresh)
            if fresh == "put_many":
                other.put_many({"k": b"fresh"})
            else:
                assert other.put("k", b"fresh", if_not_exists=fresh == "if_not_exists")

    event.listen(engine, "before_cursor_execute", put_first)
    assert not getattr(kv, read)("k")
    assert puts
    other_engine.dispose()
    return kv.get("k")
