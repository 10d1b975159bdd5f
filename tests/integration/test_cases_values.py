"""H34 and H37: text that some back end refuses, and sizes in bytes."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from pydantic import BaseModel

from qstore import Event, InvalidInput, LocalKvRepository, LocalQueueRepository, PayloadTooLarge, TransportRepository
from tests.backends import Backend

EMOJI = "\U0001f600"
NAN, INFINITY = float("nan"), float("inf")


class Reading(BaseModel):
    """A model with a number in it."""

    v: float


class Stores:
    """All three, on one back end."""

    def __init__(self, backend: Backend) -> None:
        self.transport: TransportRepository[Event] = backend.transport()
        self.kv: LocalKvRepository = backend.localkv()
        self.queue: LocalQueueRepository = backend.localqueue()
        self._backend = backend

    def rows(self) -> int:
        """How many there are in all tables."""
        tables = [("transport", "messages"), ("transport", "groups"), ("localkv", "kv"), ("localqueue", "messages")]
        return sum(self._backend.sql(store, f"SELECT count(*) FROM {{{table}}}")[0][0] for store, table in tables)


@pytest.fixture
def stores(shared_backend: Backend) -> Stores:
    return Stores(shared_backend)


def test_the_traps_are_real_nul_and_nan_are_kept_and_then_lied_about() -> None:
    """H34."""
    with closing(sqlite3.connect(":memory:")) as bare:
        assert bare.execute("SELECT length(?), ?", ("a\0b", "a\0b")).fetchall() == [(1, "a\0b")]
        nan = json.dumps({"v": NAN})
        assert bare.execute("SELECT json_valid(?)", (nan,)).fetchall() == [(0,)]
        with pytest.raises(sqlite3.OperationalError, match="malformed JSON"):
            bare.execute("SELECT json_extract(?, '$.v')", (nan,)).fetchall()
    assert Reading(v=NAN).model_dump_json() == '{"v":null}'


REFUSED: dict[str, tuple[str, Callable[[Stores, str], object]]] = {
    "a group id": ("group_id", lambda stores, text: stores.transport.publish(text, Event(kind="k"))),
    "a group id among many": (
        "group_id",
        lambda stores, text: stores.transport.publish_many([("g", Event(kind="k")), (text, Event(kind="k"))]),
    ),
    "a worker id": ("worker_id", lambda stores, text: stores.transport.claim(text, 5)),
    "a key to get": ("key", lambda stores, text: stores.kv.get(text)),
    "a key to look for": ("key", lambda stores, text: stores.kv.exists(text)),
    "a key to put": ("key", lambda stores, text: stores.kv.put(text, b"")),
    "a key among many": ("key", lambda stores, text: stores.kv.put_many({"a": b"", text: b""})),
    "a key to delete": ("key", lambda stores, text: stores.kv.delete(text)),
    "a prefix": ("prefix", lambda stores, text: stores.kv.scan_prefix(text)),
    "a prefix to walk": ("prefix", lambda stores, text: stores.kv.iter_prefix(text)),
    "a payload": ("payload", lambda stores, text: stores.queue.send(text)),
    "a payload among many": ("payload", lambda stores, text: stores.queue.send_many(["a", text])),
}


@pytest.mark.parametrize("text", ["a\0b", "\0", "a\udfffb"], ids=ascii)
@pytest.mark.parametrize("where", REFUSED)
def test_nul_and_lone_surrogates_are_refused_by_name_before_the_store_is_touched(
    where: str, text: str, stores: Stores
) -> None:
    """H34."""
    field, call = REFUSED[where]
    with pytest.raises(InvalidInput, match="NUL" if "\0" in text else "surrogate") as refused:
        call(stores, text)
    assert refused.value.field == field
    assert refused.value.code == "INVALID_INPUT"
    assert stores.rows() == 0


NOT_FINITE: dict[str, Any] = {
    "NaN": {"v": NAN},
    "Infinity": {"v": INFINITY},
    "minus Infinity": {"v": -INFINITY},
    "nested": {"a": [1, {"b": (2.0, [NAN])}]},
    "beside a null": {"a": None, "b": INFINITY},
}


@pytest.mark.parametrize("payload", NOT_FINITE.values(), ids=NOT_FINITE)
def test_numbers_that_json_does_not_have_are_refused_before_the_store_is_touched(payload: Any, stores: Stores) -> None:
    """H34."""
    calls: list[Callable[[], object]] = [
        lambda: stores.queue.send(payload),
        lambda: stores.queue.send_many(["a", payload]),
        lambda: stores.queue.send([payload]),
        lambda: stores.transport.publish("g", Event(kind="k", data=payload)),
        lambda: stores.transport.publish_many([("g", Event(kind="k")), ("g", Event(kind="k", data={"deep": payload}))]),
    ]
    if isinstance(payload.get("v"), float):
        calls.append(lambda: stores.queue.send(Reading(**payload)))
    for call in calls:
        with pytest.raises(InvalidInput, match="finite"):
            call()
    assert stores.rows() == 0


KEPT: list[Any] = [
    {"b": 1, "a": 1.0, "c": 1e100, "d": -0.0},
    {"n": 1234567890123456789012345678901234567890, "m": -(10**39)},
    [EMOJI, "ünï", "\u2028", '"\\', "\x01", ""],
    {"": {EMOJI: None}},
    [True, False, None, 0, 0.1],
    "NaN",
    ["Infinity", "null", None],
]


@pytest.mark.parametrize("payload", KEPT, ids=ascii)
def test_what_json_has_comes_back_as_it_was(payload: Any, stores: Stores) -> None:
    """H34. Type, order of keys, and every digit."""
    stores.queue.send(payload)
    [message] = stores.queue.receive()
    assert repr(message.payload) == repr(payload)
    stores.transport.publish("g", Event(kind="k", data={"payload": payload}))
    lease = stores.transport.claim("w", 5)
    assert lease is not None
    assert repr(lease.event.data["payload"]) == repr(payload)


def test_a_payload_is_stored_as_it_was_written(stores: Stores, shared_backend: Backend) -> None:
    """H34. Keys in their order, 1.0 not made 1, UTF-8 not escaped, and text not made JSON."""
    stores.queue.send({"b": 1.0, "a": [EMOJI, 10**39]})
    stores.queue.send('{ "as": 1.0,  "it": "is" }')
    assert shared_backend.sql("localqueue", "SELECT payload_type, payload_data FROM {messages} ORDER BY id") == [
        ("json", '{"b":1.0,"a":["' + EMOJI + '",' + str(10**39) + "]}"),
        ("text", '{ "as": 1.0,  "it": "is" }'),
    ]


def test_keys_and_ids_with_emoji_come_back_as_they_were(stores: Stores) -> None:
    """H34."""
    stores.kv.put(EMOJI, b"\0\xff")
    assert stores.kv.scan_prefix(EMOJI).items == [(EMOJI, b"\0\xff")]
    stores.transport.publish(EMOJI, Event(kind=EMOJI))
    lease = stores.transport.claim(EMOJI, 5)
    assert lease is not None
    assert (lease.group_id, lease.worker_id, lease.event.kind) == (EMOJI, EMOJI, EMOJI)
    stores.transport.ack(lease)


def test_the_trap_is_real_characters_are_not_bytes() -> None:
    """H37."""
    text = EMOJI * 20_000
    assert len(text) < 65_536 < len(text.encode()) == 80_000
    assert len(json.dumps(text)) == 240_002


@pytest.mark.parametrize(
    ("payload", "size"),
    [(EMOJI * 20_000, 80_000), ([EMOJI * 20_000], 80_004), ("a" * 65_537, 65_537), (["a" * 65_533], 65_537)],
    ids=["emoji", "emoji in JSON", "one too many", "one too many in JSON"],
)
def test_a_payload_is_measured_in_the_bytes_that_would_be_stored(payload: Any, size: int, stores: Stores) -> None:
    """H37."""
    for call in (lambda: stores.queue.send(payload), lambda: stores.queue.send_many(["a", payload])):
        with pytest.raises(PayloadTooLarge, match=rf"{size:,}.*65,536") as refused:
            call()
        assert (refused.value.size, refused.value.limit, refused.value.field) == (size, 65_536, "payload")
    assert stores.rows() == 0


@pytest.mark.parametrize(
    "payload",
    [EMOJI * 16_384, "a" * 65_536, [EMOJI * 16_383], ["a" * 65_532], ""],
    ids=["emoji", "ASCII", "emoji in JSON", "ASCII in JSON", "nothing"],
)
def test_a_payload_of_the_limit_is_taken(payload: Any, stores: Stores) -> None:
    """H37."""
    stores.queue.send(payload)
    [message] = stores.queue.receive()
    assert message.payload == payload


def _random_text(length: int) -> str:
    """Text that does not compress: an index that compresses would take long runs of one letter."""
    return "".join(random.Random(length).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


LIMITS = {"group_id": 1024, "worker_id": 1024, "key": 512}
NAMED: dict[str, Callable[[Stores, str], object]] = {
    "group_id": lambda stores, text: stores.transport.publish(text, Event(kind="k")),
    "worker_id": lambda stores, text: stores.transport.claim(text, 5),
    "key": lambda stores, text: stores.kv.put(text, b""),
}


@pytest.mark.parametrize("field", LIMITS)
def test_long_ids_are_refused_with_their_size_and_the_limit(field: str, stores: Stores) -> None:
    """H37. In bytes, and the same on every back end."""
    limit = LIMITS[field]
    for text in (_random_text(3000), _random_text(9000), "a" * (limit + 1), EMOJI * (limit // 4) + "a"):
        with pytest.raises(InvalidInput, match=rf"{limit:,} bytes.*{len(text.encode()):,}") as refused:
            NAMED[field](stores, text)
        assert refused.value.field == field
    assert stores.rows() == 0


@pytest.mark.parametrize("field", LIMITS)
def test_ids_up_to_the_limit_are_taken_and_empty_ones_are_not(field: str, stores: Stores) -> None:
    """H37. One space is an id."""
    limit = LIMITS[field]
    for text in (_random_text(limit), EMOJI * (limit // 4), " ", "a"):
        NAMED[field](stores, text)
    with pytest.raises(InvalidInput, match="at least 1 byte") as refused:
        NAMED[field](stores, "")
    assert refused.value.field == field


def test_an_id_of_the_limit_comes_back_whole(stores: Stores) -> None:
    """H37."""
    group, key = _random_text(1024), _random_text(512)
    stores.transport.publish(group, Event(kind="k"))
    lease = stores.transport.claim("w", 5)
    assert lease is not None
    assert lease.group_id == group
    stores.kv.put(key, b"1")
    assert stores.kv.get(key) == b"1"
    assert stores.kv.scan_prefix(key[:-1]).items == [(key, b"1")]
