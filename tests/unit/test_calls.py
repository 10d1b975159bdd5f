"""Calls in threads, where the system has no room for another thread."""

from __future__ import annotations

import asyncio
from threading import Event, Thread
from typing import Any, NoReturn

import pytest

from qstore.calls import Call, Lane


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
