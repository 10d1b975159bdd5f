"""The clock of all processes of a round, which may be set; and what it can have said in the time of a call."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from tests.concurrency.harness.mapped import mapped

__all__ = ["ServerTimes", "SharedClock", "Tally", "Times"]


class SharedClock:
    """`time.monotonic` and a number that one process sets and all have: no clock of a machine runs smoother."""

    def __init__(self, path: Path) -> None:
        self._ahead: Any = mapped(path, bytes(8), "d")

    def __call__(self) -> float:
        return time.monotonic() + float(self._ahead[0])

    def set(self, ahead: float) -> None:
        self._ahead[0] = ahead


class Tally:
    """A number that all processes count on. Two that do so at the same time may count as one."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self._number: Any = mapped(path, start.to_bytes(8, sys.byteorder), "q")

    def __call__(self) -> int:
        """The next one, or thereabouts."""
        self._number[0] += 1
        return self.number

    @property
    def number(self) -> int:
        """The last one."""
        return int(self._number[0])


class Times:
    """What a clock that one process sets can have said. Its settings are kept in order."""

    def __init__(self, clock: SharedClock) -> None:
        self._clock = clock
        self.settings: list[tuple[float, float, float]] = []
        """From when (at the earliest) until when (at the latest) it was so much ahead."""
        self.set(time.time() - time.monotonic())

    def set(self, ahead: float) -> None:
        before = time.monotonic()
        self._clock.set(ahead)
        after = time.monotonic()
        if self.settings:
            since, _, last = self.settings[-1]
            self.settings[-1] = since, after, last
        self.settings.append((before, inf, ahead))

    def jump(self, seconds: float) -> None:
        self.set(self.settings[-1][2] + seconds)

    def reset(self) -> None:
        """As it was in the beginning."""
        self.set(self.settings[0][2])

    @property
    def steady(self) -> bool:
        """Whether it was never set."""
        return len(self.settings) == 1

    def least(self, began: float, ended: float) -> float:
        """The earliest that it can have said between two instants."""
        return min(max(began, since) + ahead for since, _, ahead in self._between(began, ended))

    def most(self, began: float, ended: float) -> float:
        """The latest."""
        return max(min(ended, until) + ahead for _, until, ahead in self._between(began, ended))

    def _between(self, began: float, ended: float) -> Sequence[tuple[float, float, float]]:
        return [it for it in self.settings if it[0] <= max(began, ended) and it[1] >= began]


class ServerTimes(Times):
    """A server's own clock, which nobody here sets. It is this machine's: it may be corrected a little meanwhile."""

    CORRECTED = 0.05

    def least(self, began: float, ended: float) -> float:
        return super().least(began, ended) - self.CORRECTED

    def most(self, began: float, ended: float) -> float:
        return super().most(began, ended) + self.CORRECTED
