"""Calls where the system has no room, for another thread or for what tells of their end."""

from __future__ import annotations

import asyncio
from itertools import count
from threading import Event, Thread
from typing import Any, NoReturn

import pytest

from qstore import calls
from qstore.calls import Call, Lane, Tasks


def _no_room(_: Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_a_call_that_no_thread_can_be_had_for_is_refused_and_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        lane, done = Lane(1), list[str]()
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", _no_room)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                lane.put(Call(lambda _: done.append("refused")))
        taken: Call[Any] = Call(lambda _: done.append("taken"))
        lane.put(taken)
        await taken.outcome()
        [thread] = lane.end()
        thread.join(30)
        return done

    assert asyncio.run(run()) == ["taken"]


def test_where_no_other_thread_can_be_had_those_there_do_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        lane, go_on = Lane(2), Event()
        first: Call[Any] = Call(lambda _: go_on.wait(30))
        lane.put(first)
        second: Call[Any] = Call(lambda _: "done")
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", _no_room)
            lane.put(second)
        go_on.set()
        assert await second.outcome() == "done"
        assert await first.outcome()
        [thread] = lane.end()
        thread.join(30)

    asyncio.run(run())


def test_a_call_whose_end_there_is_no_memory_to_tell_of_is_told_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who awaits it would wait for ever, and so would all whose calls come after it."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        tell, tries = loop.call_soon_threadsafe, count()

        def told(*args: Any) -> Any:
            if next(tries) < 3:
                raise MemoryError
            return tell(*args)

        lane = Lane(1)
        for end in ("first", "second"):
            call: Call[Any] = Call(lambda _, end=end: end)  # type: ignore[misc]  # mypy knows no defaults of lambdas
            with monkeypatch.context() as patch:
                patch.setattr(loop, "call_soon_threadsafe", told)
                lane.put(call)
                assert await asyncio.wait_for(call.outcome(), 30) == end
        [thread] = lane.end()
        thread.join(30)
        assert next(tries) > 3

    asyncio.run(run())


@pytest.mark.parametrize("most", [None, 1])
def test_a_call_that_there_is_no_memory_for_in_its_task_says_so(
    most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: object) -> NoReturn:
        raise MemoryError

    async def run() -> None:
        tasks = Tasks(most)
        call: Call[Any] = Call(lambda _: "done")
        with monkeypatch.context() as patch:
            patch.setattr(calls, "greenlet_spawn", fails)
            tasks.put(call)
            with pytest.raises(MemoryError):
                await asyncio.wait_for(call.outcome(), 5)
        call = Call(lambda _: "done")
        tasks.put(call)
        assert await call.outcome() == "done"
        await tasks.done()

    asyncio.run(run())
