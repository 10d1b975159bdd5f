"""The end of a round: all that is left is delivered and removed, and every key looked at once more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from random import Random

from tests.concurrency.harness.clock import SharedClock
from tests.concurrency.harness.hands import Keys, Leases, Receipts
from tests.concurrency.harness.history import History, read
from tests.concurrency.harness.places import Place
from tests.concurrency.harness.workers import Plan, told
from tests.concurrency.processes import Ready, children

__all__ = ["drained"]

TRIES = 5


def drained(plan: Plan, clock: SharedClock | None) -> Iterator[str]:
    """Deliver and remove all that is left, and look at every key. What of it failed, and what is left."""
    for number in count():
        name = f"drain{number}"
        if not plan.place.alone:
            _drain(lambda: None, plan, name, clock is not None)
            break
        with suppress(EOFError), children((_drain, plan, name, clock is not None)) as [child]:
            child.result()
            break
        if number == TRIES:  # turso has ended each of them
            yield "the drain failed: it was ended each time"
            return
    yield from (f"the drain failed: {call}" for call in read([plan.notes / f"{name}.history"]) if not call.done)
    yield from _left(plan.place)


def _drain(ready: Ready, plan: Plan, name: str, clocked: bool) -> None:
    history = History(plan.notes / f"{name}.history", told)
    before = read(plan.notes.glob("w*.history"))
    ready()
    with plan.place.opened(plan.clock if clocked else None) as stores:
        leases = Leases(name, stores.transport, history, Random(0), name.__str__)
        receipts = Receipts(name, stores.localqueue, history, Random(0), name.__str__)
        keys = Keys(name, stores.localkv, history, Random(0), name.__str__, int)
        ends = time.monotonic() + (0 if clocked else 3)
        while True:
            while (lease := leases.claim(60, 0)) is not None:
                leases.ack(lease)
            while received := receipts.receive(1, 60):
                receipts.ack(received[0].receipt_handle)
            if time.monotonic() > ends:
                break
            time.sleep(0.1)
        for key in sorted({call.given["key"] for call in before if call.store == "localkv"}):
            (keys.scan if key.endswith("/") else keys.get)(key)


def _left(place: Place) -> Iterator[str]:
    for store, table in (("transport", "messages"), ("transport", "groups"), ("localqueue", "messages")):
        if number := place.count(store, table):
            yield f"left: {number} {store} {table}"
