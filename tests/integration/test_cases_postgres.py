"""H28 to H34 and H37 on PostgreSQL: order, time, claims in parallel, conflicts, counts and ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from qstore import (
    Lease,
    LocalKvRepository,
    LocalQueueRepository,
    StaleLease,
    StaleReceipt,
    StoreBusy,
    TransportRepository,
)
from tests import postgres
from tests.backends import MOUNTED, Backend, ManualClock, backend_of

ON_SERVERS = (
    *("opened on a server", "postgres", "postgres session"),
    *("async opened on a server", "asyncpg opened on a server", "async postgres", "asyncpg", "asyncpg session"),
)
ALL = pytest.mark.parametrize("kind", ON_SERVERS)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine(postgres.database())
    yield engine
    engine.dispose()


@pytest.fixture
def backend(kind: str, tmp_path: Path) -> Iterator[Backend]:
    with backend_of(kind, tmp_path) as backend:
        yield backend


def transport(bind: Any) -> TransportRepository[str]:
    return TransportRepository(bind, event_type=str, naming=MOUNTED)


def queue(bind: Any) -> LocalQueueRepository:
    return LocalQueueRepository(bind, naming=MOUNTED)


def localkv(bind: Any) -> LocalKvRepository:
    return LocalKvRepository(bind, naming=MOUNTED)


def claimed(repository: TransportRepository[str], visibility: float = 60) -> Lease[str]:
    lease = repository.claim("w", visibility)
    assert lease is not None
    return lease


@ALL
def test_messages_with_one_clock_value_come_in_the_order_of_their_publishing(
    backend: Backend, clock: ManualClock
) -> None:
    """H28."""
    messages, sent = backend.transport(event_type=str, clock=clock), backend.localqueue(clock=clock)
    for number in range(50):
        messages.publish(f"g{number % 7}", str(number))
    messages.publish_many([(f"g{number % 7}", str(number)) for number in range(50, 100)])
    order: dict[str, list[int]] = {}
    while (lease := messages.claim("w", 60)) is not None:
        order.setdefault(lease.group_id, []).append(int(lease.event))
        messages.ack(lease)
    assert order == {f"g{n}": list(range(n, 100, 7)) for n in range(7)}
    ids = [sent.send("p") for _ in range(50)] + sent.send_many(["p"] * 50)
    assert [message.id for _ in range(25) for message in sent.receive(4)] == ids == sorted(ids)


def test_a_workers_clock_that_is_ahead_does_not_take_a_live_lease(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H29."""
    transport(engine).publish("g", "e")
    localkv(engine).put("k", b"v", ttl=120)
    queue(engine).send("p")
    lease = claimed(transport(engine), 120)
    assert queue(engine).receive(visibility_timeout=120)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 180)
    assert transport(engine).claim("w2", 120) is None
    assert queue(engine).receive() == []
    assert localkv(engine).get("k") == b"v"
    assert abs(lease.lock_expiry - 120 - real()) < 30
    assert transport(engine).extend(lease, 60).lock_expiry < real() + 100


def test_the_time_goes_on_within_one_long_transaction(engine: Engine) -> None:
    """H29: now() of the server does not, which is the trap."""
    with Session(engine) as session:
        began = session.execute(text("SELECT now(), clock_timestamp()")).one()
        localkv(session).put("k", b"v", ttl=0.2)
        queue(session).send("p")
        transport(session).publish("g", "e")
        first = claimed(transport(session), 0.2)
        assert queue(session).receive(visibility_timeout=0.2)
        assert localkv(session).exists("k")
        session.execute(text("SELECT pg_sleep(0.25)"))
        assert localkv(session).get("k") is None
        assert [message.attempt for message in queue(session).receive()] == [2]
        assert claimed(transport(session)).lock_expiry > first.lock_expiry + 50
        ended = session.execute(text("SELECT now(), clock_timestamp()")).one()
    assert ended[0] == began[0]
    assert ended[1] > began[1]


def test_a_claim_that_is_not_committed_keeps_the_second_message_of_its_group_back(engine: Engine) -> None:
    """H30, and the trap: SKIP LOCKED on messages slides to it."""
    transport(engine).publish_many([("g", "1"), ("g", "2")])
    naive = text(
        "SELECT event FROM qstore_transport_messages WHERE locked_by IS NULL"
        " ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED"
    )
    with Session(engine) as one, Session(engine) as other:
        assert [one.scalar(naive), other.scalar(naive)] == ['"1"', '"2"']
    with Session(engine) as one, Session(engine) as other:
        assert claimed(transport(one)).event == "1"
        assert transport(other).claim("w", 60) is None
        assert transport(engine).claim("w", 60) is None


@pytest.fixture
def looping_engine(engine: Engine) -> Iterator[Engine]:
    """One whose plans are as bad as wrong statistics can make them: a subquery runs anew for each row that it meets."""
    off = ("hashjoin", "mergejoin", "hashagg", "sort", "material")
    options = " ".join(f"-c enable_{each}=off" for each in off)
    looping = create_engine(engine.url, connect_args={"options": options})
    yield looping
    looping.dispose()


def test_the_trap_is_real_a_limit_within_in_takes_more_than_it_says(looping_engine: Engine) -> None:
    """H30. Each run of the subquery finds others than those that are taken already."""
    queue(looping_engine).send_many(["p"] * 50)
    naive = text(
        "UPDATE qstore_localqueue_messages SET attempt = attempt + 1 WHERE id IN (SELECT id"
        " FROM qstore_localqueue_messages ORDER BY enqueued_at, id LIMIT 3 FOR UPDATE SKIP LOCKED) RETURNING id"
    )
    with Session(looping_engine) as session:
        if session.connection().dialect.server_version_info < (18,):  # type: ignore[operator]  # SQLAlchemy does not say
            pytest.skip("an older server cannot be made to choose that plan by these settings")
        assert len(session.execute(naive).all()) > 3


@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
@pytest.mark.parametrize("attempts", [0, 1], ids=["fresh", "lapsed"])
def test_a_receive_takes_no_more_than_it_was_asked_for_whatever_the_plan(
    looping_engine: Engine, clock: ManualClock, attempts: int, *, joined: bool
) -> None:
    """H30. Fresh messages, and those whose delivery has lapsed."""
    counted = text("SELECT attempt, count(*) FROM qstore_localqueue_messages GROUP BY 1 ORDER BY 1")
    with Session(looping_engine) as session:
        messages = LocalQueueRepository(session if joined else looping_engine, naming=MOUNTED, clock=clock)
        ids = messages.send_many(["p"] * 50)
        for _ in range(attempts):
            messages.receive(50, visibility_timeout=5)
            clock.advance(5)
        assert [message.id for message in messages.receive(3)] == ids[:3]
        assert session.execute(counted).all() == [(attempts, 47), (attempts + 1, 3)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_conflict_in_a_hosts_transaction_is_busy_and_is_neither_repeated_nor_ended_here(
    engine: Engine, level: str
) -> None:
    """H31."""
    transport(engine).publish("g", "e")
    localkv(engine).put("k", b"old")
    host = create_engine(engine.url, isolation_level=level)
    statements: list[str] = []
    event.listen(host, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0]))
    with Session(host) as session:
        session.execute(text("CREATE TABLE orders (id int)"))
        session.execute(text("INSERT INTO orders VALUES (1)"))
        localkv(engine).put("k", b"new")
        transport(engine).publish("g", "e2")
        calls: list[Callable[[], object]] = [
            lambda: localkv(session).put("k", b"late"),
            lambda: transport(session).publish("g", "late"),
        ]
        for call in calls:
            statements.clear()
            with pytest.raises(StoreBusy) as caught:
                call()
            assert isinstance(caught.value.__cause__, DBAPIError)
            assert len([each for each in statements if each in ("INSERT", "WITH")]) == 1
            assert session.execute(text("SELECT count(*) FROM orders")).scalar() == 1
        session.rollback()
        assert session.execute(text("SELECT to_regclass('orders')")).scalar() is None
    host.dispose()
    assert localkv(engine).get("k") == b"new"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("late", ["the message", "the claim"])
def test_an_ack_in_a_hosts_snapshot_from_before_the_claim_is_never_taken_for_done_or_stale(
    engine: Engine, level: str, late: str
) -> None:
    """H31: the lease is good, and the snapshot cannot see it. Either it is acked, or the host is told to repeat."""
    host = create_engine(engine.url, isolation_level=level)
    if late == "the claim":
        transport(engine).publish("g", "e")
        queue(engine).send("p")
    outcomes = []
    for store in ("transport", "queue"):
        with Session(host) as session:
            session.execute(text("SELECT count(*) FROM qstore_transport_messages")).all()
            if late == "the message":
                transport(engine).publish("g", "e")
                queue(engine).send("p")
            if store == "transport":
                lease = claimed(transport(engine))
            else:
                [message] = queue(engine).receive()
            try:
                if store == "transport":
                    transport(session).ack(lease)
                else:
                    queue(session).ack(message.receipt_handle)
                session.commit()
            except (StoreBusy, StaleLease, StaleReceipt, DBAPIError) as error:
                outcomes.append(type(error).__name__)
            else:
                table = f"qstore_{'transport' if store == 'transport' else 'localqueue'}_messages"
                left = session.execute(text(f"SELECT count(*) FROM {table}")).scalar()
                outcomes.append(f"returned, and {left} left")
    host.dispose()
    assert set(outcomes) <= {"StoreBusy", "returned, and 0 left"}


@ALL
def test_win_and_lose_and_how_many_are_told_alike_by_every_driver(backend: Backend, clock: ManualClock) -> None:
    """H32."""
    kv, sent, messages = (
        backend.localkv(clock=clock),
        backend.localqueue(clock=clock),
        backend.transport(clock=clock, event_type=str),
    )
    assert [kv.put("k", b"1", ttl=5, if_not_exists=True), kv.put("k", b"2", if_not_exists=True)] == [True, False]
    clock.advance(5)
    assert [kv.put("k", b"3", ttl=0, if_not_exists=True), kv.purge_expired(), kv.purge_expired()] == [True, 1, 0]
    kv.put_many({f"k{n}": b"v" for n in range(7)}, ttl=1)
    clock.advance(1)
    assert kv.purge_expired() == 7
    sent.send_many(["p"] * 5)
    [first, second] = sent.receive(2)
    sent.ack(first.receipt_handle)
    sent.ack(first.receipt_handle)
    sent.nack(second.receipt_handle)
    [again] = sent.receive(1)
    with pytest.raises(StaleReceipt):
        sent.ack(second.receipt_handle)
    assert (again.id, again.attempt, sent.purge(), sent.purge()) == (second.id, 2, 4, 0)
    messages.publish_many([("g", "1"), ("g", "2")])
    lease = claimed(messages)
    assert messages.claim("w", 60) is None
    extended = messages.extend(lease, 90)
    with pytest.raises(StaleLease):
        messages.ack(lease)
    messages.ack(extended)
    messages.ack(extended)
    with pytest.raises(StaleLease):
        messages.extend(extended, 90)
    assert claimed(messages).event == "2"


@ALL
def test_ids_are_64_bits_wide_and_none_comes_back_whatever_is_removed_or_rolled_back(backend: Backend) -> None:
    """H33."""
    far = 2**40
    for store, column in (("transport", "seq"), ("localqueue", "id")):
        backend.sql(store, f"SELECT setval(pg_get_serial_sequence('{{messages}}', '{column}'), {far})")
    messages, sent = backend.transport(event_type=str), backend.localqueue()
    assert messages.publish("g", "e") == sent.send("p") == far + 1
    lease, [message] = claimed(messages), sent.receive()
    messages.ack(lease)
    assert sent.purge() == 1
    assert messages.publish_many([("g", "e")])[0] > far + 1
    assert sent.send("p") > far + 1
    messages.ack(lease)
    sent.ack(message.receipt_handle)
    assert claimed(messages).seq > far + 1
    assert [each.attempt for each in sent.receive()] == [1]
