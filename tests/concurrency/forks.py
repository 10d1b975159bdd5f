"""What a single-threaded process does when it forks with a store open. Each function is run in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from qstore import BackendUnsupported, LocalKvRepository, TransportRepository, open_engine

TRY_THE_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
    print("free")
    connection.execute("ROLLBACK")
except sqlite3.OperationalError as error:
    print(error.sqlite_errorname)
connection.close()
"""


def lock_of(path: Path) -> str:
    """What another process finds: `free` or SQLITE_BUSY."""
    result = subprocess.run(
        [sys.executable, "-c", TRY_THE_LOCK, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.strip()


def in_child(work: Callable[[], object], *, end: str) -> None:
    """Fork, work there, and wait for the end: at once (`_exit`), or with all that Python finalizes (`exit`)."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except SystemExit:  # a grandchild's own end
            raise
        except BaseException:  # noqa: BLE001  a child must not go on as its parent
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        if end == "_exit":
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child failed"


def waiting_child(work: Callable[[], object], end: str) -> Callable[[], None]:
    """Fork a child that waits, works and ends. Returns what lets it go on, and waits for its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        work()
        if end == "_exit":
            os._exit(0)
        sys.exit(0)

    def let_go() -> None:
        os.write(writing, b"x")
        assert os.waitpid(child, 0)[1] == 0

    return let_go


def refused(*calls: Callable[[], object]) -> None:
    """Each of them, by the name of what the parent had under way."""
    for call in calls:
        try:
            call()
        except BackendUnsupported as error:
            assert "forked" in str(error)  # noqa: PT017  there is no pytest in this process
        else:
            raise AssertionError("the child goes on in its parent's transaction")


def both_go_on(directory: Path, end: str) -> None:
    with TransportRepository.open(directory / "transport.sqlite", event_type=str) as transport:
        transport.publish("a", "parent's first")

        def child() -> None:
            lease = transport.claim("child", 30)
            assert lease is not None
            assert lease.event == "parent's first"
            transport.ack(lease)
            transport.publish("b", "child's")

        in_child(child, end=end)
        lease = transport.claim("parent", 30)
        assert lease is not None
        assert lease.event == "child's"
        transport.ack(lease)
        assert transport.publish("a", "parent's second") == 3
    _check(directory / "transport.sqlite")


def the_parent_keeps_its_lock(directory: Path, end: str) -> None:
    """The parent is in a transaction of its own, with a write that only its connection can see."""
    path = directory / "localkv.sqlite"
    LocalKvRepository.open(directory).close()
    engine = open_engine(path)
    kv = LocalKvRepository(engine)
    kv.put("k", b"before")
    with engine.connect() as connection:
        pooled: Any = connection.connection.driver_connection
        pooled.execute("BEGIN IMMEDIATE")
        pooled.execute("UPDATE kv SET value = x'00'")

        def child() -> None:
            refused(
                lambda: kv.get("k"), lambda: kv.put("k", b"child's"), lambda: LocalKvRepository.open(directory).get("k")
            )
            gc.collect()
            if end == "close":
                kv.close()
                engine.dispose()

        in_child(child, end="exit" if end == "close" else end)
        assert lock_of(path) == "SQLITE_BUSY", "the child has dropped its parent's lock"
        pooled.execute("COMMIT")
    assert lock_of(path) == "free"
    assert kv.get("k") == b"\0"
    in_child(lambda: kv.put("k", b"child's"), end="_exit")
    assert kv.get("k") == b"child's"
    engine.dispose()
    _check(path)


def a_large_transaction_outlives_the_child(directory: Path, end: str) -> None:
    """Pages of a transaction that is not committed are in the log already, as they are when it outgrows the cache."""
    path = directory / "localkv.sqlite"
    LocalKvRepository.open(directory).close()
    engine = open_engine(path)
    kv = LocalKvRepository(engine)
    with engine.connect() as connection:
        pooled: Any = connection.connection.driver_connection
        pooled.execute("PRAGMA cache_size = 5")
        pooled.execute("BEGIN IMMEDIATE")
        pooled.executemany("INSERT INTO kv VALUES (?, ?, NULL)", [(str(n), bytes(3000)) for n in range(500)])
        in_child(lambda: refused(lambda: kv.get("k")), end=end)
        pooled.executemany("INSERT INTO kv VALUES (?, ?, NULL)", [(str(n), bytes(3000)) for n in range(500, 600)])
        pooled.execute("COMMIT")
    engine.dispose()
    _check(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM kv WHERE length(value) = 3000").fetchall() == [(600,)]


def a_child_that_outlives_its_parents_store_takes_nothing_away(directory: Path, end: str) -> None:
    """The parent closes. Another process writes and is killed: its commit is in the log alone. Then the child ends."""
    path = directory / "localkv.sqlite"
    kv = LocalKvRepository.open(directory)
    kv.put("k", b"parent's")
    let_go = waiting_child(lambda: None, end)
    kv.close()
    killed = f"""
import os, signal, qstore
qstore.LocalKvRepository.open({str(directory)!r}).put("k", b"another's")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False, timeout=60).returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 0
    let_go()
    with LocalKvRepository.open(directory) as kv:
        assert kv.get("k") == b"another's", "what was committed is lost"
    _check(path)


def the_child_has_a_connection_of_its_own(directory: Path, end: str) -> None:
    """A temporary table belongs to one connection."""
    LocalKvRepository.open(directory).close()
    engine = open_engine(directory / "localkv.sqlite")

    def temporary_tables() -> list[Any]:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql("SELECT name FROM sqlite_temp_master").scalars())

    def make_one(name: str) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE TEMP TABLE {name} (x)")
            connection.commit()

    make_one("parents")

    def child() -> None:
        assert temporary_tables() == [], "the child has its parent's connection"
        make_one("childs")

    in_child(child, end=end)
    make_one("parents")
    assert temporary_tables() == ["parents"], "the parent has its child's connection"
    engine.dispose()


def a_child_goes_on_after_its_parent_has_closed(directory: Path, end: str) -> None:
    """As a daemon does. SQLite's locks are not inherited: with the parent's connection, its log would be gone."""
    transport = TransportRepository.open(directory / "transport.sqlite", event_type=str)
    transport.publish("a", "parent's")
    let_go = waiting_child(lambda: transport.publish("a", "child's"), end)
    transport.close()
    let_go()
    with TransportRepository.open(directory / "transport.sqlite", event_type=str) as transport:
        assert transport.publish("a", "last") == 3, "what the child published is lost"
    _check(directory / "transport.sqlite")


def a_child_that_has_written_goes_on_beside_others(directory: Path, end: str) -> None:
    """SQLite in the child must not take the locks for its own that its parent has, or had when it forked.

    Otherwise whoever else closes last clears away the log that the child writes to, and whoever opens first begins the
    log's index anew.
    """
    path = directory / "transport.sqlite"
    transport = TransportRepository.open(path, event_type=str)
    transport.publish("a", "parent's")
    go_on, (reading, writing) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for number in range(3):
            transport.publish("a", f"child's {number}")
            os.write(writing, b"x")
            os.read(go_on[0], 1)
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1), "the child failed"
    transport.close()
    for _ in range(2):
        os.write(go_on[1], b"x")
        assert os.read(reading, 1), "the child failed"
        another = f"import qstore; qstore.TransportRepository.open({str(path)!r}, event_type=str).publish('a', 'other')"
        subprocess.run([sys.executable, "-c", another], check=True, timeout=60, stderr=subprocess.DEVNULL)
    os.write(go_on[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    with closing(sqlite3.connect(path)) as connection:
        found = [event for (event,) in connection.execute("SELECT event FROM messages ORDER BY seq")]
    wanted = ["parent's", "child's 0", "child's 1", "other", "child's 2", "other"]
    assert [each.strip('"') for each in found] == wanted, "what was committed is lost"
    _check(path)


def multiprocessing_forks(directory: Path, end: str) -> None:
    with TransportRepository.open(directory / "transport.sqlite", event_type=str) as transport:
        transport.publish("a", "parent's")
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=transport.publish, args=(f"group {n}", "child's")) for n in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        assert transport.publish("a", "last") == 6
    _check(directory / "transport.sqlite")


def a_grandchild_works_too(directory: Path, end: str) -> None:
    with TransportRepository.open(directory / "transport.sqlite", event_type=str) as transport:
        transport.publish("a", "parent's")

        def child() -> None:
            transport.publish("a", "child's")
            in_child(lambda: transport.publish("a", "grandchild's"), end=end)
            transport.publish("a", "child's second")

        in_child(child, end=end)
        assert transport.publish("a", "parent's second") == 5
    _check(directory / "transport.sqlite")


def _check(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
