"""Cancelled while it waits: for the write lock, behind others, for a store to open or to close."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from qstore import AsyncTransportRepository, open_async_engine
from tests.concurrency.cancelled_stores import JOINED, stores_of
from tests.concurrency.cancelling import (
    CANCELLED,
    GUARD,
    WAYS,
    Tracing,
    in_use,
    intact,
    lock_held,
    open_files,
    soon,
    threads,
)

Way = Callable[[Callable[[], Awaitable[Any]], float], Awaitable[Any]]

WAITS = ("BEGIN IMMEDIATE", "PRAGMA incremental_vacuum(1)")
"""The statements that wait for the write lock."""

LONG = 30.0
"""A busy timeout that a test ends well before: what is waiting for the lock then has not been waited for."""


def waiting(tracing: Tracing) -> bool:
    return any(statement in WAITS for statement in tracing.seen)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["opened", "watched", "host"])
def test_a_cancellation_does_not_wait_for_whoever_holds_the_write_lock(kind: str, way: Way, tmp_path: Path) -> None:
    async def main() -> None:
        tracing = Tracing(busy_timeout=LONG)
        async with stores_of(kind, tmp_path, tracing.attach) as stores:
            engine, path = stores.engines["transport"], stores.files.path("transport")
            with lock_held(path):
                before = in_use(engine)
                outcome = await way(lambda: stores.transport.publish("g", "cancelled"), 0.1)
                assert in_use(engine) == before + 1, "it has waited until the other let go, or gave up"
                assert outcome is CANCELLED
                assert waiting(tracing), "it was cancelled before it waited: the test tells nothing"
                async with asyncio.timeout(GUARD):
                    assert await stores.localkv.get("k") is None, "readers wait too"
            await intact(engine, path)
            assert await stores.transport.publish("g", "next") == 1
            assert stores.files.sql("transport", "SELECT event FROM {messages}") == [('"next"',)]

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["opened", "watched", "host"])
def test_calls_that_are_queued_behind_one_that_waits_are_cancelled_with_it(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        tracing = Tracing(busy_timeout=LONG)
        async with stores_of(kind, tmp_path, tracing.attach) as stores:
            engine, path = stores.engines["transport"], stores.files.path("transport")
            await stores.transport.publish("g", "there")
            tracing.seen.clear()
            with lock_held(path):
                tasks: list[asyncio.Future[Any]] = [
                    asyncio.ensure_future(stores.transport.publish("g", str(n))) for n in range(20)
                ]
                tasks += [asyncio.ensure_future(stores.transport.claim("w", 30)) for _ in range(20)]
                await soon(lambda: waiting(tracing), "one of them waits for the lock")
                for task in tasks[1:]:
                    task.cancel()
                async with asyncio.timeout(GUARD):
                    ended = await asyncio.gather(*tasks[1:], return_exceptions=True)
                assert {type(error) for error in ended} == {asyncio.CancelledError}
                assert not tasks[0].done(), "the one that nobody cancelled waits on"
            async with asyncio.timeout(GUARD):
                assert await tasks[0] == 2
            await intact(engine, path)
            lease = await stores.transport.claim("w", 30)
            assert lease is not None
            assert lease.seq == 1, "a cancelled claim has leased it"
            rows = stores.files.sql("transport", "SELECT event FROM {messages} ORDER BY seq")
            assert rows == [('"there"',), ('"0"',)]

    asyncio.run(main())


@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("commits", [True, False])
def test_a_call_cancelled_while_a_hosts_connection_waits_is_undone_and_the_host_goes_on(
    kind: str, way: Way, commits: bool, tmp_path: Path
) -> None:
    """It waits for the lock in the caller's transaction, which nobody else may touch meanwhile: so it ends first."""

    async def main() -> None:
        tracing = Tracing()
        async with stores_of(kind, tmp_path, tracing.attach) as stores:
            assert stores.end is not None
            path = stores.files.path("transport")
            with lock_held(path) as other:
                call = asyncio.ensure_future(way(lambda: stores.transport.publish("g", "cancelled"), 0.05))
                await soon(lambda: waiting(tracing), "it waits for the lock")
                await asyncio.sleep(0.1)
                other.execute("ROLLBACK")
                async with asyncio.timeout(GUARD):
                    assert await call is CANCELLED
            await stores.transport.publish("g", "next")
            await stores.end(commits)
            await intact(stores.engines["transport"], path, out=stores.own)
            rows = stores.files.sql("transport", "SELECT event FROM {messages} ORDER BY seq")
            assert rows == ([('"next"',)] if commits else [])

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_an_open_that_is_cancelled_leaves_nothing_open_and_a_store_that_opens(way: Way, tmp_path: Path) -> None:
    async def main() -> None:
        random = Random(0)
        cancelled = n = 0
        while cancelled < 5:
            n += 1
            path = tmp_path / f"{n}.sqlite"
            opened = await way(partial(_open, path), random.uniform(0, 0.006))
            cancelled += opened is CANCELLED
            if opened is not CANCELLED:
                await opened.close()
            await soon(lambda: not threads(), "its threads end")
            await soon(lambda: not open_files(tmp_path), "its files are closed")
            async with AsyncTransportRepository.open(path, event_type=str) as transport:
                assert await transport.publish("g", "e") == 1

    asyncio.run(main())


async def _open(path: Path) -> AsyncTransportRepository[str]:
    return await AsyncTransportRepository.open(path, event_type=str)


@pytest.mark.parametrize("way", WAYS)
def test_an_open_that_is_cancelled_while_it_waits_for_the_lock_does_not_wait_on(way: Way, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "transport.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with lock_held(path):
            assert await way(lambda: _open(path), 0.5) is CANCELLED
            assert threads() == 1, "it has waited for the end of the wait"
        await soon(lambda: not threads() and not open_files(tmp_path), "its thread ends")
        async with AsyncTransportRepository.open(path, event_type=str) as transport:
            assert await transport.publish("g", "e") == 1

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("watched", [False, True])
def test_a_close_that_is_cancelled_closes_all_the_same_after_what_was_under_way(
    watched: bool, way: Way, tmp_path: Path
) -> None:
    async def main() -> None:
        random = Random(0)
        cancelled = 0
        path = tmp_path / "transport.sqlite"
        published = set[str]()
        for n in range(10):
            transport = await AsyncTransportRepository.open(path, event_type=str)
            assert transport._engine is not None
            if watched:
                event.listen(transport._engine.sync_engine, "before_cursor_execute", lambda *_: None)
            await transport.publish("g", f"{n} before")
            calls = [asyncio.ensure_future(transport.publish("g", f"{n} {each}")) for each in range(3)]
            await asyncio.sleep(0)
            cancelled += await way(transport.close, n and random.uniform(0, 0.003)) is CANCELLED
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert not [outcome for outcome in outcomes if isinstance(outcome, asyncio.CancelledError)]
            published |= {f'"{n} before"'} | {
                f'"{n} {each}"' for each, outcome in enumerate(outcomes) if isinstance(outcome, int)
            }
            await transport.close()
            await soon(lambda: not threads(), "its threads end")
            await soon(lambda: not open_files(tmp_path), "its files are closed")
        assert cancelled
        with closing(sqlite3.connect(path)) as connection:
            rows = [row[0] for row in connection.execute("SELECT event FROM messages")]
        assert sorted(rows) == sorted(published)

    asyncio.run(main())


def test_a_close_that_is_cancelled_while_a_call_waits_for_the_lock_closes_when_that_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        transport = await AsyncTransportRepository.open(tmp_path, event_type=str)
        with lock_held(tmp_path / "transport.sqlite"):
            call = asyncio.ensure_future(transport.publish("g", "e"))
            await asyncio.sleep(0.05)
            close = asyncio.ensure_future(transport.close())
            await asyncio.sleep(0.05)
            close.cancel()
            [outcome] = await asyncio.gather(close, return_exceptions=True)
            assert isinstance(outcome, asyncio.CancelledError)
            assert not call.done()
        assert await call == 1
        await soon(lambda: not threads(), "its threads end")
        await soon(lambda: not open_files(tmp_path), "its files are closed")

    asyncio.run(main())


@pytest.mark.parametrize("watched", [False, True])
def test_a_close_lets_operations_under_way_end_first_and_leaves_nothing_open(watched: bool, tmp_path: Path) -> None:
    async def main() -> None:
        transport = await AsyncTransportRepository.open(tmp_path, event_type=str)
        assert transport._engine is not None
        if watched:
            event.listen(transport._engine.sync_engine, "before_cursor_execute", lambda *_: None)
        await transport.publish("g", "e")
        calls = [asyncio.ensure_future(transport.publish("g", "e")) for _ in range(5)]
        await asyncio.sleep(0)
        await transport.close()
        with closing(sqlite3.connect(tmp_path / "transport.sqlite")) as connection:
            assert connection.execute("SELECT count(*) FROM messages").fetchall() == [(6,)]
        assert sorted(await asyncio.gather(*calls)) == [2, 3, 4, 5, 6]
        await soon(lambda: not threads(), "its threads end")
        await soon(lambda: not open_files(tmp_path), "its files are closed")

    asyncio.run(main())


@pytest.mark.parametrize("watched", [False, True])
def test_a_store_used_in_a_scope_that_is_cancelled_is_closed_at_its_end(watched: bool, tmp_path: Path) -> None:
    """Within a cancelled scope of anyio's every await is cancelled, those of `async with`'s end as well."""

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with AsyncTransportRepository.open(tmp_path, event_type=str) as transport:
                assert transport._engine is not None
                if watched:
                    event.listen(transport._engine.sync_engine, "before_cursor_execute", lambda *_: None)
                await transport.publish("g", "e")
                scope.cancel()
                await transport.publish("g", "cancelled")
        assert scope.cancelled_caught
        await soon(lambda: not threads(), "its threads end")
        await soon(lambda: not open_files(tmp_path), "its files are closed")

    asyncio.run(main())


def test_an_engine_disposed_of_in_a_cancelled_scope_is_closed(tmp_path: Path) -> None:
    async def used(engine: AsyncEngine) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await engine.dispose()

    async def main() -> None:
        async with AsyncTransportRepository.open(tmp_path, event_type=str):
            pass
        engine = open_async_engine(tmp_path / "transport.sqlite")
        await AsyncTransportRepository(engine, event_type=str).publish("g", "e")
        async with engine.connect() as connection:
            await connection.exec_driver_sql("SELECT * FROM messages")
        await used(engine)
        await soon(lambda: not threads(), "its threads end")
        await soon(lambda: not open_files(tmp_path), "its files are closed")

    asyncio.run(main())
