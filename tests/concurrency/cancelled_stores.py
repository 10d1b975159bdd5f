"""The three stores as async twins, in each way that a host may have them, for tests that cancel their calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from qstore import AsyncLocalKvRepository, AsyncLocalQueueRepository, AsyncTransportRepository, open_async_engine
from tests.backends import MOUNTED, Backend, HostBackend, ManualClock

KINDS = ("opened", "watched", "host", "connection", "session")
JOINED = ("connection", "session")
STORES = ("transport", "localkv", "localqueue")


class BreakableClock(ManualClock):
    """Stands still until it is moved, and raises what it is told to."""

    error: type[BaseException] | None = None

    def __call__(self) -> float:
        if self.error is not None:
            raise self.error
        return super().__call__()


@dataclass
class Stores:
    """Repositories, what they run on, and how their host ends its transaction."""

    files: Backend
    transport: AsyncTransportRepository[str]
    localkv: AsyncLocalKvRepository
    localqueue: AsyncLocalQueueRepository
    engines: dict[str, AsyncEngine]
    end: Callable[[bool], Awaitable[None]] | None = None
    """Commit, or roll back; None where operations have transactions of their own."""
    own: int = 0
    """Connections that the host has out of the pool between two operations."""
    clock: BreakableClock = field(default_factory=BreakableClock)


@asynccontextmanager
async def stores_of(
    kind: str, directory: Path, watch: Callable[[AsyncEngine], object] = lambda _: None
) -> AsyncIterator[Stores]:
    """Made stores; `watch` is given each engine before it connects."""
    async with AsyncExitStack() as stack:
        yield await made_stores(kind, directory, stack, watch)


async def made_stores(
    kind: str, directory: Path, stack: AsyncExitStack, watch: Callable[[AsyncEngine], object] = lambda _: None
) -> Stores:
    """The same, closed with the stack."""
    make = _native if kind in ("opened", "watched") else _host
    return await make(kind, directory, stack, watch)


def files_of(kind: str, directory: Path) -> Backend:
    """The files, made, to be looked at with plain sqlite3."""
    files = Backend(directory) if kind in ("opened", "watched") else HostBackend(directory)
    for store in STORES:
        files.make(store)
    return files


async def _native(kind: str, directory: Path, stack: AsyncExitStack, watch: Callable[[AsyncEngine], object]) -> Stores:
    files = files_of(kind, directory)
    clock = BreakableClock()
    if kind == "opened":
        transport = await stack.enter_async_context(
            AsyncTransportRepository.open(directory, event_type=str, clock=clock)
        )
        localkv = await stack.enter_async_context(AsyncLocalKvRepository.open(directory, clock=clock))
        localqueue = await stack.enter_async_context(AsyncLocalQueueRepository.open(directory, clock=clock))
        engines: dict[str, Any] = {
            "transport": transport._engine,
            "localkv": localkv._engine,
            "localqueue": localqueue._engine,
        }
        for each in engines.values():
            watch(each)
        return Stores(files, transport, localkv, localqueue, engines, clock=clock)
    engines = {}
    for store in STORES:
        engine = engines[store] = open_async_engine(files.path(store))
        stack.push_async_callback(engine.dispose)
        watch(engine)
        event.listen(engine.sync_engine, "before_cursor_execute", lambda *_: None)
    return Stores(
        files,
        AsyncTransportRepository(engines["transport"], event_type=str, clock=clock),
        AsyncLocalKvRepository(engines["localkv"], clock=clock),
        AsyncLocalQueueRepository(engines["localqueue"], clock=clock),
        engines,
        clock=clock,
    )


async def _host(kind: str, directory: Path, stack: AsyncExitStack, watch: Callable[[AsyncEngine], object]) -> Stores:
    files = files_of(kind, directory)
    clock = BreakableClock()
    engine = create_async_engine(f"sqlite+aiosqlite:///{directory / 'host.sqlite'}")
    stack.push_async_callback(engine.dispose)
    watch(engine)
    bind: AsyncEngine | AsyncConnection | AsyncSession = engine
    end: Callable[[bool], Awaitable[None]] | None = None
    if kind == "connection":
        connection = bind = await stack.enter_async_context(engine.connect())
        end = _ending(connection)
    elif kind == "session":
        session = bind = await stack.enter_async_context(AsyncSession(engine))
        end = _ending(session)
    return Stores(
        files,
        AsyncTransportRepository(bind, event_type=str, naming=MOUNTED, clock=clock),
        AsyncLocalKvRepository(bind, naming=MOUNTED, clock=clock),
        AsyncLocalQueueRepository(bind, naming=MOUNTED, clock=clock),
        dict.fromkeys(STORES, engine),
        end,
        own=1 if kind == "connection" else 0,
        clock=clock,
    )


def _ending(host: AsyncConnection | AsyncSession) -> Callable[[bool], Awaitable[None]]:
    async def end(commit: bool) -> None:
        await (host.commit() if commit else host.rollback())

    return end
