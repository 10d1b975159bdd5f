"""Whether several processes on one file get their turns, and what they lose to one process alone (line 6).

Throughput alone looks best where one process takes everything, so the longest wait and the share come first.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from qstore import StoreBusy, TransportRepository
from tests.benchmarks.cycle import event_of
from tests.benchmarks.lines import Line, at_least, at_most, plain
from tests.benchmarks.measuring import Scale
from tests.benchmarks.raw import EVENT, RawTransport
from tests.concurrency.processes import Ready, children

__all__ = ["Turns", "lines", "ours", "raw"]

C = TypeVar("C")
T = TypeVar("T")


class Turns(NamedTuple):
    """What one process had in its time."""

    calls: int
    longest: float
    """Seconds of its longest call."""
    busy: int
    """Calls that failed because the others would not let it in."""


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """One process before, between and after the crowds, so that all of them meet the same noise."""
    seconds, alone = scale.of(20, 1), scale.of(6, 1)
    one = _rate(_run(ours, directory, 1, alone), alone)
    for crowd in (4, 8):
        turns = _run(ours, directory, crowd, seconds)
        before, one = one, _rate(_run(ours, directory, 1, alone), alone)
        yield from _lines(f"{crowd} processes, FULL, {seconds} s", turns, _rate(turns, seconds) * 2 / (before + one))
    if scale.quick:
        return
    turns = _run(raw, directory, 4, alone)
    yield from _unlimited(f"4 processes, FULL, {alone} s, raw sqlite3", turns)


def _lines(what: str, turns: list[Turns], against_one: float) -> Iterator[Line]:
    longest = max(each.longest for each in turns) * 1000
    yield plain(f"{what}: busy errors", sum(each.busy for each in turns), "", at_most(0))
    yield plain(f"{what}: longest wait", longest, "ms", at_most(500, aim=250))
    yield plain(f"{what}: share", _share(turns), "(fewest calls / most)", at_least(0.5, aim=0.7))
    yield plain(f"{what}: throughput", against_one, "x that of one process", at_least(0.7, aim=0.8))


def _unlimited(what: str, turns: list[Turns]) -> Iterator[Line]:
    for line in _lines(what, turns, 1):
        if "throughput" not in line.what:
            yield line._replace(limit=None)


def _rate(turns: list[Turns], seconds: float) -> float:
    return sum(each.calls for each in turns) / seconds


def _share(turns: list[Turns]) -> float:
    calls = [each.calls for each in turns]
    return min(calls) / max(calls) if max(calls) else 0


def _run(worker: Callable[[Ready, str, int, float], Turns], directory: Path, crowd: int, seconds: float) -> list[Turns]:
    """So many workers on one new file, all let go at once."""
    path = str(directory / f"{worker.__name__}-{crowd}-{time.monotonic_ns()}.sqlite")
    calls = [(worker, path, number, seconds) for number in range(crowd)]
    with children(*calls) as started:
        for child in started:
            child.wait_until_ready()
        for child in started:
            child.go()
        return [child.result(seconds + 100) for child in started]


def ours(ready: Ready, path: str, number: int, seconds: float) -> Turns:
    """Publish, claim and ack through the repository, in a group of its own."""
    event = event_of(EVENT)
    with TransportRepository.open(path) as transport:
        return _cycles(
            _Timed(StoreBusy),
            ready,
            seconds,
            lambda: transport.publish(f"group{number}", event),
            lambda: transport.claim(f"worker{number}", 30),
            transport.ack,
        )


def raw(ready: Ready, path: str, number: int, seconds: float) -> Turns:
    """The seed's statements."""
    transport = RawTransport(Path(path))
    turns = _cycles(
        _Timed(sqlite3.OperationalError),
        ready,
        seconds,
        lambda: transport.publish(f"group{number}", EVENT),
        lambda: transport.claim(f"worker{number}", 30),
        lambda claimed: transport.ack(*claimed[:2]),
    )
    transport.close()
    return turns


def _cycles(
    timed: _Timed,
    ready: Ready,
    seconds: float,
    publish: Callable[[], object],
    claim: Callable[[], C | None],
    ack: Callable[[C], object],
) -> Turns:
    ready()
    timed.until = time.monotonic() + seconds
    while timed.going():
        timed(publish)
        claimed = timed(claim)
        if claimed is not None:
            timed(partial(ack, claimed))
    return timed.turns()


class _Timed:
    """Times calls, and counts those that fail because the store is busy."""

    def __init__(self, busy: type[Exception]) -> None:
        self.until = 0.0
        self._busy = busy
        self._calls = self._failed = 0
        self._longest = 0.0

    def going(self) -> bool:
        return time.monotonic() < self.until

    def __call__(self, call: Callable[[], T]) -> T | None:
        began = time.monotonic()
        try:
            result: T | None = call()
        except self._busy:
            self._failed += 1
            result = None
        else:
            self._calls += 1
        self._longest = max(self._longest, time.monotonic() - began)
        return result

    def turns(self) -> Turns:
        return Turns(self._calls, self._longest, self._failed)
