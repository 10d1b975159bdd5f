"""H07 and H09: what a process holds, which is locks, descriptors, threads and connections."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import TimeoutError as PoolTimeout

import qstore
from qstore import (
    Event,
    LocalKvRepository,
    LocalQueueRepository,
    QstoreError,
    StoreBusy,
    TransportRepository,
    migrate,
    open_engine,
)
from tests.integration.situations import ENGINES, STORES, disposed, host_engine, new_store, output_of, plain

LOCKS = Path("/proc/locks")
DESCRIPTORS = Path("/proc/self/fd")

pytestmark = pytest.mark.skipif(not LOCKS.exists(), reason="the kernel tells of locks and descriptors in /proc")


def _locks(path: Path) -> set[tuple[str, ...]]:
    """This process's POSIX locks on a database and its side files: inode, first and last byte, kind."""
    inodes = {str(os.stat(file).st_ino) for file in path.parent.glob(path.name + "*")}
    held = (line.split() for line in LOCKS.read_text().splitlines())
    return {
        (lock[5].split(":")[-1], *lock[6:], lock[3])
        for lock in held
        if lock[1] == "POSIX" and lock[4] == str(os.getpid()) and lock[5].split(":")[-1] in inodes
    }


USES: dict[str, Callable[[Path, Engine], object]] = {
    "a second open": lambda path, _: LocalKvRepository.open(path.parent).close(),
    "an open without create": lambda path, _: LocalKvRepository.open(path.parent, create=False).close(),
    "a read by a second repository": lambda path, _: _read_and_close(path),
    "a file that is refused": lambda path, _: _refused(path),
    "recognition": lambda path, _: migrate.store_of(str(path)),
    "the revisions": lambda _, engine: migrate.current(engine),
    "a check": lambda _, engine: migrate.check(engine),
    "a checkpoint": lambda _, engine: qstore.checkpoint(engine),
    "an engine's end": lambda _, engine: engine.dispose(),
}


def _read_and_close(path: Path) -> None:
    with LocalKvRepository.open(path.parent) as kv:
        assert kv.get("a") is None


def _refused(path: Path) -> None:
    with pytest.raises(qstore.FormatError):
        TransportRepository.open(path)


def test_the_trap_is_real_a_look_at_the_header_drops_the_locks(tmp_path: Path) -> None:
    """H07."""
    path = new_store(tmp_path, "localkv")
    with plain(path) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO kv VALUES ('a', x'', NULL)")
        before = _locks(path)
        path.read_bytes()
        assert before > _locks(path)
        writer.execute("ROLLBACK")


@pytest.mark.parametrize("use", USES)
def test_a_write_transaction_of_the_same_process_keeps_its_locks(use: str, tmp_path: Path) -> None:
    """H07."""
    path = new_store(tmp_path, "localkv")
    with disposed(open_engine(path)) as writing, disposed(open_engine(path)) as other:
        LocalKvRepository(other).put("b", b"")
        with writing.begin() as connection:
            LocalKvRepository(connection).put("a", b"1")
            before = _locks(path)
            assert len(before) >= 2
            USES[use](path, other)
            assert before <= _locks(path)
        assert LocalKvRepository(writing).get("a") == b"1"


AUDITED = """
import os, sys, threading
import qstore
from qstore import *
from qstore import migrate
path = os.path.join(sys.argv[1], "localkv.sqlite")
touched = []

def audit(event, arguments):
    # os.stat is none of these: it opens nothing.
    if event != "sqlite3.connect" and any(str(argument).startswith(path) for argument in arguments):
        touched.append((event, arguments[0]))

sys.addaudithook(audit)
with LocalKvRepository.open(sys.argv[1]) as kv:
    kv.put("a", b"1")
    kv.put("b", b"1", ttl=0)
    kv.get("a"), kv.get("b"), kv.scan_prefix(""), list(kv.iter_prefix(""))
    LocalKvRepository.open(sys.argv[1]).close()
    engine = open_engine(path)
    qstore.checkpoint(engine)
    migrate.upgrade(engine), migrate.check(engine), migrate.current(engine), migrate.stamp(engine)
    engine.dispose()
    open_engine(path, read_only=True).connect().close()
    try:
        LocalQueueRepository.open("sqlite:///" + path)
    except FormatError:
        pass
with open(path, "rb"):
    pass
print(touched)
"""


def test_no_use_of_a_store_opens_or_changes_its_file_by_other_means_than_sqlite(tmp_path: Path) -> None:
    """H07. The one event is the program's own, at its end, to show that it would have been seen."""
    touched = output_of(AUDITED, tmp_path)
    assert touched == f"{[('open', str(tmp_path / 'localkv.sqlite'))]}\n"


class Failure(Exception):
    """What a clock raises now and then."""


def _descriptors() -> int:
    return len(os.listdir(DESCRIPTORS))


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_after_a_storm_of_threads_with_failures_in_it_no_thread_and_no_descriptor_is_left(
    make_engine: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H09. Some calls fail while they hold the write lock, some before, some with a stale handle."""
    paths = {store: new_store(tmp_path, store) for store in STORES}
    threads, descriptors = threading.active_count(), _descriptors()
    ticks = iter(range(10**9))

    def clock() -> float:
        if next(ticks) % 7 == 0:
            raise Failure
        return 1_700_000_000.0

    engines = {store: make_engine(path) for store, path in paths.items()}
    kv = LocalKvRepository(engines["localkv"], clock=clock)
    queue = LocalQueueRepository(engines["localqueue"], clock=clock)
    transport = TransportRepository(engines["transport"], clock=clock)
    calls: list[Callable[[int], object]] = [
        lambda number: kv.put(f"{number % 5}", b"x", ttl=0),
        lambda number: kv.get(f"{number % 5}"),
        lambda number: transport.publish(f"g{number % 20}", Event(kind="k")),
        lambda number: transport.claim("w", 60),
        lambda number: queue.send("a" * (number % 3) * 40_000),
        lambda number: queue.receive(2),
        lambda number: next(kv.iter_prefix(""), None),
        lambda number: queue.nack(f"{number % 5 + 1}:old"),
    ]

    def round_of(number: int) -> str:
        try:
            calls[number % len(calls)](number)
        except (Failure, QstoreError) as error:
            return type(error).__name__
        return "done"

    with ThreadPoolExecutor(40) as workers:
        answers = list(workers.map(round_of, range(500)))
    assert {"done", "Failure", "PayloadTooLarge"} <= set(answers) <= {
        "done", "Failure", "PayloadTooLarge", "StaleReceipt", "StoreBusy"
    }  # fmt: skip
    assert [engine.pool.checkedout() for engine in engines.values()] == [0, 0, 0]  # type: ignore[attr-defined]  # a QueuePool's
    for engine in engines.values():
        engine.dispose()
    assert (threading.active_count(), _descriptors()) == (threads, descriptors)


def _each_operation(store: str, engine: Engine) -> list[Callable[[], object]]:
    if store == "transport":
        transport = TransportRepository(engine)

        def settled() -> None:
            lease = transport.claim("w", 5)
            assert lease is not None
            transport.ack(transport.extend(lease, 9))

        return [lambda: transport.publish_many([("g", Event(kind="k"))]), settled]
    if store == "localqueue":
        queue = LocalQueueRepository(engine)
        return [lambda: queue.send("a"), lambda: queue.nack(queue.receive()[0].receipt_handle), queue.purge]
    kv = LocalKvRepository(engine)
    return [
        lambda: kv.put("a", b"1", ttl=0),
        lambda: kv.get("a"),
        lambda: kv.put("a", b"1", ttl=0, if_not_exists=True),
        lambda: kv.exists("a"),
        lambda: kv.put_many({"a": b"1", "b": b"1"}),
        lambda: [kv.put(key, b"2") for key, _ in kv.iter_prefix("")],
        kv.purge_expired,
    ]


@pytest.mark.parametrize("store", STORES)
def test_no_operation_holds_more_than_one_connection(store: str, tmp_path: Path) -> None:
    """H09. There is only one. A nested checkout would wait for the connection that its own caller has."""
    path = new_store(tmp_path, store)
    with disposed(host_engine(path, pool_size=1, max_overflow=0, pool_timeout=0.1)) as engine:
        for operation in _each_operation(store, engine):
            operation()


@pytest.mark.parametrize("store", STORES)
def test_a_pool_that_has_no_connection_in_time_is_busy(store: str, tmp_path: Path) -> None:
    """H09. What SQLAlchemy calls a TimeoutError."""
    path = new_store(tmp_path, store)
    with disposed(host_engine(path, pool_size=1, max_overflow=0, pool_timeout=0.01)) as engine:
        operation = _each_operation(store, engine)[0]
        with engine.connect():
            with pytest.raises(PoolTimeout):
                engine.connect()
            with pytest.raises(StoreBusy, match=store):
                operation()
        operation()


def test_a_pool_of_qstores_own_that_has_no_connection_in_time_is_busy(tmp_path: Path) -> None:
    """H09."""
    path = new_store(tmp_path, "localkv")
    with disposed(open_engine(path)) as engine:
        pool: Any = engine.pool
        pool._timeout = 0.01  # half a minute otherwise
        kv = LocalKvRepository(engine)
        held = [engine.connect() for _ in range(pool.size() + pool._max_overflow)]
        for call in (lambda: kv.get("a"), lambda: kv.put("a", b"")):
            with pytest.raises(StoreBusy, match="localkv"):
                call()
        for connection in held:
            connection.close()
        assert kv.put("a", b"1")


def test_a_connection_that_comes_back_after_its_engine_was_disposed_of_is_closed(tmp_path: Path) -> None:
    """As a call gives it back that was under way meanwhile."""
    engine = open_engine(new_store(tmp_path, "localkv"))
    pool: Any = engine.pool
    held = pool.take()
    engine.dispose()
    pool.give(held)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        held.driver.execute("SELECT 1")
