"""H18, the second half: migrations awaited in a running loop, whatever they run on, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from qstore import (
    NATIVE,
    AsyncTransportRepository,
    FormatError,
    InvalidInput,
    InvalidType,
    Naming,
    StoreBusy,
    migrate,
    open_async_engine,
    open_engine,
)
from tests.backends import MOUNTED
from tests.concurrency.cancelling import GUARD, in_use, lock_held, soon
from tests.integration.situations import plain
from tests.write_lock import is_free

KINDS = ("engine", "connection", "session", "scoped session", "opened", "sync engine", "opened sync engine")
JOINED = ("connection", "session", "scoped session")
ALL = ("localkv.v1", "localqueue.v1.1", "transport.v1.1")


@asynccontextmanager
async def bind_of(kind: str, directory: Path) -> AsyncIterator[tuple[Any, Naming]]:
    path = file_of(kind, directory)
    async with AsyncExitStack() as stack:
        if kind == "opened":
            engine = open_async_engine(path)
            stack.push_async_callback(engine.dispose)
            yield engine, NATIVE
        elif kind in ("sync engine", "opened sync engine"):
            sync = open_engine(path) if kind == "opened sync engine" else create_engine(f"sqlite:///{path}")
            stack.callback(sync.dispose)
            yield sync, NATIVE if kind == "opened sync engine" else MOUNTED
        else:
            engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
            stack.push_async_callback(engine.dispose)
            if kind == "connection":
                yield await stack.enter_async_context(engine.connect()), MOUNTED
            elif kind == "session":
                yield await stack.enter_async_context(AsyncSession(engine)), MOUNTED
            elif kind == "scoped session":
                scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "request")
                stack.push_async_callback(scoped.remove)
                yield scoped, MOUNTED
            else:
                yield engine, MOUNTED


def file_of(kind: str, directory: Path) -> Path:
    return directory / ("transport.sqlite" if kind.startswith("opened") else "host.sqlite")


async def ended(kind: str, bind: Any, *, commit: bool = True) -> None:
    if kind in JOINED:
        await (bind.commit() if commit else bind.rollback())


def tables(path: Path) -> set[str]:
    with plain(path) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite%'")}


@asynccontextmanager
async def ticking() -> AsyncIterator[Callable[[], int]]:
    """A task of the host's that wants its turn again and again."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    task = asyncio.ensure_future(tick())
    try:
        yield lambda: ticks
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_migration_can_be_awaited(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with bind_of(kind, tmp_path) as (bind, naming):
            revisions = ("transport.v1.1",) if naming.native else ALL
            assert await migrate.current_async(bind, naming=naming) == ()
            assert len(await migrate.check_async(bind, naming=naming)) == len(revisions)
            with pytest.raises(FormatError):
                await migrate.stamp_async(bind, naming=naming)
            await ended(kind, bind, commit=False)
            await migrate.upgrade_async(bind, naming=naming)
            await ended(kind, bind)
            assert await migrate.current_async(bind, naming=naming) == revisions
            assert await migrate.check_async(bind, naming=naming) == ()
            await ended(kind, bind)
            with plain(file_of(kind, tmp_path)) as connection:
                connection.execute(f"DELETE FROM {naming.version_table}")
            await migrate.stamp_async(bind, naming=naming)
            await ended(kind, bind)
            assert await migrate.current_async(bind, naming=naming) == revisions
            await ended(kind, bind)
            prefix = naming.prefix or ""
            with plain(file_of(kind, tmp_path)) as connection:
                transport = f"{prefix}transport_messages" if prefix else "messages"
                connection.execute(f"INSERT INTO {transport} (group_id, event) VALUES ('g', '1')")
            with pytest.raises(InvalidInput, match="drop_data"):
                await migrate.downgrade_async(bind, naming=naming)
            await ended(kind, bind, commit=False)
            await migrate.downgrade_async(bind, naming=naming, drop_data=True)
            await ended(kind, bind)
            assert tables(file_of(kind, tmp_path)) <= {naming.version_table}

    asyncio.run(main())


@pytest.mark.parametrize("kind", JOINED)
def test_an_upgrade_in_a_hosts_transaction_goes_with_its_rollback(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with bind_of(kind, tmp_path) as (bind, naming):
            await migrate.upgrade_async(bind, naming=naming)
            await ended(kind, bind, commit=False)
            assert tables(file_of(kind, tmp_path)) == set()
            await migrate.upgrade_async(bind, naming=naming)
            await AsyncTransportRepository(bind, event_type=str, naming=naming).publish("g", "e")
            await ended(kind, bind)
            assert await migrate.current_async(bind, naming=naming) == ALL

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_goes_on_while_an_upgrade_waits_for_the_lock(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        path = file_of(kind, tmp_path)
        with plain(path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        async with bind_of(kind, tmp_path) as (bind, naming), ticking() as ticks:
            with lock_held(path) as holder:
                upgrade = asyncio.ensure_future(migrate.upgrade_async(bind, naming=naming))
                await asyncio.sleep(0.3)
                before = ticks()
                await soon(lambda: ticks() > before + 20, "the ticker has its turns")
                assert not upgrade.done()
                holder.execute("ROLLBACK")
            async with asyncio.timeout(GUARD):
                await upgrade
            await ended(kind, bind)
            assert await migrate.check_async(bind, naming=naming) == ()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_leaves_the_hosts_logging_as_it_was(kind: str, tmp_path: Path) -> None:
    def state() -> list[Any]:
        loggers = [logging.getLogger(name) for name in ("", "host.app", "sqlalchemy.engine", "alembic", "asyncio")]
        return [(it.name, it.level, it.disabled, it.propagate, list(it.handlers), list(it.filters)) for it in loggers]

    async def main() -> None:
        async with bind_of(kind, tmp_path) as (bind, naming):
            before = state()
            await migrate.upgrade_async(bind, naming=naming)
            await ended(kind, bind)
            assert state() == before

    handler, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(handler)
    try:
        asyncio.run(main())
    finally:
        root.removeHandler(handler)


def test_a_sync_upgrade_works_within_a_running_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with bind_of("sync engine", tmp_path) as (engine, naming):
            migrate.upgrade(engine, naming=naming)
            assert migrate.current(engine, naming=naming) == ALL
        async with bind_of("opened sync engine", tmp_path) as (engine, naming):
            migrate.upgrade(engine, naming=naming)
            assert migrate.check(engine, naming=naming) == ()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["engine", "opened", "sync engine", "opened sync engine"])
def test_many_upgrades_at_once_make_the_schema_once(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with bind_of(kind, tmp_path) as (bind, naming):
            async with asyncio.timeout(60):
                await asyncio.gather(*(migrate.upgrade_async(bind, naming=naming) for _ in range(6)))
            assert await migrate.check_async(bind, naming=naming) == ()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delay", [0.0, 0.002, 0.01, 0.03])
def test_an_upgrade_that_is_cancelled_is_whole_or_undone(kind: str, delay: float, tmp_path: Path) -> None:
    async def main() -> None:
        path = file_of(kind, tmp_path)
        async with bind_of(kind, tmp_path) as (bind, naming):
            task = asyncio.ensure_future(migrate.upgrade_async(bind, naming=naming))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await ended(kind, bind, commit=False)
            await soon(lambda: is_free(path), "the write lock is free")
            made = tables(path)
            await migrate.upgrade_async(bind, naming=naming)
            await ended(kind, bind)
            assert await migrate.check_async(bind, naming=naming) == ()
            await ended(kind, bind)
            assert made in ([set()] if kind in JOINED else [set(), tables(path)])
            if isinstance(bind, AsyncEngine):
                assert in_use(bind) == 0

    asyncio.run(main())


def test_an_upgrade_that_cannot_have_the_lock_is_told_of_as_busy(tmp_path: Path) -> None:
    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'host.sqlite'}", connect_args={"timeout": 0.1})
        with lock_held(tmp_path / "host.sqlite"), pytest.raises(StoreBusy):
            await migrate.upgrade_async(engine, naming=MOUNTED)
        await migrate.upgrade_async(engine, naming=MOUNTED)
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [None, "sqlite:///x", 3])
def test_a_wrong_bind_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidType, match="bind"):
        asyncio.run(migrate.upgrade_async(wrong))
