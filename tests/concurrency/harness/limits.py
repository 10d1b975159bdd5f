"""What a process is told to do to itself, in memory that it shares with who tells it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.concurrency.harness import points
from tests.concurrency.harness.mapped import mapped
from tests.concurrency.harness.places import Place

__all__ = ["ORDERS", "Limits", "Orders"]

ORDERS = ("point", "count", "pages", "files", "size", "memory")
"""Die at which point, when it has come so often; and which limits are to hold: 0 or 1."""


class Orders:
    """Numbers by their names."""

    def __init__(self, notes: Path, name: str) -> None:
        self._numbers: Any = mapped(notes / f"{name}.orders", bytes(8 * len(ORDERS)), "q")

    def __getitem__(self, order: str) -> int:
        return int(self._numbers[ORDERS.index(order)])

    def __setitem__(self, order: str, number: int) -> None:
        self._numbers[ORDERS.index(order)] = number


class Limits:
    """Heeds them, between two calls."""

    def __init__(self, notes: Path, name: str, place: Place) -> None:
        self._orders = Orders(notes, name)
        self._place = place
        self._held: dict[str, tuple[int, int]] = {}
        self._kinds: dict[str, tuple[int, Callable[[], int]]] = {
            "files": (resource.RLIMIT_NOFILE, _files),
            "size": (resource.RLIMIT_FSIZE, self._size),
            "memory": (resource.RLIMIT_AS, _memory),
        }
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        points.install(self._orders, files=place.on_files)

    def lift(self) -> None:
        """Take all limits off, for good."""
        for name, held in self._held.items():
            resource.setrlimit(self._kinds[name][0], held)

    def heed(self) -> None:
        """Put limits on and take them off, as it is wanted now."""
        for name, (kind, least) in self._kinds.items():
            if self._orders[name] and name not in self._held:
                self._held[name] = resource.getrlimit(kind)
                with suppress(ValueError, OSError):
                    resource.setrlimit(kind, (least(), self._held[name][1]))
            elif not self._orders[name] and name in self._held:
                resource.setrlimit(kind, self._held.pop(name))

    def _size(self) -> int:
        """As large as the largest file is now, and a little more."""
        with os.scandir(self._place.directory) as files:
            return max((file.stat().st_size for file in files if "sqlite" in file.name), default=0) + 5000


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize() + (1 << 20)
