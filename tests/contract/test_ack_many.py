"""ack_many of the transport and of the queue: all in one transaction, or nothing where one is stale."""

from __future__ import annotations

from typing import Any

import pytest

from qstore import InvalidType, StaleLease, StaleReceipt
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged
from tests.contract.events import claim, drained, event


def test_all_leases_are_settled_and_nothing_else(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish_many([(group, event(group + str(n))) for n in range(2) for group in "abc"])
    leases = [claim(transport) for _ in range(3)]
    transport.ack_many(iter(leases[:2]))
    transport.ack(leases[2])
    assert drained(transport) == ["a1", "b1", "c1"]
    assert backend.sql("transport", "SELECT * FROM {groups}") == []


def test_messages_that_are_gone_are_left_at_that(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish_many([("a", event("a")), ("b", event("b"))])
    gone, there = claim(transport), claim(transport)
    transport.ack(gone)
    transport.ack_many([gone, there, there])
    transport.ack_many([])
    assert backend.sql("transport", "SELECT * FROM {messages}") == []


def test_one_stale_lease_settles_none_of_them(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish_many([("a", event("a")), ("b", event("b"))])
    late = claim(transport, visibility=5)
    clock.advance(10)
    leases = [claim(transport, visibility=50), claim(transport, visibility=50)]
    good = [lease for lease in leases if lease.seq != late.seq]
    with unchanged(backend, "transport"), pytest.raises(StaleLease) as refused:
        transport.ack_many([*good, late])
    assert refused.value.seq == late.seq
    transport.ack_many(leases)
    assert backend.sql("transport", "SELECT * FROM {messages}") == []


def test_all_receipts_are_settled_and_nothing_else(backend: Backend) -> None:
    queue = backend.localqueue()
    queue.send_many(["a", "b", "c", "d"])
    received = [message.receipt_handle for message in queue.receive(3)]
    queue.ack(received[1])
    queue.ack_many(iter([*received, "1", "7:nobody's"]))
    queue.ack_many([])
    assert backend.sql("localqueue", "SELECT payload_data FROM {messages}") == [("d",)]


def test_one_stale_receipt_settles_none_of_them(backend: Backend, clock: ManualClock) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send_many(["a", "b"])
    [late] = queue.receive(visibility_timeout=5)
    clock.advance(10)
    handles = [message.receipt_handle for message in queue.receive(2)]
    good = [handle for handle in handles if not handle.startswith(f"{late.id}:")]
    with unchanged(backend, "localqueue"), pytest.raises(StaleReceipt) as refused:
        queue.ack_many([*good, late.receipt_handle])
    assert refused.value.id == late.id
    queue.ack_many(handles)
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == []


def test_one_thing_in_place_of_many_is_refused(backend: Backend) -> None:
    lease: Any = None
    transport, queue = backend.transport(), backend.localqueue()
    wrongs: list[Any] = [lease, "1:a", 5]
    for wrong in wrongs:
        with pytest.raises(InvalidType, match="leases"):
            transport.ack_many(wrong)
        with pytest.raises(InvalidType, match="receipt_handles"):
            queue.ack_many(wrong)
    with pytest.raises(InvalidType, match="lease"):
        transport.ack_many([lease])
