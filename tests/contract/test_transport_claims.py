"""Transport: which message a claim returns. The seed's "The claim" and "FIFO"; semantics 8, 13, 14 and 15."""

from __future__ import annotations

from contextlib import closing
from math import inf, nextafter
from pathlib import Path

import pytest

from qstore import TransportRepository
from tests.backends import MOUNTED, Backend, ManualClock, PostgresSessionBackend
from tests.contract.contents import unchanged
from tests.contract.events import claim, drained, event


def test_a_claim_of_an_empty_store_is_none(backend: Backend) -> None:
    assert backend.transport().claim("w", 30) is None


def test_a_claim_that_finds_nothing_changes_nothing(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", event("a")), ("g", event("b")), ("low", event("c"))])
    claim(transport)
    with unchanged(backend, "transport"):
        clock.advance(1)
        assert transport.claim("w", 30, min_priority=1) is None


def test_a_claim_leases_the_message_and_stamps_its_group(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    seq = transport.publish("g", event("a"))
    clock.advance(5)
    lease = claim(transport, "worker 1", 30)
    assert (lease.seq, lease.group_id, lease.worker_id, lease.lock_expiry) == (seq, "g", "worker 1", clock.now + 30)
    assert lease.event.kind == "a"
    assert backend.sql("transport", "SELECT locked_by, lock_expiry FROM {messages}") == [("worker 1", clock.now + 30)]
    assert backend.sql("transport", "SELECT last_claimed_at FROM {groups}") == [(clock.now,)]


def test_within_a_group_messages_come_in_the_order_of_publishing(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    kinds = [f"m{n}" for n in range(100)]
    transport.publish_many(("g", event(kind)) for kind in kinds)
    assert drained(transport) == kinds


def test_nothing_of_a_group_is_delivered_while_one_of_its_messages_is_leased(
    backend: Backend, clock: ManualClock
) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("g", event("a"))
    lease = claim(transport)
    transport.publish("g", event("b"))
    transport.publish("h", event("c"))
    assert claim(transport).event.kind == "c"
    assert transport.claim("w", 30) is None
    transport.ack(lease)
    assert claim(transport).event.kind == "b"


def test_a_lease_holds_its_message_up_to_and_at_its_expiry_and_not_after(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", event("a")), ("g", event("b"))])
    lease = claim(transport, "w1", 10)
    clock.now = lease.lock_expiry
    assert transport.claim("w2", 10) is None
    clock.now = nextafter(lease.lock_expiry, inf)
    again = claim(transport, "w2", 10)
    assert (again.seq, again.worker_id, again.event.kind) == (lease.seq, "w2", "a")


def test_a_message_that_a_crashed_worker_held_comes_before_the_rest_of_its_group(
    backend: Backend, clock: ManualClock
) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("g", event("a")), ("g", event("b"))])
    claim(transport, "crashed", 10)
    clock.advance(11)
    assert drained(transport) == ["a", "b"]


def test_the_group_claimed_longest_ago_comes_first(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many((group, event(f"{group}{n}")) for group in "abc" for n in (1, 2))
    order = []
    for _ in range(6):
        clock.advance(1)
        lease = claim(transport)
        order.append(lease.event.kind)
        transport.ack(lease)
    assert order == ["a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_group_never_claimed_comes_before_any_that_was(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("old", event("o1")), ("old", event("o2"))])
    transport.ack(claim(transport))
    clock.advance(3600)
    transport.publish("new", event("n1"))
    assert claim(transport).event.kind == "n1"


def test_groups_claimed_at_the_same_instant_come_in_the_order_of_seq(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many((group, event(group)) for group in "zya")
    assert drained(transport) == ["z", "y", "a"]
    transport.publish_many((group, event(f"{group}{n}")) for group in "zya" for n in (1, 2))
    for _ in "zya":
        transport.ack(claim(transport))
    assert drained(transport) == ["z2", "y2", "a2"]


def test_a_group_that_floods_does_not_hold_up_another(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many(("flood", event("f")) for _ in range(200))
    transport.publish("late", event("l"))
    served = []
    for _ in range(3):  # the number of groups, and one
        clock.advance(0.001)
        lease = claim(transport)
        served.append(lease.event.kind)
        transport.ack(lease)
    assert "l" in served


@pytest.mark.parametrize("floor", range(5))
def test_min_priority_leaves_out_the_groups_below_it(backend: Backend, floor: int) -> None:
    transport = backend.transport()
    transport.publish_many((f"g{priority}", event(str(priority)), priority) for priority in range(5))
    assert drained(transport, floor) == [str(priority) for priority in range(floor, 5)]


def test_min_priority_does_not_order(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("low", event("low"), priority=1)
    transport.publish("high", event("high"), priority=4)
    assert drained(transport, floor=1) == ["low", "high"]


def test_what_the_floor_kept_back_comes_when_the_floor_goes_down(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish("low", event("low"))
    transport.publish("high", event("high"), priority=4)
    assert drained(transport, floor=4) == ["high"]
    assert drained(transport, floor=1) == []
    assert drained(transport) == ["low"]


def test_a_clock_that_jumped_ahead_and_was_set_right_again_starves_no_group(
    settling_backend: Backend, clock: ManualClock
) -> None:
    """Semantics 8: otherwise it would starve until the year that the clock had for a moment."""
    transport = settling_backend.transport(clock=clock)
    transport.publish_many(("ahead", event("a")) for _ in range(3))
    clock.advance(10 * 366 * 86_400)
    transport.ack(claim(transport))
    clock.advance(-10 * 366 * 86_400)
    transport.publish_many(("busy", event("b")) for _ in range(10))
    served = []
    for _ in range(8):
        clock.advance(1)
        lease = claim(transport)
        served.append(lease.event.kind)
        transport.ack(lease)
    assert "a" in served


def test_a_claim_stamp_in_the_future_ties_with_one_of_now_by_seq(settling_backend: Backend, clock: ManualClock) -> None:
    transport = settling_backend.transport(clock=clock)
    transport.publish_many([("a", event("a")), ("b", event("b")), ("c", event("c"))])
    settling_backend.sql("transport", "UPDATE {groups} SET last_claimed_at = ? WHERE group_id = 'a'", clock.now + 100)
    settling_backend.sql("transport", "UPDATE {groups} SET last_claimed_at = ? WHERE group_id = 'b'", clock.now)
    settling_backend.sql("transport", "UPDATE {groups} SET last_claimed_at = ? WHERE group_id = 'c'", clock.now + 50)
    assert drained(transport) == ["a", "b", "c"]


def test_a_message_without_its_group_row_is_not_delivered_until_the_group_is_published_to(
    file_backend: Backend,
) -> None:
    """As the seed's join has it. qstore itself writes both in one transaction."""
    transport = file_backend.transport()
    sql = "INSERT INTO {messages} (group_id, event) VALUES ('g', ?)"
    file_backend.sql("transport", sql, event("orphan").model_dump_json())
    assert transport.claim("w", 30) is None
    transport.publish("g", event("b"))
    assert drained(transport) == ["orphan", "b"]


@pytest.mark.parametrize("floor", [0, 2])
def test_of_any_number_of_groups_that_lapsed_the_one_claimed_longest_ago_comes_first(
    settling_backend: Backend, clock: ManualClock, floor: int
) -> None:
    """A caller's transaction on a server looks at the 1,000 that lapsed first."""
    transport = settling_backend.transport(clock=clock)
    transport.publish_many((f"g{n}", event(str(n)), n % 5) for n in range(1200))
    lapsed = "UPDATE {messages} SET locked_by = 'w', lock_expiry = ? - seq"
    settling_backend.by_hand("transport", lapsed, clock.now - 1)
    settling_backend.sql("transport", "UPDATE {groups} SET last_claimed_at = 5")
    settling_backend.sql("transport", "UPDATE {groups} SET last_claimed_at = 3 WHERE group_id IN ('g1', 'g2', 'g3')")
    transport.publish("new", event("new"), priority=4)
    kinds = [claim(transport, floor=floor).event.kind for _ in range(4)]
    assert kinds == (["new", "1", "2", "3"] if floor == 0 else ["new", "2", "3", "4"])


def test_on_a_server_a_stamp_in_the_future_is_set_right_by_a_claim_that_is_not_the_callers(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A claim in the caller's transaction leaves other groups as they are, and takes this one last."""
    with closing(PostgresSessionBackend(tmp_path)) as backend:
        joined = backend.transport(clock=clock)
        settling = TransportRepository(backend.engine, naming=MOUNTED, clock=clock)
        joined.publish_many([("a", event("a1")), ("b", event("b")), ("a", event("a2"))])
        backend.sql("transport", "UPDATE {groups} SET last_claimed_at = ? WHERE group_id = 'a'", clock.now + 100)
        assert claim(joined).event.kind == "b"
        lease = claim(settling)
        assert lease.event.kind == "a1"
        settling.nack(lease)
        assert backend.sql("transport", "SELECT last_claimed_at FROM {groups}") == [(clock.now,)] * 2


def test_on_a_server_a_message_by_another_hand_is_not_delivered_until_the_groups_are_repaired(
    server_backend: Backend,
) -> None:
    """A group's row tells there what its messages are, also of one that has none yet."""
    transport = server_backend.transport()
    sql = "INSERT INTO {messages} (group_id, event) VALUES (?, ?)"
    server_backend.sql("transport", sql, "g", event("orphan").model_dump_json())
    assert transport.claim("w", 30) is None
    transport.publish("g", event("b"))
    assert drained(transport) == ["b"]
    server_backend.by_hand("transport", sql, "g", event("c").model_dump_json())
    assert drained(transport) == ["orphan", "c"]


def test_a_message_without_lock_expiry_that_names_a_holder_is_neither_free_nor_in_flight(file_backend: Backend) -> None:
    """A state that no operation leaves behind; the seed's statement passes over the row and serves the next."""
    transport = file_backend.transport()
    transport.publish_many([("g", event("odd")), ("g", event("b"))])
    file_backend.sql("transport", "UPDATE {messages} SET locked_by = 'x' WHERE seq = (SELECT min(seq) FROM {messages})")
    assert drained(transport) == ["b"]
