"""Child processes of a test: started from a clean server that has qstore loaded, always ended."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

# Neither the parent's threads nor its connections are inherited, as with "spawn", but the imports are paid once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "qstore", "tests.concurrency.workers"])

Ready = Callable[[], None]
"""What a worker calls when it has opened all it needs. It returns when the test says go."""


class Child:
    """A running worker."""

    def __init__(self, worker: Callable[..., object], *args: Any) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process: BaseProcess = CONTEXT.Process(target=_run, args=(theirs, worker, args), daemon=True)
        self.process.start()
        assert self.process.pid is not None
        self._pid = self.process.pid
        theirs.close()

    def wait_until_ready(self) -> None:
        assert self._receive() == "ready"

    def go(self) -> None:
        self.pipe.send("go")

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has just ended."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.join(30)

    def result(self, timeout: float = 100) -> Any:
        """What the worker returned. Fails with its traceback if it raised, and with EOFError if it was killed."""
        found = self._receive(timeout)
        if found == "ready":
            self.go()
            found = self._receive(timeout)
        self.process.join(30)
        return found

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(30)
        self.process.close()
        self.pipe.close()

    def _receive(self, timeout: float = 60) -> Any:
        assert self.pipe.poll(timeout), f"the worker said nothing for {timeout} s"
        kind, value = self.pipe.recv()
        assert kind != "raised", f"the worker failed:\n{value}"
        return value


def _run(pipe: Connection, worker: Callable[..., object], args: tuple[Any, ...]) -> None:
    def ready() -> None:
        pipe.send(("said", "ready"))
        pipe.recv()

    try:
        result = worker(ready, *args)
    except BaseException:  # noqa: BLE001  the test fails with it
        pipe.send(("raised", traceback.format_exc()))
    else:
        pipe.send(("said", result))


@contextmanager
def children(*calls: tuple[Any, ...]) -> Iterator[list[Child]]:
    """Start a child for each `(worker, *args)`; none of them outlives the block."""
    started: list[Child] = []
    try:
        for call in calls:
            started.append(Child(*call))
        yield started
    finally:
        for child in started:
            child.close()
