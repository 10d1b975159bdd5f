"""Calls on PostgreSQL that are cancelled while they wait for a lock, and repositories that are forked. H14, H38."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from qstore import AsyncLocalKvRepository, AsyncTransportRepository, LocalKvRepository, TransportRepository
from tests import postgres
from tests.backends import MOUNTED

HELD = 2.5
"""Seconds that a lock is held for which a cancelled call must not wait."""


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
@pytest.mark.parametrize("call", ["publish", "publish_many", "put"])
def test_a_call_that_waits_for_a_row_and_is_cancelled_ends_at_once_and_has_not_happened(
    url: URL, driver: str, call: str, *, joined: bool
) -> None:
    """H14. The lock is a host's, and is held for much longer."""

    async def main(holder: psycopg.Connection[Any]) -> tuple[bool, int]:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"), pool_size=1, max_overflow=0)
        async with AsyncSession(engine) as session:
            bind: Any = session if joined else engine
            messages = AsyncTransportRepository(bind, event_type=str, naming=MOUNTED)
            kv = AsyncLocalKvRepository(bind, naming=MOUNTED)
            calls: dict[str, Callable[[], Any]] = {
                "publish": lambda: messages.publish("locked", "late"),
                "publish_many": lambda: messages.publish_many([("a", "late"), ("locked", "late")]),
                "put": lambda: kv.put("locked", b"late"),
            }
            freed = asyncio.get_running_loop().call_later(HELD, holder.execute, "ROLLBACK")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(calls[call](), 0.2)
            at_once = holder.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
            freed.cancel()
            holder.execute("ROLLBACK")
            await session.rollback()
        out: int = engine.sync_engine.pool.checkedout()  # type: ignore[attr-defined]  # a QueuePool's
        assert await AsyncTransportRepository(engine, event_type=str, naming=MOUNTED).publish("next", "e")
        await engine.dispose()
        return at_once, out

    engine = create_engine(url)
    TransportRepository(engine, event_type=str, naming=MOUNTED).publish("locked", "first")
    LocalKvRepository(engine, naming=MOUNTED).put("locked", b"first")
    engine.dispose()
    with postgres.connect(url) as holder, postgres.connect(url) as other:
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM qstore_transport_groups FOR UPDATE")
        holder.execute("SELECT 1 FROM qstore_localkv_kv FOR UPDATE")
        at_once, out = asyncio.run(main(holder))
        late = other.execute("SELECT count(*) FROM qstore_transport_messages WHERE event = '\"late\"'").fetchone()
        value = other.execute("SELECT value FROM qstore_localkv_kv").fetchone()
    assert (late, value, out) == ((0,), (b"first",), 0)
    assert at_once


FORK = """
import os, signal, sys
from qstore import TransportRepository
messages = TransportRepository.open(sys.argv[1], event_type=str)
messages.publish("before", "e")
child = os.fork()
signal.alarm(8)
for number in range(30):
    messages.publish(f"{'child' if child == 0 else 'parent'} {number}", "e")
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
messages.close()
sys.exit(status != 0)
"""


def test_a_repository_that_is_used_on_both_sides_of_a_fork_keeps_two_conversations_apart(url: URL) -> None:
    """Semantics 12: in the child it opens its own connection, or is refused by name."""
    arguments = [sys.executable, "-W", "ignore", "-c", FORK, url.render_as_string(hide_password=False)]
    with subprocess.Popen(arguments) as process:
        try:
            assert process.wait(8) == 0
        finally:
            process.kill()
    with postgres.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM qstore_transport_messages").fetchone() == (61,)


CLOSING = """
import os, signal, sys
from qstore import TransportRepository
messages = TransportRepository.open(sys.argv[1], event_type=str)
messages.publish("before", "e")
if os.fork() == 0:
    messages.close()
    os._exit(0)
signal.alarm(8)
os.wait()
messages.publish("after", "e")
messages.close()
"""


def test_a_child_that_closes_a_repository_leaves_its_parents_conversation_alone(url: URL) -> None:
    arguments = [sys.executable, "-W", "ignore", "-c", CLOSING, url.render_as_string(hide_password=False)]
    assert subprocess.run(arguments, timeout=20, check=False).returncode == 0


ORPHANED = """
import os, signal, sys, time
from qstore import Naming, TransportRepository, open_engine
with open_engine(sys.argv[1]).connect() as connection:
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    TransportRepository(connection, event_type=str, naming=Naming("qstore_")).publish("g", "never")
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

ORPHANED_ASYNC = """
import asyncio, os, signal, sys, time
from qstore import AsyncTransportRepository, Naming, open_async_engine
async def main():
    async with open_async_engine(sys.argv[1]).connect() as connection:
        child = os.fork()
        if child == 0:
            os.close(1)
            time.sleep(60)
            os._exit(0)
        await AsyncTransportRepository(connection, event_type=str, naming=Naming("qstore_")).publish("g", "never")
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.parametrize(
    ("script", "driver"), [(ORPHANED, "psycopg"), (ORPHANED_ASYNC, "psycopg"), (ORPHANED_ASYNC, "asyncpg")]
)
def test_what_a_killed_parent_held_is_free_although_its_child_goes_on(url: URL, script: str, driver: str) -> None:
    """A server learns of a process's end by its socket. A child that still has that keeps the transaction open."""
    waiting = url.update_query_dict({"options": "-c lock_timeout=10s"})
    with TransportRepository.open(waiting, event_type=str) as messages:
        messages.publish("g", "first")
        named = url.set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False)
        arguments = [sys.executable, "-W", "ignore", "-c", script, named]
        with subprocess.Popen(arguments, text=True, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            try:
                assert process.wait(20) == -signal.SIGKILL
                messages.publish("g", "second")
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)
    with postgres.connect(url) as connection:
        events = connection.execute("SELECT event FROM qstore_transport_messages ORDER BY seq").fetchall()
    assert events == [('"first"',), ('"second"',)]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_calls_that_are_cancelled_at_any_instant_leave_the_pool_and_its_connections_as_they_were(
    url: URL, driver: str
) -> None:
    async def main() -> tuple[list[str], set[bool], int]:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"), pool_size=2, max_overflow=0)
        messages = AsyncTransportRepository(engine, event_type=str, naming=MOUNTED)
        random, kept = Random(1), []

        async def publish(number: int) -> None:
            events = [f"{number}.0", f"{number}.1"]
            with suppress(TimeoutError):
                await asyncio.wait_for(messages.publish_many([(f"g{number % 3}", each) for each in events]), limit())
                kept.extend(events)

        def limit() -> float:
            return random.choice((random.uniform(0, 0.02), 5))

        for number in range(0, 240, 8):
            await asyncio.gather(*(publish(number + n) for n in range(8)))
        out: int = engine.sync_engine.pool.checkedout()  # type: ignore[attr-defined]  # a QueuePool's
        async with engine.connect() as one, engine.connect() as other:
            modes = {(await each.get_raw_connection()).autocommit for each in (one, other)}
        await engine.dispose()
        return kept, modes, out

    kept, modes, out = asyncio.run(main())
    with postgres.connect(url) as connection:
        stored = [event.strip('"') for (event,) in connection.execute("SELECT event FROM qstore_transport_messages")]
    assert (modes, out) == ({False}, 0)
    assert set(kept) <= set(stored)
    assert len(stored) == len(set(stored))
    assert {each.split(".")[0] for each in stored if each.endswith(".0")} == {
        each.split(".")[0] for each in stored if each.endswith(".1")
    }
    assert 0 < len(kept) < 480
