"""localqueue.v1: what a send writes. The seed's "Send", "Purge" and "Timestamps"; semantics 25 and 28."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from typing import Any

import pytest
from pydantic import BaseModel

from qstore import InvalidInput, PayloadTooLarge
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged

STORED = "SELECT payload_type, payload_data FROM {messages} ORDER BY id"


class Order(BaseModel):
    name: str
    amount: float = 1.0


class Level(IntEnum):
    HIGH = 3


def test_send_inserts_one_message_that_is_due_at_once_and_returns_its_id(backend: Backend, clock: ManualClock) -> None:
    clock.now = 1_700_000_000.123
    id = backend.localqueue(clock=clock).send("hello")
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == [
        (id, "text", "hello", 1_700_000_000_123, 1_700_000_000_123, 0, None)
    ]


PAYLOADS: list[tuple[Any, str, str]] = [
    ("hello", "text", "hello"),
    ("", "text", ""),
    ('{"a":1}', "text", '{"a":1}'),
    (" \n\u2028 ünï😀", "text", " \n\u2028 ünï😀"),
    (None, "json", "null"),
    (True, "json", "true"),
    (0, "json", "0"),
    (-0.0, "json", "-0.0"),
    (1.0, "json", "1.0"),
    (0.1, "json", "0.1"),
    (1e300, "json", "1e+300"),
    (10**39 + 1, "json", str(10**39 + 1)),
    (2**63, "json", str(2**63)),
    ([], "json", "[]"),
    ({}, "json", "{}"),
    ((1, 2), "json", "[1,2]"),
    (Level.HIGH, "json", "3"),
    (["ünï😀", '"', "\n"], "json", '["ünï😀","\\"","\\n"]'),
    ({"z": 1, "a": [1.0, {"b": None}]}, "json", '{"z":1,"a":[1.0,{"b":null}]}'),
    ({"": ""}, "json", '{"":""}'),
    (Order(name="ä"), "json", '{"name":"ä","amount":1.0}'),
]


def test_text_is_stored_as_it_is_and_anything_else_as_compact_json(backend: Backend) -> None:
    queue = backend.localqueue()
    for payload, _, _ in PAYLOADS:
        queue.send(payload)
    queue.send_many(payload for payload, _, _ in PAYLOADS)
    assert backend.sql("localqueue", STORED) == [(kind, data) for _, kind, data in PAYLOADS] * 2


def test_json_of_a_number_longer_than_python_converts_is_stored_or_refused_by_name(backend: Backend) -> None:
    """Semantics 25: numbers are unchanged. 65,536 bytes are allowed; Python stops at 4,300 digits."""
    queue = backend.localqueue()
    expected = []
    with suppress(InvalidInput):
        queue.send({"n": 10**5000})
        expected = [("json", f'{{"n":1{"0" * 5000}}}')]
    assert backend.sql("localqueue", STORED) == expected


LARGEST: list[Any] = [
    "x" * 65_536,
    "😀" * 16_384,
    ["x" * 65_532],
    ["é" * 32_766],
    Order(name="x" * (65_536 - len('{"name":"","amount":1.0}'))),
]


def test_65_536_bytes_of_stored_utf_8_are_allowed(backend: Backend) -> None:
    queue = backend.localqueue()
    for payload in LARGEST:
        queue.send(payload)
        queue.send_many([payload, payload])
    stored = backend.sql("localqueue", "SELECT payload_data FROM {messages}")
    assert [len(data.encode()) for (data,) in stored] == [65_536] * 3 * len(LARGEST)


TOO_LARGE: list[tuple[Any, int]] = [
    ("x" * 65_537, 65_537),
    ("😀" * 16_384 + "x", 65_537),
    ("😀" * 20_000, 80_000),
    (["x" * 65_533], 65_537),
    (Order(name="x" * (65_537 - len('{"name":"","amount":1.0}'))), 65_537),
]


def test_one_byte_more_is_too_large_and_nothing_is_stored(checking_backend: Backend) -> None:
    queue = checking_backend.localqueue()
    for payload, size in TOO_LARGE:
        for send, sent in ((queue.send, payload), (queue.send_many, ["fits", payload])):
            with unchanged(checking_backend, "localqueue"), pytest.raises(PayloadTooLarge, match="65,536") as caught:
                send(sent)
            error = caught.value
            assert (error.field, error.size, error.limit, error.code) == ("payload", size, 65_536, "INVALID_INPUT")


def test_send_many_appends_in_order_and_returns_each_id(backend: Backend, clock: ManualClock) -> None:
    queue = backend.localqueue(clock=clock)
    first = queue.send("first")
    payloads: list[Any] = ["a", {"b": 1}, Order(name="c")]
    ids = queue.send_many(payload for payload in payloads)
    assert first < ids[0] < ids[1] < ids[2]
    rows = backend.sql("localqueue", "SELECT id, enqueued_at FROM {messages} ORDER BY id")
    assert rows == [(id, 1_700_000_000_000) for id in (first, *ids)]
    received = queue.receive(10)
    assert [message.payload for message in received] == ["first", "a", {"b": 1}, {"name": "c", "amount": 1.0}]


def test_send_many_of_nothing_is_no_ids(backend: Backend) -> None:
    assert backend.localqueue().send_many([]) == []


def test_send_many_refuses_what_is_one_payload_or_none(checking_backend: Backend) -> None:
    """Each of these would be taken apart, or fail in the middle of the library."""
    queue = checking_backend.localqueue()
    refused: list[Any] = ["text", {"a": 1}, Order(name="x"), b"abc", bytearray(b"a"), None, 5]
    for payloads in refused:
        with unchanged(checking_backend, "localqueue"), pytest.raises(TypeError) as caught:
            queue.send_many(payloads)
        assert getattr(caught.value, "field", None) == "payloads"


def test_send_many_writes_nothing_if_its_iterable_fails_half_way(checking_backend: Backend) -> None:
    queue = checking_backend.localqueue()

    def payloads() -> Iterator[str]:
        yield "a"
        raise LookupError("no more")

    with unchanged(checking_backend, "localqueue"), pytest.raises(LookupError, match="no more"):
        queue.send_many(payloads())


def test_purge_removes_every_message_visible_or_in_flight_and_counts_them(backend: Backend) -> None:
    queue = backend.localqueue()
    assert queue.purge() == 0
    queue.send_many(["a", "b", "c"])
    queue.receive(1)
    assert queue.purge() == 3
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == []
    assert backend.sql("localqueue", "SELECT * FROM {meta}") == [("format", "localqueue.v1")]


@pytest.mark.parametrize("emptied", ["purge", "ack"])
def test_an_id_is_never_reused_after_the_queue_was_emptied(backend: Backend, emptied: str) -> None:
    queue = backend.localqueue()
    highest = max(queue.send_many(["a", "b"]))
    received = queue.receive(2)
    if emptied == "purge":
        queue.purge()
    else:
        for message in received:
            queue.ack(message.receipt_handle)
    assert queue.send("c") > highest
    for message in received:
        queue.ack(message.receipt_handle)
    assert [message.payload for message in queue.receive(5)] == ["c"]
