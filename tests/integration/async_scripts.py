"""Programs that use an async store and end, in one way or another. Run as `-m`, with the way and a directory.

`python -m tests.integration.async_scripts END STORE DIRECTORY`
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from qstore import AsyncTransportRepository, Naming, migrate

Store = AsyncTransportRepository[str]
MOUNTED = Naming("qstore_")
KEPT: list[Any] = []
"""What a program holds on to until it ends."""


async def opened(directory: str) -> Store:
    return await AsyncTransportRepository.open(f"{directory}/transport.sqlite", event_type=str)


async def watched(directory: str) -> Store:
    store = await opened(directory)
    assert store._engine is not None
    event.listen(store._engine.sync_engine, "before_cursor_execute", lambda *_: None)
    return store


async def host(directory: str) -> Store:
    engine = create_async_engine(f"sqlite+aiosqlite:///{directory}/transport.sqlite")
    await migrate.upgrade_async(engine, naming=MOUNTED)
    KEPT.append(engine)
    return AsyncTransportRepository(engine, event_type=str, naming=MOUNTED)


async def session(directory: str) -> Store:
    await host(directory)
    if not SQLiteDialect_aiosqlite.has_terminate:  # until 2.0.46 SQLAlchemy has something to say of one that stays open
        warnings.filterwarnings("ignore", "The garbage collector is trying to clean up non-checked-in connection")
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    joined = AsyncSession(KEPT[-1])
    KEPT.append(joined)
    return AsyncTransportRepository(joined, event_type=str, naming=MOUNTED)


async def returns(store: Store) -> None:
    await store.publish("g", "e")


async def fails(store: Store) -> None:
    await store.publish("g", "e")
    raise LookupError("the program's own")


async def exits(store: Store) -> None:
    await store.publish("g", "e")
    sys.exit(3)


async def leaves_calls_under_way(store: Store) -> None:
    KEPT.extend(asyncio.ensure_future(store.publish("g", str(n))) for n in range(20))
    await asyncio.sleep(0)


async def idles(store: Store) -> None:
    await store.publish("g", "e")
    print("ready", flush=True)
    await asyncio.sleep(60)


async def waits(store: Store) -> None:
    """For the write lock, which the test holds."""
    print("ready", flush=True)
    assert sys.stdin.readline() == "locked\n"
    call = asyncio.ensure_future(store.publish("g", "e"))
    await asyncio.sleep(0.2)
    print("waiting", flush=True)
    await call


async def closes_while_it_waits(store: Store) -> None:
    print("ready", flush=True)
    assert sys.stdin.readline() == "locked\n"
    KEPT.append(asyncio.ensure_future(store.publish("g", "e")))
    await asyncio.sleep(0.2)
    print("waiting", flush=True)
    await store.close()


STORES: dict[str, Callable[[str], Awaitable[Store]]] = {
    each.__name__: each for each in (opened, watched, host, session)
}
ENDS: dict[str, Callable[[Store], Awaitable[None]]] = {
    each.__name__: each for each in (returns, fails, exits, leaves_calls_under_way, idles, waits, closes_while_it_waits)
}


async def main(end: str, store: str, directory: str) -> None:
    asyncio.get_running_loop().slow_callback_duration = 60  # the machine may be busy
    it = await STORES[store](directory)
    KEPT.append(it)
    await ENDS[end](it)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background starts without
    asyncio.run(main(*sys.argv[1:]))
