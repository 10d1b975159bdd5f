"""What is handed out: frozen, decoded on access and once, and good to copy. Semantics 9."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from qstore import Event, LocalKvRepository, ScanPage
from tests.backends import Backend
from tests.contract.events import claim, event


def _records(backend: Backend) -> dict[str, Any]:
    transport, kv, queue = backend.transport(), backend.localkv(), backend.localqueue()
    transport.publish("g", event("a"))
    kv.put("k", b"v")
    queue.send({"a": [1]})
    return {"lease": claim(transport), "page": kv.scan_prefix(""), "message": queue.receive()[0]}


FIELDS = {
    "lease": ("seq", "group_id", "event", "worker_id", "lock_expiry", "other"),
    "page": ("items", "next_cursor", "other"),
    "message": ("id", "receipt_handle", "attempt", "payload_type", "payload_data", "payload", "other"),
}


def test_a_record_is_frozen_and_slotted(checking_backend: Backend) -> None:
    for record, it in _records(checking_backend).items():
        assert not hasattr(it, "__dict__")
        for name in FIELDS[record]:
            with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
                setattr(it, name, 1)
            if name != "other":
                getattr(it, name)


def test_an_event_is_decoded_when_it_is_asked_for_and_once(checking_backend: Backend) -> None:
    decoded: list[Any] = []

    class Watched(Event):
        def model_post_init(self, _context: Any) -> None:
            decoded.append(self)

    transport = checking_backend.transport(event_type=Watched)
    transport.publish("g", Watched(kind="a"))
    decoded.clear()
    lease = claim(transport)
    assert decoded == []
    assert lease.event is lease.event
    assert len(decoded) == 1


def test_a_lease_that_was_extended_carries_its_event(backend: Backend) -> None:
    transport = backend.transport()
    transport.publish_many([("g", event("a")), ("h", event("b"))])
    first, second = claim(transport), claim(transport)
    assert first.event.kind == "a"
    assert transport.extend(first, 60).event is first.event
    assert transport.extend(second, 60).event.kind == "b"


def test_repr_of_a_lease_or_message_shows_no_payload(checking_backend: Backend) -> None:
    """It ends up in logs."""
    transport, queue = checking_backend.transport(), checking_backend.localqueue()
    transport.publish("g", event("private"))
    queue.send("private")
    lease, [message] = claim(transport), queue.receive()
    assert lease.event.kind == message.payload == "private"
    assert "private" not in repr(lease) + repr(message)


@pytest.mark.parametrize("asked", [False, True], ids=["before its event was asked for", "after"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copy_of_a_lease_is_as_good_as_the_lease(checking_backend: Backend, copied: Any, asked: bool) -> None:
    transport = checking_backend.transport()
    transport.publish("g", event("a"))
    lease = claim(transport)
    if asked:
        assert lease.event.kind == "a"
    twin = copied(lease)
    assert twin == lease
    assert twin.event == lease.event
    transport.ack(twin)
    assert transport.claim("w", 5) is None


def test_a_page_or_message_goes_through_a_pickle(checking_backend: Backend) -> None:
    records = _records(checking_backend)
    page, message = pickle.loads(pickle.dumps((records["page"], records["message"])))
    assert (page, message) == (records["page"], records["message"])
    assert message.payload == records["message"].payload == {"a": [1]}


def test_a_page_is_a_list_of_keys_with_values_and_a_cursor(checking_backend: Backend) -> None:
    kv: LocalKvRepository = checking_backend.localkv()
    kv.put_many({"a": b"1", "b": b"2"})
    assert kv.scan_prefix("", limit=1) == ScanPage([("a", b"1")], "1")
    assert kv.scan_prefix("") == ScanPage([("a", b"1"), ("b", b"2")], None)


def test_the_default_event_has_an_id_of_its_own_and_keeps_other_fields() -> None:
    one, other = Event(kind="a"), Event(kind="a")
    assert one.id != other.id
    assert len(one.id) == 32
    assert one.data == {}
    assert Event(kind="a", more=[1]).model_dump()["more"] == [1]  # type: ignore[call-arg]  # further fields are kept
