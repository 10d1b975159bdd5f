"""Transport: ack, nack and extend, and the fence around them. The seed's "Operations"; semantics 13, 17, 18 and 19."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import inf, nextafter
from typing import Any

import pytest

from qstore import Lease, StaleLease, TransportRepository
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged
from tests.contract.events import claim, drained, event

Settle = Callable[[TransportRepository, Lease], Any]

SETTLE: dict[str, Settle] = {
    "ack": lambda transport, lease: transport.ack(lease),
    "nack": lambda transport, lease: transport.nack(lease),
    "park": lambda transport, lease: transport.nack(lease, delay=5),
    "extend": lambda transport, lease: transport.extend(lease, 5),
}
settle_each = pytest.mark.parametrize("settle", SETTLE.values(), ids=SETTLE)


def test_ack_removes_the_message_and_keeps_a_group_that_has_others(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish_many([("g", event("a")), ("g", event("b")), ("h", event("c"))])
    transport.ack(claim(transport))
    assert backend.sql("transport", "SELECT group_id FROM {groups} ORDER BY 1") == [("g",), ("h",)]
    assert drained(transport) == ["c", "b"]


def test_ack_of_the_last_message_drops_the_group_and_no_other(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish_many([("g", event("a")), ("h", event("c"))])
    transport.ack(claim(transport))
    assert backend.sql("transport", "SELECT group_id FROM {groups}") == [("h",)]


def test_nack_frees_the_message_at_once_and_keeps_the_claim_stamp(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", event("a")), ("g", event("b")), ("h", event("c"))])
    lease = claim(transport)
    clock.advance(1)
    transport.nack(lease)
    sql = "SELECT locked_by, lock_expiry FROM {messages} WHERE seq = ?"
    assert backend.sql("transport", sql, lease.seq) == [(None, None)]
    assert backend.sql("transport", "SELECT last_claimed_at FROM {groups} WHERE group_id = 'g'") == [(clock.now - 1,)]
    assert drained(transport) == ["c", "a", "b"]


@pytest.mark.parametrize("nothing", [0, 0.0, -0.0, timedelta(0)])
def test_nack_with_a_delay_of_nothing_does_not_park(backend: Backend, nothing: float | timedelta) -> None:
    transport = backend.transport()
    transport.publish("g", event("a"))
    transport.nack(claim(transport), delay=nothing)
    assert backend.sql("transport", "SELECT locked_by, lock_expiry FROM {messages}") == [(None, None)]


@pytest.mark.parametrize("delay", [10, 0.25, timedelta(seconds=10)])
def test_nack_with_a_delay_parks_the_message_and_holds_its_group_until_it_has_passed(
    backend: Backend, clock: ManualClock, delay: float | timedelta
) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", event("a")), ("g", event("b")), ("h", event("c"))])
    lease = claim(transport)
    clock.advance(1)
    transport.nack(lease, delay=delay)
    end = clock.now + (delay.total_seconds() if isinstance(delay, timedelta) else delay)
    sql = "SELECT locked_by, lock_expiry FROM {messages} WHERE seq = ?"
    assert backend.sql("transport", sql, lease.seq) == [("__parked__", end)]
    assert drained(transport) == ["c"]
    clock.now = end
    assert transport.claim("w", 30) is None
    clock.now = nextafter(end, inf)
    assert drained(transport) == ["a", "b"]


def test_a_message_parked_for_the_shortest_time_is_parked(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("g", event("a"))
    transport.nack(claim(transport), delay=5e-324)
    assert backend.sql("transport", "SELECT locked_by FROM {messages}") == [("__parked__",)]
    assert transport.claim("w", 30) is None
    clock.advance(0.001)
    assert drained(transport) == ["a"]


@pytest.mark.parametrize("visibility", [10, 0.25, timedelta(minutes=1)])
def test_extend_returns_a_lease_that_holds_from_now_on(
    backend: Backend, clock: ManualClock, visibility: float | timedelta
) -> None:
    transport = backend.transport(clock=clock)
    seq = transport.publish("g", event("a"))
    lease = claim(transport, "w1", 5)
    clock.advance(1)
    longer = transport.extend(lease, visibility)
    end = clock.now + (visibility.total_seconds() if isinstance(visibility, timedelta) else visibility)
    assert (longer.seq, longer.group_id, longer.worker_id, longer.lock_expiry) == (seq, "g", "w1", end)
    assert longer.event == lease.event
    assert backend.sql("transport", "SELECT locked_by, lock_expiry FROM {messages}") == [("w1", end)]
    clock.now = end
    assert transport.claim("w2", 30) is None
    transport.ack(longer)
    assert backend.sql("transport", "SELECT * FROM {groups}") == []


def test_extend_does_not_stamp_the_group(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("g", event("a"))
    lease = claim(transport)
    clock.advance(1)
    transport.extend(lease, 10)
    assert backend.sql("transport", "SELECT last_claimed_at FROM {groups}") == [(clock.now - 1,)]


@settle_each
def test_a_lease_that_was_extended_is_stale(backend: Backend, clock: ManualClock, settle: Settle) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("g", event("a"))
    lease = claim(transport)
    clock.advance(1)
    transport.extend(lease, 30)
    _is_stale(backend, transport, lease, settle)


@settle_each
def test_a_late_worker_cannot_touch_a_message_that_another_one_holds(
    backend: Backend, clock: ManualClock, settle: Settle
) -> None:
    """The seed acts on `seq` alone: the message would be deleted under worker 2 and the group opened."""
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", event("a")), ("g", event("b"))])
    late = claim(transport, "w1", 5)
    clock.advance(6)
    held = claim(transport, "w2", 30)
    assert held.seq == late.seq
    _is_stale(backend, transport, late, settle)
    assert transport.claim("w3", 30) is None
    transport.ack(held)
    assert drained(transport) == ["b"]


@settle_each
def test_an_earlier_lease_of_the_same_worker_is_stale(backend: Backend, clock: ManualClock, settle: Settle) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("g", event("a"))
    late = claim(transport, "w", 5)
    clock.advance(6)
    claim(transport, "w", 5)
    _is_stale(backend, transport, late, settle)


@settle_each
@pytest.mark.parametrize("delay", [0, 60])
def test_a_lease_is_stale_once_its_message_was_nacked_or_parked(backend: Backend, settle: Settle, delay: float) -> None:
    transport = backend.transport()
    transport.publish("g", event("a"))
    lease = claim(transport)
    transport.nack(lease, delay=delay)
    _is_stale(backend, transport, lease, settle)


@settle_each
def test_a_lease_that_lapsed_is_good_while_nobody_took_the_message(
    backend: Backend, clock: ManualClock, settle: Settle
) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", event("a")), ("h", event("b"))])
    late = claim(transport, "w1", 5)
    claim(transport, "w2", 5)
    clock.advance(3600)
    settle(transport, late)
    locked = backend.sql("transport", "SELECT locked_by FROM {messages} WHERE seq = ?", late.seq)
    found = locked[0][0] if locked else "gone"
    expected = {"ack": "gone", "nack": None, "park": "__parked__", "extend": "w1"}
    assert found == next(expected[name] for name, each in SETTLE.items() if each is settle)


@pytest.mark.parametrize("settle", [SETTLE["ack"], SETTLE["nack"], SETTLE["park"]], ids=["ack", "nack", "park"])
@pytest.mark.parametrize("deleted", [False, True], ids=["acked", "deleted by another hand"])
def test_a_message_that_is_gone_is_left_at_that(backend: Backend, settle: Settle, deleted: bool) -> None:
    transport = backend.transport()
    transport.publish_many([("g", event("a")), ("g", event("b"))])
    lease = claim(transport)
    if deleted:
        backend.by_hand("transport", "DELETE FROM {messages} WHERE seq = ?", lease.seq)
    else:
        transport.ack(lease)
    with unchanged(backend, "transport"):
        settle(transport, lease)


def test_a_second_ack_does_not_drop_a_group_that_was_published_to_since(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish("g", event("a"))
    lease = claim(transport)
    transport.ack(lease)
    transport.publish("g", event("b"), priority=2)
    transport.ack(lease)
    assert drained(transport, floor=2) == ["b"]


def test_extend_of_a_message_that_is_gone_is_stale(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish("g", event("a"))
    lease = claim(transport)
    transport.ack(lease)
    _is_stale(backend, transport, lease, SETTLE["extend"])


def test_a_lease_settles_through_any_repository_of_the_store(backend: Backend) -> None:
    publisher, worker, sweeper = backend.transport(), backend.transport(), backend.transport()
    publisher.publish("g", event("a"))
    sweeper.ack(worker.extend(claim(worker), 60))
    assert backend.sql("transport", "SELECT * FROM {messages}") == []


@settle_each
def test_a_stale_lease_leaves_the_repository_usable(backend: Backend, clock: ManualClock, settle: Settle) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("g", event("a"))
    late = claim(transport, "w1", 5)
    clock.advance(6)
    held = claim(transport, "w2", 5)
    for _ in range(7):  # more than a pool has connections
        with pytest.raises(StaleLease):
            settle(transport, late)
    transport.ack(held)
    assert transport.claim("w1", 5) is None


def _is_stale(backend: Backend, transport: TransportRepository, lease: Lease, settle: Settle) -> None:
    with unchanged(backend, "transport"), pytest.raises(StaleLease, match=f"message {lease.seq}") as caught:
        settle(transport, lease)
    assert (caught.value.seq, caught.value.code) == (lease.seq, "QUEUE_OPERATION_FAILED")
