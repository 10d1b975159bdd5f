"""One object for all: tasks, event loops, threads and processes, and the sync twin beside it."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from qstore import (
    AsyncTransportRepository,
    TransportRepository,
)
from tests.backends import MOUNTED
from tests.concurrency.cancelled_stores import JOINED, KINDS, Stores, made_stores, stores_of
from tests.concurrency.cancelling import GUARD, in_use, intact, soon, threads


async def _gathered(*calls: Awaitable[Any]) -> list[Any]:
    async with asyncio.timeout(100):
        return await asyncio.gather(*calls)


async def _committed(stores: Stores) -> None:
    if stores.end is not None:
        await stores.end(True)


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_operations_at_once_on_one_transport_are_all_right(kind: str, tmp_path: Path) -> None:
    """Each task publishes two, then claims and acks one; each group has one message in flight at a time."""

    async def main() -> None:
        async with stores_of(kind, tmp_path) as stores:
            transport = stores.transport
            in_flight: Counter[str] = Counter()
            acked: list[str] = []

            async def cycle(n: int) -> None:
                await transport.publish(f"g{n % 7}", f"{n} first")
                await transport.publish_many([(f"g{n % 7}", f"{n} second"), (f"h{n}", f"{n} third")])
                lease = await transport.claim(f"w{n}", 30)
                assert lease is not None
                in_flight[lease.group_id] += 1
                assert in_flight[lease.group_id] == 1, "two messages of one group are in flight"
                acked.append(lease.event)
                in_flight[lease.group_id] -= 1
                await transport.ack(lease)

            await _gathered(*(cycle(n) for n in range(50)))
            await _committed(stores)
            while (lease := await transport.claim("last", 30)) is not None:
                acked.append(lease.event)
                await transport.ack(lease)
            await _committed(stores)
            assert Counter(acked) == Counter(f"{n} {each}" for n in range(50) for each in ("first", "second", "third"))
            await intact(stores.engines["transport"], stores.files.path("transport"), out=stores.own)
            for table in ("{messages}", "{groups}"):
                assert stores.files.sql("transport", f"SELECT count(*) FROM {table}") == [(0,)]

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_operations_at_once_on_one_key_value_store_never_interleave(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stores_of(kind, tmp_path) as stores:
            kv = stores.localkv
            puts = [kv.put_many({f"k{key}": str(n).encode() for key in range(8)}) for n in range(100)]
            looks = [kv.scan_prefix("k") for _ in range(50)]
            races = [kv.put("one", str(n).encode(), if_not_exists=True) for n in range(50)]
            outcomes = await _gathered(
                *(each for group in zip(puts[::2], puts[1::2], looks, races, strict=False) for each in group)
            )
            await _committed(stores)
            for page in outcomes[2::4]:
                assert len({value for _, value in page.items}) <= 1, "it has seen a half of a put_many"
            assert sum(outcomes[3::4]) == 1, "exactly one caller wins"
            rows = stores.files.sql("localkv", "SELECT key, value FROM {kv} WHERE key LIKE 'k%'")
            assert len(rows) == 8
            assert len({value for _, value in rows}) == 1
            winner = [n for n, won in enumerate(outcomes[3::4]) if won]
            assert await kv.get("one") == str(winner[0]).encode()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_operations_at_once_on_one_queue_deliver_each_message_once(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stores_of(kind, tmp_path) as stores:
            queue = stores.localqueue

            async def cycle(n: int) -> list[str]:
                await queue.send_many([f"{n} a", f"{n} b"])
                messages = await queue.receive(2)
                for message in messages:
                    await queue.ack(message.receipt_handle)
                return [str(message.payload) for message in messages]

            received = [each for some in await _gathered(*(cycle(n) for n in range(50))) for each in some]
            await _committed(stores)
            received += [str(message.payload) for message in await queue.receive(1000)]
            assert Counter(received) == Counter(f"{n} {each}" for n in range(50) for each in "ab")

    asyncio.run(main())


@pytest.mark.parametrize("kind", JOINED)
def test_twenty_publishes_at_once_in_one_hosts_transaction_are_all_in_it(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stores_of(kind, tmp_path) as stores:
            assert stores.end is not None
            await _gathered(*(stores.transport.publish(f"g{n % 3}", f"undone {n}") for n in range(20)))
            await stores.end(False)
            assert stores.files.sql("transport", "SELECT * FROM {messages}") == []
            seqs = await _gathered(*(stores.transport.publish(f"g{n % 3}", str(n)) for n in range(20)))
            await stores.end(True)
            rows = dict(stores.files.sql("transport", "SELECT seq, event FROM {messages}"))
            assert rows == {seq: f'"{n}"' for n, seq in enumerate(seqs)}

    asyncio.run(main())


@pytest.mark.parametrize("apart", [False, True])
def test_a_failed_call_among_others_in_one_hosts_transaction_undoes_itself_alone(apart: bool, tmp_path: Path) -> None:
    """Their savepoints must not lie in each other. `apart`: half of them on the session, half on its connection."""

    async def main() -> None:
        async with stores_of("host", tmp_path) as stores:
            async with AsyncSession(stores.engines["transport"]) as session:
                one = AsyncTransportRepository(session, event_type=str, naming=MOUNTED)
                connection = await session.connection()
                other = AsyncTransportRepository(connection, event_type=str, naming=MOUNTED) if apart else one
                await one.publish("stale", "stale")
                stale = await one.claim("w", 30)
                assert stale is not None
                await one.extend(stale, 60)
                calls: list[Awaitable[Any]] = []
                for n in range(20):
                    calls += [one.publish("g", f"{n}"), other.ack(stale), other.publish("g", f"{n}, 2"), one.ack(stale)]
                outcomes: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
                await session.commit()
            assert {type(outcome).__name__ for outcome in outcomes[1::2]} == {"StaleLease"}
            rows = stores.files.sql("transport", "SELECT seq FROM {messages} WHERE group_id = 'g'")
            assert sorted(seq for (seq,) in rows) == sorted(outcomes[::2]), "reported, and not there"

    asyncio.run(main())


def test_the_trap_is_real_a_session_of_sqlalchemys_serves_one_task_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'host.sqlite'}")
        async with AsyncSession(engine) as session:
            calls = [session.execute(text("SELECT 1")) for _ in range(20)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(outcome, Exception) for outcome in outcomes)
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["opened", "watched", "host"])
@pytest.mark.parametrize("at_once", [10, 40])
def test_a_store_serves_one_event_loop_after_another(kind: str, at_once: int, tmp_path: Path) -> None:
    """Also when more calls than the pool has connections had to wait in the first."""
    stack = AsyncExitStack()
    runners = [asyncio.Runner() for _ in range(3)]
    try:
        stores = runners[0].run(made_stores(kind, tmp_path, stack))
        for runner in runners:
            runner.run(_gathered(*(stores.transport.publish("g", str(n)) for n in range(at_once))))
            runner.run(_gathered(*(stores.localkv.get(f"k{n}") for n in range(at_once))))
            if runner is not runners[-1]:
                runner.close()
        assert stores.files.sql("transport", "SELECT count(*) FROM {messages}") == [(3 * at_once,)]
    finally:
        runners[-1].run(stack.aclose())
        runners[-1].close()


def test_a_store_serves_two_event_loops_at_the_same_time(tmp_path: Path) -> None:
    store = asyncio.run(_opened(tmp_path))
    start = Barrier(3)
    failures: list[BaseException] = []

    async def work(name: str) -> None:
        await _gathered(*(store.publish(name, str(n)) for n in range(50)))
        for _ in range(25):
            await _gathered(*(_claim_and_ack(store, f"{name} {n}") for n in range(2)))

    def loop(name: str) -> None:
        try:
            start.wait(GUARD)
            asyncio.run(work(name))
        except BaseException as error:  # noqa: BLE001  told by the test's own thread
            failures.append(error)

    running = [Thread(target=loop, args=(f"loop {n}",)) for n in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(100)
        assert not thread.is_alive(), "it hangs"
    assert not failures, failures
    asyncio.run(store.close())
    with closing(sqlite3.connect(tmp_path / "transport.sqlite")) as connection:
        assert connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").fetchall() == [(150,)]


async def _opened(directory: Path) -> AsyncTransportRepository[str]:
    return await AsyncTransportRepository.open(directory, event_type=str)


async def _claim_and_ack(store: AsyncTransportRepository[str], worker: str) -> str | None:
    lease = await store.claim(worker, 30)
    if lease is None:
        return None
    await store.ack(lease)
    return lease.event


def test_an_engine_may_be_disposed_of_in_one_loop_while_another_uses_it(tmp_path: Path) -> None:
    """Whoever uses it goes on, on new connections: no call is lost between the old threads and the new ones."""
    store = asyncio.run(_opened(tmp_path))
    engine = store._engine
    assert engine is not None
    using = Thread(target=lambda: asyncio.run(use()))
    done: list[int] = []

    async def use() -> None:
        for _ in range(40):
            done.extend(await _gathered(*(store.publish("g", "e") for _ in range(10))))

    using.start()
    for _ in range(20):
        asyncio.run(engine.dispose())
    using.join(110)
    assert not using.is_alive(), "a call hangs"
    assert sorted(done) == list(range(1, 401))
    asyncio.run(store.close())


def test_sync_and_async_repositories_and_processes_share_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_use, args=(tmp_path, f"process {n}"), daemon=True) for n in range(3)]
    for process in processes:
        process.start()

    async def main() -> None:
        async with AsyncTransportRepository.open(tmp_path, event_type=str) as transport:
            with TransportRepository.open(tmp_path, event_type=str) as sync:
                calls: list[Awaitable[int]] = [transport.publish("async", str(n)) for n in range(50)]
                calls += [asyncio.to_thread(sync.publish, "sync", str(n)) for n in range(50)]
                await _gathered(*calls)

    asyncio.run(main())
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    with closing(sqlite3.connect(tmp_path / "transport.sqlite")) as connection:
        rows = connection.execute("SELECT group_id, count(DISTINCT event) FROM messages GROUP BY 1").fetchall()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    names = ["async", *(f"process {n}" for n in range(3)), "sync"]
    assert rows == [(name, 50) for name in names]


def _use(directory: Path, name: str) -> None:
    async def main() -> None:
        async with AsyncTransportRepository.open(directory, event_type=str) as transport:
            await asyncio.gather(*(transport.publish(name, str(n)) for n in range(50)))

    asyncio.run(main())


def test_after_a_storm_no_thread_and_no_connection_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        earlier = threads()
        async with stores_of("opened", tmp_path) as stores:
            for _ in range(5):
                await _gathered(*(stores.localkv.get(f"k{n}") for n in range(200)))
                assert sum(map(in_use, stores.engines.values())) == 0
            assert threads() - earlier <= 3 * 5, "more threads than one that writes and four that read, a store"
        await soon(lambda: threads() <= earlier, "its threads end")

    asyncio.run(main())
