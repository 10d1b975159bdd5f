"""Child processes that are killed: some by the test at any instant, some by themselves before a given statement."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository
from tests.concurrency.ledger import Ledger
from tests.concurrency.processes import Ready
from tests.concurrency.workers import LEASE

BATCH = 7


def publish_batch(transport: Any) -> list[int]:
    seqs: list[int] = transport.publish_many([(f"group {number % 3}", "event") for number in range(BATCH)])
    return seqs


def put_batch(kv: Any, value: bytes) -> None:
    kv.put_many({f"key {number}": value for number in range(BATCH)})


def _claimed(transport: Any) -> Any:
    lease = transport.claim("victim", LEASE)
    assert lease is not None
    return lease


# Each prepares what it needs and returns the one call that is to be killed.
OPERATIONS: dict[str, tuple[str, Callable[[Any], Callable[[], object]]]] = {
    "publish": ("transport", lambda transport: partial(transport.publish, "new", "event")),
    "publish_many": ("transport", lambda transport: partial(publish_batch, transport)),
    "claim": ("transport", lambda transport: partial(_claimed, transport)),
    "ack": ("transport", lambda transport: partial(transport.ack, _claimed(transport))),
    "nack": ("transport", lambda transport: partial(transport.nack, _claimed(transport))),
    "park": ("transport", lambda transport: partial(transport.nack, _claimed(transport), 5)),
    "extend": ("transport", lambda transport: partial(transport.extend, _claimed(transport), 1.5 * LEASE)),
    "put": ("localkv", lambda kv: partial(kv.put, "key 0", b"after")),
    "put_many": ("localkv", lambda kv: partial(put_batch, kv, b"after")),
    "purge_expired": ("localkv", lambda kv: partial(kv.purge_expired)),
    "send_many": ("localqueue", lambda queue: partial(queue.send_many, ["new"] * BATCH)),
    "receive": ("localqueue", lambda queue: partial(queue.receive, 3)),
    "purge": ("localqueue", lambda queue: partial(queue.purge)),
}


def open_store(store: str, directory: Path, **arguments: Any) -> Any:
    """A repository of a store in its usual file."""
    if store == "transport":
        return TransportRepository.open(directory / "transport.sqlite", event_type=str, **arguments)
    if store == "localkv":
        return LocalKvRepository.open(directory, **arguments)
    return LocalQueueRepository.open(directory, **arguments)


class CommittingEach:
    """A driver's connection without transactions, to see that the tests would notice."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        driver.isolation_level = None
        self.driver = driver

    def execute(self, sql: str, *values: Any) -> Any:
        return None if sql in ("BEGIN IMMEDIATE", "COMMIT") else self.driver.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


def die_before_statement(ready: Ready, operation: str, directory: Path, number: int, broken: bool) -> None:
    """Run one operation, and be killed when its `number`th statement (COMMIT is one) is about to run."""
    store, prepare = OPERATIONS[operation]
    with open_store(store, directory) as repository:
        call = prepare(repository)
        pool: Any = repository._engine.pool
        held = pool.take()
        started: list[str] = []

        def die_in_time(statement: str) -> None:
            started.append(statement)
            if len(started) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        driver = held.driver
        driver.set_trace_callback(die_in_time)
        if broken:
            held.driver = CommittingEach(held.driver)
        pool.give(held)  # which hands this one out again
        ready()
        call()
        driver.set_trace_callback(None)  # what comes at the close is none of the operation's


def work_until_killed(ready: Ready, loop: str, directory: Path, ledger: Path) -> None:
    """Repeat an operation, noting what came of each call."""
    with Ledger(ledger) as notes:
        store = {"receive": "localqueue", "put_many": "localkv"}.get(loop, "transport")
        with open_store(store, directory) as repository:
            ready()
            number = 0
            while True:
                number += 1
                LOOPS[loop](repository, notes, number)


def _publish_many(transport: Any, notes: Ledger, _: int) -> None:
    for seq in publish_batch(transport):
        notes.note("sent", seq, "", 0)


def _claim(transport: Any, notes: Ledger, _: int) -> None:
    if lease := transport.claim("victim", LEASE):
        notes.note("claimed", lease.seq, lease.group_id, 0)
    else:
        _publish_many(transport, notes, 0)


def _ack(transport: Any, notes: Ledger, _: int) -> None:
    if lease := transport.claim("victim", LEASE):
        notes.note("settling", lease.seq, lease.group_id, 0)
        transport.ack(lease)
        notes.note("acked", lease.seq, lease.group_id, 0)
    else:
        _publish_many(transport, notes, 0)


def _put_many(kv: Any, notes: Ledger, number: int) -> None:
    put_batch(kv, f"{number}".encode())
    notes.note("sent", number, "", 0)


def _receive(queue: Any, notes: Ledger, _: int) -> None:
    for message in queue.receive(3, visibility_timeout=LEASE):
        notes.note("settling", message.id, "", 0)
        queue.ack(message.receipt_handle)
        notes.note("acked", message.id, "", 0)
    for id in queue.send_many(["payload"] * BATCH):
        notes.note("sent", id, "", 0)


LOOPS: dict[str, Callable[[Any, Ledger, int], None]] = {
    "publish_many": _publish_many,
    "claim": _claim,
    "ack": _ack,
    "put_many": _put_many,
    "receive": _receive,
}
