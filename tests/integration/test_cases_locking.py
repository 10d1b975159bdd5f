"""H01 and H03: SQLite's write lock, for operations that write and for no others."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from qstore import (
    Event,
    LocalKvRepository,
    LocalQueueRepository,
    StoreBusy,
    TransportRepository,
    migrate,
)
from tests import write_lock
from tests.backends import Backend
from tests.integration.situations import (
    ENGINES,
    STORES,
    disposed,
    new_store,
    on_each_connection,
    plain,
    reader_open,
    recipe_engine,
    waiting_at_most,
    write_lock_held,
)


def _settled_transport(transport: TransportRepository) -> None:
    transport.publish("g", Event(kind="k"))
    for settle in (transport.nack, lambda lease: transport.nack(transport.extend(lease, 5)), transport.ack):
        lease = transport.claim("w", 5)
        assert lease is not None
        settle(lease)
    transport.publish_many([("g", Event(kind="k"))])


def _settled_queue(queue: LocalQueueRepository) -> None:
    queue.send("a")
    queue.send_many(["b"])
    first, second = queue.receive(2)
    queue.nack(first.receipt_handle)
    queue.ack(second.receipt_handle)
    queue.purge()


def _written_kv(kv: LocalKvRepository) -> None:
    kv.put("a", b"1")
    kv.put("a", b"1", if_not_exists=True)
    kv.put_many({"b": b"2"}, ttl=0)
    kv.delete("a")
    kv.purge_expired()


def _read_kv(kv: LocalKvRepository) -> None:
    assert kv.get("live") == b"1"
    assert kv.exists("live")
    assert kv.get("absent") is None
    assert kv.scan_prefix("").items == [("live", b"1")]
    assert kv.scan_prefix("", limit=1).items == [("live", b"1")]
    assert list(kv.iter_prefix("l")) == [("live", b"1")]


WRITES: dict[str, Callable[[Any], None]] = {
    "transport": _settled_transport,
    "localkv": _written_kv,
    "localqueue": _settled_queue,
}


@pytest.fixture(params=ENGINES)
def engine_kind(request: pytest.FixtureRequest) -> Callable[[Path], Engine]:
    return ENGINES[request.param]


def test_the_trap_is_real_a_read_then_a_write_in_a_deferred_transaction_fails_without_waiting(tmp_path: Path) -> None:
    """H01."""
    path = new_store(tmp_path, "localkv")
    with plain(path, timeout=60) as first, plain(path) as second:
        first.execute("BEGIN")
        first.execute("SELECT * FROM kv").fetchall()
        second.execute("INSERT INTO kv VALUES ('a', x'', NULL)")
        with pytest.raises(sqlite3.OperationalError) as refused:
            first.execute("INSERT INTO kv VALUES ('b', x'', NULL)")
        assert refused.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
        first.execute("ROLLBACK")


@pytest.mark.parametrize("store", STORES)
def test_the_write_lock_is_held_at_every_statement_of_an_operation_that_may_write(
    store: str, engine_kind: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H01. Between the first read and the first write nobody can get in."""
    path = new_store(tmp_path, store)
    statements: dict[str, bool] = {}

    def look(statement: str) -> None:
        if not statement.startswith(("BEGIN", "PRAGMA")):
            statements[statement] = write_lock.is_free(path)

    engine = engine_kind(path)
    with disposed(engine):
        repository: Any = STORES[store](engine)
        on_each_connection(engine, lambda connection: connection.set_trace_callback(look))
        WRITES[store](repository)
    assert len(statements) >= 5
    assert [statement for statement, free in statements.items() if free] == []


def _patient(call: Callable[..., Any], *arguments: object) -> Any:
    """Repeat what is busy, which it may be only after the whole of the five seconds' wait."""
    while True:
        began = time.monotonic()
        try:
            return call(*arguments)
        except StoreBusy:
            assert time.monotonic() - began > 4.5, "busy before its time"


def test_eight_writers_at_once_never_fail_before_their_time(shared_file_backend: Backend) -> None:
    """H01. (On a server a claim may find every group in other hands for a moment.)"""
    backend = shared_file_backend
    transport, kv, queue = backend.transport(), backend.localkv(), backend.localqueue()

    def work(worker: int) -> int:
        for number in range(10):
            kv.get(f"{worker}")
            _patient(kv.put, f"{worker}", b"%d" % number)
            _patient(transport.publish, f"{worker}-{number}", Event(kind="k"))
            _patient(transport.ack, _patient(transport.claim, f"w{worker}", 60))
            _patient(queue.send, "m")
            [message] = _patient(queue.receive)
            _patient(queue.ack, message.receipt_handle)
        return worker

    with ThreadPoolExecutor(8) as workers:
        assert sorted(workers.map(work, range(8))) == list(range(8))
    assert transport.claim("w", 60) is None
    assert queue.receive() == []


@pytest.mark.parametrize("engine_kind", ["opened", "recipe"], indirect=True)
def test_a_lost_snapshot_in_the_hosts_transaction_is_busy_and_nothing_is_changed(
    engine_kind: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H01. Waiting would not help: the host must roll back, and is told so."""
    path = new_store(tmp_path, "localkv")
    engine = engine_kind(path)
    with disposed(engine), Session(engine) as session, plain(path) as other:
        kv = LocalKvRepository(session)
        assert kv.get("a") is None
        other.execute("INSERT INTO kv VALUES ('a', x'31', NULL)")
        with pytest.raises(StoreBusy, match="roll back"):
            kv.put("a", b"2")
        session.rollback()
        assert kv.get("a") == b"1"
        kv.put("a", b"2")
        session.commit()
        assert other.execute("SELECT value FROM kv").fetchall() == [(b"2",)]


def test_the_trap_is_real_the_begin_immediate_recipe_makes_readers_wait_for_readers(tmp_path: Path) -> None:
    """H03."""
    path = new_store(tmp_path, "localkv")
    engine = waiting_at_most(recipe_engine(path, "BEGIN IMMEDIATE"), 1)
    with disposed(engine), engine.begin() as first:
        first.execute(text("SELECT * FROM kv")).all()
        with pytest.raises(OperationalError, match="locked"), engine.begin():
            pass


def test_pure_reads_neither_wait_for_the_write_lock_nor_take_it(
    engine_kind: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H03."""
    path = new_store(tmp_path, "localkv")
    engine = waiting_at_most(engine_kind(path), 0)
    free: list[bool] = []
    with disposed(engine):
        kv = LocalKvRepository(engine)
        kv.put("live", b"1")
        engine.dispose()
        with write_lock_held(path):
            _read_kv(kv)
            assert migrate.current(engine) == ("localkv.v1",)
            assert migrate.check(engine, stores=("localkv",)) == ()
        on_each_connection(
            engine, lambda each: each.set_trace_callback(lambda _: free.append(write_lock.is_free(path)))
        )
        engine.dispose()
        with reader_open(path):
            _read_kv(kv)
        assert len(free) >= 6
        assert all(free)


def test_a_read_that_meets_an_expired_key_does_not_wait_for_the_write_lock_to_delete_it(
    engine_kind: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H03. The wait is set to longer than this test may last."""
    path = new_store(tmp_path, "localkv")
    with disposed(waiting_at_most(engine_kind(path), 3_600_000)) as engine:
        kv = LocalKvRepository(engine)
        kv.put_many({"a": b"1", "b": b"1"}, ttl=0)
        with write_lock_held(path):
            assert kv.get("a") is None
            assert not kv.exists("b")
        with plain(path) as look:
            assert look.execute("SELECT count(*) FROM kv").fetchall() == [(2,)]
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 3_600_000
        assert kv.get("a") is None
        with plain(path) as look:
            assert look.execute("SELECT count(*) FROM kv").fetchall() == [(1,)]


@pytest.mark.parametrize("store", STORES)
def test_after_any_number_of_failed_begins_the_pool_is_whole(
    store: str, engine_kind: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H03."""
    path = new_store(tmp_path, store)
    engine = waiting_at_most(engine_kind(path), 1)
    with disposed(engine):
        repository: Any = STORES[store](engine)
        with write_lock_held(path):
            for _ in range(20):
                with pytest.raises(StoreBusy):
                    WRITES[store](repository)
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool's
        WRITES[store](repository)
