"""Memory that processes share: a file that each of them maps."""

from __future__ import annotations

import os
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

__all__ = ["mapped"]


def mapped(path: Path, start: bytes, kind: str) -> Any:
    """Numbers of one kind, as `memoryview.cast` has them. The file is made whole, by whoever is the first."""
    if not path.exists():
        with NamedTemporaryFile(dir=path.parent) as new, suppress(FileExistsError):
            new.write(start)
            new.flush()
            os.link(new.name, path)
    with path.open("r+b") as file:
        numbers: Any = memoryview(mmap(file.fileno(), len(start)))
    return numbers.cast(kind)
