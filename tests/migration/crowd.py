"""A crowd of processes that do something at the same instant, again and again."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Crowd", "crowd_of"]

Deed = tuple[Callable[..., None], tuple[Any, ...]]


class Crowd:
    """Processes that wait for each other before each deed."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes
        self.size = len(pipes)

    def do(self, *deeds: Deed) -> list[str]:
        """Each process does one of the deeds (a function of a module, and its arguments), all at once.

        Returns the tracebacks of those that failed.
        """
        for number, pipe in enumerate(self._pipes):
            pipe.send(deeds[number % len(deeds)])
        answers = [pipe.recv() if pipe.poll(60) else "no answer within 60 s" for pipe in self._pipes]
        return [answer for answer in answers if answer]


@contextmanager
def crowd_of(size: int) -> Iterator[Crowd]:
    """Start a crowd, and end it."""
    spawn = get_context("spawn")
    barrier = spawn.Barrier(size)
    pairs = [spawn.Pipe() for _ in range(size)]
    processes = [spawn.Process(target=_member, args=(theirs, barrier), daemon=True) for _, theirs in pairs]
    try:
        for process in processes:
            process.start()
        yield Crowd([ours for ours, _ in pairs])
    finally:
        for ours, theirs in pairs:
            ours.close()
            theirs.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)
            process.close()


def _member(pipe: Connection, barrier: Any) -> None:
    sys.stderr = open("/dev/null", "w")  # noqa: SIM115  a traceback goes to the parent instead
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        barrier.wait(60)
        try:
            function(*arguments)
        except BaseException:  # noqa: BLE001  told to the parent
            pipe.send(traceback.format_exc())
        else:
            pipe.send("")
