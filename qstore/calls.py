"""An operation that somebody awaits: whole or not at all, whatever becomes of the one who awaits it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, Self, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary, finalize

from sqlalchemy.util import greenlet_spawn
from typing_extensions import override

__all__ = ["Call", "Lane", "Tasks", "Withdrawn"]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

PAUSE = 0.01
"""Seconds until one looks again whether there is memory."""


class Withdrawn(BaseException):
    """Nobody awaits the call any more. What it has begun is to be undone."""


class _Outcome(asyncio.Future[R]):
    """A future of one awaiting task, which it wakes at once: not in the event loop's next turn, as others do."""

    _wake: Callable[[], object] | None = None

    @override
    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        self._wake = partial((context or copy_context()).run, fn, self)

    @override
    def cancel(self, msg: Any = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and self._wake is not None:
            self.get_loop().call_soon(self._wake)  # whoever cancels goes on first
        return cancelled

    def settle(self, result: R, failure: BaseException | None) -> None:
        """Take the end to the task. Only from a callback of the event loop."""
        if failure is None:
            self.set_result(result)
        else:
            self.set_exception(failure)
        if self._wake is not None:
            self._wake()


class Call(Generic[R]):
    """Work in another thread or task, and the one who awaits it.

    One who is cancelled withdraws the call. If the work has not begun to hold anything (the write lock), the
    cancellation goes on at once, and what the work may get yet it gives back and does nothing with. Otherwise it waits
    for the work to end, which is soon: undone, or, if it was committing already, whole. What may wait for others while
    it holds something is interrupted.
    """

    __slots__ = (
        *("_ended", "_holding", "_interruptible", "_loop", "_outcome", "_withdrawable", "_withdrawn", "_work"),
        "interrupt",
    )

    def __init__(self, work: Callable[[Call[R]], R], *, withdrawable: bool = True) -> None:
        """Take note of work. `withdrawable=False`: it is done even if nobody awaits it any more."""
        self._work = work
        self._withdrawable = withdrawable
        self._loop = asyncio.get_running_loop()
        self._outcome: _Outcome[R | None] = _Outcome(loop=self._loop)
        self._withdrawn = False
        self._holding = False
        self._ended = False
        self._interruptible = False
        self.interrupt: Callable[[], object] | None = None
        """Cancels what the work awaits. Set by who does it in the event loop's thread."""

    async def outcome(self, *, at_once: bool = True) -> R:
        """Await the work. `at_once`: a cancellation need not wait for work that holds nothing."""
        try:
            return cast(R, await self._outcome)
        except asyncio.CancelledError:
            # Each side writes its own mark before it reads the other's, so that one of them always sees the other.
            self._withdrawn = True
            if self._interruptible and self.interrupt is not None:
                self.interrupt()
            if self._holding or not at_once:
                await self._end()
            raise

    def guarded(self, operation: Callable[[Any, *Ts], R]) -> Callable[[Any, *Ts], R]:
        """An operation that is undone, by Withdrawn, if the call is withdrawn before its transaction commits."""

        def guarded(transaction: Any, /, *args: *Ts) -> R:
            self._holding = True
            self.check()
            self._interruptible = transaction.interruptible
            try:
                result: R = transaction.run(operation, *args)
            finally:
                self._interruptible = False
            self.check()
            return result

        return guarded

    def check(self) -> None:
        """Withdrawn if nobody awaits the call any more."""
        if self._withdrawn and self._withdrawable:
            raise Withdrawn

    def do(self) -> tuple[R | None, BaseException | None]:
        """Do the work. Its result, or its error."""
        try:
            self.check()
            return self._work(self), None
        except BaseException as error:  # noqa: BLE001  it is raised where the call is awaited
            return None, error

    def run(self) -> None:
        """Do the work in another thread than the event loop's, and tell the one who awaits it."""
        result, failure = self.do()
        while True:
            try:
                self._loop.call_soon_threadsafe(self.settle, result, failure)
            except MemoryError:  # nobody is to wait for ever for what has ended
                time.sleep(PAUSE)
            except RuntimeError:  # the event loop is closed: nobody awaits it
                return
            else:
                return

    def settle(self, result: R | None, failure: BaseException | None) -> None:
        """Take the work's end to the one who awaits it. Only in the event loop's thread, and only once."""
        if self._ended:
            return
        self._ended = True
        if self._outcome.done():
            return
        if self._withdrawn:
            failure = None
        elif isinstance(failure, StopIteration):  # which would end a coroutine as if all were well
            told = RuntimeError("an operation raised StopIteration")
            told.__cause__ = failure
            failure = told
        self._outcome.settle(result, failure)

    async def _end(self) -> None:
        while not self._ended:
            self._outcome = _Outcome(loop=self._loop)
            with suppress(asyncio.CancelledError):  # anyio cancels again and again
                await self._outcome


class Lane:
    """Threads that do calls in the order in which they come. They start when there is work, and end with the lane.

    They are daemons: a program that ends does not wait for them, and what they were about is undone or whole.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = Lock()
        self._renew()

    def put(self, call: Call[Any]) -> None:
        """Queue a call."""
        if self._process != os.getpid():  # a forked child has no threads
            self._lock = Lock()
            self._renew()
        with self._lock:
            self._crew.put(call)

    def end(self) -> list[Thread]:
        """Let the threads end once they have done what is queued. Later calls start new ones."""
        with self._lock:
            ending = self._crew.threads
            self._end()
            self._renew()
        return ending

    def _renew(self) -> None:
        self._process = os.getpid()
        self._crew = _Crew(self._threads)
        self._end = finalize(self, self._crew.end)
        self._end.atexit = False


class _Crew:
    """A lane's threads. They refer to this and not to the lane, so that the lane's end is theirs."""

    def __init__(self, most: int) -> None:
        self.threads: list[Thread] = []
        self._most = most
        self._calls: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._put = 0
        self._done = [0] * most  # a number a thread, so that nobody counts at the same time as another

    def put(self, call: Call[Any]) -> None:
        number = len(self.threads)
        if number < self._most and self._put - sum(self._done) >= number:
            thread = Thread(target=self._work, args=(number,), name="qstore", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no room for another one
                if not number:
                    raise
            else:
                self.threads.append(thread)
        # Last: what was refused must not be done later all the same.
        self._calls.put(call)
        self._put += 1

    def end(self) -> None:
        for _ in self.threads:
            self._calls.put(None)

    def _work(self, number: int) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # not to keep anything of it alive while waiting for the next one
            self._done[number] += 1


class Tasks:
    """Calls in tasks of the running event loop, where SQLAlchemy can await its async driver.

    At most so many at the same time, in each loop, as there are connections: a pool that is waited for in one loop
    cannot be waited for in another one after it. Later ones take their turns.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        # Kept from the garbage collector: an event loop refers to its tasks only weakly.
        self._under_way: set[asyncio.Task[Any]] = set()

    def put(self, call: Call[Any]) -> None:
        """Do a call when it has its turn."""
        task = asyncio.get_running_loop().create_task(self._take(call))
        self._under_way.add(task)
        call.interrupt = task.cancel

        def ended(task: asyncio.Task[Any]) -> None:
            self._under_way.discard(task)
            if task.cancelled():  # before it began: the event loop is about to end
                call.settle(None, asyncio.CancelledError())
            elif (failure := task.exception()) is not None:  # before it began, or after its end: there is no memory
                call.settle(None, failure)
            else:
                call.settle(*task.result())

        task.add_done_callback(ended)

    async def done(self) -> None:
        """Wait for the calls of this event loop to end."""
        loop = asyncio.get_running_loop()
        while ours := [task for task in self._under_way if task.get_loop() is loop]:
            await asyncio.wait(ours)

    async def _take(self, call: Call[R]) -> tuple[R | None, BaseException | None]:
        if self._most is None:
            return await greenlet_spawn(call.do)
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop) or self._turns.setdefault(loop, asyncio.Semaphore(self._most))
        async with turns:
            return await greenlet_spawn(call.do)
