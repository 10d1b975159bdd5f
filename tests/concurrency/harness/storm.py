"""A round's processes while faults befall them: who they are, who was killed when, and what is to be undone."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import URL, make_url

from tests.concurrency.harness.clock import Times
from tests.concurrency.harness.disks import Disk
from tests.concurrency.harness.limits import Orders
from tests.concurrency.harness.shim import Shim
from tests.concurrency.harness.workers import Plan, work
from tests.concurrency.processes import Child

__all__ = ["Storm"]


class Storm:
    """What faults act on."""

    def __init__(
        self, plan: Plan, times: Times, random: Random, shim: Shim | None, disk: Disk | None, *, forking: bool
    ) -> None:
        self.plan, self.times, self.random, self.shim, self.disk = plan, times, random, shim, disk
        self.counts = Counter[str]()
        self.ended: dict[str, float] = {}
        """When a process was seen to be dead."""
        self.faults: list[str] = []
        """What is wrong."""
        self.happened: list[tuple[float, str]] = []
        self._forking = forking
        self._forks = ""
        self._names = map("w{}".format, count())
        self._working: dict[str, Child] = {}
        self._beside: dict[Child, Callable[[], object]] = {}
        """Other programs, and what is to be done after one of them that was killed."""
        self._later: list[tuple[float, Callable[[], object]]] = []

    @property
    def directory(self) -> Path:
        return self.plan.place.directory

    @property
    def url(self) -> URL:
        return make_url(self.plan.place.where)

    def start(self, *, at_once: bool = True) -> None:
        """Another process."""
        name = next(self._names)
        Orders(self.plan.notes, name)
        forking = self._forking and self._forks not in self._working
        if forking:
            self._forks = name
        self._working[name] = Child(work, self.plan._replace(hands=1) if forking else self.plan, name, forking)
        self.counts["processes"] += 1
        if at_once:
            self._working[name].go()

    def go(self) -> None:
        """Let all that were started begin together."""
        for child in self._working.values():
            child.wait_until_ready()
        for child in self._working.values():
            child.go()

    def one(self) -> Child:
        """A process that is at work."""
        return self.random.choice(list(self._working.values()))

    @property
    def crowded(self) -> bool:
        """Whether there are other programs enough: more of them would only keep each other waiting."""
        return len(self._beside) > 1

    def orders(self, child: Child) -> Orders:
        [name] = [name for name, it in self._working.items() if it is child]
        return Orders(self.plan.notes, name)

    def kill(self, child: Child) -> None:
        """If it is there yet."""
        if child in (*self._working.values(), *self._beside):
            child.kill()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Do it then, or at the end."""
        self._later.append((time.monotonic() + seconds, act))

    def beside(
        self,
        worker: Callable[..., object],
        *args: Any,
        first: Callable[[int], object] = lambda _: None,
        after: Callable[[], object] = lambda: None,
    ) -> Child:
        """Another program, which nobody waits for. Faults that it returns are the round's.

        `first`: what is done before it begins, to the process of this number; `after`: when it was killed.
        """
        child = Child(worker, *args)
        self._beside[child] = after
        first(child.process.pid or 0)
        child.go()
        return child

    def look(self, *, replace: bool) -> None:
        """Undo what has lasted long enough, and put new processes in the place of dead ones."""
        now = time.monotonic()
        due = [it for it in self._later if it[0] <= now]
        self._later = [it for it in self._later if it[0] > now]
        for _, act in due:
            act()
        for name, child in list(self._working.items()):
            if not child.process.is_alive():
                self._bury(name, child)
                if replace:
                    self.start()
        for child in [child for child in self._beside if not child.process.is_alive()]:
            after = self._beside.pop(child)
            if child.process.exitcode == -signal.SIGKILL:
                after()
            self._say_farewell("beside", child)

    def undo(self) -> None:
        """What was to be undone later, now; and other programs end."""
        later, self._later = self._later, []
        for _, act in later:
            act()
        if self.shim is not None:
            self.shim.relent()
        while self._beside:
            self._beside.popitem()[0].close()

    def begin_anew(self, between: Callable[[], object]) -> None:
        """Kill all, and start as many again after that."""
        self.undo()
        number = len(self._working)
        for child in self._working.values():
            child.process.kill()
        for name, child in list(self._working.items()):
            child.process.join(30)
            self._bury(name, child)
        between()
        for _ in range(number):
            self.start(at_once=False)
        self.go()

    def end(self) -> None:
        """Undo everything, and wait for those who are at work."""
        self.undo()
        for name, child in list(self._working.items()):
            child.process.join(30)
            if child.process.is_alive():
                self.faults.append(f"hangs: {name}")
                child.signal(signal.SIGUSR1)
                child.process.join(2)
                child.signal(signal.SIGABRT)
                child.process.join(5)
            self._bury(name, child)

    def close(self) -> None:
        """Leave nobody behind."""
        for child in (*self._working.values(), *self._beside):
            child.close()

    def _bury(self, name: str, child: Child) -> None:
        self.ended[name] = time.monotonic()
        del self._working[name]
        self._say_farewell(name, child)

    def _say_farewell(self, name: str, child: Child) -> None:
        code = child.process.exitcode
        told = []
        with suppress(EOFError, OSError):
            while child.pipe.poll():
                told.append(child.pipe.recv())
        raised = [value for kind, value in told if kind == "raised"]
        for found in [value for kind, value in told if kind == "said" and isinstance(value, list)]:
            self.counts["looked at after a kill"] += 1
            self.faults += found
        if code == -signal.SIGKILL:
            self.counts["processes killed"] += 1
        elif self.plan.place.alone and code in (-signal.SIGABRT, -signal.SIGBUS):  # a panic; an index on a failing disk
            self.counts[f"processes that turso has ended by {signal.Signals(-code).name}"] += 1
        elif code or raised:
            self.faults.append(f"crashed: {name} with {code}: {raised}")
        child.close()
