"""Processes that do everything at random to the stores of a round, and note it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from qstore import QstoreError, StaleLease, StaleReceipt, StoreBusy, StoreFull
from tests.concurrency.harness import broken
from tests.concurrency.harness.clock import SharedClock, Tally
from tests.concurrency.harness.hands import Hand
from tests.concurrency.harness.history import History
from tests.concurrency.harness.limits import Limits
from tests.concurrency.harness.places import Place, Stores
from tests.concurrency.processes import Ready

__all__ = ["Plan", "told", "work"]


class Plan(NamedTuple):
    """What the processes of a round have in common."""

    place: Place
    notes: Path
    """Where histories go, and what the processes are told."""
    seed: str
    ends: float
    """By `time.monotonic`."""
    hands: int
    clocked: bool
    """Whether the stores have the round's clock. Otherwise their own: the host's or the server's."""
    steps: int = 0
    """How many of all processes together there are to be at least, however long that takes."""
    variant: str | None = None
    """A broken one, by its name."""

    @property
    def clock(self) -> SharedClock:
        return SharedClock(self.notes / "clock")

    @property
    def tally(self) -> Tally:
        return Tally(self.notes / "tally")

    @property
    def left(self) -> Left:
        return Left(self)


class Left:
    """What is left to do, of the time and of the steps of all processes together."""

    def __init__(self, plan: Plan) -> None:
        self._ends, self._steps = plan.ends, plan.steps
        self._done = Tally(plan.notes / "steps")

    def __bool__(self) -> bool:
        return time.monotonic() < self._ends or self._done.number < self._steps

    def step(self) -> None:
        """Count one."""
        self._done()


def told(error: Exception) -> str:
    """What an error says about what was done."""
    match error:
        case StaleLease() | StaleReceipt():
            return "stale"
        case StoreBusy():
            return "busy"
        case StoreFull():
            return "full"
        case QstoreError():
            return "refused"
        case sqlite3.Error() | DBAPIError() | OSError() | MemoryError():
            return "unsure"
        case _:
            return "failed"


def work(ready: Ready, plan: Plan, name: str, forking: bool = False) -> None:
    """Do everything at random until the time is over, with so many hands. With `forking`, now and then in a child."""
    faulthandler.register(signal.SIGUSR1)  # one that hangs is told to say where
    if plan.variant is not None:
        broken.VARIANTS[plan.variant].apply(plan.place.on_files)
    limits, left = Limits(plan.notes, name, plan.place), plan.left
    history = History(plan.notes / f"{name}.history", told)
    ready()
    with ExitStack() as stack:
        stores = _opened(plan, left, name, history, stack)
        if stores is None:
            return
        hands = [Hand(f"{name}.{number}", stores, history, plan.seed, plan.tally) for number in range(plan.hands)]
        if forking:
            _go_on(hands[0], left, limits, _Forks(plan, name, stores))
            limits.lift()
            return
        started = Event()
        threads = [Thread(target=_go_on, args=(hand, left, limits, started.wait)) for hand in hands]
        for thread in threads:
            thread.start()
        started.set()
        for thread in threads:
            thread.join()
        limits.lift()


def _opened(plan: Plan, left: Left, name: str, history: History, stack: ExitStack) -> Stores | None:
    """Open the stores, as often as it takes. Faults befall this as well."""
    while left:
        opening = plan.place.opened(plan.clock if plan.clocked else None)
        stores: Stores | None = history.call(name, "", "open", {}, partial(stack.enter_context, opening))
        if stores is not None:
            return stores
        time.sleep(0.01)
    return None


def _go_on(hand: Hand, left: Left, limits: Limits, between: Callable[[], object]) -> None:
    while left:
        left.step()
        between()
        limits.heed()
        with suppress(MemoryError):  # our own: those of calls are noted
            hand.step()


class _Forks:
    """Forks now and then, with all stores open, and lets the child work with them for a moment."""

    def __init__(self, plan: Plan, name: str, stores: Any) -> None:
        self._plan, self._name, self._stores = plan, name, stores
        self._numbers = count()
        self._random = Random(f"{plan.seed} forks {name}")
        self._children: list[int] = []

    def __call__(self) -> None:
        if self._random.random() < 0.01 and len(self._children) < 2:
            name = f"{self._name}-{next(self._numbers)}"
            child = os.fork()
            if child == 0:
                self._work(name)
            self._children.append(child)
        self._children = [child for child in self._children if os.waitpid(child, os.WNOHANG) == (0, 0)]

    def _work(self, name: str) -> None:
        code = 1
        try:
            history = History(self._plan.notes / f"{name}.history", told)
            stores = self._plan.place.in_child(self._stores)
            hand = Hand(f"{name}.0", stores, history, self._plan.seed, self._plan.tally)
            ends = min(self._plan.ends, time.monotonic() + 0.3)
            while time.monotonic() < ends:
                hand.step()
            code = 0
        finally:
            os._exit(code)
