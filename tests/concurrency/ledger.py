"""What workers report while they run, and what must hold of it afterwards.

Each process appends to a file of its own, one write a line, so that a line survives the SIGKILL that follows it. Times
are `time.monotonic()`, which all processes of one machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self


class Entry(NamedTuple):
    """One line. `began` is the instant before the call, `ended` the one after it."""

    action: str
    id: int
    group: str
    began: float
    ended: float


class Holding(NamedTuple):
    """A delivery, from the end of its claim to the start of its ack: the least time that it was surely held."""

    id: int
    group: str
    start: float
    end: float


class Ledger:
    """A process's own file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, action: str, id: int, group: str, began: float) -> None:
        entry = Entry(action, id, group, began, time.monotonic())
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.close(self._file)


def read(path: Path) -> list[Entry]:
    """A process's entries. Its death may cut the last line short: that one was not noted."""
    whole, _, _cut = path.read_bytes().rpartition(b"\n")
    return [Entry(*json.loads(line)) for line in whole.splitlines()]


def holdings(entries: Iterable[Entry], lease: float) -> Iterator[Holding]:
    """One process's deliveries. One that it never settled ends with its lease, counted from the start of the claim."""
    held: dict[int, Entry] = {}
    for entry in entries:
        if entry.action == "claimed":
            held[entry.id] = entry
        elif entry.action == "settling":
            claim = held.pop(entry.id)
            yield Holding(entry.id, entry.group, claim.ended, min(entry.began, claim.began + lease))
    for claim in held.values():
        yield Holding(claim.id, claim.group, claim.ended, claim.began + lease)


def overlaps(holdings: Iterable[Holding]) -> list[tuple[Holding, Holding]]:
    """Two of one group that were held at the same time."""
    return [(one, other) for group in _by_group(holdings) for one, other in pairwise(group) if other.start < one.end]


def disorder(holdings: Iterable[Holding]) -> list[tuple[Holding, Holding]]:
    """Two of one group of which the younger was delivered first."""
    return [(one, other) for group in _by_group(holdings) for one, other in pairwise(group) if other.id < one.id]


def ids(entries: Iterable[Entry], action: str) -> list[int]:
    """The messages with which something was done, as often as it was."""
    return [entry.id for entry in entries if entry.action == action]


def _by_group(holdings: Iterable[Holding]) -> list[list[Holding]]:
    groups = defaultdict(list)
    for holding in holdings:
        groups[holding.group].append(holding)
    return [sorted(group, key=lambda holding: holding.start) for group in groups.values()]
