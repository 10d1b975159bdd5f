"""What the repositories of all stores share: a binding, and how they are opened and closed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from sqlalchemy import Engine

from qstore.binding import Binding, ClosedBinding
from qstore.suspending import suspendable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["AsyncRepository", "Opening", "Repository", "owning"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Repository")
A = TypeVar("A", bound="AsyncRepository")


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


class AsyncRepository:
    """The async twin of a store's repository: the same methods, awaited, with the sync one behind them."""

    def __init__(self, behind: Repository) -> None:
        self._behind = behind
        self._engine: AsyncEngine | None = None

    async def close(self) -> None:
        """End the use of this object. It closes the engine that `open` made, and nothing that it was given.

        Operations under way end first. Closing twice is fine.
        """
        self._behind._binding = ClosedBinding(type(self).__name__)
        if self._engine is not None:
            await self._engine.dispose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._behind._binding}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the sync repository. What its binding awaits is awaited here."""
        return await suspendable(method, *args, **kwargs)


class Opening(Generic[A]):
    """What an async `open` returns: await it for the repository, or use it in `async with`, which also closes that."""

    def __init__(self, engine: Coroutine[Any, Any, AsyncEngine], make: Callable[[AsyncEngine], A]) -> None:
        self._engine = engine
        self._make = make

    def __await__(self) -> Generator[Any, None, A]:
        return _owned(self._engine, self._make).__await__()

    async def __aenter__(self) -> A:
        self._repository = await self
        return self._repository

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._repository.close()


async def _owned(engine: Coroutine[Any, Any, AsyncEngine], make: Callable[[AsyncEngine], A]) -> A:
    opened = await engine
    try:
        repository = make(opened)
    except BaseException:
        await opened.dispose()
        raise
    repository._engine = opened
    return repository
