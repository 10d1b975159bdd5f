"""How figures are taken: contenders in turns, round by round, so that what else the machine does hits all alike.

Rounds are short and many, so that most of them fall between two things that the machine does; but where a write-ahead
log is written back now and then, a round is long enough to have that in it, or else the median would leave it out.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import NamedTuple

from qstore.engines import Durability

__all__ = [
    "Contender",
    "Contenders",
    "Figures",
    "Scale",
    "Work",
    "interleaved",
    "nothing",
    "quartiles",
    "ratios",
    "seconds",
    "short",
]

Work = Callable[[int], object]
"""Told how often to do its work."""

Figures = Mapping[str, list[float]]
"""Microseconds a piece of work, a round each."""


def nothing(times: int) -> None:
    """Prepare nothing."""


class Contender(NamedTuple):
    """What is measured: `run` is timed, `before` is not. `times` a round, where not as often as the others."""

    run: Work
    before: Work = nothing
    times: int | None = None


Contenders = Mapping[str, Work | Contender]


class Scale(NamedTuple):
    """How long to measure, and how large the stores are."""

    quick: bool

    def of(self, full: int, quick: int | None = None) -> int:
        """A number of messages, calls or seconds; a fifth of it for a quick run, if nothing else is said."""
        if not self.quick:
            return full
        return max(1, full // 5) if quick is None else quick

    @property
    def rounds(self) -> int:
        """In how many rounds contenders meet, at most."""
        return 60 if self.quick else 300

    @property
    def durabilities(self) -> tuple[Durability, ...]:
        """Those at which a section is measured that a quick run takes a part of."""
        return ("normal",) if self.quick else ("normal", "full")

    @property
    def patience(self) -> float:
        """Seconds after which no further round begins, so that a slow disk does not make a run endless."""
        return 0.4 if self.quick else 3.5


LEAST_ROUNDS = 3


def interleaved(contenders: Contenders, scale: Scale, *, times: int, warm: int = 0) -> Figures:
    """Let all do their work in turns, after one round that does not count, of at least `warm` calls."""
    entered = {name: each if isinstance(each, Contender) else Contender(each) for name, each in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in entered}
    began = time.monotonic()
    for turn in range(scale.rounds + 1):
        if turn > LEAST_ROUNDS and time.monotonic() - began > scale.patience:
            break
        for name, each in entered.items():
            often = each.times or times
            if not turn:
                often = max(often, warm)
            each.before(often)
            took = seconds(each.run, often) / often * 1e6
            if turn:
                taken[name].append(took)
    return taken


def short(number: int) -> str:
    """A large number as one says it: 1M, 20k."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= size and not number % size:
            return f"{number // size}{unit}"
    return f"{number:,}"


def seconds(work: Work, times: int) -> float:
    """How long it takes, without the garbage of what was before."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        work(times)
        return time.perf_counter() - began
    finally:
        gc.enable()


def ratios(figures: Figures, over: str, under: str) -> list[float]:
    """One contender's time to another's, round by round: neighbours in time have met the same noise."""
    return [mine / theirs for mine, theirs in zip(figures[over], figures[under], strict=True)]


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if not half:
        return ordered[0], ordered[0], ordered[0]
    return median(ordered[:half]), median(ordered), median(ordered[-half:])
