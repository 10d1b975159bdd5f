"""H24, H27, H28 and H32: what the queues promise about handles, order and winners."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from qstore import Event, Lease, StaleLease, StaleReceipt
from tests.backends import Backend, ManualClock
from tests.integration.situations import new_store, plain

SEED_CLAIM = """
SELECT m.seq, m.group_id, m.event
  FROM messages m JOIN groups g ON g.group_id = m.group_id
  WHERE (m.locked_by IS NULL OR m.lock_expiry < :now)
    AND m.group_id NOT IN (
      SELECT group_id FROM messages WHERE locked_by IS NOT NULL AND lock_expiry >= :now)
    AND g.priority >= 0
  ORDER BY g.last_claimed_at ASC, m.seq ASC LIMIT 1
"""


def _event(kind: str = "k") -> Event:
    return Event(kind=kind)


def _seed_claims(connection: sqlite3.Connection, worker: str, now: float) -> int:
    """The seed's claim, with a lease of 5 seconds."""
    seq = int(connection.execute(SEED_CLAIM, {"now": now}).fetchone()[0])
    connection.execute("UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?", (worker, now + 5, seq))
    return seq


def _claimed(claim: Lease[Event] | None) -> Lease[Event]:
    assert claim is not None
    return claim


def test_the_trap_is_real_an_ack_by_seq_alone_takes_the_message_from_another_worker(tmp_path: Path) -> None:
    """H24. The seed as it reads."""
    with plain(new_store(tmp_path, "transport")) as seed:
        for event in ("first", "second"):
            seed.execute("INSERT INTO messages (group_id, event) VALUES ('g', ?)", (event,))
        seed.execute("INSERT INTO groups (group_id) VALUES ('g')")
        mine = _seed_claims(seed, "w1", 0)
        assert _seed_claims(seed, "w2", 6) == mine
        seed.execute("DELETE FROM messages WHERE seq = ?", (mine,))
        assert _seed_claims(seed, "w3", 6) != mine  # while w2 still works on the group's first message


def test_a_late_worker_cannot_settle_a_message_that_another_one_holds(backend: Backend, clock: ManualClock) -> None:
    """H24. The group stays closed, and the message with its holder."""
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", _event("first")), ("g", _event("second"))])
    late = _claimed(transport.claim("w1", 5))
    clock.advance(6)
    held = _claimed(transport.claim("w2", 5))
    assert held.seq == late.seq
    settlings: list[Callable[[], object]] = [
        lambda: transport.ack(late),
        lambda: transport.nack(late),
        lambda: transport.nack(late, delay=9),
        lambda: transport.extend(late, 9),
    ]
    for settle in settlings:
        with pytest.raises(StaleLease) as refused:
            settle()
        assert refused.value.seq == late.seq
        assert refused.value.code == "QUEUE_OPERATION_FAILED"
    assert transport.claim("w3", 5) is None
    transport.ack(held)
    assert _claimed(transport.claim("w3", 5)).event.kind == "second"


def test_the_same_worker_that_claims_again_has_a_new_lease(backend: Backend, clock: ManualClock) -> None:
    """H24. Its name alone does not make the old one good."""
    transport = backend.transport(clock=clock)
    transport.publish("g", _event())
    late = _claimed(transport.claim("w", 5))
    clock.advance(6)
    held = _claimed(transport.claim("w", 5))
    with pytest.raises(StaleLease):
        transport.ack(late)
    transport.ack(held)


def test_a_late_receiver_cannot_settle_a_message_that_was_received_again(backend: Backend, clock: ManualClock) -> None:
    """H24."""
    queue = backend.localqueue(clock=clock)
    id = queue.send("a")
    [late] = queue.receive(visibility_timeout=5)
    clock.advance(6)
    [held] = queue.receive(visibility_timeout=5)
    for settle in (queue.ack, queue.nack):
        with pytest.raises(StaleReceipt) as refused:
            settle(late.receipt_handle)
        assert refused.value.id == id
        assert refused.value.code == "QUEUE_OPERATION_FAILED"
    assert queue.receive() == []
    queue.ack(held.receipt_handle)
    queue.ack(late.receipt_handle)  # gone: nothing is left to refuse


def test_a_second_ack_is_left_at_that(backend: Backend) -> None:
    """H24."""
    transport, queue = backend.transport(), backend.localqueue()
    transport.publish("g", _event())
    lease = _claimed(transport.claim("w", 5))
    queue.send("a")
    [message] = queue.receive()
    for _ in range(2):
        transport.ack(lease)
        queue.ack(message.receipt_handle)
    assert transport.claim("w", 5) is None


def test_a_late_ack_of_what_nobody_else_took_is_good_on_both_queues(backend: Backend, clock: ManualClock) -> None:
    """H24."""
    transport, queue = backend.transport(clock=clock), backend.localqueue(clock=clock)
    transport.publish("g", _event())
    queue.send("a")
    lease, [message] = _claimed(transport.claim("w", 5)), queue.receive(visibility_timeout=5)
    clock.advance(6)
    transport.ack(lease)
    queue.ack(message.receipt_handle)
    assert transport.claim("w", 5) is None
    assert queue.receive() == []


def test_the_trap_is_real_the_oldest_message_first_keeps_a_group_behind_a_flood(tmp_path: Path) -> None:
    """H27. By the order of publishing alone, all of the flood comes first."""
    with plain(new_store(tmp_path, "transport")) as seed:
        for number in range(1001):
            seed.execute("INSERT INTO messages (group_id, event) VALUES (?, '')", ("b" if number == 1000 else "a",))
        seed.execute("INSERT INTO groups (group_id) VALUES ('a'), ('b')")
        claims = 0
        while True:
            by_age = SEED_CLAIM.replace("g.last_claimed_at ASC, ", "")
            seq, group, _ = seed.execute(by_age, {"now": 0}).fetchone()
            claims += 1
            if group == "b":
                break
            seed.execute("UPDATE groups SET last_claimed_at = ? WHERE group_id = 'a'", (claims,))
            seed.execute("DELETE FROM messages WHERE seq = ?", (seq,))
    assert claims == 1001


def test_a_group_that_floods_keeps_no_other_one_waiting(backend: Backend, clock: ManualClock) -> None:
    """H27. Whoever waits is served within as many claims as there are groups, and one."""
    transport = backend.transport(clock=clock)
    transport.publish_many([("flood", _event())] * 1000)
    for settled in range(3):
        transport.publish("patient", _event(), priority=settled)
        seen: list[str] = []
        while "patient" not in seen:
            clock.advance(0.001)
            lease = _claimed(transport.claim("w", 60))
            transport.ack(lease)
            seen.append(lease.group_id)
        assert len(seen) <= 3


def test_a_floor_keeps_what_is_below_it_waiting_and_loses_none_of_it(backend: Backend, clock: ManualClock) -> None:
    """H27. Under two priorities the floor filters; when it goes down, the low one has its turn."""
    transport = backend.transport(clock=clock)
    low = transport.publish("low", _event(), priority=1)
    transport.publish_many([("high", _event(), 3)] * 20)
    for _ in range(10):
        clock.advance(0.001)
        lease = _claimed(transport.claim("w", 60, min_priority=2))
        assert lease.group_id == "high"
        transport.ack(lease)
    assert _claimed(transport.claim("w", 60)).seq == low


def test_nothing_of_a_group_is_delivered_while_its_first_message_is_out_or_parked(
    backend: Backend, clock: ManualClock
) -> None:
    """H28."""
    transport = backend.transport(clock=clock)
    first = transport.publish("g", _event())
    lease = _claimed(transport.claim("w", 60))
    later = transport.publish_many([("g", _event()), ("g", _event())])
    assert transport.claim("w", 60) is None
    transport.nack(lease, delay=10)
    assert transport.claim("w", 60) is None
    clock.advance(10)
    assert transport.claim("w", 60) is None  # a park holds to its last instant
    clock.advance(0.001)
    seen = []
    while (lease_or_none := transport.claim("w", 60)) is not None:
        assert transport.claim("other", 60) is None
        seen.append(lease_or_none.seq)
        transport.ack(lease_or_none)
    assert seen == [first, *later]


def test_a_message_given_back_comes_before_those_behind_it(backend: Backend, clock: ManualClock) -> None:
    """H28."""
    transport, queue = backend.transport(clock=clock), backend.localqueue(clock=clock)
    first, *_ = transport.publish_many([("g", _event())] * 3)
    for _ in range(3):
        lease = _claimed(transport.claim("w", 60))
        assert lease.seq == first
        transport.nack(lease)
    oldest, *_ = queue.send_many(["a", "b", "c"])
    for _ in range(3):
        [message] = queue.receive()
        assert message.id == oldest
        queue.nack(message.receipt_handle)


def test_messages_of_one_instant_are_delivered_as_they_were_published(backend: Backend, clock: ManualClock) -> None:
    """H28."""
    transport, queue = backend.transport(clock=clock), backend.localqueue(clock=clock)
    seqs = transport.publish_many([("one" if number % 2 else f"g{number}", _event()) for number in range(50)])
    seqs += [transport.publish("one", _event()) for _ in range(10)]
    ids = queue.send_many([f"{number}" for number in range(50)])
    ids += [queue.send("more") for _ in range(10)]
    assert [message.id for _ in range(20) for message in queue.receive(3)] == ids
    seen: dict[str, list[int]] = {}
    for _ in seqs:
        lease = _claimed(transport.claim("w", 60))
        seen.setdefault(lease.group_id, []).append(lease.seq)
        transport.ack(lease)
    assert all(group == sorted(group) for group in seen.values())
    assert sorted(seq for group in seen.values() for seq in group) == seqs
    firsts = [group[0] for group in seen.values()]
    assert firsts == sorted(firsts)


def test_the_traps_are_real_an_undrained_returning_cannot_commit_and_counts_no_row(tmp_path: Path) -> None:
    """H32."""
    with closing(sqlite3.connect(new_store(tmp_path, "localkv"))) as bare:
        bare.executemany("INSERT INTO kv VALUES (?, x'', NULL)", [("a",), ("b",)])
        bare.commit()
        cursor = bare.execute("UPDATE kv SET value = x'31' RETURNING key")
        assert cursor.rowcount == 0
        cursor.fetchone()
        with pytest.raises(sqlite3.OperationalError, match="SQL statements in progress"):
            bare.commit()
        assert len(cursor.fetchall()) == 1
        assert cursor.rowcount == 2
        bare.commit()


def test_whether_a_conditional_put_won_is_told_right(backend: Backend, clock: ManualClock) -> None:
    """H32. Absent, live, expired, deleted."""
    kv = backend.localkv(clock=clock)
    assert kv.put("a", b"1", if_not_exists=True, ttl=1)
    assert not kv.put("a", b"2", if_not_exists=True)
    assert kv.get("a") == b"1"
    clock.advance(1)
    assert kv.put("a", b"3", if_not_exists=True)
    assert not kv.put("a", b"3", if_not_exists=True)
    kv.delete("a")
    assert kv.put("a", b"4", if_not_exists=True)
    assert kv.get("a") == b"4"


def test_of_many_that_race_for_a_key_one_wins(shared_backend: Backend) -> None:
    """H32."""
    kv = shared_backend.localkv()
    for key in ("a", "b", "c"):
        with ThreadPoolExecutor(8) as workers:
            won = list(workers.map(lambda worker, key=key: kv.put(key, b"%d" % worker, if_not_exists=True), range(8)))
        assert won.count(True) == 1
        assert kv.get(key) == b"%d" % won.index(True)


def test_what_returns_rows_is_read_to_its_end_and_committed(file_backend: Backend) -> None:
    """H32. Another connection sees it at once, and can write."""
    backend = file_backend
    transport, queue = backend.transport(), backend.localqueue()
    seqs = transport.publish_many([("g", _event())] * 3)
    queue.send_many(["a", "b", "c"])
    received = queue.receive(2)
    _claimed(transport.claim("w", 5))
    assert backend.sql("transport", "SELECT seq FROM {messages}") == [(seq,) for seq in seqs]
    assert backend.sql("transport", "UPDATE {messages} SET locked_by = 'x' WHERE locked_by = 'w' RETURNING seq") == [
        (seqs[0],)
    ]
    assert backend.sql("localqueue", "SELECT id FROM {messages} WHERE attempt = 1") == [(each.id,) for each in received]
    assert backend.sql("localqueue", "DELETE FROM {messages} WHERE attempt = 0 RETURNING payload_data") == [("c",)]
