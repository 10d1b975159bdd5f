"""Sees to it that a forked child opens connections of its own and leaves its parent's alone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from weakref import WeakKeyDictionary

from sqlalchemy import Engine

__all__ = ["renewed_in_children"]


def renewed_in_children(engine: Engine, forget: Callable[[], None] = lambda: None) -> None:
    """Give an engine a new pool in each child. `forget`: what is done there before the old one is let go."""
    _children.watch(engine, forget)


class _Children:
    def __init__(self) -> None:
        self._engines: WeakKeyDictionary[Engine, Callable[[], None]] = WeakKeyDictionary()
        self._watching = False

    def watch(self, engine: Engine, forget: Callable[[], None]) -> None:
        self._engines[engine] = forget
        if not self._watching and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)
            self._watching = True

    def _renew(self) -> None:
        for engine, forget in list(self._engines.items()):
            forget()
            # Not even the end of the child may collect what its parent has checked out: that would end it there.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine.pool))
            engine.dispose(close=False)


_children = _Children()
