"""Time: where it comes from, and how durations become the numbers that stores hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

from qstore.errors import InvalidInput, InvalidType, shown

__all__ = ["Clock", "Seconds", "milliseconds", "seconds", "ttl_milliseconds"]

Clock = Callable[[], float]
"""Seconds since the Unix epoch. Tests hand in their own; the default is `time.time`."""

Seconds = int | float | timedelta
"""A duration: seconds, or a `timedelta`."""

LONGEST = 100 * 366 * 86_400
"""100 years, in seconds: what is longer is a mistake, and would not fit where it is stored."""

LATEST_MILLISECONDS = 2**63 - 1

LATEST = LATEST_MILLISECONDS // 1000 - LONGEST
"""The latest instant, in seconds: the longest duration after it is still one that can be stored."""


def seconds(field: str, duration: Seconds, *, above_zero: bool = False) -> float:
    """Check a duration and return it in seconds: finite, not negative, at most 100 years."""
    value = _number(field, duration)
    if value < 0 or (above_zero and value == 0):
        limit = "more than 0" if above_zero else "0 or more"
        raise InvalidInput(field, f"expected {limit} seconds, found {shown(duration)}")
    if value > LONGEST:
        raise InvalidInput(field, f"expected at most 100 years ({LONGEST:,} seconds), found {shown(duration)}")
    return float(value)


def ttl_milliseconds(field: str, ttl: Seconds) -> int:
    """Check a time to live and return whole milliseconds, rounded up, so that a positive one never becomes 0."""
    value = _number(field, ttl)
    if value < 0:
        raise InvalidInput(field, f"expected 0 or more seconds, found {shown(ttl)}")
    if value > LATEST_MILLISECONDS // 1000:
        return LATEST_MILLISECONDS
    # By way of microseconds: 4.035 * 1000 is 4035.0000000000005, which must not become 4036.
    microseconds = round(value * 1_000_000)
    return max(-(-microseconds // 1000), 1 if value > 0 else 0)


def milliseconds(instant: float) -> int:
    """Epoch seconds as whole epoch milliseconds, rounded down."""
    return round(instant * 1_000_000) // 1000


def _number(field: str, duration: Seconds) -> int | float:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise InvalidType.of(field, duration, "seconds (int or float) or a timedelta")
    if isinstance(duration, float) and not math.isfinite(duration):
        raise InvalidInput(field, f"expected a finite number of seconds, found {shown(duration)}")
    return duration
