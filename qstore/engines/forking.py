"""Sees to it that a forked child opens connections of its own and leaves its parent's alone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from stat import S_ISSOCK
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Engine, Pool, event

from qstore.engines.driving import descriptor

__all__ = ["Sockets", "renewed_in_children"]


def renewed_in_children(
    engine: Engine,
    *,
    before: Callable[[Engine], None] = lambda _: None,
    forget: Callable[[], None] = lambda: None,
) -> None:
    """Give an engine a new pool in each child.

    `before`: what is done in the parent before it forks; `forget`: in the child, before the old pool is let go.
    """
    _children.watch(engine, before, forget)


class Sockets:
    """The sockets of a pool's connections to a server.

    A server takes a connection for open while any process has its socket. So where a parent is killed, what it held
    would stay locked for as long as its children live.
    """

    def __init__(self, pool: Pool) -> None:
        self._connections: WeakSet[Any] = WeakSet()
        event.listen(pool, "connect", self._connected)

    def let_go(self) -> None:
        """Leave them to the parent. Nothing is said to the server, and what looks at one finds it dead."""
        with suppress(OSError), open(os.devnull) as nothing:  # there may be no descriptor left: then they stay
            for number in map(descriptor, self._connections):
                if number >= 0 and S_ISSOCK(os.fstat(number).st_mode):
                    os.dup2(nothing.fileno(), number, inheritable=False)

    def _connected(self, _connection: object, record: Any) -> None:
        self._connections.add(record.driver_connection)


class _Children:
    def __init__(self) -> None:
        self._engines: WeakKeyDictionary[Engine, tuple[Callable[[Engine], None], Callable[[], None]]]
        self._engines = WeakKeyDictionary()
        self._watching = False

    def watch(self, engine: Engine, before: Callable[[Engine], None], forget: Callable[[], None]) -> None:
        self._engines[engine] = before, forget
        if not self._watching and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._prepare, after_in_child=self._renew)
            self._watching = True

    def _prepare(self) -> None:
        for engine, (before, _) in list(self._engines.items()):
            before(engine)

    def _renew(self) -> None:
        for engine, (_, forget) in list(self._engines.items()):
            forget()
            # Not even the end of the child may collect what its parent has checked out: that would end it there.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine.pool))
            engine.dispose(close=False)


_children = _Children()
