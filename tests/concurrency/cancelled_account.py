"""Random operations that are cancelled, and an exact account of what is in the stores after each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from qstore import Lease, QstoreError, ReceivedMessage, StaleLease, StaleReceipt
from tests.concurrency.cancelled_stores import STORES, Stores
from tests.concurrency.cancelling import CANCELLED

Look = dict[Any, tuple[Any, ...]]
"""Rows by their keys."""

VISIBILITY = 30.5
"""Seconds. It never ends at the very instant of a step, so that each nack changes its message."""
STEP = 1.0
"""Seconds that the clock moves between two operations."""


@dataclass
class Operation:
    """One call, and what of it the account has to know."""

    name: str
    store: str
    call: Callable[[], Awaitable[Any]]
    rows: int
    """Rows that it changes if it happens (claim and receive: at most)."""
    happened: Callable[[Any], None] = lambda _: None
    """Note it, with its result, or CANCELLED if that is lost."""


@dataclass
class Account:
    """What is in the stores, by what was reported and by what is found."""

    stores: Stores
    random: Random
    events: set[str] = field(default_factory=set)
    payloads: set[str] = field(default_factory=set)
    values: dict[str, bytes] = field(default_factory=dict)
    leases: list[Lease[str]] = field(default_factory=list)
    received: list[ReceivedMessage] = field(default_factory=list)
    made: int = 0

    def next(self) -> Operation:
        """Some operation."""
        choices = [self.publish, self.publish_many, self.claim, self.claim, self.put, self.put, self.put_if_absent]
        choices += [self.put_many, self.send, self.send_many, self.receive, self.receive]
        if self.leases:
            choices += [self.ack, self.nack, self.extend] * 2
        if self.received:
            choices += [self.queue_ack, self.queue_nack] * 2
        return self.random.choice(choices)()

    def publish(self) -> Operation:
        event = self.name("event")
        group = self.group()
        return Operation(
            "publish",
            "transport",
            lambda: self.stores.transport.publish(group, event),
            1,
            lambda _: self.events.add(event),
        )

    def publish_many(self) -> Operation:
        events = [(self.group(), self.name("event")) for _ in range(self.random.randint(2, 5))]
        return Operation(
            "publish_many",
            "transport",
            lambda: self.stores.transport.publish_many(events),
            len(events),
            lambda _: self.events.update(event for _, event in events),
        )

    def claim(self) -> Operation:
        return Operation("claim", "transport", lambda: self.stores.transport.claim("w", VISIBILITY), 1, self.claimed)

    def claimed(self, lease: Any) -> None:
        if lease is not CANCELLED:
            self.leases = [other for other in self.leases if other.seq != lease.seq] + [lease]

    def taken(self, messages: Any) -> None:
        if messages is not CANCELLED:
            again = {message.id for message in messages}
            self.received = [other for other in self.received if other.id not in again] + messages

    def ack(self) -> Operation:
        lease = self.lease()
        return Operation(
            "ack",
            "transport",
            lambda: self.stores.transport.ack(lease),
            1,
            lambda _: self.events.remove(lease.event),
        )

    def nack(self) -> Operation:
        lease, delay = self.lease(), self.random.choice((0, 10))
        return Operation("nack", "transport", lambda: self.stores.transport.nack(lease, delay), 1)

    def extend(self) -> Operation:
        lease = self.lease()
        return Operation(
            "extend", "transport", lambda: self.stores.transport.extend(lease, VISIBILITY), 1, self.claimed
        )

    def put(self) -> Operation:
        key, value = self.key(), self.name("value").encode()
        put = self.stores.localkv.put
        return Operation("put", "localkv", lambda: put(key, value), 1, lambda _: self.values.update({key: value}))

    def put_if_absent(self) -> Operation:
        key, value = self.random.choice((self.key(), self.name("key"))), self.name("value").encode()
        return Operation(
            "put_if_absent",
            "localkv",
            lambda: self.stores.localkv.put(key, value, if_not_exists=True),
            int(key not in self.values),
            lambda _: self.values.update({key: value}),
        )

    def put_many(self) -> Operation:
        items = {f"k{n}": self.name("value").encode() for n in self.random.sample(range(12), 4)}
        put_many = self.stores.localkv.put_many
        return Operation("put_many", "localkv", lambda: put_many(items), 4, lambda _: self.values.update(items))

    def send(self) -> Operation:
        payload = self.name("payload")
        send = self.stores.localqueue.send
        return Operation("send", "localqueue", lambda: send(payload), 1, lambda _: self.payloads.add(payload))

    def send_many(self) -> Operation:
        payloads = [self.name("payload") for _ in range(self.random.randint(2, 5))]
        send_many = self.stores.localqueue.send_many
        return Operation(
            "send_many",
            "localqueue",
            lambda: send_many(payloads),
            len(payloads),
            lambda _: self.payloads.update(payloads),
        )

    def receive(self) -> Operation:
        most = self.random.randint(1, 4)
        [(due,)] = self.stores.files.sql(
            "localqueue", "SELECT count(*) FROM {messages} WHERE visible_at <= ?", int(self.stores.clock() * 1000)
        )
        return Operation(
            "receive",
            "localqueue",
            lambda: self.stores.localqueue.receive(most, visibility_timeout=VISIBILITY),
            min(most, due),
            self.taken,
        )

    def queue_ack(self) -> Operation:
        message = self.received.pop(self.random.randrange(len(self.received)))
        return Operation(
            "ack (queue)",
            "localqueue",
            lambda: self.stores.localqueue.ack(message.receipt_handle),
            1,
            lambda _: self.payloads.remove(str(message.payload)),
        )

    def queue_nack(self) -> Operation:
        message = self.received.pop(self.random.randrange(len(self.received)))
        return Operation("nack (queue)", "localqueue", lambda: self.stores.localqueue.nack(message.receipt_handle), 1)

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{kind} {self.made}"

    def group(self) -> str:
        return f"g{self.random.randrange(8)}"

    def key(self) -> str:
        return f"k{self.random.randrange(12)}"

    def lease(self) -> Lease[str]:
        return self.leases.pop(self.random.randrange(len(self.leases)))

    def look(self, store: str) -> Look:
        """The store's rows, as plain sqlite3 finds them."""
        sql = self.stores.files.sql
        if store == "localkv":
            return {key: rest for key, *rest in sql(store, "SELECT key, value, expires_at FROM {kv}")}  # type: ignore[misc]  # mypy does not unpack a driver's rows
        return {key: rest for key, *rest in sql(store, "SELECT * FROM {messages}")}  # type: ignore[misc]  # mypy does not unpack a driver's rows

    def stamps(self) -> Look:
        return {group: rest for group, *rest in self.stores.files.sql("transport", "SELECT * FROM {groups}")}  # type: ignore[misc]  # mypy does not unpack a driver's rows

    def check(self) -> None:
        """What is there is what the account says: all of it, and nothing twice."""
        rows = self.stores.files.sql("transport", "SELECT group_id, event FROM {messages}")
        assert sorted(event for _, event in rows) == sorted(f'"{event}"' for event in self.events)
        assert self.stamps().keys() == {group for group, _ in rows}, "groups without messages, or messages without one"
        rows = self.stores.files.sql("localqueue", "SELECT payload_data FROM {messages}")
        assert sorted(payload for (payload,) in rows) == sorted(self.payloads)
        assert {key: value for key, (value, _) in self.look("localkv").items()} == self.values
        for store in STORES:
            assert self.stores.files.sql(store, "PRAGMA integrity_check") == [("ok",)]

    async def drain(self) -> None:
        """Nothing is leased for ever: when all time is over, every message can be had once more, and once only."""
        self.stores.clock.advance(10 * VISIBILITY)
        while (lease := await self.stores.transport.claim("last", VISIBILITY)) is not None:
            self.events.remove(lease.event)
            await self.stores.transport.ack(lease)
        while messages := await self.stores.localqueue.receive(100):
            for message in messages:
                self.payloads.remove(str(message.payload))
                await self.stores.localqueue.ack(message.receipt_handle)
        if self.stores.end is not None:
            await self.stores.end(True)
        assert not self.events
        assert not self.payloads
        self.check()


async def attempt(operation: Operation) -> Any:
    """The operation's result, or its error: only a lease or receipt that went stale is one."""
    try:
        return await operation.call()
    except (StaleLease, StaleReceipt) as error:
        return error


def rows_of(operation: Operation, outcome: Any) -> int:
    """Rows that an operation has changed which has told its outcome."""
    if isinstance(outcome, QstoreError) or outcome is False:
        return 0
    match operation.name:
        case "claim":
            return int(outcome is not None)
        case "receive":
            return len(outcome)
        case _:
            return operation.rows


def changed(before: Look, after: Look) -> int:
    """How many rows are not as they were."""
    return sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())
