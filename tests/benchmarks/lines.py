"""What a figure is held against: lines of the table, their limits and verdicts."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.measuring import Figures, quartiles, ratios

__all__ = ["HEADING", "Limit", "Line", "at_least", "at_most", "faster", "missing", "plain", "shown", "slower", "told"]


class Limit(NamedTuple):
    """Where a value has to be. `aim`: where one would like it. `must`: the run fails where it falls short."""

    bound: float
    aim: float | None
    lower: bool
    must: bool

    def met(self, value: float, bound: float | None = None) -> bool:
        """Whether a value is on the right side. A figure that is not there is not."""
        bound = self.bound if bound is None else bound
        return value >= bound if self.lower else value <= bound


def at_most(bound: float, *, aim: float | None = None, must: bool = True) -> Limit:
    """No more than that."""
    return Limit(bound, aim, lower=False, must=must)


def at_least(bound: float, *, aim: float | None = None, must: bool = True) -> Limit:
    """No less than that."""
    return Limit(bound, aim, lower=True, must=must)


class Line(NamedTuple):
    """One comparison. `value`, in `measure`, is what the limit is about; `low` and `high` are its quartiles."""

    what: str
    ours: str
    value: float
    measure: str
    yardstick: str
    theirs: str
    limit: Limit | None = None
    low: float = math.nan
    high: float = math.nan
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit, if it has one."""
        return self.limit is None or self.limit.met(self.value)

    @property
    def fails(self) -> bool:
        """Whether the run fails for it."""
        return not self.holds and self.limit is not None and self.limit.must

    @property
    def doubtful(self) -> bool:
        """Whether the quartiles of the rounds lie on both sides of the limit."""
        return self.limit is not None and self.low < self.limit.bound < self.high

    @property
    def verdict(self) -> str:
        """In words."""
        if self.limit is None:
            return ""
        said = "holds" if self.holds else "FALLS SHORT" if not math.isnan(self.value) else "NOT MEASURED"
        if self.holds and self.limit.aim is not None and self.limit.met(self.value, self.limit.aim):
            said = "reaches the aim"
        return said + ", doubtful" * self.doubtful


def slower(what: str, figures: Figures, ours: str, yardstick: str, limit: Limit | None = None, note: str = "") -> Line:
    """How many times as long as the yardstick we take."""
    return _compared(what, figures, ours, yardstick, ratios(figures, ours, yardstick), "x the time of", limit, note)


def faster(what: str, figures: Figures, ours: str, yardstick: str, limit: Limit | None = None, note: str = "") -> Line:
    """How many times as fast as the yardstick we are."""
    return _compared(what, figures, ours, yardstick, ratios(figures, yardstick, ours), "x as fast as", limit, note)


def plain(what: str, value: float, unit: str, limit: Limit | None = None, note: str = "") -> Line:
    """A figure that is held against nothing but its limit."""
    return Line(what, "", value, unit, "", "", limit, note=note)


def missing(what: str, yardstick: str, note: str, limit: Limit | None = None) -> Line:
    """A comparison that could not be made: a yardstick that is not there is no failure, ours is."""
    return Line(what, "", math.nan, "", yardstick, "", limit, note=note)


def _compared(
    what: str,
    figures: Figures,
    ours: str,
    yardstick: str,
    each_round: list[float],
    measure: str,
    limit: Limit | None,
    note: str,
) -> Line:
    low, value, high = quartiles(each_round)
    mine, theirs = (_duration(median(figures[name])) for name in (ours, yardstick))
    return Line(what, mine, value, measure, yardstick, theirs, limit, low, high, note)


def _duration(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:,.1f} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:,.1f} ms"
    return f"{microseconds / 1_000_000:,.1f} s"


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


HEADING = f"{'what':<56} {'ours':>9} {'value':>8} {'against':<52} {'limit':<10} {'aim':<7} verdict"


def shown(line: Line) -> str:
    """The line for a person. A limit with a * has to hold."""
    against = f"{line.measure} {line.yardstick}" + f" ({line.theirs})" * bool(line.theirs)
    limit = aim = ""
    if line.limit is not None:
        sign = "≥" if line.limit.lower else "≤"
        limit = f"{sign} {line.limit.bound:,g}" + " *" * line.limit.must
        aim = "" if line.limit.aim is None else f"{sign} {line.limit.aim:,g}"
    row = f"{line.what:<56} {line.ours:>9} {_number(line.value):>8} {against:<52} {limit:<10} {aim:<7} {line.verdict}"
    return row.rstrip() + f"\n    {line.note}" * bool(line.note)


def told(line: Line) -> dict[str, Any]:
    """The line for a machine: a figure that is not there is null."""
    plain = line._asdict() | {"limit": line.limit and line.limit._asdict(), "verdict": line.verdict}
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in plain.items()}
