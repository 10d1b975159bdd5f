"""Ways to cancel what is awaited, and what must hold once the cancellation has gone on."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import NullPool, event
from sqlalchemy.ext.asyncio import AsyncEngine

from qstore.engines import companion
from tests.write_lock import is_free

GUARD = 20.0
"""Seconds after which something is taken to hang. Nothing that works comes near it."""

CANCELLED: Any = object()
"""The outcome of a call that was cancelled."""

Work = Callable[[], Awaitable[Any]]


async def by_task(work: Work, delay: float) -> Any:
    """task.cancel()."""
    task = asyncio.ensure_future(_awaited(work))
    await asyncio.sleep(delay)
    task.cancel()
    return await _outcome(task)


async def by_task_twice(work: Work, delay: float) -> Any:
    """Cancelled again while it is about to end."""
    task = asyncio.ensure_future(_awaited(work))
    await asyncio.sleep(delay)
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    return await _outcome(task)


async def by_wait_for(work: Work, delay: float) -> Any:
    try:
        return await asyncio.wait_for(work(), delay)
    except TimeoutError:
        return CANCELLED


async def by_timeout(work: Work, delay: float) -> Any:
    try:
        async with asyncio.timeout(delay):
            return await work()
    except TimeoutError:
        return CANCELLED


async def by_move_on(work: Work, delay: float) -> Any:
    """A scope of anyio's cancels again at every await."""
    with anyio.move_on_after(delay):
        return await work()
    return CANCELLED


async def by_task_group(work: Work, delay: float) -> Any:
    """A task of a group whose scope is cancelled from outside."""
    outcomes = [CANCELLED]

    async def within() -> None:
        outcomes.append(await work())

    async with anyio.create_task_group() as group:
        group.start_soon(within)
        await asyncio.sleep(delay)
        group.cancel_scope.cancel()
    return outcomes[-1]


async def let_be(work: Work, _delay: float) -> Any:
    """Not cancelled."""
    return await work()


WAYS = (by_task, by_task_twice, by_wait_for, by_timeout, by_move_on, by_task_group)


async def _awaited(work: Work) -> Any:
    return await work()


async def _outcome(task: asyncio.Future[Any]) -> Any:
    try:
        return await task
    except asyncio.CancelledError:
        return CANCELLED


async def soon(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds that need not hold at once: a thread has to see that its call is withdrawn."""
    deadline = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < deadline, f"it does not come to pass: {what}"
        await asyncio.sleep(0.001)


def in_use(engine: AsyncEngine) -> int:
    """Connections that are out of the pools of an engine, and of the sync one behind it."""
    if isinstance(engine.pool, NullPool):  # SQLAlchemy's choice for a host's file until 2.0.38: it counts none
        path = os.path.realpath(str(engine.url.database))
        return open_files(Path(path).parent).count(path)
    behind = companion(engine.sync_engine)
    both = [engine.sync_engine] if behind is None else [engine.sync_engine, behind.engine]
    return sum(each.pool.checkedout() for each in both)  # type: ignore[attr-defined]  # of the pools that count


async def intact(engine: AsyncEngine, path: Path, *, out: int = 0) -> None:
    """The pool is whole, but for `out` connections of the test's own, and nobody holds the write lock."""
    await soon(lambda: in_use(engine) == out, f"{out} connections in use, and not {in_use(engine)}")
    await soon(lambda: is_free(path), "the write lock is free")


def threads() -> int:
    """Threads that run operations or an async driver."""
    return sum(thread.name == "qstore" or "_connection_worker" in thread.name for thread in threading.enumerate())


def open_files(directory: Path) -> list[str]:
    """What this process has open in a directory."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(str(directory))]


@contextmanager
def lock_held(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection has the write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other
        if other.in_transaction:
            other.execute("ROLLBACK")


class Tracing:
    """Sees each statement as SQLite begins it, in the thread that runs it."""

    def __init__(self, *, busy_timeout: float | None = None) -> None:
        self.seen: list[str] = []
        self.on_statement: Callable[[str], object] = lambda _: None
        self._busy_timeout = busy_timeout

    def attach(self, engine: AsyncEngine) -> None:
        """Look at all connections that are yet to be made."""
        behind = companion(engine.sync_engine)
        # A listener of the pool is not one of statements: operations stay on the driver's connection.
        event.listen(engine.sync_engine.pool, "connect", self._connected)
        if behind is not None:
            event.listen(behind.engine.pool, "connect", self._connected)

    def _connected(self, connection: Any, _record: object) -> None:
        if self._busy_timeout is not None:
            connection.cursor().execute(f"PRAGMA busy_timeout = {int(self._busy_timeout * 1000)}")
        if hasattr(connection, "run_async"):
            connection.run_async(lambda driver: driver.set_trace_callback(self._statement))
        else:
            connection.set_trace_callback(self._statement)

    def _statement(self, sql: str) -> None:
        self.seen.append(sql)
        self.on_statement(sql)


class CancelAt:
    """Cancels a task when SQLite begins its n-th statement, and lets that one run only when the task knows."""

    def __init__(self, tracing: Tracing, task: asyncio.Task[Any], n: int) -> None:
        self.at: str | None = None
        self._left = n
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._told = threading.Event()
        tracing.on_statement = self._statement

    def _statement(self, sql: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.at = sql
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)
            self._told.wait(GUARD)

    def _cancel(self) -> None:
        self._task.cancel()
        # By the second turn of the loop the task has met the cancellation.
        self._loop.call_soon(self._loop.call_soon, self._told.set)
