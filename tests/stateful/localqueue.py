"""The queue's model: messages with the times from which they are due. Semantics 25 to 28."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from pydantic import BaseModel

from qstore import PayloadTooLarge, StaleReceipt
from tests.stateful.machine import Call, OddInt, OddStr, StoreMachine, whole_milliseconds
from tests.stateful.transport import EVENTS, FAR, ODD_DURATIONS


class Shape(BaseModel):
    """A payload of a type."""

    name: str
    size: float


@dataclass
class Sent:
    kind: str
    data: str
    enqueued_at: int
    visible_at: int
    attempt: int = 0
    receipt: str | None = None


@dataclass
class QueueModel:
    """What is stored, by id."""

    messages: dict[int, Sent] = field(default_factory=dict)
    last_id: int = 0

    def send(self, id: int, payload: Any, now: int) -> None:
        assert id > self.last_id, "an id that is not new"
        self.last_id = id
        if isinstance(payload, str):
            kind, data = "text", str.__str__(payload)
        elif isinstance(payload, BaseModel):
            kind, data = "json", payload.model_dump_json()
        else:
            kind, data = "json", json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
        self.messages[id] = Sent(kind, data, now, now)

    def due(self, now: int) -> list[int]:
        due = [(each.enqueued_at, id) for id, each in self.messages.items() if each.visible_at <= now]
        return [id for _, id in sorted(due)]


PAYLOADS = EVENTS | st.sampled_from(
    ["", "é", OddStr("text"), OddInt(7), [OddStr("a")], (1, 2), Shape(name="é", size=1e22), OddStr("x" * 65_536)]
)
TOO_LARGE: tuple[Any, ...] = (
    *(OddStr(each) for each in ("x" * 65_537, "é" * 32_769, "😀" * 16_385)),
    [OddStr("x" * 65_533)],
    Shape(name=OddStr("x" * 65_536), size=1),
)
TIMEOUTS = st.sampled_from([0, 0.0001, 0.125, 0.5, 1, 1, 4, 30, timedelta(seconds=1), OddInt(1), 100 * 366 * 86_400])
COUNTS = st.sampled_from([1, 1, 2, 3, 10, 1000, OddInt(2)])
NEVER_ISSUED = ("", ":", "1", "1:", ":x", "x:y", "-1:x", "1 :x", "١:x", "+1:x", f"{2**63}:x", "99999:gone", "1\0:x")  # noqa: RUF001  digits that are not ASCII's

REFUSED: list[Call] = [
    *(Call("send", v) for v in ("a\0", "\ud800", float("nan"), [float("inf")], {1: 2}, b"a", object(), {1})),
    *(Call("send_many", ["a", v]) for v in ("\0", ["\udfff"], {"a": float("-inf")}, 1j)),
    *(Call("send_many", v) for v in (None, 1, "ab", b"ab", {"a": 1}, Shape(name="", size=0))),
    *(Call("receive", v) for v in (0, -1, 1001, True, 1.0, "1", None, 10**5000)),
    *(Call("receive", visibility_timeout=v) for v in ODD_DURATIONS),
    *(Call("ack", v) for v in (None, 1, b"1:x", ["1:x"])),
    *(Call("nack", v) for v in (None, 1, b"1:x", ["1:x"])),
]


class LocalQueueMachine(StoreMachine):
    """The queue and its model."""

    store = "localqueue"

    def __init__(self) -> None:
        super().__init__()
        self.model = QueueModel()
        self.handles: list[str] = []

    def compare(self) -> None:
        columns = "id, payload_type, payload_data, enqueued_at, visible_at, attempt, receipt_handle"
        rows = self.backend.sql("localqueue", f"SELECT {columns} FROM {{messages}} ORDER BY id")
        assert rows == [
            (id, each.kind, each.data, each.enqueued_at, each.visible_at, each.attempt, each.receipt)
            for id, each in self.model.messages.items()
        ]

    def instants(self) -> Iterable[int]:
        return [each.visible_at for each in self.model.messages.values() if each.visible_at < FAR * 1000]

    @rule(by=st.integers(0, 1), payload=PAYLOADS)
    def send(self, by: int, payload: Any) -> None:
        self.model.send(self.repositories[by].send(payload), payload, self.milliseconds)

    @rule(by=st.integers(0, 1), payloads=st.lists(PAYLOADS, max_size=4))
    def send_many(self, by: int, payloads: list[Any]) -> None:
        ids = self.repositories[by].send_many(iter(payloads))
        assert len(ids) == len(payloads)
        for id, payload in zip(ids, payloads, strict=True):
            self.model.send(id, payload, self.milliseconds)

    @rule(by=st.integers(0, 1), payload=st.sampled_from(TOO_LARGE))
    def send_too_much(self, by: int, payload: Any) -> None:
        for call in (Call("send", payload), Call("send_many", ["a", payload])):
            with pytest.raises(PayloadTooLarge) as caught:
                call(self.repositories[by])
            assert caught.value.size > caught.value.limit == 65_536

    @rule(by=st.integers(0, 1), most=COUNTS, timeout=TIMEOUTS)
    def receive(self, by: int, most: int, timeout: Any) -> None:
        messages = self.repositories[by].receive(most, visibility_timeout=timeout)
        assert [each.id for each in messages] == self.model.due(self.milliseconds)[:most]
        for message in messages:
            sent = self.model.messages[message.id]
            id, _, sent.receipt = message.receipt_handle.partition(":")
            assert id == str(message.id)
            assert message.receipt_handle not in self.handles, "a receipt that is not new"
            self.handles.append(message.receipt_handle)
            sent.attempt += 1
            sent.visible_at = self.milliseconds + whole_milliseconds(timeout)
            assert (message.attempt, message.payload_type, message.payload_data) == (sent.attempt, sent.kind, sent.data)
            assert message.payload == (sent.data if sent.kind == "text" else json.loads(sent.data))

    @precondition(lambda self: self.handles)
    @rule(by=st.integers(0, 1), number=st.integers(0, 7), zeros=st.sampled_from(["", "", "00"]))
    def ack(self, by: int, number: int, zeros: str) -> None:
        sent = self._settled(zeros, number, self.repositories[by].ack)
        if sent is not None:
            del self.model.messages[sent]

    @precondition(lambda self: self.handles)
    @rule(by=st.integers(0, 1), number=st.integers(0, 7), zeros=st.sampled_from(["", "", "00"]))
    def nack(self, by: int, number: int, zeros: str) -> None:
        sent = self._settled(zeros, number, self.repositories[by].nack)
        if sent is not None:
            self.model.messages[sent].visible_at = self.milliseconds

    @precondition(lambda self: self.handles)
    @rule(by=st.integers(0, 1), numbers=st.lists(st.integers(0, 7), max_size=3))
    def ack_many(self, by: int, numbers: list[int]) -> None:
        handles = [self.handles[-1 - number % len(self.handles)] for number in numbers]
        there = {each for each in handles if int(each.partition(":")[0]) in self.model.messages}
        current = {
            each for each in there if each.endswith(f":{self.model.messages[int(each.partition(':')[0])].receipt}")
        }
        stale = there != current
        assert _stale(lambda: self.repositories[by].ack_many([*handles, "never issued"])) is stale
        for handle in current if not stale else ():
            del self.model.messages[int(handle.partition(":")[0])]

    def _settled(self, zeros: str, number: int, settle: Callable[[str], None]) -> int | None:
        """Settle a delivery, whether it is the message's last one or not. Returns the id if it is."""
        handle = self.handles[-1 - number % len(self.handles)]
        id, receipt = int(handle.partition(":")[0]), handle.partition(":")[2]
        sent = self.model.messages.get(id)
        current = sent is not None and sent.receipt == receipt
        assert _stale(lambda: settle(zeros + handle)) is (sent is not None and not current)
        return id if current else None

    @rule(by=st.integers(0, 1), handle=st.sampled_from(NEVER_ISSUED))
    def settle_what_was_never_issued(self, by: int, handle: str) -> None:
        self.repositories[by].ack(handle)
        self.repositories[by].nack(handle)

    @precondition(lambda self: self.model.messages)
    @rule(by=st.integers(0, 1), receipt=st.sampled_from(["other", "a:b", "\0", "\ud800", "é"]))
    def settle_under_another_receipt(self, by: int, receipt: str) -> None:
        id = next(iter(self.model.messages))
        assert _stale(lambda: self.repositories[by].ack(f"{id}:{receipt}"))
        assert _stale(lambda: self.repositories[by].nack(f"{id}:{receipt}"))

    @rule(by=st.integers(0, 1), really=st.integers(0, 3))
    def purge(self, by: int, really: int) -> None:
        if really == 0:
            assert self.repositories[by].purge() == len(self.model.messages)
            self.model.messages.clear()

    @rule(by=st.integers(0, 1), call=st.sampled_from(REFUSED))
    def odd_arguments(self, by: int, call: Call) -> None:
        self.refused(lambda: call(self.repositories[by]))


def _stale(settle: Callable[[], object]) -> bool:
    try:
        settle()
    except StaleReceipt:
        return True
    return False
