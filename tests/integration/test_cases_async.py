"""H02, H15, H18 and H38, and forks, on the async twins. (H13: test_async_ends, H14: tests/concurrency/test_async_*.)"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from qstore import (
    AsyncLocalKvRepository,
    AsyncLocalQueueRepository,
    AsyncTransportRepository,
    LocalKvRepository,
    StoreBusy,
    migrate,
    models,
    open_async_engine,
)
from tests.backends import MOUNTED
from tests.concurrency.cancelling import open_files, soon, threads
from tests.integration.situations import output_of, plain


@asynccontextmanager
async def host(directory: Path, *, upgraded: bool = True) -> AsyncIterator[AsyncEngine]:
    """An async engine that a host made, with the defaults."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{directory / 'host.sqlite'}")
    try:
        if upgraded:
            await migrate.upgrade_async(engine, naming=MOUNTED)
        yield engine
    finally:
        await engine.dispose()


def rows(directory: Path, query: str, file: str = "host.sqlite") -> list[Any]:
    with plain(directory / file) as connection:
        return connection.execute(query).fetchall()


MESSAGES = "SELECT event FROM qstore_transport_messages"


def test_the_trap_is_real_the_end_of_a_savepoint_commits_on_an_async_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as engine, AsyncSession(engine) as session:
            await session.execute(text(MESSAGES))
            async with session.begin_nested():
                await session.execute(text("INSERT INTO qstore_transport_messages (group_id, event) VALUES ('g', '1')"))
            await session.rollback()

    asyncio.run(main())
    assert rows(tmp_path, MESSAGES) == [("1",)]


@pytest.mark.parametrize("before", ["", "SELECT 1", MESSAGES, "INSERT INTO host VALUES (1)"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
def test_what_a_nested_block_publishes_goes_with_the_outer_rollback(
    kind: type[AsyncSession | AsyncConnection], depth: int, before: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with host(tmp_path) as engine:
            async with engine.begin() as connection:
                await connection.exec_driver_sql("CREATE TABLE host (x)")
            async with AsyncSession(engine) if kind is AsyncSession else engine.connect() as bind:
                transport = AsyncTransportRepository(bind, event_type=str, naming=MOUNTED)
                kv = AsyncLocalKvRepository(bind, naming=MOUNTED)

                async def nested(levels: int) -> None:
                    async with bind.begin_nested():
                        await transport.publish("g", f"level {levels}")
                        await kv.put(f"level {levels}", b"")
                        if levels > 1:
                            await nested(levels - 1)

                for commits in (False, True):
                    if before:
                        await bind.execute(text(before))
                    await nested(depth)
                    await (bind.commit() if commits else bind.rollback())
                    if not commits:
                        assert rows(tmp_path, MESSAGES) == []
                        assert rows(tmp_path, "SELECT * FROM qstore_localkv_kv") == []
                        assert rows(tmp_path, "SELECT * FROM host") == []
        assert len(rows(tmp_path, MESSAGES)) == depth

    asyncio.run(main())


def test_the_trap_is_real_an_update_is_lost_on_an_async_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with host(tmp_path) as engine:
            await AsyncLocalKvRepository(engine, naming=MOUNTED).put("n", b"0")
            async with AsyncSession(engine) as one, AsyncSession(engine) as other:
                for session in (one, other):
                    await session.execute(text("SELECT value FROM qstore_localkv_kv"))
                for session in (one, other):
                    await session.execute(text("UPDATE qstore_localkv_kv SET value = '1'"))
                    await session.commit()

    asyncio.run(main())
    assert rows(tmp_path, "SELECT value FROM qstore_localkv_kv") == [("1",)]


@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
def test_an_update_that_would_be_lost_is_told_of_as_busy(
    kind: type[AsyncSession | AsyncConnection], tmp_path: Path
) -> None:
    async def main() -> None:
        async with host(tmp_path) as engine:
            await AsyncLocalKvRepository(engine, naming=MOUNTED).put("n", b"0")

            def begun() -> Any:
                return AsyncSession(engine) if kind is AsyncSession else engine.connect()

            async with begun() as one, begun() as other:
                stores = [AsyncLocalKvRepository(each, naming=MOUNTED) for each in (one, other)]
                read = [int(await store.get("n") or b"") for store in stores]
                await stores[0].put("n", str(read[0] + 1).encode())
                with pytest.raises(StoreBusy):
                    await stores[1].put("n", str(read[1] + 1).encode())
                await other.rollback()
                await one.commit()
                value = int(await stores[1].get("n") or b"")
                await other.rollback()
                await stores[1].put("n", str(value + 1).encode())
                await other.commit()
            assert await AsyncLocalKvRepository(engine, naming=MOUNTED).get("n") == b"2"

    asyncio.run(main())


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
import asyncio, qstore
from qstore import migrate
with qstore.TransportRepository.open(sys.argv[2], event_type=str) as transport:
    transport.publish("g", "e")
    transport.ack(transport.claim("w", 5))
engine = qstore.open_engine(sys.argv[2] + "/transport.sqlite")
migrate.upgrade(engine)
async def main():
    target = sys.argv[2]
    for kind in (qstore.AsyncTransportRepository, qstore.AsyncLocalKvRepository, qstore.AsyncLocalQueueRepository):
        for attempt in (lambda: kind.open(target), lambda: kind(engine)):
            try:
                opened = attempt()
                if hasattr(opened, "__await__"):
                    await opened
                print(kind.__name__, "opened")
            except qstore.BackendUnsupported as error:
                print("qstore[async]" in str(error), sys.argv[1] in str(error))
            except qstore.InvalidInput as error:
                print("invalid", error)
        try:
            async with kind.open(target):
                print(kind.__name__, "opened")
        except qstore.BackendUnsupported as error:
            print("qstore[async]" in str(error), sys.argv[1] in str(error))
    try:
        qstore.open_async_engine(target + "/transport.sqlite")
    except qstore.BackendUnsupported as error:
        print("qstore[async]" in str(error), sys.argv[1] in str(error))
asyncio.run(main())
engine.dispose()
"""


@pytest.mark.parametrize("absent", ["greenlet", "aiosqlite"])
def test_without_a_package_of_the_extra_the_async_half_names_it_and_the_sync_half_works(
    absent: str, tmp_path: Path
) -> None:
    told = output_of(WITHOUT, absent, tmp_path).splitlines()
    told = [line for line in told if not (absent == "aiosqlite" and line.startswith("invalid bind"))]
    assert set(told) == {"True True"}, told
    assert len(told) >= 7
    assert not (tmp_path / "localkv.sqlite").exists(), "it was made, and then refused"


def test_a_sync_store_works_within_a_running_loop(tmp_path: Path) -> None:
    async def main() -> None:
        with LocalKvRepository.open(tmp_path) as kv:
            kv.put("k", b"v")
            assert kv.get("k") == b"v"
            assert list(kv.iter_prefix("")) == [("k", b"v")]

    asyncio.run(main())


def test_an_async_store_lives_from_cell_to_cell_of_a_notebook(tmp_path: Path) -> None:
    """Each cell is awaited in the notebook's one loop, which stands still, or does other things, between them."""
    loop = asyncio.new_event_loop()
    cells: dict[str, Any] = {}

    async def opens() -> None:
        cells["kv"] = await AsyncLocalKvRepository.open(tmp_path)
        cells["queue"] = await AsyncLocalQueueRepository.open(tmp_path)

    async def uses() -> None:
        await cells["kv"].put("k", b"v")
        cells["walk"] = cells["kv"].iter_prefix("")
        await cells["queue"].send("m")

    async def goes_on() -> None:
        assert [item async for item in cells["walk"]] == [("k", b"v")]
        assert len(await cells["queue"].receive(5)) == 1
        with LocalKvRepository.open(tmp_path) as sync:
            assert sync.get("k") == b"v"

    async def closes() -> None:
        await cells["kv"].close()
        await cells["queue"].close()
        await soon(lambda: not threads() and not open_files(tmp_path), "all is closed")

    for cell in (opens, uses, goes_on, closes):
        loop.run_until_complete(cell())
    loop.close()


FORK = """
import asyncio, os, sys, qstore
loop = asyncio.new_event_loop()
async def opened():
    return await qstore.AsyncTransportRepository.open(sys.argv[1], event_type=str)
transport = loop.run_until_complete(opened())
assert loop.run_until_complete(transport.publish("g", "parent's")) == 1
child = os.fork()
if child == 0:
    async def in_child():
        assert await transport.publish("g", "child's") == 2
        async with qstore.AsyncTransportRepository.open(sys.argv[1], event_type=str) as own:
            assert await own.publish("g", "child's second") == 3
        await transport.close()
    asyncio.run(in_child())
    print("child", flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
assert loop.run_until_complete(transport.publish("g", "parent's second")) == 4
assert loop.run_until_complete(transport.claim("w", 30)).event == "parent's"
loop.run_until_complete(transport.close())
loop.close()
print("parent")
"""


def test_after_a_fork_child_and_parent_go_on_with_one_async_store(tmp_path: Path) -> None:
    assert output_of(FORK, tmp_path) == "child\nparent\n"
    with plain(tmp_path / "transport.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchall() == [(4,)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_listener_on_an_async_engine_sees_every_statement_from_when_it_listens(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncTransportRepository.open(tmp_path):
            pass
        engine = open_async_engine(tmp_path / "transport.sqlite")
        transport = AsyncTransportRepository(engine, event_type=str)
        await transport.publish("g", "unheard")
        seen: list[str] = []

        def listen(_c: object, _cursor: object, statement: str, *_: object) -> None:
            seen.append(statement)

        event.listen(engine.sync_engine, "before_cursor_execute", listen)
        await transport.publish("g", "heard")
        assert [statement.split()[0] for statement in seen if "INSERT" in statement] == ["INSERT", "INSERT"]
        seen.clear()
        lease = await transport.claim("w", 30)
        assert lease is not None
        await transport.ack(lease)
        assert any("DELETE" in statement for statement in seen)
        event.remove(engine.sync_engine, "before_cursor_execute", listen)
        async with AsyncSession(engine) as session:
            events = (await session.scalars(select(models.TransportMessage.event))).all()
            assert events == ['"heard"']
            await session.rollback()
        async with engine.connect() as connection:
            [mode] = (await connection.exec_driver_sql("PRAGMA journal_mode")).scalars()
            [timeout] = (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalars()
            assert (mode, timeout) == ("wal", 5000)
        await engine.dispose()
        gc.collect()
        await soon(lambda: not threads() and not open_files(tmp_path), "all is closed")

    asyncio.run(main())
