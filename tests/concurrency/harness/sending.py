"""What was brought into a queue of either kind, and that none of it is lost or made up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, NamedTuple

from tests.concurrency.harness.history import Call

__all__ = ["Sent", "lost", "sent"]

What = tuple[Any, ...]


class Sent(NamedTuple):
    """A message, by its id."""

    what: What
    began: float
    ended: float
    """From when on it was there for certain; inf where that was never said."""
    certain: bool


def sent(
    brought: list[tuple[Call, list[What]]], delivered: list[tuple[int, What]]
) -> tuple[dict[int, Sent], list[str]]:
    """The messages by their ids, and what is wrong with how they came."""
    found: dict[int, Sent] = {}
    faults: list[str] = []
    unsure: dict[What, Call] = {}
    for call, whats in brought:
        if call.outcome == "unsure":
            unsure |= dict.fromkeys(whats, call)
        if not call.done:
            continue
        for id, what in zip(call.found, whats, strict=True):
            if id in found:
                faults.append(f"an id twice: {id}, {call}")
            found[id] = Sent(what, call.began, call.ended, certain=True)
    for id, what in delivered:
        if id not in found:
            if what not in unsure:
                faults.append(f"out of nothing: {id}, {what}")
            began = unsure[what].began if what in unsure else 0
            found[id] = Sent(what, began, inf, certain=False)
        elif found[id].what != what:
            faults.append(f"another message than was sent: {id}, {what} instead of {found[id].what}")
    there = {it.what for it in found.values()}
    for call, whats in brought:
        told = not isinstance(call.found, str)  # that it was done: but the disk failed, and may have lost the rest
        if call.outcome == "unsure" and not told and 0 < len(there.intersection(whats)) < len(whats):
            faults.append(f"half a batch: {call}")
    return found, faults


def lost(found: dict[int, Sent], removed: Iterable[int]) -> Iterator[str]:
    """What was told to be there and was neither removed nor left in the end."""
    for id in found.keys() - set(removed):
        if found[id].certain:
            yield f"lost: {id}, {found[id]}"
