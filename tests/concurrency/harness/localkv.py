"""What must hold of a key-value store's history: for each key there is an order of its calls that explains them all.

Semantics 2, 20 to 23. As each key's calls are few, all orders that time allows are tried (linearizability, as Wing and
Gong check it). Keys that are always put together are one key here, whose value is that of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tests.concurrency.harness.clock import Times
from tests.concurrency.harness.hands import BATCH
from tests.concurrency.harness.history import Call

__all__ = ["wrong"]

NOTHING = -1
"""In place of the call that has put the value."""


def wrong(calls: list[Call], times: Times, *, files: bool) -> Iterator[str]:
    """What must not be, each in a line that begins with its kind."""
    keys: dict[str, list[Call]] = defaultdict(list)
    purges = []
    for call in calls:
        if call.store == "localkv" and call.perhaps:
            if call.operation == "purge_expired":
                purges.append(call)
            else:
                keys[call.given["key"]].append(call)
    for key, its in keys.items():
        for call in its:
            if (
                call.operation == "scan"
                and call.done
                and (len(set(call.found)) > 1 or len(call.found) not in (0, BATCH))
            ):
                yield f"half a batch: {call}"
        # On files the time is read with the write lock held. A server is given one that was read before.
        late = [] if files else [*purges, *(call for call in its if call.operation == "get")]
        if not _Key(its, times, late).explained():
            yield f"no order explains it: {key}, {its}"


class _Key:
    """The calls on one key, as bits of a number."""

    def __init__(self, calls: list[Call], times: Times, late: list[Call]) -> None:
        self._times = times
        self._late = late
        """Calls that may delete what has expired by a time from before it was put."""
        reads = ("get", "exists", "scan")
        self._calls = [call for call in calls if call.done or call.operation not in reads]
        self._needed = sum(1 << number for number, call in enumerate(self._calls) if call.done)
        self._seen: set[tuple[int, int]] = set()

    def explained(self) -> bool:
        """Whether there is an order. What is unsure may be in it or not."""
        states = [(0, NOTHING)]
        while states:
            state = states.pop()
            if state in self._seen:
                continue
            self._seen.add(state)
            had, value = state
            if had & self._needed == self._needed:
                return True
            states += [(had | 1 << number, after) for number in self._next(had) for after in self._after(number, value)]
        return False

    def _next(self, had: int) -> list[int]:
        """Calls that may come next: those that began before any other that is left ended, and did not end before."""
        left = [number for number in range(len(self._calls)) if not had >> number & 1]
        first = min((self._calls[number].ended for number in left if self._calls[number].done), default=inf)
        last = max((it.began for number, it in enumerate(self._calls) if had >> number & 1), default=0.0)
        return [number for number in left if self._calls[number].began <= first and self._calls[number].ended >= last]

    def _after(self, number: int, value: int) -> Iterator[int]:
        """What is there after a call, if what it found is explained by what was there before; nothing if it is not."""
        call = self._calls[number]
        match call.operation:
            case "put" | "put_many":
                yield number
            case "delete":
                yield NOTHING
            case "put_if_absent":
                if call.found is not False and self._may_be_absent(value, call):
                    yield number
                if call.found is not True and self._may_be_there(value, call):
                    yield value
            case "exists":
                if self._may_be_there(value, call) if call.found else self._may_be_absent(value, call):
                    yield value
            case "get" | "scan":
                found = (call.found or [None])[0] if call.operation == "scan" else call.found
                if found is None:
                    explained = self._may_be_absent(value, call)
                else:
                    explained = self._may_be_there(value, call) and self._calls[value].given["value"] == found
                if explained:
                    yield value

    def _may_be_there(self, value: int, call: Call) -> bool:
        if value == NOTHING:
            return False
        put = self._calls[value]
        if put.given["ttl"] is None:
            return True
        latest = self._times.most(put.began, min(put.ended, call.ended)) + put.given["ttl"] / 1000 + 0.001
        return bool(self._times.least(call.began, call.ended) <= latest)

    def _may_be_absent(self, value: int, call: Call) -> bool:
        """It is, or it had expired by some time since: then it may have been deleted, though the clock was set back."""
        if value == NOTHING:
            return True
        put = self._calls[value]
        if put.given["ttl"] is None:
            return False
        earliest = self._times.least(put.began, min(put.ended, call.ended)) + put.given["ttl"] / 1000 - 0.001
        since = min((it.began for it in self._late if it.ended > put.began), default=put.began)
        return bool(self._times.most(min(since, put.began), call.ended) >= earliest)
