"""Threads that write at the same time share a commit, and nothing else: each has its own result, error and wait."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from qstore import LocalKvRepository, StaleLease, StoreBusy, TransportRepository, open_engine
from qstore.binding import opened
from qstore.engines import sqlite
from tests.concurrency.cancelling import lock_held
from tests.made_files import made

THREADS = 20


class Store:
    """A file with an engine of qstore's, and the statements that it sees."""

    def __init__(self, path: Path, store: str) -> None:
        path.write_bytes(made(store).read_bytes())
        self.path = path
        self.engine = open_engine(path)
        self.statements: list[str] = []
        event.listen(self.engine.pool, "connect", lambda driver, _: driver.set_trace_callback(self.statements.append))
        self.line = self.engine.get_execution_options()["qstore_file"].line

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
        """Call all of them, in this order, while none can write; then let them."""
        futures = []
        with ThreadPoolExecutor(len(calls)) as threads, lock_held(self.path):
            deadline = time.monotonic() + 4
            for number, call in enumerate(calls):
                futures.append(threads.submit(call))
                while self.line._leader is None or len(self.line.waiting) < number:
                    assert time.monotonic() < deadline, "they do not wait in line"
                    time.sleep(0.001)
        return futures

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "localkv.sqlite", "localkv")
    yield store
    store.engine.dispose()


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "transport.sqlite", "transport")
    yield store
    store.engine.dispose()


def test_those_who_wait_behind_one_share_its_commit_and_each_is_there_when_its_call_returns(transport: Store) -> None:
    repository: TransportRepository[str] = TransportRepository(transport.engine, event_type=str)

    def publish(number: int) -> int:
        seq = repository.publish(f"g{number % 3}", str(number))
        assert transport.sql(f"SELECT event FROM messages WHERE seq = {seq}") == [(f'"{number}"',)]
        return seq

    futures = transport.at_once([partial(publish, number) for number in range(THREADS)])
    assert sorted(future.result() for future in futures) == list(range(1, THREADS + 1))
    assert transport.statements.count("COMMIT") == 1
    assert not [statement for statement in transport.statements if "SAVEPOINT" in statement]


def test_an_error_is_its_own_calls_and_the_others_are_all_right(transport: Store) -> None:
    repository: TransportRepository[str] = TransportRepository(transport.engine, event_type=str)
    repository.publish_many([(str(number), "a") for number in range(THREADS)])
    leases = [repository.claim("w", 30) for _ in range(THREADS)]
    assert None not in leases
    with closing(sqlite3.connect(transport.path, isolation_level=None)) as other:
        other.execute("UPDATE messages SET locked_by = 'other' WHERE seq % 5 = 0")
    futures = transport.at_once([partial(repository.ack, lease) for lease in leases if lease])
    errors = [type(future.exception()) for future in futures]
    assert errors == [StaleLease if number % 5 == 0 else type(None) for number in range(1, THREADS + 1)]
    assert transport.sql("SELECT seq FROM messages ORDER BY seq") == [(number,) for number in range(5, THREADS + 1, 5)]
    assert transport.sql("SELECT count(*) FROM groups") == [(THREADS // 5,)]


@pytest.mark.parametrize("resolution", ["ABORT", "FAIL", "ROLLBACK"])
@pytest.mark.parametrize("refused", [0, 7, THREADS - 1])
def test_what_undoes_the_whole_transaction_undoes_no_other_call(kv: Store, resolution: str, refused: int) -> None:
    repository = LocalKvRepository(kv.engine)
    with closing(sqlite3.connect(kv.path, isolation_level=None)) as other:
        other.execute(
            f"CREATE TRIGGER refuse AFTER INSERT ON kv WHEN NEW.key = 'k{refused}'"
            f" BEGIN SELECT RAISE({resolution}, 'refused here'); END"
        )
    puts = [partial(repository.put, f"k{number}", b"v") for number in range(THREADS)]
    futures = kv.at_once(puts)
    for number, future in enumerate(futures):
        if number == refused:
            with pytest.raises((sqlite3.IntegrityError, IntegrityError), match="refused here"):
                future.result()
        else:
            assert future.result() is True
    assert {key for (key,) in kv.sql("SELECT key FROM kv")} == {f"k{n}" for n in range(THREADS) if n != refused}
    assert repository.put("after", b"v")


def test_an_error_of_a_try_that_was_undone_is_nobodys(kv: Store) -> None:
    """One fails, then the whole is undone; done again by itself, that one succeeds, and is not told of what was."""
    with closing(sqlite3.connect(kv.path, isolation_level=None)) as other:
        other.execute(
            "CREATE TRIGGER refuse AFTER INSERT ON kv WHEN NEW.key = 'ruins'"
            " BEGIN SELECT RAISE(ROLLBACK, 'refused here'); END"
        )
    repository = LocalKvRepository(kv.engine)
    tries = []

    def flaky(tx: Any) -> int:
        tries.append(tx)
        if len(tries) < 3:  # alone, as it seems, and then with a savepoint
            raise ValueError("not yet")
        return len(tries)

    binding = repository._binding
    calls: list[Callable[[], Any]] = [
        partial(repository.put, "leads", b"v"),
        partial(repository.put, "second", b"v"),
        partial(binding.write, flaky),
        partial(repository.put, "ruins", b"v"),
    ]
    futures = kv.at_once(calls)
    assert futures[0].result() is True
    assert futures[1].result() is True
    assert futures[2].result() == 3
    assert "refused here" in str(futures[3].exception())


def test_a_commit_that_fails_is_repeated_for_each_call_by_itself(kv: Store) -> None:
    """What is only found out at the commit is somebody's fault, and not that of all who share it."""
    with closing(sqlite3.connect(kv.path, isolation_level=None)) as other:
        other.execute("CREATE TABLE known (key TEXT PRIMARY KEY)")
        other.execute("CREATE TABLE noted (key TEXT REFERENCES known DEFERRABLE INITIALLY DEFERRED)")
        other.execute(
            "CREATE TRIGGER note AFTER INSERT ON kv WHEN NEW.key = 'k3' BEGIN INSERT INTO noted VALUES (NEW.key); END"
        )
    repository = LocalKvRepository(kv.engine)
    puts = [partial(repository.put, f"k{number}", b"v") for number in range(THREADS)]
    futures = kv.at_once(puts)
    failed = [number for number, future in enumerate(futures) if future.exception() is not None]
    assert failed == [3]
    assert len(kv.sql("SELECT key FROM kv")) == THREADS - 1


@pytest.mark.parametrize("done", [True, False], ids=["and it is done", "and it is not"])
def test_a_commit_of_which_nobody_knows_whether_it_is_done_is_not_repeated(
    transport: Store, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    """So it is where the disk fails in the sync. What is on it may be done all the same: a second time were twice."""
    told: list[str] = []

    class Connection(sqlite.FileConnection):
        def execute(self, sql: str, *binds: Any) -> Any:
            if told or sql != "COMMIT":
                return super().execute(sql, *binds)
            told.append(sql)
            super().execute(sql if done else "ROLLBACK")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"
            raise error

    monkeypatch.setattr(sqlite.File, "kind", Connection)
    repository: TransportRepository[str] = TransportRepository(transport.engine, event_type=str)
    futures = transport.at_once([partial(repository.publish, "g", str(number)) for number in range(THREADS)])
    assert {str(future.exception()) for future in futures} == {"disk I/O error"}
    assert transport.sql("SELECT count(*) FROM messages") == [(THREADS if done else 0,)]
    assert repository.publish("g", "after")


@pytest.mark.parametrize("when", ["BEGIN", "SAVEPOINT", "RELEASE", "COMMIT"])
def test_one_who_is_interrupted_while_it_writes_for_all_costs_the_others_nothing(
    when: str, transport: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes between two steps. What was not committed yet the others do, and what was nobody repeats."""
    interrupted: list[str] = []

    class Connection(sqlite.FileConnection):
        def execute(self, sql: str, *binds: Any) -> Any:
            result = super().execute(sql, *binds)
            if not interrupted and sql.startswith(when):
                interrupted.append(sql)
                raise KeyboardInterrupt
            return result

    monkeypatch.setattr(sqlite.File, "kind", Connection)
    repository: TransportRepository[str] = TransportRepository(transport.engine, event_type=str)
    calls = [partial(repository.publish, "g", str(number)) for number in range(THREADS)]
    if when in {"SAVEPOINT", "RELEASE"}:  # which there are none of until one of the calls has failed
        with closing(sqlite3.connect(transport.path, isolation_level=None)) as other:
            other.execute(
                """CREATE TRIGGER refuse AFTER INSERT ON messages WHEN NEW.event = '"refused"'
                   BEGIN SELECT RAISE(ABORT, 'refused here'); END"""
            )
        *futures, refused = transport.at_once([*calls, partial(repository.publish, "g", "refused")])
        assert "refused here" in str(refused.exception())
    else:
        futures = transport.at_once(calls)
    failed = [number for number, future in enumerate(futures) if future.exception() is not None]
    assert [type(futures[number].exception()) for number in failed] == [KeyboardInterrupt]
    there = sorted(int(event.strip('"')) for (event,) in transport.sql("SELECT event FROM messages"))
    assert there == [number for number in range(THREADS) if when == "COMMIT" or number not in failed]
    assert repository.publish("g", "after")


def test_one_that_waits_in_line_for_too_long_is_busy_and_does_nothing_later(
    kv: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "BUSY_TIMEOUT", 0.05)
    repository = LocalKvRepository(kv.engine)
    with ThreadPoolExecutor(1) as thread:
        with lock_held(kv.path):
            first = thread.submit(repository.put, "first", b"v")
            while not kv.line._leader:
                time.sleep(0.001)
            with pytest.raises(StoreBusy, match="localkv"):
                repository.put("second", b"v")
        assert first.result()
    assert repository.put("third", b"v")
    assert kv.sql("SELECT key FROM kv ORDER BY key") == [("first",), ("third",)]


def test_one_thread_commits_each_of_its_writes_without_a_savepoint(kv: Store) -> None:
    repository = LocalKvRepository(kv.engine)
    for number in range(3):
        repository.put(f"k{number}", b"v")
    assert kv.statements.count("COMMIT") == 3
    assert not [statement for statement in kv.statements if "SAVEPOINT" in statement]


def test_a_storm_of_threads_counts_right(kv: Store) -> None:
    repository = LocalKvRepository(kv.engine)
    wins: list[str] = []

    def race() -> None:
        for number in range(100):
            if repository.put(f"k{number}", b"v", if_not_exists=True):
                wins.append(f"k{number}")

    threads = [threading.Thread(target=race) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == sorted(f"k{number}" for number in range(100))
    assert not kv.line._leader
