"""A round: stores of its own, processes at work on them, faults, an end with everything drained, and the account."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from qstore import migrate, open_engine
from qstore.formats import newest
from tests import postgres
from tests.concurrency.harness import localkv, localqueue, transport
from tests.concurrency.harness.clock import ServerTimes, SharedClock, Tally, Times
from tests.concurrency.harness.disks import Disk, on_a_disk
from tests.concurrency.harness.draining import drained
from tests.concurrency.harness.faults import FAULTS, READ_ONLY, Fault
from tests.concurrency.harness.history import Call, read
from tests.concurrency.harness.lastly import ACTS, lastly
from tests.concurrency.harness.places import KINDS, Place
from tests.concurrency.harness.shim import Shim
from tests.concurrency.harness.storm import Storm
from tests.concurrency.harness.workers import Plan
from tests.concurrency.postgres_account import wrong_states
from tests.made_files import made

__all__ = ["Outcome", "Round", "run"]

PATIENCE = 4.5
"""Seconds. Who waits for a file's write lock waits 5; a call that is refused sooner never waited for it."""

SOON = 1.0
"""Seconds after which everybody can write on a disk that was read-only."""

YEARS = 40 * 366 * 86_400.0
"""Ahead of whatever a clock was set to: everything has lapsed."""


class Round(NamedTuple):
    """What a round is to be."""

    kind: str
    seed: str
    seconds: float
    faults: Sequence[str]
    processes: int = 4
    hands: int = 2
    steps: int = 0
    """How many there are to be at least: how long that takes, the machine decides."""
    variant: str | None = None
    keep: str | None = None
    """A directory for the histories of rounds in which something was wrong."""

    @property
    def chosen(self) -> dict[str, Fault]:
        """The faults that there are where this is."""
        return {name: FAULTS[name] for name in self.faults if FAULTS[name].may_be(KINDS[self.kind])}


class Outcome(NamedTuple):
    """What a round came to."""

    wrong: list[str]
    """What must not be, each in a line that begins with its kind: none if all is well."""
    counts: Counter[str]
    """What was done, and what befell it."""

    @property
    def kinds(self) -> set[str]:
        return {line.partition(":")[0] for line in self.wrong}


def run(it: Round, shim: Shim | None = None) -> Outcome:
    """Let processes work while faults befall them, drain the stores, and hold all calls against the model."""
    random = Random(f"{it.seed} faults")
    with ExitStack() as stack:
        notes = Path(stack.enter_context(TemporaryDirectory(prefix="qstore-notes-", dir=_memory())))
        place, disk = stack.enter_context(_place(it))
        clocked = place.on_files or ("clock" in it.chosen and random.random() < 0.5)
        clock = SharedClock(notes / "clock")
        times = Times(clock) if clocked else ServerTimes(clock)
        ends = time.monotonic() + it.seconds + 1
        hands = it.hands * it.processes if place.alone else it.hands
        plan = Plan(place, notes, it.seed, ends, hands, clocked, it.steps, it.variant)
        storm = Storm(plan, times, random, shim, disk, forking="fork" in it.chosen)
        stack.callback(storm.close)
        _work(it, storm, times if clocked else None)
        if disk is not None:
            disk.make_room()
        wrong = list(storm.faults)
        if clocked:
            times.jump(YEARS)
        wrong += drained(plan, clock if clocked else None)
        calls = read(notes.glob("*.history"), storm.ended, 0.1 if place.on_files else 1)
        wrong += _whole(place)
        wrong += _errors(it, calls, [] if disk is None else disk.read_only)
        calls = [_as_sure_as(disk, call) for call in calls]
        wrong += transport.wrong(calls, times, files=place.on_files)
        wrong += localqueue.wrong(calls, times, files=place.on_files)
        wrong += localkv.wrong(calls, times, files=place.on_files)
        if wrong and it.keep is not None:
            kept = {"settings": times.settings, "faults": storm.happened, "wrong": wrong, "calls": calls}
            Path(it.keep).mkdir(parents=True, exist_ok=True)
            Path(it.keep, f"{it.kind} {it.seed}.json").write_text(json.dumps(kept, default=str))
        counts = storm.counts
        if place.on_files and not place.alone and it.faults and it.variant is None:
            act = random.choice(list(ACTS))
            came, what = _lastly(plan, random, act)
            wrong += came
            counts += what
        counts += Counter(f"calls {call.outcome}" for call in calls)
        counts += Counter(f"{call.store} {call.operation}" for call in calls)
        return Outcome(wrong, counts)


def _lastly(plan: Plan, random: Random, act: str) -> tuple[list[str], Counter[str]]:
    """The same processes once more, on the drained stores, until one of these comes to its end."""
    with TemporaryDirectory(prefix="qstore-notes-", dir=_memory()) as notes:
        times = Times(SharedClock(Path(notes, "clock")))
        Tally(Path(notes, "tally"), 10**9)  # other keys than before
        return lastly(plan._replace(notes=Path(notes), clocked=True), times, random, act)


def _work(it: Round, storm: Storm, times: Times | None) -> None:
    for _ in range(1 if storm.plan.place.alone else it.processes):
        storm.start(at_once=False)
    storm.go()
    chosen = {name: fault for name, fault in it.chosen.items() if fault.weight and (times or name != "clock")}
    left = storm.plan.left
    while left:
        time.sleep(storm.random.uniform(0.02, 0.3))
        storm.look(replace=True)
        if chosen and storm.random.random() < 0.7:
            [name] = storm.random.choices(list(chosen), [fault.weight for fault in chosen.values()])
            storm.happened.append((time.monotonic(), name))
            chosen[name].happen(storm)
            storm.counts[f"fault {name}"] += 1
    storm.end()


def _as_sure_as(disk: Disk | None, call: Call) -> Call:
    """A call, or one of which nobody knows what came of it, since the disk failed meanwhile."""
    if disk is None or not _meets(call, disk.failing):
        return call
    return call._replace(outcome="unsure") if call.done else call


def _meets(call: Call, spans: list[tuple[float, float]], after: float = 0) -> bool:
    """Whether a call was under way in one of the spans, or so soon after it."""
    return any(call.began < until + after and call.ended > since for since, until in spans)


def _whole(place: Place) -> Iterator[str]:
    """What is wrong with the files, or with what a server's tables add."""
    if not place.on_files:
        yield from (f"wrong state: {state}" for state in wrong_states(place.url))
        return
    for path in sorted(place.directory.glob("*.sqlite")):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            found = connection.execute("PRAGMA integrity_check").fetchall()
        if found != [("ok",)]:
            yield f"damaged: {path.name}, {found}"
        engine = open_engine(path)
        yield from (f"out of step: {path.name}, {fault}" for fault in migrate.check(engine))
        migrate.upgrade(engine)
        yield from (f"out of step: {path.name}, upgraded, {fault}" for fault in migrate.check(engine))
        if (noted := migrate.current(engine)) != (newest(path.stem),):
            yield f"out of step: {path.name}, upgraded, is at {noted}"
        engine.dispose()


def _errors(it: Round, calls: list[Call], read_only: list[tuple[float, float]]) -> Iterator[str]:
    """Errors that no fault of the round excuses. `read_only`: from when until when those of a read-only disk may be."""
    excuses = tuple(excuse for fault in it.chosen.values() for excuse in fault.excuses)
    for call in calls:
        if call.outcome in ("done", "stale") or call.found == "killed":
            continue
        if call.outcome == "busy" and KINDS[it.kind].on_files:
            if call.ended - call.began < PATIENCE:
                yield f"busy, and did not wait: {call}"
            continue
        said = call.found.replace("(sqlite3.OperationalError) ", "")
        if said.startswith(READ_ONLY) and _meets(call, read_only, after=SOON):
            continue
        if not said.startswith(excuses):
            yield f"an error without an excuse: {call}"


@contextmanager
def _place(it: Round) -> Iterator[tuple[Place, Disk | None]]:
    if not KINDS[it.kind].on_files:
        url = postgres.database()
        try:
            yield KINDS[it.kind](url.render_as_string(hide_password=False)), None
        finally:
            postgres.drop(url)
        return
    with (
        TemporaryDirectory(prefix="qstore-", dir=_memory()) as directory,
        on_a_disk(Path(directory), it.chosen) as disk,
    ):
        for store in ("transport", "localqueue", "localkv"):
            Path(directory, f"{store}.sqlite").write_bytes(made(store).read_bytes())
        if disk is not None:
            disk.sync()
        yield KINDS[it.kind](directory), disk


def _memory() -> str | None:
    return os.environ.get("PYTEST_DEBUG_TEMPROOT") or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
