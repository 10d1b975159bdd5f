"""Inputs are harmed, tried, and kept where they reach lines that none has reached before."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any, NamedTuple

import qstore
from tests.fuzz.harms import harmed
from tests.fuzz.targets import Target

__all__ = ["Found", "Guide"]

HERE = str(Path(qstore.__file__).parent)


class Found(NamedTuple):
    """An input that went wrong, and how."""

    what: str
    given: bytes


class Guide:
    """A corpus that grows."""

    def __init__(self, target: Target, directory: Path, seed: str) -> None:
        self._target, self._directory, self._random = target, directory, Random(seed)
        self._seen: set[tuple[CodeType, int]] = set()
        self._found: dict[str, Found] = {}
        self.corpus: list[bytes] = []
        self.tried = 0
        for given in target.seeds(directory):
            self.attempt(given)
            if given not in self.corpus:
                self.corpus.append(given)

    @property
    def lines(self) -> int:
        """How many of qstore's were reached."""
        return len(self._seen)

    @property
    def found(self) -> list[Found]:
        """One input of each kind of fault."""
        return list(self._found.values())

    def next(self) -> bytes:
        """Another input, made of those that were worth keeping: of the newest more often."""
        random = self._random
        newest = self.corpus[-20:] if random.random() < 0.5 else self.corpus
        return harmed(random.choice(newest), random.choice(self.corpus), random)

    def attempt(self, given: bytes) -> None:
        """Try an input."""
        self.tried += 1
        reached: set[tuple[CodeType, int]] = set()
        with _told_of_lines(reached):
            try:
                self._target.run(given, self._directory)
            except Exception as error:  # noqa: BLE001  whatever it is, it should not be
                where = traceback.extract_tb(error.__traceback__)[-1]
                key = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
                self._found.setdefault(key, Found(f"{key}: {error}"[:1000], given))
        if not reached <= self._seen:
            self._seen |= reached
            self.corpus.append(given)


@contextmanager
def _told_of_lines(reached: set[tuple[CodeType, int]]) -> Iterator[None]:
    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code, frame.f_lineno))
        return on_line

    def on_call(frame: FrameType, _event: str, _: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(HERE) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)
