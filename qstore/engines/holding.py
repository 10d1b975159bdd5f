"""A pool whose connections can be had without the pool's ceremony, which costs more than a read does."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, cast

from sqlalchemy import QueuePool
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

__all__ = ["Held", "HoldingPool", "Memory"]

MOST = 4
"""Connections that stay checked out while nobody uses them, until somebody asks the pool for one."""

REMEMBERED = 16
"""Things that a held connection remembers."""


class Memory(OrderedDict[Hashable, Any]):
    """A few things that were found out, the newest of them."""

    def __setitem__(self, key: Hashable, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > REMEMBERED:
            self.popitem(last=False)


class Held:
    """A connection that is kept checked out, its driver's own, and what is remembered of one state of the database."""

    __slots__ = ("_memory", "_proxy", "_state", "driver", "handle", "patience")

    def __init__(self, proxy: PoolProxiedConnection) -> None:
        self._proxy = proxy
        driver: Any = proxy.driver_connection
        self.driver = driver
        # Who waits for a lock does so with more care than SQLite.
        [timeout] = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.execute("PRAGMA busy_timeout = 0")
        self.patience = timeout / 1000
        """Seconds that the connection would wait for a lock."""
        self.handle: Any = None
        """What its last user keeps with it."""
        self._state: object = None
        self._memory = Memory()

    def remembered(self, state: object) -> Memory:
        """What was remembered in a state; nothing if that is another one than before."""
        if state != self._state:
            self._memory.clear()
            self._state = state
        return self._memory

    def undo(self) -> None:
        """Roll back, unless SQLite has done so by itself, for a full disk say."""
        if self.driver.in_transaction:
            self.driver.execute("ROLLBACK")

    def end(self) -> None:
        """Undo what the connection is about, and check it in; or close it where it cannot be undone."""
        with suppress(sqlite3.Error):
            self.undo()
            self.driver.execute(f"PRAGMA busy_timeout = {self.patience * 1000:.0f}")
        if self.handle is not None:  # an error's traceback may refer to it, and a statement keeps a connection open
            self.handle.close()
        if self.driver.in_transaction:
            self._proxy.invalidate()
        self._proxy.close()


class HoldingPool(QueuePool):
    """A QueuePool that also lends connections which it does not ask to come back through it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: deque[Any] = deque()
        self._open = True
        self.closing: Callable[[], None] = lambda: None
        """What is to be done when the pool is disposed of."""
        self._asking: deque[None] = deque()
        """For each one who wants a connection back; for good, once nobody is to have any."""

    def take(self, hold: Callable[[PoolProxiedConnection], Any] = Held) -> Any:
        """A connection that nobody else uses until it is given back."""
        try:
            return self._held.pop()
        except IndexError:
            return hold(self.connect())

    def give(self, held: Any) -> None:
        """Give a connection back that is in no transaction. Any other one has to be ended."""
        idle = self._held
        if len(idle) >= MOST:
            held.end()
            return
        idle.append(held)
        if self._asking:
            self._let_go()

    def _do_get(self) -> ConnectionPoolEntry:
        # One that nobody uses goes to whoever asks for one, also while that one waits: the pool's limits are its own.
        self._asking.append(None)
        try:
            with suppress(IndexError):
                self._held.pop().end()
            return super()._do_get()
        finally:
            self._asking.pop()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        super()._do_return_conn(record)
        if not self._open:  # SQLAlchemy would keep it for nobody, until it is collected
            super().dispose()

    def checkedout(self) -> int:
        """How many connections are in use."""
        return super().checkedout() - len(self._held)

    def dispose(self) -> None:
        """Close the connections that nobody uses; the others close when they come back."""
        self._open = False
        self._asking.appendleft(None)
        self._let_go()
        super().dispose()
        self.closing()

    def recreate(self) -> HoldingPool:
        """One that takes this one's place after it was disposed of."""
        pool = cast("HoldingPool", super().recreate())
        pool.closing = self.closing
        return pool

    def _let_go(self) -> None:
        while True:
            try:
                held = self._held.pop()
            except IndexError:  # somebody else may have taken the last one
                return
            held.end()
