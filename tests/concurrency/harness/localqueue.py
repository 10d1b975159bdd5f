"""What must hold of a queue's history: semantics 2 and 25 to 28."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import NamedTuple

from tests.concurrency.harness.clock import Times
from tests.concurrency.harness.history import Call
from tests.concurrency.harness.sending import Sent, lost, sent

__all__ = ["wrong"]


class Delivery(NamedTuple):
    """One message of a receive."""

    id: int
    handle: str
    attempt: int
    payload: str
    call: Call


def wrong(calls: list[Call], times: Times, *, files: bool) -> Iterator[str]:
    """What must not be, each in a line that begins with its kind."""
    return _Account([call for call in calls if call.store == "localqueue"], times, files=files).wrong()


class _Account:
    def __init__(self, calls: list[Call], times: Times, *, files: bool) -> None:
        self._calls, self._times, self._files = calls, times, files
        self._sent: dict[int, Sent] = {}
        self._deliveries: dict[int, list[Delivery]] = defaultdict(list)
        self._settled: dict[int, list[tuple[str, Call]]] = defaultdict(list)
        self._receives = [call for call in calls if call.operation == "receive"]
        self._unsure = [call for call in self._receives if call.outcome == "unsure"]
        for call in self._receives:
            for id, handle, attempt, payload in call.found if call.done else ():
                self._deliveries[id].append(Delivery(id, handle, attempt, payload, call))
        for call in calls:
            for handle in call.given.get("handles", ()):
                self._settled[int(handle.partition(":")[0])].append((handle, call))

    def wrong(self) -> Iterator[str]:
        brought = [(call, [(it,) for it in call.given["payloads"]]) for call in self._calls if "payloads" in call.given]
        delivered = [(it.id, (it.payload,)) for each in self._deliveries.values() for it in each]
        self._sent, faults = sent(brought, delivered)
        yield from faults
        yield from lost(self._sent, {id for id in self._settled if self._acks(id)})
        for call in self._receives:
            if call.done and len(call.found) > call.given["most"]:
                yield f"more than asked for: {call}"
        for deliveries in self._deliveries.values():
            yield from self._of_one(deliveries)
        for id in self._settled:
            yield from self._fenced(id)
        if self._files:
            yield from self._nothing()

    def _acks(self, id: int, but: str = "") -> list[Call]:
        """Those that may have removed it, but for those with one handle."""
        acks = [(handle, call) for handle, call in self._settled.get(id, ()) if call.operation in ("ack", "ack_many")]
        return [call for handle, call in acks if call.perhaps and handle != but]

    def _nacks(self, id: int) -> list[Call]:
        return [call for _, call in self._settled.get(id, ()) if call.operation == "nack" and call.perhaps]

    def _of_one(self, deliveries: list[Delivery]) -> Iterator[str]:
        """Attempts are counted, and the message is out to one receiver at a time."""
        id = deliveries[0].id
        ordered = sorted(deliveries, key=lambda it: it.attempt)
        if len({it.attempt for it in ordered}) < len(ordered):
            yield f"an attempt twice: {ordered}"
        if ordered[-1].attempt - len(ordered) > len(self._unsure):
            yield f"attempts out of nothing: {ordered}"
        if ordered[0].attempt < 1 or any(two.call.ended < one.call.began for one, two in pairwise(ordered)):
            yield f"attempts out of order: {ordered}"
        for one, two in pairwise(ordered):
            due = self._times.least(one.call.began, one.call.ended) + one.call.given["visibility"] - 0.001
            late = self._times.most(two.call.began, two.call.ended)
            put_back = any(it.began < two.call.ended and it.ended > one.call.began for it in self._nacks(id))
            if late < due and not put_back and two.attempt == one.attempt + 1:
                yield f"delivered twice inside one timeout: {one}, {two}"
        removed = min((it.ended for it in self._acks(id) if it.done), default=inf)
        for it in deliveries:
            if it.call.began > removed:
                yield f"delivered after its ack: {it}"

    def _fenced(self, id: int) -> Iterator[str]:
        deliveries = self._deliveries[id]
        by = {it.handle: it for it in deliveries}
        for handle, call in self._settled[id]:
            if handle not in by:
                continue
            mine = by[handle]
            later = [it for it in deliveries if it.attempt > mine.attempt and it.call.ended < call.began]
            if call.done and later and not any(ack.began < call.ended for ack in self._acks(id, but=handle)):
                yield f"a stale receipt was taken: {handle}, {call}, after {later[0]}"
            if call.outcome == "stale" and len(call.given["handles"]) == 1:
                others = [*(it.call for it in deliveries if it is not mine), *self._unsure]
                if not any(it.began < call.ended and it.ended > mine.call.began for it in others):
                    yield f"stale without a reason: {call}"

    def _nothing(self) -> Iterator[str]:
        """A receive that found nothing, where a message was there that nobody had ever received (on files)."""
        first = {id: min((it.call.began for it in self._deliveries[id]), default=inf) for id in self._sent}
        for call in self._receives:
            if call.found or not call.done:
                continue
            now = self._times.least(call.began, call.ended) - 0.001
            for id, it in self._sent.items():
                due = it.ended < call.began and self._times.most(it.began, it.ended) < now
                if due and first[id] > call.ended and not self._may_have_been(it, call):
                    yield f"nothing received where there was something: {call}, {id}, {it}"

    def _may_have_been(self, it: Sent, call: Call) -> bool:
        """Whether one who was killed may have received a message before a call."""
        return any(each.began < call.ended and each.ended > it.began for each in self._unsure)
