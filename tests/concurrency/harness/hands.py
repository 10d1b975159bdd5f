"""What one hand of a process does: a random operation on one of the stores, with handles that are good, late or old."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from tests.concurrency.harness.history import History
from tests.concurrency.harness.places import Stores

__all__ = ["GROUPS", "Hand", "Keys", "priority_of"]

GROUPS = 12
"""Groups that are used at the same time. Each one always has the same priority."""

VISIBILITY = (0.05, 0.3, 0.3, 1.0)
BATCH = 5
"""Keys that are always put together."""


def priority_of(group: str) -> int:
    return int(group[1:]) % 5


class Hand:
    """One thread's work on all stores."""

    def __init__(self, who: str, stores: Stores, history: History, seed: str, tally: Callable[[], int]) -> None:
        random = Random(f"{seed} {who}")
        names = map(f"{who} {{}}".format, count())
        self._random = random
        self._does: list[Callable[[], None]] = [
            Leases(who, stores.transport, history, random, names.__next__).step,
            Receipts(who, stores.localqueue, history, random, names.__next__).step,
            Keys(who, stores.localkv, history, random, names.__next__, tally).step,
        ]

    def step(self) -> None:
        [do] = self._random.choices(self._does, (3, 2, 2))
        do()
        if self._random.random() < 0.3:
            time.sleep(self._random.random() * 0.003)


class _Work:
    """What the work on each store has."""

    store = ""

    def __init__(self, who: str, repository: Any, history: History, random: Random, name: Callable[[], str]) -> None:
        self._who, self._repository, self._history, self._random, self._name = who, repository, history, random, name
        self._held: list[Any] = []
        self._past: deque[Any] = deque(maxlen=6)
        self._busy = random.uniform(0.2, 0.45)
        """The share of steps that bring something new."""

    def _call(
        self,
        operation: str,
        given: dict[str, Any],
        work: Callable[[], Any],
        shown: Callable[[Any], Any] = lambda _: None,
    ) -> Any:
        return self._history.call(self._who, self.store, operation, given, work, shown)

    def _handle(self) -> Any:
        """One that is held, or now and then one that was settled, replaced or lost long ago."""
        if self._past and self._random.random() < 0.1:
            return self._random.choice(self._past)
        handle = self._held.pop(self._random.randrange(len(self._held)))
        self._past.append(handle)
        return handle


class Leases(_Work):
    """The transport."""

    store = "transport"

    def step(self) -> None:
        chance = self._random.random()
        if chance < self._busy:
            self._publish(1 if self._random.random() < 0.9 else self._random.randrange(2, 6))
        elif self._held and (len(self._held) > 2 or self._random.random() < 0.6):
            self._settle()
        else:
            self.claim(self._random.choice(VISIBILITY), self._random.choice((0, 0, 0, 0, 1, 3)))

    def _publish(self, number: int) -> None:
        groups = [f"g{self._random.randrange(GROUPS)}" for _ in range(number)]
        messages = [(group, self._name(), priority_of(group)) for group in groups]
        given = {"messages": messages}
        if number == 1:
            self._call("publish", given, lambda: self._repository.publish(*messages[0]), lambda it: [it])
        else:
            self._call("publish_many", given, lambda: self._repository.publish_many(messages), list)

    def claim(self, visibility: float, floor: int) -> Any:
        """Claim, and hold what was claimed."""
        lease = self._call(
            "claim",
            {"visibility": visibility, "floor": floor},
            lambda: self._repository.claim(self._who, visibility, floor),
            lambda it: it and [it.seq, it.group_id, it.event, it.lock_expiry],
        )
        if lease is not None:
            self._held.append(lease)
        return lease

    def ack(self, *leases: Any) -> None:
        """Ack one, or several together."""
        given = {"fences": [[lease.seq, lease.lock_expiry] for lease in leases]}
        if len(leases) == 1:
            self._call("ack", given, lambda: self._repository.ack(leases[0]))
        else:
            self._call("ack_many", given, lambda: self._repository.ack_many(leases))

    def _settle(self) -> None:
        lease = self._handle()
        given: dict[str, Any] = {"fences": [[lease.seq, lease.lock_expiry]]}
        choice = self._random.random()
        if choice < 0.65:
            self.ack(lease)
        elif choice < 0.72:
            self.ack(lease, *(self._handle() for _ in self._held[:1]))
        elif choice < 0.84:
            self._call("nack", given | {"delay": 0}, lambda: self._repository.nack(lease))
        elif choice < 0.9:
            delay = self._random.choice((0.02, 0.1))
            self._call("nack", given | {"delay": delay}, lambda: self._repository.nack(lease, delay))
        else:
            extended = self._call(
                "extend",
                given | {"visibility": 0.3},
                lambda: self._repository.extend(lease, 0.3),
                lambda it: it.lock_expiry,
            )
            if extended is not None:
                self._held.append(extended)


class Receipts(_Work):
    """The queue."""

    store = "localqueue"

    def step(self) -> None:
        chance = self._random.random()
        if chance < self._busy:
            self._send(1 if self._random.random() < 0.9 else self._random.randrange(2, 6))
        elif self._held and (len(self._held) > 4 or self._random.random() < 0.6):
            self._settle()
        else:
            self.receive(self._random.choice((1, 1, 1, 3)), self._random.choice(VISIBILITY))

    def _send(self, number: int) -> None:
        payloads = [self._name() for _ in range(number)]
        if number == 1:
            self._call("send", {"payloads": payloads}, lambda: self._repository.send(payloads[0]), lambda it: [it])
        else:
            self._call("send_many", {"payloads": payloads}, lambda: self._repository.send_many(payloads), list)

    def receive(self, most: int, visibility: float) -> Any:
        """Receive, and hold what was received."""
        received = self._call(
            "receive",
            {"most": most, "visibility": visibility},
            lambda: self._repository.receive(most, visibility_timeout=visibility),
            lambda found: [[it.id, it.receipt_handle, it.attempt, it.payload] for it in found],
        )
        self._held += [message.receipt_handle for message in received or ()]
        return received

    def ack(self, *handles: str) -> None:
        """Ack one, or several together."""
        if len(handles) == 1:
            self._call("ack", {"handles": handles}, lambda: self._repository.ack(handles[0]))
        else:
            self._call("ack_many", {"handles": handles}, lambda: self._repository.ack_many(handles))

    def _settle(self) -> None:
        handle = self._handle()
        choice = self._random.random()
        if choice < 0.7:
            self.ack(handle)
        elif choice < 0.75:
            self.ack(handle, *(self._handle() for _ in self._held[:1]))
        else:
            self._call("nack", {"handles": [handle]}, lambda: self._repository.nack(handle))


class Keys(_Work):
    """The key-value store. There are new keys every forty steps: a key's history is short, and so it is checked."""

    store = "localkv"

    def __init__(self, *args: Any) -> None:
        *others, self._tally = args
        super().__init__(*others)

    def step(self) -> None:
        moment = self._tally() // 40
        key = f"k{moment}.{self._random.randrange(2)}"
        [do] = self._random.choices(
            (self.get, self._exists, self._put, self._put_if_absent, self._delete, self._purge, self._put_many),
            (30, 8, 20, 25, 6, 1, 5),
        )
        if self._random.random() < 0.07:
            self.scan(f"b{moment}/")
        elif do == self._put_many:
            self._put_many(f"b{moment}/")
        else:
            do(key)

    def get(self, key: str) -> None:
        self._call("get", {"key": key}, lambda: self._repository.get(key), lambda it: it and it.decode())

    def scan(self, key: str) -> None:
        """All keys that are put together."""
        self._call(
            "scan",
            {"key": key},
            lambda: self._repository.scan_prefix(key),
            lambda page: [value.decode() for _, value in page.items],
        )

    def _exists(self, key: str) -> None:
        self._call("exists", {"key": key}, lambda: self._repository.exists(key), bool)

    def _put(self, key: str) -> None:
        value, ttl = self._name(), self._random.choice((None, 2, 2, 5, 20))
        self._call(
            "put",
            {"key": key, "value": value, "ttl": ttl},
            lambda: self._repository.put(key, value.encode(), ttl=ttl and ttl / 1000),
        )

    def _put_if_absent(self, key: str) -> None:
        value, ttl = self._name(), self._random.choice((None, 2, 5, 20))
        self._call(
            "put_if_absent",
            {"key": key, "value": value, "ttl": ttl},
            lambda: self._repository.put(key, value.encode(), ttl=ttl and ttl / 1000, if_not_exists=True),
            bool,
        )

    def _delete(self, key: str) -> None:
        self._call("delete", {"key": key}, lambda: self._repository.delete(key))

    def _purge(self, key: str) -> None:
        self._call("purge_expired", {"key": key}, self._repository.purge_expired)

    def _put_many(self, key: str) -> None:
        value = self._name()
        self._call(
            "put_many",
            {"key": key, "value": value, "ttl": None},
            lambda: self._repository.put_many({f"{key}{number}": value.encode() for number in range(BATCH)}),
        )
