"""What must hold of a transport's history: semantics 2, 13 to 18."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import NamedTuple

from tests.concurrency.harness.clock import Times
from tests.concurrency.harness.hands import priority_of
from tests.concurrency.harness.history import Call
from tests.concurrency.harness.sending import Sent, lost, sent

__all__ = ["wrong"]


class Claim(NamedTuple):
    """A delivery."""

    seq: int
    group: str
    event: str
    until: float
    now: float
    """What the clock said in it."""
    floor: int
    call: Call

    @property
    def began(self) -> float:
        return self.call.began

    @property
    def ended(self) -> float:
        return self.call.ended


class Settling(NamedTuple):
    """An ack, nack or extend of one lease."""

    until: float
    """What the lease says."""
    holds: float | None
    """What it says after an extend; None where it is let go."""
    call: Call


def wrong(calls: list[Call], times: Times, *, files: bool) -> Iterator[str]:
    """What must not be, each in a line that begins with its kind."""
    return _Account([call for call in calls if call.store == "transport"], times, files=files).wrong()


class _Account:
    def __init__(self, calls: list[Call], times: Times, *, files: bool) -> None:
        self._calls, self._times, self._files = calls, times, files
        self._sent: dict[int, Sent] = {}
        self._claims: dict[int, list[Claim]] = defaultdict(list)
        self._groups: dict[str, list[Claim]] = defaultdict(list)
        self._settled: dict[int, list[Settling]] = defaultdict(list)
        self._unsure = [call for call in calls if call.operation == "claim" and call.outcome == "unsure"]
        for call in calls:
            if call.operation == "claim" and call.done and call.found:
                seq, group, event, until = call.found
                claim = Claim(seq, group, event, until, until - call.given["visibility"], call.given["floor"], call)
                self._claims[seq].append(claim)
                self._groups[group].append(claim)
            for seq, until in call.given.get("fences", ()):
                holds = None
                if call.operation == "extend":
                    holds = call.found if call.done else times.least(call.began, call.began) + call.given["visibility"]
                self._settled[seq].append(Settling(until, holds, call))

    def wrong(self) -> Iterator[str]:
        brought = [(call, [tuple(it[:2]) for it in call.given["messages"]]) for call in self._of("publish")]
        delivered = [(it.seq, (it.group, it.event)) for claims in self._claims.values() for it in claims]
        self._sent, faults = sent(brought, delivered)
        yield from faults
        yield from lost(self._sent, {seq for seq in self._settled if self._removed(seq)})
        for group in self._groups.values():
            yield from self._in_flight(group)
            yield from self._in_order(group)
            for claim in group:
                if priority_of(claim.group) < claim.floor:
                    yield f"below its floor: {claim}"
                if any(it.call.done and it.call.ended < claim.began for it in self._acks(claim.seq)):
                    yield f"delivered after its ack: {claim}"
        for seq in self._settled:
            yield from self._fenced(seq)
        yield from self._in_turn()

    def _of(self, *operations: str) -> list[Call]:
        return [call for call in self._calls if call.operation.removesuffix("_many") in operations]

    def _acks(self, seq: int) -> list[Settling]:
        return [it for it in self._settled.get(seq, ()) if it.call.operation.startswith("ack") and it.call.perhaps]

    def _nacks(self, seq: int) -> list[Settling]:
        return [it for it in self._settled.get(seq, ()) if it.call.operation == "nack" and it.call.perhaps]

    def _extends(self, seq: int) -> list[Settling]:
        return [it for it in self._settled.get(seq, ()) if it.call.operation == "extend" and it.call.perhaps]

    def _removed(self, seq: int) -> bool:
        return bool(self._acks(seq))

    # One message of a group in flight at a time; nothing is delivered twice inside one lease.

    def _in_flight(self, group: list[Claim]) -> Iterator[str]:
        for number, one in enumerate(group):
            gone = min((it.call.ended for it in self._acks(one.seq) if it.call.done), default=inf)
            for other in group[number + 1 :]:
                if other.began > gone:
                    break
                if self._may_follow(one, other) or (other.began <= one.ended and self._may_follow(other, one)):
                    continue
                yield f"two in flight: {one}, {other}"
            for nack in self._nacks(one.seq):
                if nack.until == one.until and nack.call.done and nack.call.given["delay"]:
                    yield from self._parked(group[number + 1 :], one, nack)

    def _may_follow(self, one: Claim, other: Claim) -> bool:
        """Whether a claim may have come after another one of its group."""
        if other.ended < one.began:
            return False
        let_go = (*self._acks(one.seq), *self._nacks(one.seq))
        if any(it.call.began < other.ended and it.call.ended > one.began for it in let_go):
            return True
        if any(one.ended < it.began < other.ended and it is not other for it in self._claims[one.seq]):
            return True  # and so it is that one which was in flight
        return other.now > self._held_until(one, other)

    def _held_until(self, one: Claim, other: Claim) -> float:
        """Until when a claim's lease was held for certain, when another claim came."""
        known, since, possible = one.until, 0.0, []
        for it in self._extends(one.seq):
            if it.holds is None or it.call.began > other.ended or it.call.ended < one.began:
                continue
            if it.call.done and it.call.ended < other.began:
                if it.call.ended > since:
                    known, since = it.holds, it.call.ended
            else:
                possible.append(it.holds)
        return min(known, *possible) if possible else known

    def _parked(self, later: list[Claim], one: Claim, nack: Settling) -> Iterator[str]:
        """Until its time has passed, a parked message holds its group."""
        until = self._times.least(nack.call.began, nack.call.ended) + nack.call.given["delay"]
        for other in later:
            if other.began <= nack.call.ended:
                continue
            moved = [it.call for it in self._acks(one.seq)]
            moved += [it.call for it in self._claims[one.seq] if it is not other]
            if other.now <= until and not any(it.began < other.ended and it.ended > one.began for it in moved):
                yield f"delivered while parked: {nack}, {other}"
            return

    # First in, first out.

    def _in_order(self, group: list[Claim]) -> Iterator[str]:
        """Of the messages that were there for the whole time of a claim, it is the first."""
        there = sorted(
            (it.ended, seq, min((ack.call.began for ack in self._acks(seq)), default=inf))
            for seq, it in self._sent.items()
            if it.what[0] == group[0].group
        )
        present: list[tuple[int, float]] = []
        number = 0
        for claim in group:
            while number < len(there) and there[number][0] < claim.began:
                present.append(there[number][1:])
                number += 1
            present = [it for it in present if it[1] > claim.began]
            if any(seq < claim.seq and removed > claim.ended for seq, removed in present):
                yield f"out of order: {claim} before {min(present)}"

    # Leases are fenced.

    def _fenced(self, seq: int) -> Iterator[str]:
        made: dict[float, Call] = {it.until: it.call for it in self._claims[seq]}
        made |= {it.holds: it.call for it in self._extends(seq) if it.call.done and it.holds is not None}
        changes = [*made.values(), *(it.call for it in self._nacks(seq) if it.call.done)]
        perhaps = [*(it.call for it in (*self._nacks(seq), *self._extends(seq))), *made.values(), *self._unsure]
        for it in self._settled[seq]:
            call, by = it.call, made.get(it.until)
            if by is None:
                continue
            acks = [ack.call for ack in self._acks(seq) if ack is not it]
            if call.done:
                later = [one for one in changes if by.ended < one.began and one.ended < call.began and one is not call]
                gone = any(ack.began < call.ended for ack in acks) and call.operation != "extend"
                if later and not gone:
                    yield f"a stale lease was taken: {call}, after {later[0]}"
            elif call.outcome == "stale" and len(call.given["fences"]) == 1:
                others = [*perhaps, *(acks if call.operation == "extend" else ())]
                between = [one for one in others if one.began < call.ended and one.ended > by.began]
                if all(one is by or one is call for one in between):
                    yield f"stale without a reason: {call}"

    # Groups take turns.

    def _in_turn(self) -> Iterator[str]:
        """A group that waits is not passed over twice by one that has messages all the time (on files)."""
        if not self._files:
            return
        nothing = sorted((it for it in self._of("claim") if it.done and not it.found), key=lambda it: it.began)
        starts = [it.began for it in nothing]
        every = sorted((it for claims in self._groups.values() for it in claims), key=lambda it: it.began)
        begins = [it.began for it in every]
        for waiting, since, until in self._waits():
            for it in nothing[bisect_right(starts, since) : bisect_right(starts, until)]:
                if it.ended < until and it.given["floor"] <= priority_of(waiting.group):
                    yield f"nothing claimed where there was something: {it}, {waiting} since {since}"
            if not self._times.steady:
                continue
            passed = defaultdict(list)
            for claim in every[bisect_right(begins, since) : bisect_right(begins, until)]:
                if claim.ended < until:
                    passed[claim.group].append(claim)
            for group in passed.values():
                for one, two in pairwise(group):
                    there = two.seq == one.seq or self._sent[two.seq].ended < one.began
                    if there and one.ended < two.began and two.floor <= priority_of(waiting.group):
                        yield f"passed over: {waiting} since {since}, by {one} and {two}"

    def _waits(self) -> Iterator[tuple[Claim, float, float]]:
        """A claim, since when it could have been made, and until when it was not."""
        for group in self._groups.values():
            last: list[Claim] = []  # or what may be the last one
            for claim in group:
                since = max((self._sent[claim.seq].ended, *map(self._let_go, last)))
                if since < claim.began and not self._doubtful(claim, since):
                    yield claim, since, claim.began
                last = [*(it for it in last if it.ended >= claim.began), claim]

    def _let_go(self, claim: Claim) -> float:
        """When it was, at the latest."""
        return min(
            (
                it.call.ended
                for it in (*self._acks(claim.seq), *self._nacks(claim.seq))
                if it.call.done and not it.call.given.get("delay") and it.call.began > claim.ended
            ),
            default=inf,
        )

    def _doubtful(self, claim: Claim, since: float) -> bool:
        """Whether one who was killed may have had it, or the message may have been parked or put back meanwhile."""
        if any(it.call.given["delay"] and it.call.ended > since - 2 for it in self._nacks(claim.seq)):
            return True
        return any(it.began < claim.began and it.ended > since - 3 for it in self._unsure)
