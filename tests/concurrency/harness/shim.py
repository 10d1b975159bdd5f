"""A shim between processes and their files, which fails as it is told: `shim.c`, for Linux with a C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

from tests.concurrency.harness.mapped import mapped

__all__ = ["Calls", "Files", "Mode", "Shim", "preloaded"]

SOURCE = Path(__file__).with_name("shim.c")
FIELDS = 7


class Calls(IntFlag):
    """What is to fail."""

    READS, WRITES, SYNCS = 1, 2, 4


class Files(IntFlag):
    """On which files: the database, its log, the log's index."""

    MAIN, LOG, INDEX = 1, 2, 4


class Mode(IntEnum):
    """How: one call, all calls from one on, by the death of the process, or by its death when half is written."""

    FAIL_ONCE, FAIL_ON, DIE, DIE_HALF_WAY = 1, 2, 3, 4


class Shim:
    """Tells the processes that have it."""

    def __init__(self, path: Path) -> None:
        self._control: Any = mapped(path, bytes(8 * FIELDS), "q")

    def fail(self, pid: int, mode: Mode, calls: Calls, files: Files, *, number: int = 0, after: int = 1) -> None:
        """In a process, from the so-manieth call on. `number`: the errno."""
        self.relent()
        for field, told in enumerate((mode, number, calls, files, after), 1):
            self._control[field] = told
        self._control[0] = pid

    def relent(self) -> None:
        """Let nothing fail."""
        self._control[0] = 0

    @property
    def happened(self) -> int:
        """How often something failed."""
        return int(self._control[6])


@contextmanager
def preloaded(directory: Path) -> Iterator[Shim | None]:
    """The shim of all programs that are started inside the block. None where it cannot be made here."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        yield None
        return
    library, control = directory / "shim.so", directory / "shim"
    build = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    shim = Shim(control)
    os.environ |= {"LD_PRELOAD": str(library), "QSTORE_SHIM": str(control)}
    try:
        yield shim
    finally:
        del os.environ["LD_PRELOAD"], os.environ["QSTORE_SHIM"]
