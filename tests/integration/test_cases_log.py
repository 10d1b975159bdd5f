"""H04 and H05: SQLite's write-ahead log, from the first open to a size that stays."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Timer

import pytest
from sqlalchemy import Engine

import qstore
from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, open_engine
from tests.integration.situations import ENGINES, disposed, host_engine, new_store, output_of, plain, reader_open

PROCESSES = 12


def _open_all(barrier: Barrier, directory: str, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        barrier.wait(90)
        with LocalKvRepository.open(directory) as kv:
            kv.put("a", b"1")
        barrier.wait(90)
        with LocalQueueRepository.open(directory) as queue:
            queue.send("a")
        barrier.wait(90)
        with TransportRepository.open(directory) as transport:
            transport.publish("g", qstore.Event(kind="k"))
        answers.put("")
    except BaseException as error:
        answers.put(repr(error))
        raise


def test_twelve_processes_that_open_the_same_new_files_at_once_all_start(tmp_path: Path) -> None:
    """H04."""
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(PROCESSES), spawn.SimpleQueue()
    processes = [spawn.Process(target=_open_all, args=(barrier, str(tmp_path), answers)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(100)
        assert [answers.get() for _ in processes if not answers.empty()] == [""] * PROCESSES
        assert [process.exitcode for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
    with plain(tmp_path / "localqueue.sqlite") as look:
        assert look.execute("SELECT count(*) FROM messages").fetchall() == [(PROCESSES,)]
        assert look.execute("SELECT count(*) FROM qstore_alembic_version").fetchall() == [(1,)]
        assert look.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


def test_the_trap_is_real_the_switch_to_a_write_ahead_log_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    """H04. The wait is set to longer than this test may last."""
    path = tmp_path / "new.sqlite"
    with plain(path) as writer, plain(path, timeout=3600) as other:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as refused:
            other.execute("PRAGMA journal_mode = WAL")
        assert refused.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
        writer.execute("ROLLBACK")


def test_opening_waits_for_the_writer_that_keeps_it_from_switching_to_a_write_ahead_log(tmp_path: Path) -> None:
    """H04."""
    path = tmp_path / "localkv.sqlite"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    released = Timer(0.5, writer.execute, ["ROLLBACK"])
    released.start()
    try:
        with LocalKvRepository.open(tmp_path) as kv:
            kv.put("a", b"1")
    finally:
        released.join()
        writer.close()
    with plain(path) as look:
        assert look.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


WITHOUT_SHARED_MEMORY = """
import ctypes, ctypes.util, sqlite3, sys
sqlite = ctypes.CDLL(ctypes.util.find_library("sqlite3"))
sqlite.sqlite3_vfs_find.restype = ctypes.c_void_p
found = sqlite.sqlite3_vfs_find(b"unix-dotfile")
sqlite.sqlite3_vfs_register(ctypes.c_void_p(found), 1)
connection = sqlite3.connect(sys.argv[1])
assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("delete",), "the trap is not real"
connection.close()
from qstore import LocalKvRepository
try:
    LocalKvRepository.open(sys.argv[2])
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_file_that_cannot_have_a_write_ahead_log_is_refused_by_name(tmp_path: Path) -> None:
    """H04. As on a network drive: SQLite locks by way of files there, and shares no memory. It says no by saying
    nothing: the journal mode stays what it was.
    """
    said = output_of(WITHOUT_SHARED_MEMORY, tmp_path / "bare.sqlite", tmp_path)
    assert said.startswith("FormatError")
    assert str(tmp_path / "localkv.sqlite") in said
    assert "write-ahead log" in said
    assert "found: journal mode delete" in said


def test_a_log_that_a_reader_pins_is_reported_busy_and_one_call_empties_it_when_the_reader_ends(tmp_path: Path) -> None:
    """H05."""
    path = new_store(tmp_path, "localkv")
    log = path.with_name(path.name + "-wal")
    with disposed(open_engine(path, durability="normal")) as engine:
        kv = LocalKvRepository(engine)
        with reader_open(path):
            for number in range(3000):
                kv.put(f"{number % 50}", b"%04d" % number * 750)
            pinned = qstore.checkpoint(engine)
            assert pinned.busy
            assert pinned.log_pages > 3000
            assert pinned.done_pages < pinned.log_pages
            assert qstore.log_size(engine) == log.stat().st_size > 3000 * 3000
        assert not qstore.checkpoint(engine).busy
        assert qstore.log_size(engine) == log.stat().st_size == 0


def test_a_log_has_a_size_that_it_is_cut_back_to(tmp_path: Path) -> None:
    """H05. SQLite's own default is to keep the file as large as it ever was."""
    with disposed(open_engine(new_store(tmp_path, "localkv"))) as engine, engine.connect() as connection:
        assert 0 < connection.exec_driver_sql("PRAGMA journal_size_limit").scalar_one() <= 64 * 1024 * 1024
    with plain(tmp_path / "localkv.sqlite") as bare:
        assert bare.execute("PRAGMA journal_size_limit").fetchall() == [(-1,)]


def test_the_trap_is_real_a_half_read_cursor_pins_the_log(tmp_path: Path) -> None:
    """H05. The driver says that it is in no transaction."""
    path = new_store(tmp_path, "localkv")
    with disposed(open_engine(path)) as engine, plain(path) as reader:
        kv = LocalKvRepository(engine)
        kv.put_many({f"{number:03}": b"" for number in range(100)})
        cursor = reader.execute("SELECT * FROM kv ORDER BY key")
        cursor.fetchone()
        assert not reader.in_transaction
        kv.put("a", b"1")
        assert qstore.checkpoint(engine).busy
        cursor.fetchall()
        assert not qstore.checkpoint(engine).busy


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_nothing_that_qstore_has_read_pins_the_log(make_engine: Callable[[Path], Engine], tmp_path: Path) -> None:
    """H05. A walk left half way, pages, and polls that find nothing."""
    paths = {store: new_store(tmp_path, store) for store in ("transport", "localkv", "localqueue")}

    def log_is_emptied(store: str) -> bool:
        with disposed(open_engine(paths[store])) as own:
            return not qstore.checkpoint(own).busy and Path(f"{paths[store]}-wal").stat().st_size == 0

    with (
        disposed(make_engine(paths["localkv"])) as kv_engine,
        disposed(make_engine(paths["localqueue"])) as queue_engine,
        disposed(make_engine(paths["transport"])) as transport_engine,
    ):
        kv = LocalKvRepository(kv_engine)
        kv.put_many({f"{number:03}": b"x" for number in range(100)})
        walk = kv.iter_prefix("")
        for _ in range(3):  # the second read of the walk has begun
            next(walk)
        page = kv.scan_prefix("", limit=2)
        assert page.next_cursor is not None
        kv.get("absent")
        kv.put("more", b"x")
        assert log_is_emptied("localkv")
        assert len(list(walk)) == 98

        queue, transport = LocalQueueRepository(queue_engine), TransportRepository(transport_engine)
        for _ in range(10):
            assert queue.receive() == []
            assert transport.claim("w", 5) is None
        queue.send("a")
        transport.publish("g", qstore.Event(kind="k"))
        assert log_is_emptied("localqueue")
        assert log_is_emptied("transport")


def test_a_checkpoint_of_a_database_without_a_log_is_done_at_once(tmp_path: Path) -> None:
    """H05. A host's database with a rollback journal."""
    path = tmp_path / "host.sqlite"
    with disposed(host_engine(path)) as engine:
        assert not qstore.checkpoint(engine).busy
        assert qstore.log_size(engine) == 0


def test_a_checkpoint_never_claims_that_a_log_is_gone_which_a_read_only_engine_left_there(tmp_path: Path) -> None:
    """H05. Done or refused by name, but not a false answer."""
    path = new_store(tmp_path, "localkv")
    with (
        disposed(open_engine(path)) as writing,
        disposed(open_engine(path, read_only=True)) as reading,
    ):
        LocalKvRepository(writing).put("a", b"1")
        try:
            done = qstore.checkpoint(reading)
        except qstore.QstoreError as error:
            assert str(path) in str(error)  # noqa: PT017  refusing is one of two right answers
        else:
            assert done.busy or path.with_name(path.name + "-wal").stat().st_size == 0


def test_a_log_whose_beginning_was_torn_keeps_nobody_from_opening_a_store(tmp_path: Path) -> None:
    """A disk that fails leaves one, with its index beside it. SQLite takes such a log for empty.

    It takes ten seconds: so long it tries, where it may not write to the index.
    """
    log, index = (tmp_path / f"localkv.sqlite-{kind}" for kind in ("wal", "shm"))
    with LocalKvRepository.open(tmp_path) as kv:
        kv.put("a", b"1")
        torn, beside = bytes(16) + log.read_bytes()[16:], index.read_bytes()
    log.write_bytes(torn)
    index.write_bytes(beside)
    with LocalKvRepository.open(tmp_path) as kv:
        assert kv.get("a") == b"1"
        assert kv.put("b", b"2")
