"""Sync code that waits for what only async code can await: SQLAlchemy's way, in greenlets that are used again.

To make a greenlet takes ten times as long as to switch to one that is there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Dialect
from sqlalchemy.util import await_only

try:
    from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # has no types
except ImportError:  # without the extra `async` nothing here is called
    getcurrent = greenlet = None

__all__ = ["sleep", "suspend", "suspendable"]

P = ParamSpec("P")
R = TypeVar("R")


class _Idle(threading.local):
    """The greenlets of this thread that have nothing to do."""

    def __init__(self) -> None:
        self.greenlets: list[greenlet] = []


_idle = _Idle()


async def suspendable(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a sync function, and await what it suspends itself for."""
    idle = _idle.greenlets
    worker = idle.pop() if idle else _started()
    worker.parent = getcurrent()
    worker.gr_context = worker.parent.gr_context
    step = worker.switch(function, args, kwargs)
    while type(step) is not _End:
        try:
            value = await step
        except BaseException as error:  # noqa: BLE001  the function is what meets it
            step = worker.throw(error)
        else:
            step = worker.switch(value)
    idle.append(worker)
    result, failure = step.taken()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame
    return result  # type: ignore[no-any-return]  # greenlet has no types


def suspend(awaited: Coroutine[Any, Any, R]) -> R:
    """Wait for a coroutine, within a function that was called by `suspendable`."""
    result: R = getcurrent().parent.switch(awaited)
    return result


def sleep(dialect: Dialect, seconds: float) -> None:
    """Sleep where statements are run: on an async driver others in the event loop go on."""
    if dialect.is_async:
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


class _End:
    """What a function came to."""

    __slots__ = ("failure", "result")

    def __init__(self, result: Any, failure: BaseException | None) -> None:
        self.result = result
        self.failure = failure

    def taken(self) -> tuple[Any, BaseException | None]:
        """Both, once: an idle greenlet still holds this."""
        taken = self.result, self.failure
        self.result = self.failure = None
        return taken


def _started() -> greenlet:
    worker = greenlet(_work)
    worker.switch()
    return worker


def _work() -> None:
    me = getcurrent()
    end = None
    while True:
        function, args, kwargs = me.parent.switch(end)
        try:
            end = _End(function(*args, **kwargs), None)
        except BaseException as error:  # noqa: BLE001  it is raised where the function was called
            end = _End(None, error)
        del function, args, kwargs
