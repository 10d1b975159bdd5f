"""An async engine on one SQLite file, through aiosqlite: what needs the extra `async`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import aiosqlite
from sqlalchemy import AsyncAdaptedQueuePool, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from qstore.engines.companion import Companion, companion
from qstore.engines.sqlite import File, prepare

__all__ = ["create", "in_thread"]


def create(engine: Engine, companion: Companion) -> AsyncEngine:
    """An async engine on the file of a sync one that qstore opened."""
    file: File = engine.get_execution_options()["qstore_file"]
    made = create_async_engine(
        engine.url.set(drivername=file.async_driver),
        async_creator=partial(in_thread, file.connect),
        poolclass=AsyncAdaptedQueuePool,
        execution_options={"qstore_file": file, "qstore_companion": companion},
    )
    prepare(made.sync_engine, file)
    return _OpenedEngine(made.sync_engine)


class _OpenedEngine(AsyncEngine):
    async def dispose(self, close: bool = True) -> None:
        """Close all connections, those of the repositories on this engine included, when what is under way has ended.

        Cancelled, it goes on with that all the same.
        """
        task = asyncio.get_running_loop().create_task(self._dispose(close))
        _disposing.add(task)
        task.add_done_callback(_disposing.discard)
        await asyncio.shield(task)

    async def _dispose(self, close: bool) -> None:
        behind = companion(self.sync_engine)
        if behind is not None:
            await behind.tasks.done()
            await behind.close()
        await super().dispose(close)


_disposing: set[asyncio.Task[None]] = set()
"""Kept from the garbage collector: an event loop refers to its tasks only weakly."""


def in_thread(connect: Callable[[], Any], *_: Any, **__: Any) -> aiosqlite.Connection:
    """A connection in a thread of its own."""
    connection = aiosqlite.Connection(connect, 64)
    # The driver's thread must not keep a program alive that did not close. Before 0.22 the connection is the thread.
    thread: Any = getattr(connection, "_thread", connection)
    thread.daemon = True
    return connection
