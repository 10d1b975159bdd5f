"""H13: a program that uses an async store ends, in time, with the right code, and without noise."""

from __future__ import annotations

import asyncio
import gc
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from qstore import AsyncLocalKvRepository, AsyncLocalQueueRepository, AsyncTransportRepository, QstoreError
from tests.concurrency.cancelling import open_files, soon, threads
from tests.integration.situations import ROOT, output_of, plain

IN_TIME = 20
"""Seconds. What is tested for hangs for ever, or for as long as somebody holds a lock."""

STORES = ("opened", "watched", "host", "session")


@contextmanager
def program(end: str, store: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A running program, killed at the end if it has not ended."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::ResourceWarning"]
    command += ["-m", "tests.integration.async_scripts", end, store, str(directory)]
    running = subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    """Its code, and what it has said on stderr."""
    _, errors = running.communicate(timeout=IN_TIME)
    return running.returncode, errors


def read_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def check(directory: Path) -> None:
    """The file is whole, and nobody holds its lock."""
    with plain(directory / "transport.sqlite") as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("store", STORES)
def test_a_program_that_does_not_close_ends_without_a_word(store: str, tmp_path: Path) -> None:
    with program("returns", store, tmp_path) as running:
        assert ended(running) == (0, "")
    check(tmp_path)


@pytest.mark.parametrize("store", STORES)
def test_a_program_that_fails_ends_with_its_own_error_alone(store: str, tmp_path: Path) -> None:
    with program("fails", store, tmp_path) as running:
        code, errors = ended(running)
    assert code == 1
    assert errors.endswith("LookupError: the program's own\n")
    assert errors.count("Traceback") == 1, errors
    check(tmp_path)


@pytest.mark.parametrize("store", STORES)
def test_a_program_that_exits_ends_with_its_own_code(store: str, tmp_path: Path) -> None:
    with program("exits", store, tmp_path) as running:
        assert ended(running) == (3, "")
    check(tmp_path)


@pytest.mark.parametrize("store", STORES)
def test_a_program_that_leaves_calls_under_way_ends_without_a_word(store: str, tmp_path: Path) -> None:
    with program("leaves_calls_under_way", store, tmp_path) as running:
        assert ended(running) == (0, "")
    check(tmp_path)


@pytest.mark.parametrize("store", STORES)
def test_an_idle_program_ends_at_ctrl_c(store: str, tmp_path: Path) -> None:
    with program("idles", store, tmp_path) as running:
        assert read_line(running.stdout) == "ready"
        running.send_signal(signal.SIGINT)
        code, errors = ended(running)
    assert code == -signal.SIGINT
    assert errors.endswith("KeyboardInterrupt\n")
    assert "Error" not in errors.replace("CancelledError", ""), errors
    check(tmp_path)


@pytest.mark.parametrize("store", STORES)
def test_a_program_that_waits_for_the_lock_ends_at_ctrl_c(store: str, tmp_path: Path) -> None:
    """On a session it may wait for as long as a call does, which is five seconds."""
    with program("waits", store, tmp_path) as running:
        assert read_line(running.stdout) == "ready"
        with plain(tmp_path / "transport.sqlite") as holder:
            holder.execute("BEGIN IMMEDIATE")
            assert running.stdin is not None
            running.stdin.write("locked\n")
            running.stdin.flush()
            assert read_line(running.stdout) == "waiting"
            running.send_signal(signal.SIGINT)
            code, errors = ended(running)
            assert code == -signal.SIGINT, errors
    assert errors.endswith("KeyboardInterrupt\n")
    assert "Error" not in errors.replace("CancelledError", ""), errors
    check(tmp_path)


def test_a_program_that_is_interrupted_while_it_closes_ends(tmp_path: Path) -> None:
    with program("closes_while_it_waits", "opened", tmp_path) as running:
        assert read_line(running.stdout) == "ready"
        with plain(tmp_path / "transport.sqlite") as holder:
            holder.execute("BEGIN IMMEDIATE")
            assert running.stdin is not None
            running.stdin.write("locked\n")
            running.stdin.flush()
            assert read_line(running.stdout) == "waiting"
            running.send_signal(signal.SIGINT)
            code, errors = ended(running)
    assert code == -signal.SIGINT, errors
    check(tmp_path)


RAW = """
import asyncio, aiosqlite, sys
async def main():
    global connection
    connection = await aiosqlite.connect(sys.argv[1] + "/raw.sqlite")
    await connection.execute("CREATE TABLE t (x)")
    print("returning", flush=True)
asyncio.run(main())
"""


def test_the_trap_is_real_a_program_with_a_raw_connection_of_aiosqlites_hangs(tmp_path: Path) -> None:
    running = subprocess.Popen([sys.executable, "-c", RAW, str(tmp_path)], text=True, stdout=subprocess.PIPE)
    try:
        assert read_line(running.stdout) == "returning"
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(3)
    finally:
        running.kill()
        running.communicate()


CLOSED = """
import asyncio, sys, gc, threading, time, qstore
async def main():
    async with qstore.AsyncTransportRepository.open(sys.argv[1], event_type=str) as transport:
        await transport.publish("g", "e")
    async with await qstore.AsyncLocalKvRepository.open(sys.argv[1]) as kv:
        await asyncio.gather(kv.put("k", b"v"), *(kv.get("k") for _ in range(20)))
    queue = await qstore.AsyncLocalQueueRepository.open(sys.argv[1])
    await queue.send("m")
    await queue.close()
    await queue.close()
    engine = qstore.open_async_engine(sys.argv[1] + "/localkv.sqlite")
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SELECT * FROM kv")
    await qstore.AsyncLocalKvRepository(engine).put("k", b"w")
    await engine.dispose()
asyncio.run(main())
gc.collect()
deadline = time.monotonic() + 10
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.01)  # the driver's thread says that it has closed, and then ends
print(threading.active_count())
"""


def test_what_is_closed_leaves_no_warning_and_no_thread(tmp_path: Path) -> None:
    assert output_of(CLOSED, tmp_path, timeout=IN_TIME + 20) == "1\n"


LOOP = """
import asyncio, sys, qstore
loop = asyncio.new_event_loop()
store = loop.run_until_complete(qstore.AsyncLocalKvRepository.open(sys.argv[1]))
loop.run_until_complete(store.put("k", b"v"))
loop.create_task(store.put("k", b"w"))
loop.close()
print("closed")
"""


def test_a_loop_that_is_closed_over_a_call_ends_the_program(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=IN_TIME,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "closed\n"), ran.stderr


@pytest.mark.parametrize("kind", [AsyncTransportRepository, AsyncLocalKvRepository, AsyncLocalQueueRepository])
def test_a_store_is_closed_by_either_form_of_async_with_and_closing_twice_is_fine(
    kind: type[AsyncTransportRepository[str] | AsyncLocalKvRepository | AsyncLocalQueueRepository], tmp_path: Path
) -> None:
    async def main() -> None:
        async with kind.open(tmp_path) as store:
            assert isinstance(store, kind)
        async with await kind.open(tmp_path) as again:
            await again.close()
        await again.close()
        for closed in (store, again):
            assert "closed" in repr(closed)
        await soon(lambda: not threads() and not open_files(tmp_path), "all is closed")

    asyncio.run(main())


def test_a_closed_store_says_so_and_what_was_under_way_ends(tmp_path: Path) -> None:
    async def main() -> None:
        store = await AsyncTransportRepository.open(tmp_path, event_type=str)
        calls = [asyncio.ensure_future(store.publish("g", str(n))) for n in range(20)]
        await asyncio.sleep(0)
        await asyncio.gather(store.close(), store.close())
        assert await asyncio.gather(*calls) == list(range(1, 21))
        with pytest.raises(QstoreError, match="closed"):
            await store.publish("g", "late")

    asyncio.run(main())


FORGOTTEN = """
import asyncio, sys, qstore
async def main():
    transport = qstore.AsyncTransportRepository.open(sys.argv[1] + "/new/transport.sqlite")
    await transport.publish("g", "e")
asyncio.run(main())
"""


def test_an_open_that_nobody_awaits_makes_nothing_and_is_told_of(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORGOTTEN, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=IN_TIME,
        check=False,
    )
    assert ran.returncode == 1
    assert "has no attribute 'publish'" in ran.stderr
    assert "was never awaited" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_forgotten_takes_its_threads_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = await AsyncLocalKvRepository.open(tmp_path)
        await store.put("k", b"v")
        await asyncio.gather(*(store.get("k") for _ in range(20)))
        assert threads() > 0
        del store
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
            await soon(lambda: threads() == 0, "its threads end")
            gc.collect()

    asyncio.run(main())
    with closing(sqlite3.connect(tmp_path / "localkv.sqlite")) as connection:
        assert connection.execute("SELECT value FROM kv").fetchall() == [(b"v",)]
