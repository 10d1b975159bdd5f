"""Random histories: how many of them, and which one to replay when it failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

HISTORIES = "QSTORE_TEST_HISTORIES"
HISTORY = "QSTORE_TEST_HISTORY"


def chosen(default: int) -> range:
    """The seeds to run: one named by QSTORE_TEST_HISTORY, or the first QSTORE_TEST_HISTORIES."""
    if one := os.environ.get(HISTORY):
        return range(int(one), int(one) + 1)
    return range(int(os.environ.get(HISTORIES, default)))


@contextmanager
def replayable(seed: int, steps: list[str]) -> Iterator[Random]:
    """A source of randomness; what fails with it says how to see it again."""
    try:
        yield Random(seed)
    except BaseException as error:
        error.add_note(f"replay with {HISTORY}={seed}; its last steps were:\n  " + "\n  ".join(steps[-25:]))
        raise


def first_failure(run: Callable[[int], None], *, within: int) -> int | None:
    """The first seed whose history fails, or None."""
    for seed in range(within):
        try:
            run(seed)
        except AssertionError:
            return seed
    return None
