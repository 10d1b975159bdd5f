"""What the stores cost on turso beside SQLite: the same calls, in one process and in four."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from qstore import LocalKvRepository, LocalQueueRepository, StoreBusy, TransportRepository
from qstore.engines import FileEngine
from tests.benchmarks.cycle import cycles, event_of
from tests.benchmarks.kv import KEYS
from tests.benchmarks.lines import Line, plain, slower
from tests.benchmarks.measuring import Scale, Work, interleaved
from tests.benchmarks.raw import EVENT
from tests.concurrency.processes import Ready, children

__all__ = ["lines"]

ENGINES: tuple[FileEngine, ...] = ("sqlite", "turso")
PROCESSES = 4


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """Each call on both engines, in turns; then four processes on one file. There is no limit: it is an option."""
    for durability in scale.durabilities:
        kvs: list[Any] = []
        works: dict[str, dict[str, Work]] = {"get": {}, "put": {}, "publish+claim+ack": {}, "send+receive+ack": {}}
        for engine in ENGINES:
            where = directory / f"{engine}-{durability}"
            kv = LocalKvRepository.open(where, engine=engine, durability=durability)
            queue = LocalQueueRepository.open(where, engine=engine, durability=durability)
            transport = TransportRepository.open(where, engine=engine, durability=durability)
            kvs += [kv, queue, transport]
            kv.put_many({f"k{number:08}": b"%0100d" % number for number in range(KEYS)})
            works["get"][engine] = _gets(kv)
            works["put"][engine] = _puts(kv)
            works["publish+claim+ack"][engine] = lambda times, it=transport: cycles(it, event_of(EVENT), times)  # type: ignore[misc]  # its default
            works["send+receive+ack"][engine] = _queued(queue)
        for what, work in works.items():
            times = scale.of(200, 50) if what == "get" or durability == "normal" else 10
            figures = interleaved(work, scale, times=times)
            yield slower(f"{what}, {durability.upper()}", figures, "turso", "sqlite")
        for each in kvs:
            each.close()
    seconds = scale.of(5, 1)
    rates = {engine: _rate(directory, engine, seconds) for engine in ENGINES}
    for engine, rate in rates.items():
        yield plain(f"{PROCESSES} processes, publish+claim+ack, {engine}", rate, "a second in all")
    yield plain(f"{PROCESSES} processes, turso", rates["sqlite"] / rates["turso"], "x the time of sqlite")


def _gets(kv: LocalKvRepository) -> Work:
    def run(times: int) -> None:
        for number in range(times):
            kv.get(f"k{number % KEYS:08}")

    return run


def _puts(kv: LocalKvRepository) -> Work:
    numbers = count()

    def run(times: int) -> None:
        for number in range(times):
            kv.put(f"k{number % KEYS:08}", b"%0100d" % next(numbers))

    return run


def _queued(queue: LocalQueueRepository) -> Work:
    def run(times: int) -> None:
        for _ in range(times):
            queue.send(EVENT)
            [message] = queue.receive(visibility_timeout=30)
            queue.ack(message.receipt_handle)

    return run


def _rate(directory: Path, engine: FileEngine, seconds: float) -> float:
    path = directory / f"{engine}-{PROCESSES}.sqlite"
    TransportRepository.open(path, engine=engine).close()
    with children(*((_worker, path, engine, number, seconds) for number in range(PROCESSES))) as started:
        for child in started:
            child.wait_until_ready()
        for child in started:
            child.go()
        done: list[int] = [child.result(seconds + 100) for child in started]
    return sum(done) / seconds


def _worker(ready: Ready, path: Path, engine: FileEngine, number: int, seconds: float) -> int:
    """Publish, claim and ack in a group of its own. How often that was done."""
    event, done = event_of(EVENT), 0
    with TransportRepository.open(path, engine=engine) as transport:
        ready()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                transport.publish(f"group{number}", event)
                if (lease := transport.claim(f"worker{number}", 30)) is not None:
                    transport.ack(lease)
                    done += 1
            except StoreBusy:
                continue
    return done
