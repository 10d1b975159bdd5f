"""A call that is cancelled has happened whole or not at all, and leaves nothing behind that is in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.concurrency.cancelled_account import STEP, VISIBILITY, Account, Operation, attempt, changed, rows_of
from tests.concurrency.cancelled_stores import KINDS, stores_of
from tests.concurrency.cancelling import CANCELLED, GUARD, WAYS, CancelAt, Tracing, intact, let_be, lock_held, soon
from tests.concurrency.histories import chosen, replayable

CANCELS = {"opened": 350, "watched": 150, "host": 200, "connection": 150, "session": 150}
"""1,000 calls that ended cancelled, whatever number of calls that takes."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_cancels_at_random_points_leave_an_exact_account(kind: str, tmp_path: Path) -> None:
    for seed in chosen(1):
        steps: list[str] = []
        directory = tmp_path / str(seed)
        directory.mkdir()
        with replayable(seed, steps) as random:
            asyncio.run(_history(kind, directory, random, steps))


async def _history(kind: str, directory: Path, random: Random, steps: list[str]) -> None:
    async with stores_of(kind, directory) as stores:
        account = Account(stores, random)
        cancels = 0
        while cancels < CANCELS[kind]:
            stores.clock.advance(STEP)
            operation = account.next()
            way = random.choice(WAYS) if random.random() < 0.6 else let_be
            delay = random.choice((0.0, random.uniform(0, 0.001), random.uniform(0, 0.005), random.uniform(0, 0.015)))
            held = random.uniform(0, 0.006) if random.random() < 0.3 else None
            commits = stores.end is None or random.random() < 0.6
            steps.append(f"{operation.name}, {way.__name__} after {delay:.6f}, lock held {held}, commits {commits}")
            outcome = await _step(account, operation, way, delay, held, commits)
            steps[-1] += f": {'cancelled' if outcome is CANCELLED else outcome!r}"
            cancels += outcome is CANCELLED
        await account.drain()


async def _step(
    account: Account,
    operation: Operation,
    way: Callable[[Callable[[], Awaitable[Any]], float], Awaitable[Any]],
    delay: float,
    held: float | None,
    commits: bool,
) -> Any:
    stores = account.stores
    before, stamps = account.look(operation.store), account.stamps()
    if held is None:
        outcome = await way(lambda: attempt(operation), delay)
    else:
        with lock_held(stores.files.path(operation.store)) as other:
            asyncio.get_running_loop().call_later(held, other.execute, "ROLLBACK")
            outcome = await way(lambda: attempt(operation), delay)
            await soon(lambda: not other.in_transaction, "the other lets go")
    if stores.end is not None:
        await stores.end(commits)
    after = account.look(operation.store)
    rows = changed(before, after)
    if not commits:
        assert rows == 0, "the host has rolled back"
    elif outcome is CANCELLED:
        assert rows in (0, operation.rows), f"a part of {operation.name} has happened"
    else:
        assert rows == rows_of(operation, outcome), f"{operation.name} has told {outcome!r}"
    if operation.name == "claim":
        assert changed(stamps, account.stamps()) == rows, "a message and its group are claimed together"
    if rows:
        operation.happened(outcome)
    await intact(stores.engines[operation.store], stores.files.path(operation.store), out=stores.own)
    assert account.look(operation.store) == after, "what was cancelled has happened later"
    account.check()
    return outcome


@pytest.mark.parametrize("kind", KINDS)
def test_some_of_many_calls_at_once_are_cancelled_and_the_others_are_all_right(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stores_of(kind, tmp_path) as stores:
            random = Random(0)
            reported: dict[int, str] = {}
            unknown: set[str] = set()
            for turn in range(10):
                names = [f"{turn}, {n}" for n in range(30)]
                tasks = [asyncio.ensure_future(stores.transport.publish(f"g{len(n)}", n)) for n in names]
                for task in random.sample(tasks, 10):
                    await asyncio.sleep(random.choice((0, 0, 0.001)))
                    task.cancel()
                outcomes: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
                for name, outcome in zip(names, outcomes, strict=True):
                    if isinstance(outcome, int):
                        reported[outcome] = f'"{name}"'
                    else:
                        assert isinstance(outcome, asyncio.CancelledError)
                        unknown.add(f'"{name}"')
                if stores.end is not None:
                    await stores.end(True)
                await intact(stores.engines["transport"], stores.files.path("transport"), out=stores.own)
            found = dict(stores.files.sql("transport", "SELECT seq, event FROM {messages}"))
            assert {seq: found.get(seq) for seq in reported} == reported
            others = [event for seq, event in found.items() if seq not in reported]
            assert len(set(others)) == len(others)
            assert set(others) <= unknown

    asyncio.run(main())


class ClockError(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ValueError, StopIteration, StopAsyncIteration, GeneratorExit, ClockError])
def test_a_call_ends_whatever_its_clock_raises(kind: str, error: type[BaseException], tmp_path: Path) -> None:
    """`iter([...]).__next__` is a clock of many a test, and ends in StopIteration."""

    async def main() -> None:
        async with stores_of(kind, tmp_path) as stores:
            stores.clock.error = error
            async with asyncio.timeout(GUARD):
                with pytest.raises((error, RuntimeError)):
                    await stores.localkv.put("k", b"v")
            stores.clock.error = None
            assert await stores.localkv.put("k", b"w")
            if stores.end is not None:
                await stores.end(True)
            assert stores.files.sql("localkv", "SELECT value FROM {kv}") == [(b"w",)]
            await intact(stores.engines["localkv"], stores.files.path("localkv"), out=stores.own)

    asyncio.run(main())


OPERATIONS = (
    "publish",
    "publish_many",
    "claim",
    "ack",
    "nack",
    "extend",
    "put",
    "put_if_absent",
    "put_many",
    "send_many",
    "receive",
    "queue_ack",
    "queue_nack",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_cancelled_at_any_of_its_statements_is_undone_and_one_that_is_ending_already_is_whole(
    kind: str, tmp_path: Path
) -> None:
    asyncio.run(_each_statement(kind, tmp_path))


async def _each_statement(kind: str, directory: Path) -> None:
    tracing = Tracing()
    async with stores_of(kind, directory, tracing.attach) as stores:
        account = Account(stores, Random(0))
        for name in OPERATIONS:
            n = 0
            cancelled_at: list[str] = []
            while n == len(cancelled_at):
                n += 1
                await _prepare(account)
                operation: Operation = getattr(account, name)()
                before = account.look(operation.store)
                task = asyncio.ensure_future(attempt(operation))
                at = CancelAt(tracing, task, n)
                outcome: Any = (await asyncio.gather(task, return_exceptions=True))[0]
                tracing.on_statement = lambda _: None
                if stores.end is not None:
                    await stores.end(True)
                rows = changed(before, account.look(operation.store))
                if at.at is not None:
                    cancelled_at.append(at.at)
                    assert isinstance(outcome, asyncio.CancelledError), (name, at.at, outcome)
                ending = at.at is None or at.at.startswith(("COMMIT", "RELEASE"))
                assert rows == (operation.rows if ending else 0), (name, at.at)
                if rows:
                    operation.happened(CANCELLED if at.at else outcome)
                await intact(stores.engines[operation.store], stores.files.path(operation.store), out=stores.own)
                account.check()
            assert len(cancelled_at) >= 3, f"{name} was cancelled at {cancelled_at} only"
        await account.drain()


async def _prepare(account: Account) -> None:
    """There is a message to claim and one to receive, one that is leased and one that is received."""
    stores = account.stores
    stores.clock.advance(100.0)
    for group in ("a", "b"):
        event = account.name("event")
        await stores.transport.publish(f"{event}, {group}", event)
        account.events.add(event)
    payloads = [account.name("payload") for _ in range(6)]
    await stores.localqueue.send_many(payloads)
    account.payloads.update(payloads)
    account.claimed(await stores.transport.claim("w", VISIBILITY))
    account.taken(await stores.localqueue.receive(1, visibility_timeout=VISIBILITY))
    if stores.end is not None:
        await stores.end(True)
    account.leases, account.received = account.leases[-1:], account.received[-1:]
    stores.clock.advance(STEP)
