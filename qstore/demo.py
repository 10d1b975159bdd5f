"""The demonstration: three stores on real files, real processes, one of them killed, and an account from the data.

Every process writes a history of what it did, line by line, so that the account holds for the killed one too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import Engine, func, select

from qstore import Event, LocalKvRepository, LocalQueueRepository, TransportRepository, open_engine
from qstore.errors import InvalidInput
from qstore.models import QueueMessage, TransportMessage

__all__ = ["Line", "Report", "run"]

MESSAGES = 2000
GROUPS = 50
WORKERS = 4
VISIBILITY = 2.0
"""Seconds: how long the killed worker's message waits for another worker."""

WORK = 0.001
"""Seconds that a worker spends on a message."""

KILLED_AFTER = 20
"""Messages that the doomed worker settles before it takes one and hangs."""

RACERS = 16
QUEUED = 320

DEADLINE = 60.0
"""Seconds after which the demonstration gives up."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the account: what was counted, and whether it is what the stores promise."""

    subject: str
    found: str
    promise: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The account."""

    lines: list[Line]
    seconds: float

    @property
    def kept(self) -> bool:
        """Whether every line is as promised."""
        return all(line.kept for line in self.lines)


Progress = Callable[[str, int, int, str], None]
"""Told what is going on, how much of it is done and out of how much, and what happened on the way."""


def run(directory: str, progress: Progress) -> Report:
    """Run the demonstration in a directory that has no stores yet. InvalidInput if it has."""
    started = time.monotonic()
    for store in ("transport", "localkv", "localqueue"):
        if os.path.exists(os.path.join(directory, f"{store}.sqlite")):
            raise InvalidInput("dir", f"expected a directory without stores, found {store}.sqlite in {directory}")
    os.makedirs(os.path.join(directory, "history"), exist_ok=True)
    lines = [*_transport(directory, progress), *_race(directory, progress)]
    return Report(lines, time.monotonic() - started)


def _transport(directory: str, progress: Progress) -> Iterator[Line]:
    path = os.path.join(directory, "transport.sqlite")
    with TransportRepository.open(path, durability="normal") as transport:
        published: list[int] = []
        for first in range(0, MESSAGES, 100):
            batch = [(f"group-{n % GROUPS:02}", Event(kind="demo", data={"n": n})) for n in range(first, first + 100)]
            published += transport.publish_many(batch)
            progress("publish", len(published), MESSAGES, f"{GROUPS} groups")
    groups = {seq: f"group-{n % GROUPS:02}" for n, seq in enumerate(published)}

    with _started(WORKERS, _work, directory, path) as workers, _reading(path) as engine:
        doomed = workers[0]
        deadline = time.monotonic() + DEADLINE
        while (left := _count(engine, TransportMessage.seq)) and time.monotonic() < deadline:
            if doomed.is_alive() and any(entry["did"] == "hang" for entry in _history(directory, "work-0")):
                doomed.kill()
                doomed.join()
            what = f"{WORKERS} processes" if doomed.is_alive() else "1 killed, which held a message"
            progress("claim and ack", MESSAGES - left, MESSAGES, what)
            time.sleep(0.05)
        progress("claim and ack", MESSAGES - left, MESSAGES, "1 killed, which held a message")
    entries = sorted(
        (entry for n in range(WORKERS) for entry in _history(directory, f"work-{n}")), key=lambda entry: entry["at"]
    )
    acked = [entry["seq"] for entry in entries if entry["did"] == "ack"]
    claims = Counter(entry["seq"] for entry in entries if entry["did"] == "claim")
    again = [seq for seq, times in claims.items() if times > 1]
    yield Line("messages published", f"{len(published):,}", f"{MESSAGES:,}", len(set(published)) == MESSAGES)
    yield Line(
        "messages acked", f"{len(set(acked)):,}", "every one, each once", sorted(acked) == published and not left
    )
    yield Line(
        "messages redelivered",
        f"{len(again)}",
        "the one that was held",
        again == [entry["seq"] for entry in entries if entry["did"] == "hang"] and doomed.exitcode != 0,
    )
    in_order = [group for group, seqs in _by_group(groups, acked).items() if seqs == sorted(seqs)]
    yield Line("groups in order", f"{len(in_order)}", f"{GROUPS}, first in first out", len(in_order) == GROUPS)
    overlaps = sum(_overlaps(held) for held in _holdings(groups, entries).values())
    yield Line("two in flight in a group", f"{overlaps}", "never", overlaps == 0)


def _race(directory: str, progress: Progress) -> Iterator[Line]:
    progress("receive and ack", 0, QUEUED, f"{RACERS} processes, one key to win")
    with LocalKvRepository.open(directory, durability="normal"):
        pass  # the store is made before they race
    with LocalQueueRepository.open(directory, durability="normal") as queue:
        sent = queue.send_many([{"n": n} for n in range(QUEUED)])
    barrier = multiprocessing.get_context("spawn").Barrier(RACERS)
    with (
        _started(RACERS, _race_and_receive, directory, barrier) as racers,
        _reading(os.path.join(directory, "localqueue.sqlite")) as engine,
    ):
        deadline = time.monotonic() + DEADLINE
        while any(racer.is_alive() for racer in racers) and time.monotonic() < deadline:
            left = _count(engine, QueueMessage.id)
            progress("receive and ack", QUEUED - left, QUEUED, f"{RACERS} processes, one key to win")
            time.sleep(0.05)
        left = _count(engine, QueueMessage.id)
        progress("receive and ack", QUEUED - left, QUEUED, f"{RACERS} processes, one key to win")
    entries = [entry for n in range(RACERS) for entry in _history(directory, f"race-{n}")]
    raced = [entry for entry in entries if entry["did"] == "put"]
    winners = [entry["value"] for entry in raced if entry["won"]]
    with LocalKvRepository.open(directory, create=False) as kv:
        stored = kv.get("leader")
    yield Line(
        "conditional put: winners",
        f"{len(winners)} of {len(raced)}",
        f"1 of {RACERS}, its value stored",
        len(raced) == RACERS and len(winners) == 1 and stored == winners[0].encode(),
    )
    received = [entry for entry in entries if entry["did"] == "receive"]
    deliveries = Counter(entry["id"] for entry in received if entry["attempt"] == 1)
    yield Line(
        "queue messages received",
        f"{len(deliveries):,}",
        f"{QUEUED}, each by one process",
        sorted(deliveries.elements()) == sent and not left,
    )
    nacked = [entry["id"] for entry in entries if entry["did"] == "nack"]
    again = [entry["id"] for entry in received if entry["attempt"] == 2]
    yield Line(
        "nacked · received again",
        f"{len(nacked)} · {len(again)}",
        "the same ones",
        bool(nacked) and sorted(nacked) == sorted(again),
    )


def _work(number: int, directory: str, path: str) -> None:
    """Claim and ack until nothing is left. Worker 0 takes a message in mid-work and hangs, to be killed."""
    with (
        _writing(directory, f"work-{number}") as note,
        TransportRepository.open(path, durability="normal") as transport,
    ):
        done = 0
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < 2 * VISIBILITY:
            lease = transport.claim(f"worker-{number}", VISIBILITY)
            if lease is None:
                time.sleep(0.01)
                continue
            idle_since = time.monotonic()
            note("claim", seq=lease.seq)
            if number == 0 and done == KILLED_AFTER:
                note("hang", seq=lease.seq)
                time.sleep(DEADLINE)
            time.sleep(WORK)
            note("ack", seq=lease.seq)
            transport.ack(lease)
            done += 1


def _race_and_receive(number: int, directory: str, barrier: Barrier) -> None:
    """Race for a key, then receive until the queue is empty; the first message is nacked once."""
    with (
        _writing(directory, f"race-{number}") as note,
        LocalKvRepository.open(directory, create=False, durability="normal") as kv,
        LocalQueueRepository.open(directory, create=False, durability="normal") as queue,
    ):
        name = f"process-{number}"
        barrier.wait(DEADLINE)
        note("put", value=name, won=kv.put("leader", name.encode(), if_not_exists=True))
        nack = True
        while messages := queue.receive(5):
            for message in messages:
                note("receive", id=message.id, attempt=message.attempt)
                if nack and message.attempt == 1:
                    note("nack", id=message.id)
                    queue.nack(message.receipt_handle)
                    nack = False
                else:
                    queue.ack(message.receipt_handle)


@contextmanager
def _started(count: int, target: Callable[..., None], *arguments: Any) -> Iterator[list[BaseProcess]]:
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [
        context.Process(target=target, args=(number, *arguments), daemon=True) for number in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextmanager
def _reading(path: str) -> Iterator[Engine]:
    engine = open_engine(path, read_only=True)
    try:
        yield engine
    finally:
        engine.dispose()


def _count(engine: Engine, column: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count(column))).scalar_one())


@contextmanager
def _writing(directory: str, name: str) -> Iterator[Callable[..., None]]:
    """A history that outlives its process: each entry goes to the system before the next thing is done."""
    file = os.open(os.path.join(directory, "history", f"{name}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(did: str, **what: Any) -> None:
        os.write(file, json.dumps({"at": time.monotonic(), "did": did, **what}).encode() + b"\n")

    try:
        yield note
    finally:
        os.close(file)


def _history(directory: str, name: str) -> list[dict[str, Any]]:
    try:
        with open(os.path.join(directory, "history", f"{name}.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def _by_group(groups: dict[int, str], seqs: list[int]) -> dict[str, list[int]]:
    found = defaultdict[str, list[int]](list)
    for seq in seqs:
        found[groups[seq]].append(seq)
    return found


def _holdings(groups: dict[int, str], entries: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """For each group the times from a claim to its ack, or to the end of the lease where its worker was killed."""
    held = defaultdict[str, list[tuple[float, float]]](list)
    since: dict[int, float] = {}
    for entry in entries:
        group = groups[entry["seq"]]
        if entry["did"] == "claim":
            since[entry["seq"]] = entry["at"]
        elif entry["did"] == "ack":
            held[group].append((since[entry["seq"]], entry["at"]))
        elif entry["did"] == "hang":
            # The claim was noted a moment after its lease began, so that the lease ends a moment before this.
            held[group].append((since[entry["seq"]], since[entry["seq"]] + 0.9 * VISIBILITY))
    return held


def _overlaps(held: list[tuple[float, float]]) -> int:
    return sum(one[1] > next_one[0] for one, next_one in pairwise(sorted(held)))
