"""Stores with something in them for every operation to do, and all the operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qstore import Lease
from tests.backends import Backend, ManualClock
from tests.contract.events import claim, event


@dataclass(frozen=True)
class Filled:
    """What was handed out while the stores were filled."""

    lease: Lease
    receipt_handle: str


def fill(backend: Backend, clock: ManualClock) -> Filled:
    """A leased and two free messages; a live and an expired key; a received and two due messages."""
    transport = backend.transport(clock=clock)
    transport.publish("leased", event("a"))
    lease = claim(transport)
    transport.publish_many([("free", event("b")), ("free", event("c"))])
    kv = backend.localkv(clock=clock)
    kv.put("live", b"v")
    kv.put("expired", b"v", ttl=1)
    queue = backend.localqueue(clock=clock)
    queue.send("received")
    [message] = queue.receive(visibility_timeout=60)
    queue.send_many(["due 1", "due 2"])
    clock.advance(2)
    return Filled(lease, message.receipt_handle)


Operation = tuple[str, Callable[[Any, Filled], Any]]
"""The store, and a call on its repository that does something in filled stores."""

WRITES: dict[str, Operation] = {
    "publish": ("transport", lambda it, _: it.publish("new", event("n"))),
    "publish_many": ("transport", lambda it, _: it.publish_many([("free", event("n")), ("new", event("m"))])),
    "claim": ("transport", lambda it, _: it.claim("w", 5)),
    "ack a lease": ("transport", lambda it, filled: it.ack(filled.lease)),
    "nack a lease": ("transport", lambda it, filled: it.nack(filled.lease)),
    "park": ("transport", lambda it, filled: it.nack(filled.lease, 5)),
    "extend": ("transport", lambda it, filled: it.extend(filled.lease, 90)),
    "put": ("localkv", lambda it, _: it.put("live", b"w", ttl=5)),
    "conditional put": ("localkv", lambda it, _: it.put("expired", b"w", if_not_exists=True)),
    "put_many": ("localkv", lambda it, _: it.put_many({"a": b"1", "b": b"2"}, ttl=5)),
    "delete": ("localkv", lambda it, _: it.delete("live")),
    "purge_expired": ("localkv", lambda it, _: it.purge_expired()),
    "send": ("localqueue", lambda it, _: it.send("n")),
    "send_many": ("localqueue", lambda it, _: it.send_many(["n", "m"])),
    "receive": ("localqueue", lambda it, _: it.receive(5)),
    "ack a receipt": ("localqueue", lambda it, filled: it.ack(filled.receipt_handle)),
    "nack a receipt": ("localqueue", lambda it, filled: it.nack(filled.receipt_handle)),
    "purge": ("localqueue", lambda it, _: it.purge()),
}

UNTIMED = {"publish", "publish_many", "ack a lease", "nack a lease", "delete", "ack a receipt", "purge"}
"""The writes that have no use for the time."""

READS: dict[str, Operation] = {
    "get": ("localkv", lambda it, _: it.get("live") == b"v"),
    "get an expired key": ("localkv", lambda it, _: it.get("expired") is None),
    "exists": ("localkv", lambda it, _: it.exists("live")),
    "exists of an expired key": ("localkv", lambda it, _: not it.exists("expired")),
    "scan_prefix": ("localkv", lambda it, _: it.scan_prefix("", limit=5).items == [("live", b"v")]),
    "iter_prefix": ("localkv", lambda it, _: list(it.iter_prefix("")) == [("live", b"v")]),
}

MIDDLES: dict[str, str] = {
    "publish": "BEFORE INSERT ON {groups} WHEN NEW.group_id = 'new'",
    "publish_many": "BEFORE INSERT ON {messages} WHEN NEW.group_id = 'new'",
    "claim": "BEFORE UPDATE ON {groups}",
    "ack a lease": "BEFORE DELETE ON {groups}",
    "put_many": "BEFORE INSERT ON {kv} WHEN NEW.key = 'b'",
    "send_many": "BEFORE INSERT ON {messages} WHEN NEW.payload_data = 'm'",
    "receive": "BEFORE UPDATE ON {messages} WHEN OLD.payload_data = 'due 2'",
}
"""Operations of more than one statement, each with an event after its first that a trigger can refuse."""
