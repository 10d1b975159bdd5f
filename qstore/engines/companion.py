"""The sync engine behind an async one on a SQLite file: it runs whole operations in threads.

Through the async driver every statement is a hop to a thread and back. An operation in one hop is several times faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Thread

from sqlalchemy import Engine

from qstore.calls import Call, Lane, Tasks

__all__ = ["Companion", "companion"]

READERS = 4
"""Threads that read at the same time. There is one that writes, as SQLite has one write lock."""


@dataclass(frozen=True, slots=True)
class Companion:
    """The sync engine behind an async one, and the threads that use it."""

    engine: Engine
    reading: Lane = field(default_factory=lambda: Lane(READERS))
    writing: Lane = field(default_factory=lambda: Lane(1))
    tasks: Tasks = field(default_factory=lambda: Tasks(10))
    """Calls through the async driver, for those who listen to it."""

    async def close(self) -> None:
        """Close the connections once what is queued is done, and let the threads end."""
        readers = self.reading.end()
        call = Call[None](lambda _: self._close(readers), withdrawable=False)
        self.writing.put(call)
        self.writing.end()
        await call.outcome()

    def _close(self, readers: list[Thread]) -> None:
        for reader in readers:
            reader.join()
        self.engine.dispose()


def companion(engine: Engine) -> Companion | None:
    """The sync engine behind an async one's, if qstore opened it."""
    found: Companion | None = engine.get_execution_options().get("qstore_companion")
    return found
