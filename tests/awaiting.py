"""The async twins driven from tests that are not async: one event loop in a thread, and each call awaited in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import wraps
from threading import Thread
from typing import Any, TypeVar, cast

T = TypeVar("T")


class EventLoop:
    """An event loop that runs in a thread until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = Thread(target=self._run, name="event loop", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """Await something in the loop, from whichever thread this is."""
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()

    def close(self) -> None:
        """End the loop. Nothing may be left running in it."""
        left = self.run(_others())
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert not left, left

    def sync(self, repository: Any) -> Any:
        """An async repository whose methods are awaited by the call itself."""
        loop = self

        class Awaiting:
            def __getattr__(self, name: str) -> Any:
                return loop._awaiting(getattr(repository, name))

            def __repr__(self) -> str:
                return repr(repository)

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                self.close()

        return cast(Any, Awaiting())

    def _run(self) -> None:
        while not self._closing:
            # What a test raises in a task ends asyncio's loop, and is the task's result all the same.
            with suppress(KeyboardInterrupt, SystemExit):
                self._loop.run_forever()

    def _awaiting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = self.run(_called(method, args, kwargs))
            return self._iterated(result) if isinstance(result, AsyncIterator) else result

        return call

    def _iterated(self, results: AsyncIterator[T]) -> Iterator[T]:
        while True:
            try:
                yield self.run(anext(results))
            except StopAsyncIteration:
                return


async def _called(method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = method(*args, **kwargs)
    return await result if isinstance(result, Awaitable) else result


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _others() -> set[asyncio.Task[Any]]:
    await asyncio.sleep(0)
    return asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
