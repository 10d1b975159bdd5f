"""What no store survives: its file is deleted, replaced or cut short under the processes that use it.

There is no account then. What must hold: an error by name or the right answer, and nothing
written where nobody finds it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from shutil import copyfile

from tests.concurrency.harness.clock import Times
from tests.concurrency.harness.history import Call, read
from tests.concurrency.harness.sending import sent
from tests.concurrency.harness.storm import Storm
from tests.concurrency.harness.workers import Plan
from tests.made_files import made

__all__ = ["ACTS", "lastly"]

PROCESSES = 2
STORES = ("transport", "localqueue", "localkv")
MOMENT = 0.1
"""Seconds after which no call is under way any more that had found the file."""


def _delete(path: Path, _: Random) -> None:
    path.unlink()


def _replace(path: Path, _: Random) -> None:
    another = path.with_name("another")
    copyfile(made(path.stem), another)
    another.rename(path)


def _cut(path: Path, random: Random) -> None:
    """The database, or its log. An index of the log that is cut is the end of any process that reads it."""
    cut = random.choice((path, Path(f"{path}-wal")))
    if cut.exists():
        os.truncate(cut, random.choice((0, cut.stat().st_size // 2)))


ACTS: dict[str, Callable[[Path, Random], None]] = {"deleted": _delete, "replaced": _replace, "cut": _cut}


def lastly(plan: Plan, times: Times, random: Random, act: str) -> tuple[list[str], Counter[str]]:
    """Let a store's file come to an end while processes use it. What must not be, and what was done."""
    store = random.choice(STORES)
    plan = plan._replace(ends=time.monotonic() + 6, steps=0)
    storm = Storm(plan, times, random, None, None, forking=False)
    try:
        for _ in range(PROCESSES):
            storm.start(at_once=False)
        storm.go()
        while not _under_way(plan, store) and time.monotonic() < plan.ends:
            time.sleep(0.05)
        if time.monotonic() < plan.ends:
            ACTS[act](plan.place.directory / f"{store}.sqlite", random)
        came = time.monotonic()
        storm.end()
    finally:
        storm.close()
    calls = read(plan.notes.glob("w*.history"), storm.ended, 0.1)
    wrong = [*storm.faults, *_beside(calls, store)]
    after = [call for call in calls if call.store == store and call.began > came + MOMENT]
    if act == "cut":
        wrong += _answered(calls, store)
    else:
        wrong += [f"as if the file were there: {act}, {call}" for call in after if call.outcome != "refused"]
    return wrong, Counter({f"last {act}": 1, "calls after it": len(after)})


def _under_way(plan: Plan, store: str) -> bool:
    """Whether all have opened the store, and used it."""
    histories = [read([path]) for path in plan.notes.glob("w*.history")]
    return len(histories) == PROCESSES and all(sum(it.store == store for it in each) > 20 for each in histories)


def _beside(calls: list[Call], store: str) -> Iterator[str]:
    """The other stores know nothing of it."""
    for call in calls:
        if call.store not in ("", store) and call.outcome not in ("done", "stale", "busy"):
            yield f"an error of a store that is whole: {call}"


def _answered(calls: list[Call], store: str) -> Iterator[str]:
    """What is still delivered is what was sent."""
    ours = [call for call in calls if call.store == store]
    if store == "transport":
        brought = [
            (call, [tuple(it[:2]) for it in call.given["messages"]]) for call in ours if "messages" in call.given
        ]
        delivered = [
            (it.found[0], tuple(it.found[1:3])) for it in ours if it.operation == "claim" and it.done and it.found
        ]
    elif store == "localqueue":
        brought = [(call, [(it,) for it in call.given["payloads"]]) for call in ours if "payloads" in call.given]
        delivered = [
            (it[0], (it[3],)) for call in ours if call.operation == "receive" and call.done for it in call.found
        ]
    else:
        values = {call.given.get("value") for call in ours}
        yield from (
            f"a value that nobody put: {call}"
            for call in ours
            if call.operation == "get" and call.found is not None and call.done and call.found not in values
        )
        return
    # An id may be given twice: what had given it first is no longer there.
    yield from (fault for fault in sent(brought, delivered)[1] if fault.startswith("out of nothing"))
