"""Durations and instants, as people say them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["instant", "spoken"]

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def spoken(seconds: float) -> str:
    """A duration in its two largest units: `2 h 5 min`, `3 min 12 s`, `0.4 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    parts: list[str] = []
    left = round(seconds)
    for name, length in _UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count:,} {name}")
        if len(parts) == 2:
            break
    else:
        parts.append(f"{left} s")
    return " ".join(parts)


def instant(epoch: float) -> str:
    """Epoch seconds in UTC."""
    try:
        return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"the epoch second {epoch:,.0f}"
