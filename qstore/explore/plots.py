"""Pictures of stores. The colours are those of Okabe and Ito, which people of any colour vision tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qstore.explore.summary import Summary

__all__ = ["age", "depth", "groups"]

COLOURS = {
    "ready": "#0072B2",
    "live": "#009E73",
    "in flight": "#E69F00",
    "parked": "#56B4E9",
    "lapsed": "#D55E00",
    "expired": "#999999",
    "stuck": "#000000",
    "orphaned": "#CC79A7",
    "empty": "#999999",
}
"""A colour for each state, in the order in which they are drawn."""

HATCHES = {"in flight": "//", "lapsed": "xx", "expired": "..", "orphaned": "\\\\"}
"""A pattern as well, for those whose colours come out as the same grey on paper."""

EDGES = (0, 1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400)
"""Seconds: where one bar of ages ends and the next begins."""


def depth(summaries: Sequence[Summary], ax: Axes | None) -> Axes:
    """A bar for each store, made up of the states of its rows."""
    ax = _axes(ax, len(summaries), width=10)
    names = [each.store for each in summaries]
    _stacked(ax, names, [each.states for each in summaries], list(map(_said, summaries)))
    ax.set_xlim(0, 2.2 * max([each.rows for each in summaries if each.rows], default=1))
    ax.set_xlabel("rows")
    ax.set_title("What the stores hold, by state", loc="left")
    return ax


def groups(columns: Mapping[str, Sequence[Any]], most: int, ax: Axes | None) -> Axes:
    """A bar for each of the groups with the most messages, in the colour of the group's state."""
    rows = sorted(
        zip(columns["messages"], columns["group_id"], columns["state"], strict=True), key=lambda row: (-row[0], row[1])
    )
    shown = rows[:most]
    ax = _axes(ax, len(shown))
    _stacked(ax, [_short(name) for _, name, _ in shown], [{state: count} for count, _, state in shown])
    ax.set_xlabel("messages")
    rest = f"the {len(shown):,} deepest of {len(rows):,} groups" if len(rows) > len(shown) else f"{len(rows):,} groups"
    ax.set_title(f"Messages in each group, by the group's state: {rest}", loc="left")
    return ax


def age(kind: str, columns: Mapping[str, Sequence[Any]], ax: Axes | None) -> Axes:
    """Bars for ranges of age, made up of the states."""
    bars = [f"under {_round(EDGES[1])}" if low == 0 else _range(low, high) for low, high in _ranges()]
    counts: list[dict[str, int]] = [Counter() for _ in bars]
    unknown = 0
    for state, microseconds in zip(columns["state"], columns["age"], strict=True):
        if microseconds is None:
            unknown += 1
            continue
        place = sum(microseconds / 1_000_000 >= edge for edge in EDGES[1:])
        counts[place][state] = counts[place].get(state, 0) + 1
    ax = _axes(ax, len(bars))
    _stacked(ax, bars, counts)
    ax.set_xlabel("messages" if kind == "queue" else "groups")
    title = "How long ago the messages were sent" if kind == "queue" else "How long ago the groups were claimed"
    never = f" ({unknown:,} never)" if unknown else ""
    ax.set_title(f"{title}, by state{never}", loc="left")
    return ax


def _ranges() -> list[tuple[float, float | None]]:
    return list(zip(EDGES, (*EDGES[1:], None), strict=True))


def _range(low: float, high: float | None) -> str:
    return f"{_round(low)} or more" if high is None else f"{_round(low)} to {_round(high)}"


def _round(seconds: float) -> str:
    """A round duration in its one unit."""
    for name, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:g} {name}"
    return f"{seconds:g} s"


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


def _axes(ax: Axes | None, bars: int, width: float = 8) -> Axes:
    if ax is None:
        _, ax = plt.subplots(figsize=(width, 1.6 + 0.34 * max(bars, 2)), layout="constrained")
    return ax


def _said(summary: Summary) -> str:
    """The number of rows, and of those in states that a bar may be too small to show."""
    parts = [f"{summary.states[state]:,} {state}" for state in COLOURS if summary.states.get(state)]
    return f"{summary.rows:,}" + (f": {', '.join(parts)}" if len(parts) > 1 else "")


def _stacked(
    ax: Axes, names: Sequence[str], counts: Sequence[Mapping[str, int]], labels: Sequence[str] | None = None
) -> None:
    """Horizontal bars from the top down, each with its total at its end, and a legend of the states that occur."""
    places = range(len(names))
    ends = [0] * len(names)
    present = [state for state in COLOURS if any(each.get(state) for each in counts)]
    for state in present:
        lengths = [each.get(state, 0) for each in counts]
        ax.barh(
            places,
            lengths,
            left=ends,
            color=COLOURS[state],
            hatch=HATCHES.get(state),
            edgecolor="white",
            linewidth=0.6,
            label=state,
        )
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    for place, end, label in zip(places, ends, labels or [f"{end:,}" for end in ends], strict=True):
        ax.annotate(label, (end, place), xytext=(4, 0), textcoords="offset points", va="center")
    ax.set_yticks(list(places), list(names))
    ax.invert_yaxis()
    ax.set_xlim(0, max([*ends, 1]) * 1.12)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if present:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, title="state")
    else:
        ax.text(0.5, 0.5, "nothing here", transform=ax.transAxes, ha="center", va="center")
