"""What an operation is on a back end where writers work in parallel, if it is another one there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["in_parallel", "parallel"]

P = ParamSpec("P")
R = TypeVar("R")

_PARALLEL: dict[Callable[..., Any], Callable[..., Any]] = {}


def parallel(operation: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function as what an operation is on a back end where writers work in parallel."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        _PARALLEL[operation] = function
        return function

    return mark


def in_parallel(operation: Callable[P, R]) -> Callable[P, R]:
    """What an operation is there."""
    return _PARALLEL.get(operation, operation)
