"""Writers of one file, in several processes, that wait for its write lock in turns.

SQLite's own waiting sleeps up to 100 ms between two tries, while the lock is free for microseconds: a process that
writes all the time keeps all others out. Here whoever waits tries again within milliseconds, the one who has waited
longest much more often after a while, and they note in a file beside the database that they do. Whoever has had the
lock for a while, and sees that somebody waited a moment ago, lets the others try first.

What keeps writers apart is SQLite's lock alone. Without the file, or with writers that do not know of it, the waiting
is less fair and nothing else.
"""

from __future__ import annotations

import mmap
import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from qstore.engines.results import busy

__all__ = ["Turns"]

PAUSES = 0.001, 0.004
"""Seconds between two tries of one who waits, at first and later: each try may take the lock in the midst of a turn."""

LAST_PAUSE = 0.0001
"""The same of the one who has waited longest, and for more than a turn."""

TURN = 0.008
"""Seconds for which one writer may go on while others wait: after another one, its first transaction costs the most."""

MOMENT = 0.03
"""Seconds after which nobody waits any more who did, and after which it is looked again whether there is a file."""

_LAST, _OLDEST, _SEEN = range(3)
# What is noted, by `time.monotonic`: when somebody last waited; since when the one who has waited longest does, and
# when that one was last seen. A killed process leaves nothing that is not past in a moment.
_NOTHING = bytes(3 * 8)


class Turns:
    """What one engine knows of the others' waiting. `fair=False`: nothing, and it tells them nothing."""

    def __init__(self, path: str, *, fair: bool) -> None:
        self._store = path
        self._path = path + "-turns"
        self._noted: Any = None  # of one float
        self._look_again = 0.0 if fair else float("inf")
        self._ends = 0.0

    def begin(self, driver: Any, patience: float) -> None:
        """BEGIN IMMEDIATE, on a connection that does not wait for locks itself. Raises what SQLite does, in the end."""
        self.take(partial(driver.execute, "BEGIN IMMEDIATE"), patience, time.sleep)

    def take(self, attempt: Callable[[], object], patience: float, sleep: Callable[[float], object]) -> None:
        """Take the lock by an attempt that hardly waits for it, within so many seconds."""
        began = time.monotonic()
        if self._noted is not None:
            yields = began >= self._ends and abs(began - self._noted[_LAST]) < MOMENT
        else:
            yields = False
            if began >= self._look_again:
                self._look(began)
        if not yields:
            try:
                attempt()
                return
            except sqlite3.OperationalError as error:
                if not busy(error) or patience <= 0:
                    raise
        self._wait(attempt, began, patience, sleep, PAUSES[0] if yields else self._note(began))

    def _wait(
        self,
        attempt: Callable[[], object],
        began: float,
        patience: float,
        sleep: Callable[[float], object],
        pause: float,
    ) -> None:
        while True:
            sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  no secret
            try:
                attempt()
                break
            except sqlite3.OperationalError as error:
                if not busy(error) or time.monotonic() - began >= patience:
                    raise
            pause = self._note(began)
        self._ends = time.monotonic() + TURN
        if self._noted is not None and self._noted[_OLDEST] == began:
            self._noted[_SEEN] = 0.0

    def close(self) -> None:
        """Let go of the file. It is opened again where it is needed again."""
        self._noted = None

    def _look(self, now: float) -> None:
        """Look whether somebody has made the file."""
        self._look_again = now + MOMENT
        if os.path.exists(self._path):
            self._open(os.O_RDWR)

    def _note(self, began: float) -> float:
        """Tell the others of one who waits since then. Returns how long it is to pause."""
        if self._noted is None and self._look_again < float("inf"):
            self._open(os.O_RDWR | os.O_CREAT)
        now = time.monotonic()
        waited = now - began
        pause = min(max(waited, PAUSES[0]), PAUSES[1])
        if (noted := self._noted) is None:
            return pause
        noted[_LAST] = now
        if noted[_OLDEST] < began and abs(now - noted[_SEEN]) < MOMENT:
            return pause
        noted[_OLDEST], noted[_SEEN] = began, now
        return pause if waited < TURN else LAST_PAUSE

    def _open(self, flags: int) -> None:
        with suppress(OSError, ValueError):
            mode = os.stat(self._store).st_mode & 0o666  # whoever may write to the store may wait for it
            file = os.open(self._path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0), mode)
            try:
                if os.fstat(file).st_size < len(_NOTHING):
                    os.write(file, _NOTHING)
                    os.fchmod(file, mode)  # whatever the umask, as SQLite does with its own files
                self._noted = memoryview(mmap.mmap(file, len(_NOTHING))).cast("d")
            finally:
                os.close(file)
