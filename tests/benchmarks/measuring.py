"""How figures are taken: contenders in turns, round by round, so that what else the machine does hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

__all__ = ["Line", "Scale", "interleaved", "shown"]


class Scale(NamedTuple):
    """How long to measure."""

    quick: bool

    def times(self, full: int, quick: int | None = None) -> int:
        """A number of repetitions."""
        return (quick if quick is not None else max(1, full // 5)) if self.quick else full


class Line(NamedTuple):
    """One comparison. `ratio` is ours to the yardstick's; it holds while it is on the right side of the limit."""

    what: str
    ours: float
    yardstick: str
    theirs: float
    ratio: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "µs"

    @property
    def holds(self) -> bool:
        """Whether the line is within its limit."""
        return (self.at_most is None or self.ratio <= self.at_most) and (
            self.at_least is None or self.ratio >= self.at_least
        )

    @classmethod
    def of(
        cls,
        what: str,
        figures: Mapping[str, float],
        ours: str,
        yardstick: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> Line:
        """Compare two contenders' times."""
        return cls(
            what, figures[ours], yardstick, figures[yardstick], figures[ours] / figures[yardstick], at_most, at_least
        )


def shown(line: Line) -> str:
    """The line for a person."""
    limit = ""
    if line.at_most is not None or line.at_least is not None:
        limit = f" * {'≤' if line.at_most is not None else '≥'} {line.at_most or line.at_least:g}"
        limit += "" if line.holds else "  FALLS SHORT"
    return (
        f"{line.what:<58} {line.ours:>11,.1f} {line.unit:<4} {line.ratio:>8,.2f} x"
        f" {line.yardstick} ({line.theirs:,.1f}){limit}"
    )


def interleaved(contenders: Mapping[str, Callable[[int], None]], *, rounds: int, times: int) -> dict[str, float]:
    """Microseconds a call of each contender, which is told how often to do its work: the median of the rounds."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for work in contenders.values():
        work(max(1, times // 10))
    for _ in range(rounds):
        for name, work in contenders.items():
            gc.collect()
            gc.disable()
            began = time.perf_counter()
            work(times)
            taken[name].append((time.perf_counter() - began) / times * 1e6)
            gc.enable()
    return {name: median(figures) for name, figures in taken.items()}
