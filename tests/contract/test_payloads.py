"""Payloads: JSON and nothing else, decoded when asked for. Semantics 6, 9 and 25."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf, nan
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from qstore import Event, InvalidInput, InvalidType
from tests.backends import Backend
from tests.contract.contents import unchanged
from tests.contract.events import claim, event


class Opened(BaseModel):
    type: Literal["opened"] = "opened"
    at: datetime


class Closed(BaseModel):
    type: Literal["closed"] = "closed"
    reason: str | None = None


AnyOf = Annotated[Opened | Closed, Field(discriminator="type")]
EVENTS: list[tuple[Any, Any]] = [
    (Closed, Closed(reason="é😀")),
    (TypeAdapter(AnyOf), Opened(at=datetime(2026, 1, 1, tzinfo=UTC))),
    (TypeAdapter(AnyOf), Closed()),
    (dict[str, int], {"z": 1, "a": 2}),
    (TypeAdapter(list[float]), [1.0, 0.1]),
    (str, "text"),
    (Event, Event(id="0", kind="k", data={"z": 1.0, "a": [None, 10**39]}, more={"x": "\u2028"})),  # type: ignore[call-arg]  # further fields are kept
]


@pytest.mark.parametrize(("event_type", "sent"), EVENTS, ids=[repr(sent)[:30] for _, sent in EVENTS])
def test_an_event_of_any_pydantic_type_comes_back_as_it_was_sent(backend: Backend, event_type: Any, sent: Any) -> None:
    transport = backend.transport(event_type=event_type)
    transport.publish_many([("g", sent), ("h", sent)])
    received = [claim(transport).event, claim(transport).event]
    assert received == [sent, sent]
    assert type(received[0]) is type(sent)
    if isinstance(sent, BaseModel):
        assert backend.sql("transport", "SELECT DISTINCT event FROM {messages}") == [(sent.model_dump_json(),)]


def test_an_event_of_a_subclass_is_stored_with_what_the_subclass_adds(checking_backend: Backend) -> None:
    class Wider(Closed):
        more: int = 5

    checking_backend.transport(event_type=Closed).publish("g", Wider())
    assert checking_backend.sql("transport", "SELECT event FROM {messages}") == [(Wider().model_dump_json(),)]


def test_an_event_of_another_type_is_refused(checking_backend: Backend) -> None:
    transport = checking_backend.transport()
    others: list[Any] = [None, "text", 1, {"kind": "a"}, Closed(), b"x"]
    for sent in others:
        with unchanged(checking_backend, "transport"):
            with pytest.raises(InvalidType) as caught:
                transport.publish("g", sent)
            assert caught.value.field == "event"
            with pytest.raises(InvalidType) as caught:
                transport.publish_many([("g", event("a")), ("g", sent)])
            assert caught.value.field == "event"


NOT_JSON: dict[str, tuple[Any, type[InvalidInput]]] = {
    "NaN": (nan, InvalidInput),
    "infinity": ([inf], InvalidInput),
    "nested NaN": ({"a": [{"b": (1, nan)}]}, InvalidInput),
    "NaN of a model": (Event(kind="a", data={"v": nan}), InvalidInput),
    "nested infinity of a model": (Event(kind="a", data={"v": [{"w": -inf}], "n": None}), InvalidInput),
    "surrogate": (["\ud800"], InvalidInput),
    "surrogate in a key": ({"\ud800": 1}, InvalidInput),
    "surrogate of a model": (Event(kind="\ud800"), InvalidInput),
    "set": ({1}, InvalidType),
    "bytes": (b"x", InvalidType),
    "nested bytes": ([b"x"], InvalidType),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), InvalidType),
    "object": (object(), InvalidType),
    "class": (Event, InvalidType),
    "key that is a number": ({1: "a"}, InvalidType),
    "key that is None": ({"a": {None: 1}}, InvalidType),
}


def test_what_json_does_not_have_is_refused_and_never_rewritten(checking_backend: Backend) -> None:
    queue = checking_backend.localqueue()
    for name, (payload, kind) in NOT_JSON.items():
        for send, sent in ((queue.send, payload), (queue.send_many, ["ok", payload])):
            with unchanged(checking_backend, "localqueue"), pytest.raises(InvalidInput) as caught:
                send(sent)
            assert (type(caught.value), caught.value.field) == (kind, "payload"), name


def test_a_payload_that_contains_itself_is_refused(checking_backend: Backend) -> None:
    endless: list[Any] = []
    endless.append(endless)
    queue = checking_backend.localqueue()
    with unchanged(checking_backend, "localqueue"), pytest.raises(InvalidInput):
        queue.send(endless)


def test_an_event_that_json_cannot_hold_is_refused_and_never_rewritten(checking_backend: Backend) -> None:
    transport = checking_backend.transport()
    for bad in (
        Event(kind="a", data={"v": nan}),
        Event.model_validate({"kind": "a", "v": -inf}),
        Event(kind="\udfff"),
        Event(kind="a", data={"v": {1, nan}}),
    ):
        with unchanged(checking_backend, "transport"), pytest.raises(InvalidInput) as caught:
            transport.publish("g", bad)
        assert caught.value.field == "event"


PAYLOADS: list[Any] = [
    "",
    "text",
    '{"not": "json"}',
    None,
    True,
    0,
    -0.0,
    1.0,
    10**39 + 1,
    [],
    {},
    {"z": 1, "a": [1.0, None, {"nul": "\0", "wide": "😀\u2028"}]},
]


def test_a_payload_comes_back_as_it_was_sent(backend: Backend) -> None:
    queue = backend.localqueue()
    for payload in PAYLOADS:
        queue.send(payload)
        [message] = queue.receive()
        assert repr(message.payload) == repr(payload)


def test_an_event_that_was_published_decodes(backend: Backend) -> None:
    """What cannot be read back, as a number too long for the decoder, must not be taken in."""
    transport = backend.transport()
    for n in (10**40, 10**4000, 10**5000):
        try:
            transport.publish("g", Event(kind="a", data={"n": n}))
        except InvalidInput:
            continue
        lease = claim(transport)
        assert lease.event.data == {"n": n}
        transport.ack(lease)
