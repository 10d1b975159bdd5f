"""Writers of one process, in line: the first of them writes, and takes along who waits behind it.

A commit waits for the disk, however much is in it. So writes that come while another one is under way are done in one
transaction after it, by whoever of them is first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

__all__ = ["Line", "Write"]

R = TypeVar("R")

MOST = 500
"""Writes that share a commit."""


class Write(Generic[R]):
    """A write that waits to be taken along, or to lead."""

    __slots__ = ("_woken", "ended", "failure", "joined", "result", "run")

    def __init__(self, run: Callable[[Any], R]) -> None:
        self.run = run
        """Do it, on a connection in a transaction."""
        self.joined = False
        self.ended = False
        """Whether it is done and committed, or has failed by itself."""
        self.result: Any = None
        self.failure: BaseException | None = None
        self._woken = Lock()
        self._woken.acquire()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until the write has ended or leads; False after so many seconds."""
        return self._woken.acquire(timeout=seconds)

    def wake(self) -> None:
        """Let it go on. It may be told so twice."""
        try:  # noqa: SIM105  `suppress` takes longer than all the rest
            self._woken.release()
        except RuntimeError:  # it was told already, and has not gone on yet
            pass

    def end(self) -> None:
        """It has ended as it says."""
        self.ended = True
        self.wake()


class Line:
    """Who writes, and who waits behind. All but `join` may be called again after an interruption."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._leader: object = None
        self.waiting: deque[Write[Any]] = deque()

    def enter(self, who: object) -> bool:
        """Lead, if nobody does."""
        with self._lock:
            if self._leader is None:
                self._leader = who
            return self._leader is who

    def join(self, write: Write[Any]) -> None:
        """Wait behind whoever leads. Where nobody does any more, the write leads at once."""
        with self._lock:
            write.joined = True
            if self._leader is not None:
                self.waiting.append(write)
                return
            self._leader = write
        write.wake()

    def leave(self, who: object) -> None:
        """Let the next one lead, if this one does."""
        with self._lock:
            if self._leader is not who:
                return
            following = self._leader = self.waiting.popleft() if self.waiting else None
            if following is not None:
                following.wake()

    def take(self) -> list[Write[Any]]:
        """Those who wait, who do so no longer."""
        with self._lock:
            return [self.waiting.popleft() for _ in range(min(len(self.waiting), MOST))]

    def put_back(self, writes: list[Write[Any]]) -> None:
        """Let those of them that have not ended wait again, in front."""
        with self._lock:
            self.waiting.extendleft(each for each in reversed(writes) if not each.ended)

    def end(self, writes: list[Write[Any]]) -> None:
        """Let all of them end, whatever interrupts this: nobody else would."""
        try:
            for each in writes:
                each.end()
        except BaseException:
            self.end(writes)
            raise

    def withdraw(self, write: Write[Any]) -> bool:
        """Whether the write still waited. It does so no longer."""
        with self._lock:
            if write not in self.waiting:
                return False
            self.waiting.remove(write)
            return True

    def abandon(self, write: Write[Any]) -> None:
        """Withdraw, or see it through where it is under way already. It may be that it leads."""
        while write.joined and not self.withdraw(write):
            try:
                write.wait()
            except BaseException:  # noqa: S112, BLE001  interrupted again: others wait behind it all the same
                continue
            return
