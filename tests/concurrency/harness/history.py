"""What was called, when, with what and what came of it: one file a process, which outlives its SIGKILL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from math import inf
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

__all__ = ["Call", "History", "Told", "read"]


class Call(NamedTuple):
    """One call. Times are `time.monotonic`, which all processes of one machine share."""

    who: str
    """Process and hand."""
    store: str
    operation: str
    given: dict[str, Any]
    began: float
    ended: float
    """Of a call that never returned: when its process was dead for certain."""
    outcome: str
    """`done`; `unsure`: it may have happened or not; any other: an error that says that nothing was changed."""
    found: Any
    """What it returned, or the error."""

    @property
    def done(self) -> bool:
        return self.outcome == "done"

    @property
    def perhaps(self) -> bool:
        """Whether it may have happened."""
        return self.outcome in ("done", "unsure")


LARGEST = 128 << 20
"""Bytes of a process's history: a file of so many that has only those that were written."""

Told = Callable[[Exception], str]
"""What an error says about what was done."""


class History:
    """A process's own file: memory that it shares with the system, so that a note survives the SIGKILL after it.

    No note needs a system call that could fail, whatever befalls the process.
    """

    def __init__(self, path: Path, told: Told) -> None:
        with path.open("w+b") as file:
            file.truncate(LARGEST)
            self._notes = mmap(file.fileno(), LARGEST)
        self._numbers = count()
        self._lock = Lock()
        self._told = told

    def call(
        self,
        who: str,
        store: str,
        operation: str,
        given: dict[str, Any],
        work: Callable[[], Any],
        shown: Callable[[Any], Any] = lambda _: None,
    ) -> Any:
        """Do it and note it. What it returned, or None where it failed."""
        number = next(self._numbers)
        self._note(number, who, store, operation, given, time.monotonic())
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  the check knows which errors there may be
            self._note(number, time.monotonic(), self._told(error), f"{type(error).__name__}: {error}"[:300])
            time.sleep(0.005)
            return None
        self._note(number, time.monotonic(), "done", shown(result))
        return result

    def _note(self, *note: Any) -> None:
        line = json.dumps(note).encode() + b"\n"
        with self._lock:
            self._notes.write(line)


def read(paths: Iterable[Path], dead: Mapping[str, float] | None = None, late: float = 0) -> list[Call]:
    """All that was called, in the order of its beginning.

    `dead`: when a process, by its name, was seen to be; what it had begun may have come so many seconds after that.
    """
    calls = (call for path in paths for call in _calls(path, (dead or {}).get(path.stem, inf) + late))
    return sorted(calls, key=lambda call: call.began)


def _calls(path: Path, dead: float) -> Iterator[Call]:
    if not path.stat().st_size:  # killed before it wrote anything
        return
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as notes:
        written = notes[: notes.find(b"\0")]
    whole, _, _cut = written.rpartition(b"\n")
    begun: dict[int, list[Any]] = {}
    for line in whole.splitlines():
        number, *note = json.loads(line)
        if len(note) == 5:
            begun[number] = note
        else:
            yield Call._make((*begun.pop(number), *note))
    for note in begun.values():
        yield Call._make((*note, dead, "unsure", "killed"))
