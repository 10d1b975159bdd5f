"""Transport: what a publish writes. The seed's "Schema" and "Operations"; semantics 2, 15 and 16."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from qstore import Event
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged
from tests.contract.events import claim, drained, event


def test_publish_writes_a_free_message_and_its_group(backend: Backend) -> None:
    sent = Event(kind="a", data={"n": 1}, more="kept")  # type: ignore[call-arg]  # further fields are kept
    seq = backend.transport().publish("g", sent, priority=2)
    assert backend.sql("transport", "SELECT * FROM {messages}") == [(seq, "g", sent.model_dump_json(), None, None)]
    assert backend.sql("transport", "SELECT * FROM {groups}") == [("g", 0.0, 2)]


def test_publish_returns_seqs_that_rise_across_groups(backend: Backend) -> None:
    transport = backend.transport()
    seqs = [transport.publish(group, event("e")) for group in ("a", "b", "a", "c")]
    assert seqs == sorted(set(seqs))
    assert backend.sql("transport", "SELECT seq FROM {messages} ORDER BY seq") == [(seq,) for seq in seqs]


def test_the_seq_is_the_seq_of_the_lease(backend: Backend) -> None:
    transport = backend.transport()
    seq = transport.publish("g", event("e"))
    assert claim(transport).seq == seq


def test_a_seq_is_never_reused_after_the_store_was_drained(backend: Backend) -> None:
    transport = backend.transport()
    highest = max(transport.publish_many([("g", event("a")), ("h", event("b"))]))
    assert drained(transport) == ["a", "b"]
    assert transport.publish("g", event("c")) > highest


def test_a_seq_is_never_reused_after_the_rows_were_deleted_by_another_hand(backend: Backend) -> None:
    transport = backend.transport()
    first = transport.publish("g", event("a"))
    lease = claim(transport)
    backend.by_hand("transport", "DELETE FROM {messages}")
    assert transport.publish("g", event("b")) > first
    transport.ack(lease)
    assert drained(transport) == ["b"]


def test_publish_many_keeps_the_order_and_returns_each_seq(backend: Backend) -> None:
    transport = backend.transport()
    seqs = transport.publish_many([("g", event("a")), ("h", event("b"), 3), ("g", event("c"))])
    rows = backend.sql("transport", "SELECT seq, group_id, event FROM {messages} ORDER BY seq")
    assert seqs == [seq for seq, _, _ in rows] == sorted(set(seqs))
    assert [(group, json.loads(stored)["kind"]) for _, group, stored in rows] == [("g", "a"), ("h", "b"), ("g", "c")]
    assert backend.sql("transport", "SELECT group_id, priority FROM {groups} ORDER BY 1") == [("g", 0), ("h", 3)]


def test_publish_many_takes_any_iterable(backend: Backend) -> None:
    transport = backend.transport()
    seqs = transport.publish_many((f"g{n}", event(str(n))) for n in range(3))
    assert len(seqs) == 3
    assert drained(transport) == ["0", "1", "2"]


def test_publish_many_of_nothing_is_no_seqs(backend: Backend) -> None:
    assert backend.transport().publish_many([]) == []


def test_publish_many_writes_nothing_if_its_iterable_fails_half_way(checking_backend: Backend) -> None:
    transport = checking_backend.transport()

    def messages() -> Iterator[tuple[str, Event]]:
        yield "g", event("a")
        raise LookupError("no more")

    with unchanged(checking_backend, "transport"), pytest.raises(LookupError, match="no more"):
        transport.publish_many(messages())


def test_a_publish_adds_to_a_group_that_is_there_without_touching_it(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    transport.publish("g", event("a"), priority=1)
    claim(transport)
    before = backend.sql("transport", "SELECT * FROM {groups}")
    clock.advance(5)
    transport.publish("g", event("b"), priority=4)
    assert backend.sql("transport", "SELECT * FROM {groups}") == before == [("g", clock.now - 5, 1)]


def test_the_first_publish_sets_the_priority_and_later_ones_do_not(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish("g", event("a"), priority=1)
    transport.publish("g", event("b"), priority=4)
    assert transport.claim("w", 30, 2) is None
    assert claim(transport, floor=1).event.kind == "a"


def test_within_publish_many_the_first_message_of_a_group_sets_its_priority(backend: Backend) -> None:
    backend.transport().publish_many([("g", event("a"), 3), ("g", event("b"), 1), ("g", event("c"))])
    assert backend.sql("transport", "SELECT priority FROM {groups}") == [(3,)]


def test_the_priority_is_forgotten_when_the_group_drains(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish("g", event("a"), priority=4)
    assert drained(transport) == ["a"]
    transport.publish("g", event("b"))
    assert backend.sql("transport", "SELECT priority, last_claimed_at FROM {groups}") == [(0, 0.0)]
    assert transport.claim("w", 30, 1) is None


def test_a_priority_of_one_message_left_is_kept(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish("g", event("a"), priority=4)
    transport.publish("g", event("b"))
    transport.ack(claim(transport))
    assert backend.sql("transport", "SELECT priority FROM {groups}") == [(4,)]


def test_any_text_is_a_group_of_its_own(backend: Backend) -> None:
    transport = backend.transport()
    groups = ["g", " ", "g'; DROP TABLE x; --", "Ünï😀", "\n", "G", "g" * 1024, "é" * 512]
    transport.publish_many((group_id, event("mine")) for group_id in groups)
    leases = [claim(transport) for _ in groups]
    assert [lease.group_id for lease in leases] == groups
    for lease in leases:
        transport.ack(lease)
    assert backend.sql("transport", "SELECT * FROM {groups}") == []
