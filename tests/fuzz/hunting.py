"""A target is tried in a process of its own, so that a crash or a hang is found like anything else."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.concurrency.processes import Child, Ready
from tests.fuzz.guided import Found, Guide
from tests.fuzz.targets import TARGETS

__all__ = ["Hunt", "hunt"]

LONGEST = 60.0
"""Seconds for one input, and for getting ready."""


class Hunt(NamedTuple):
    """What came of a target."""

    tried: int
    kept: int
    lines: int
    found: list[Found]


def hunt(target: str, seed: str, *, seconds: float = 0, tries: int = 0) -> Hunt:
    """Try a target for so long, or so often."""
    with TemporaryDirectory(prefix="qstore-fuzz-") as directory:
        child = Child(_hunt, target, directory, seed, seconds, tries)
        try:
            found: Hunt = child.result(LONGEST + seconds + tries)
            return found
        except (EOFError, AssertionError) as error:
            given = Path(directory, "given")
            last = given.read_bytes() if given.exists() else b""
            how = f"crashed or hung ({child.process.exitcode}): {error}"
            return Hunt(0, 0, 0, [Found(how, last)])
        finally:
            child.close()


def _hunt(ready: Ready, target: str, directory: str, seed: str, seconds: float, tries: int) -> Hunt:
    place = Path(directory, "work")
    place.mkdir()
    guide = Guide(TARGETS[target], place, f"{seed} {target}")
    ready()
    ends = time.monotonic() + seconds
    while guide.tried < tries or time.monotonic() < ends:
        given = guide.next()
        Path(directory, "given").write_bytes(given)
        guide.attempt(given)
    return Hunt(guide.tried, len(guide.corpus), guide.lines, guide.found)
