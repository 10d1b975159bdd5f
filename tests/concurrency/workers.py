"""What child processes do: use a store, qstore's way or the seed's, and note every step in a ledger."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from qstore import LocalKvRepository, LocalQueueRepository, StaleLease, StoreBusy, TransportRepository
from tests.concurrency.ledger import Ledger
from tests.concurrency.processes import Ready
from tests.concurrency.seed import SeedLocalKv, SeedLocalQueue, SeedTransport

T = TypeVar("T")

LEASE = 60.0
"""Longer than any test: while workers run, no lease lapses, so the seed's unfenced ack does no harm."""

PATIENCE = 4.5
"""Seconds. Who waits for the write lock waits 5; an operation that is refused sooner never waited for it."""


ENOUGH = 10
"""Messages that each worker takes through before anybody is killed, so that there is something to check."""


def transport_worker(ready: Ready, kind: str, store: Path, ledger: Path, seconds: float, seed: int) -> None:
    """Publish, claim and ack until the time is over and `ENOUGH` are acked, however seldom the lock was had."""
    with _transport(kind, store) as (transport, encode), Ledger(ledger) as notes:
        ready()
        deadline = time.monotonic() + seconds
        random = Random(seed)
        acked = 0
        while time.monotonic() < deadline or acked < ENOUGH:
            if random.random() < 0.5:
                group = f"group {random.randrange(8)}"
                began = time.monotonic()
                seq = again_while_busy(partial(transport.publish, group, encode("event")))
                notes.note("sent", seq, group, began)
            else:
                acked += claim_and_ack(transport, notes, LEASE, f"{kind} {seed}", hold=random.choice((0, 0, 0.001)))


def draining_worker(ready: Ready, store: Path, ledger: Path, messages: int, groups: int, seed: int) -> None:
    """`drain` on a store of its own."""
    with TransportRepository.open(store, event_type=str) as transport:
        ready()
        drain(transport, ledger, messages, groups, seed)


def drain(
    transport: Any, ledger: Path, messages: int, groups: int, seed: int, lease: float = LEASE, stall: float = 0
) -> None:
    """Publish so many messages in batches, claiming and acking all the while and until nothing is left.

    One message in five is held for the time of a stall.
    """
    random = Random(seed)
    with Ledger(ledger) as notes:
        idle = 0
        while messages or idle < 20:
            if messages and random.random() < 0.1:
                batch = [f"group {random.randrange(groups)}" for _ in range(min(25, messages))]
                began = time.monotonic()
                seqs = again_while_busy(partial(transport.publish_many, [(group, "event") for group in batch]))
                for seq, group in zip(seqs, batch, strict=True):
                    notes.note("sent", seq, group, began)
                messages -= len(batch)
            elif claim_and_ack(transport, notes, lease, f"worker {seed}", hold=stall * (random.random() < 0.2)):
                idle = 0
            else:
                idle += 1
                time.sleep(0.001)


def claim_and_ack(transport: Any, notes: Ledger, lease: float, worker: str, hold: float = 0) -> bool:
    """Take one message through. A worker that held it for longer than its lease may find that it is another's."""
    claimed = time.monotonic()
    found = again_while_busy(lambda: transport.claim(worker, lease))
    if found is None:
        return False
    notes.note("claimed", found.seq, found.group_id, claimed)
    time.sleep(hold)
    began = time.monotonic()
    notes.note("settling", found.seq, found.group_id, began)
    try:
        again_while_busy(lambda: transport.ack(found))
    except StaleLease as error:
        if time.monotonic() - claimed < lease:
            raise AssertionError("stale before it had lapsed") from error
        notes.note("stale", found.seq, found.group_id, began)
    else:
        notes.note("acked", found.seq, found.group_id, began)
    return True


def queue_worker(ready: Ready, kind: str, directory: Path, ledger: Path, seconds: float, seed: int) -> None:
    """Send, receive and ack until the time is over and `ENOUGH` are acked, however seldom the lock was had."""
    random = Random(seed)
    with _queue(kind, directory) as queue, Ledger(ledger) as notes:
        ready()
        deadline = time.monotonic() + seconds
        acked = 0
        while time.monotonic() < deadline or acked < ENOUGH:
            began = time.monotonic()
            if random.random() < 0.5:
                notes.note("sent", again_while_busy(lambda: queue.send("payload")), "", began)
                continue
            received = again_while_busy(lambda: queue.receive(random.choice((1, 1, 3)), visibility_timeout=LEASE))
            for message in received:
                notes.note("claimed", message.id, str(message.id), began)
            for message in received:
                began = time.monotonic()
                notes.note("settling", message.id, str(message.id), began)
                again_while_busy(partial(queue.ack, message.receipt_handle))
                notes.note("acked", message.id, str(message.id), began)
                acked += 1


def put_worker(ready: Ready, kind: str, directory: Path, barrier: Any, keys: list[str], name: bytes) -> list[str]:
    """Race for each key with a conditional put. Returns those that were won."""
    won = []
    with _put_if_absent(kind, directory) as put_if_absent:
        ready()
        for key in keys:
            barrier.wait(60)
            if again_while_busy(partial(put_if_absent, key, name)):
                won.append(key)
    return won


def again_while_busy(call: Callable[[], T]) -> T:
    """Repeat a call for as long as the store is busy: on a loaded machine the wait for the write lock may run out."""
    for _ in range(10):
        began = time.monotonic()
        try:
            return call()
        except StoreBusy as error:
            if time.monotonic() - began < PATIENCE:
                raise AssertionError("busy, and did not wait for it") from error
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
    raise AssertionError("the store was busy ten times in a row")


@contextmanager
def _transport(kind: str, path: Path) -> Iterator[tuple[Any, Callable[[str], str]]]:
    if kind == "seed":
        with SeedTransport(path) as seed:
            yield seed, json.dumps
    else:
        with TransportRepository.open(path, event_type=str) as transport:
            yield transport, str


@contextmanager
def _queue(kind: str, directory: Path) -> Iterator[Any]:
    if kind == "seed":
        with SeedLocalQueue(directory / "localqueue.sqlite") as seed:
            yield seed
    else:
        with LocalQueueRepository.open(directory) as queue:
            yield queue


@contextmanager
def _put_if_absent(kind: str, directory: Path) -> Iterator[Callable[[str, bytes], bool]]:
    if kind != "qstore":
        with SeedLocalKv(directory / "localkv.sqlite") as seed:
            yield seed.put_if_absent if kind == "seed" else partial(_look_then_put, seed)
    else:
        with LocalKvRepository.open(directory) as kv:
            yield lambda key, value: kv.put(key, value, if_not_exists=True)


def _look_then_put(seed: SeedLocalKv, key: str, value: bytes) -> bool:
    """What a conditional put must not be."""
    live = "SELECT 1 FROM kv WHERE key = ? AND (expires_at IS NULL OR expires_at > 1)"
    if seed.connection.execute(live, (key,)).fetchall():
        return False
    time.sleep(0.002)
    seed.connection.execute("INSERT OR REPLACE INTO kv (key, value) VALUES (?, ?)", (key, value))
    return True
