"""What processes do with a store that they share with turso."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from qstore import LocalKvRepository, LocalQueueRepository, QstoreError, StoreBusy, TransportRepository
from tests.concurrency.processes import Ready

T = TypeVar("T")

IDLE = 20
"""Claims that find nothing in a row, after which a worker has done its part."""


def take_messages(ready: Ready, path: Path, number: int, messages: int) -> tuple[list[int], list[int]]:
    """Publish so many, and claim and ack until nothing is left. What was published, and what was taken."""
    published: list[int] = []
    taken: list[int] = []
    idle = 0
    with TransportRepository.open(path, engine="turso", event_type=str) as transport:
        ready()
        while idle < IDLE:
            if len(published) < messages:
                published.append(_patiently(lambda: transport.publish(f"g{len(published) % 7}", str(number))))
            lease = _patiently(lambda: transport.claim(f"w{number}", 300))
            if lease is None:
                idle += 1
                time.sleep(0.005)
                continue
            idle = 0
            _patiently(lambda lease=lease: transport.ack(lease))  # type: ignore[misc]  # mypy has no type for a lambda's default
            taken.append(lease.seq)
    return published, taken


def receive_messages(ready: Ready, directory: Path, number: int, messages: int) -> tuple[list[int], list[int]]:
    """The same with the queue."""
    sent: list[int] = []
    taken: list[int] = []
    idle = 0
    with LocalQueueRepository.open(directory, engine="turso") as queue:
        ready()
        while idle < IDLE:
            if len(sent) < messages:
                sent.append(_patiently(lambda: queue.send(f"{number}")))
            received = _patiently(lambda: queue.receive(3, visibility_timeout=300))
            idle = 0 if received else idle + 1
            for message in received:
                _patiently(lambda message=message: queue.ack(message.receipt_handle))  # type: ignore[misc]  # as above
                taken.append(message.id)
    return sent, taken


def put_if_absent(ready: Ready, directory: Path, number: int, keys: int) -> list[str]:
    """Race for keys. Those that were won."""
    with LocalKvRepository.open(directory, engine="turso") as kv:
        ready()
        return [
            key
            for key in map(str, range(keys))
            if _patiently(lambda key=key: kv.put(key, b"%d" % number, if_not_exists=True))  # type: ignore[misc]  # as above
        ]


def open_and_publish(ready: Ready, path: Path, number: int, messages: int) -> list[int]:
    """Open a store, which nobody has opened before, when all others do."""
    ready()
    with TransportRepository.open(path, engine="turso", event_type=str) as transport:
        return [_patiently(lambda: transport.publish(f"g{number}", "event")) for _ in range(messages)]


def publish_until_killed(ready: Ready, path: Path, ledger: Path) -> None:
    """Publish for ever, and note each seq that was acknowledged."""
    notes = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with TransportRepository.open(path, engine="turso", event_type=str) as transport:
        ready()
        while True:
            os.write(notes, f"{transport.publish('g', 'event')}\n".encode())


def hold_open(ready: Ready, path: Path, engine: str) -> None:
    """Have a store open until told to go on."""
    with TransportRepository.open(path, engine=engine, event_type=str) as transport:  # type: ignore[arg-type]  # a str
        transport.publish("g", "event")
        ready()


def try_to_open(ready: Ready, path: Path, engine: str) -> str:
    """Open a store. What the error said, if there was one."""
    ready()
    try:
        TransportRepository.open(path, engine=engine).close()  # type: ignore[arg-type]  # as above
    except QstoreError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _patiently(call: Callable[[], T]) -> T:
    """Repeat a call for as long as the store is busy: what StoreBusy asks for."""
    while True:
        with suppress(StoreBusy):
            return call()
