"""What all repositories share: whose the engine is, and how they are closed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Engine

from qstore.binding import Binding, ClosedBinding

__all__ = ["Repository", "owning"]

R = TypeVar("R", bound="Repository")


class Repository:
    """A store's operations on one binding."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._engine: Engine | None = None

    def close(self) -> None:
        """End the use of this object. It closes the engine that `open` made, and nothing that it was given.

        Closing twice is fine.
        """
        self._binding = ClosedBinding(type(self).__name__)
        if self._engine is not None:
            self._engine.dispose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._binding}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def owning(engine: Engine, make: Callable[[], R]) -> R:
    """Make a repository that closes this engine when it is closed."""
    try:
        repository = make()
    except BaseException:
        engine.dispose()
        raise
    repository._engine = engine
    return repository
