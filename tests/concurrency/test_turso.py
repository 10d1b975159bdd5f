"""Processes that share a store with turso: what is promised of SQLite's holds of it, too."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qstore import FormatError, LocalQueueRepository, TransportRepository, migrate, open_engine
from tests.concurrency.processes import children
from tests.concurrency.turso_workers import (
    hold_open,
    open_and_publish,
    publish_until_killed,
    put_if_absent,
    receive_messages,
    take_messages,
    try_to_open,
)

PROCESSES = 4


def _together(worker: Callable[..., object], *arguments: Any) -> list[Any]:
    """Let the processes do the same at the same time."""
    with children(*((worker, arguments[0], number, *arguments[1:]) for number in range(PROCESSES))) as started:
        for child in started:
            child.wait_until_ready()
        for child in started:
            child.go()
        return [child.result() for child in started]


def _unless_aborted(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Do it anew, with other files, where turso has ended a process: it does so now and then."""

    @wraps(test)
    def anew(tmp_path: Path) -> None:
        for attempt in range(5):
            (directory := tmp_path / f"{attempt}").mkdir()
            with suppress(EOFError):  # from the pipe of a process that has told nothing
                test(directory)
                return
        pytest.fail("turso has ended a process each time")

    return anew


def _integrity(path: Path) -> list[Any]:
    """What SQLite says, once nobody has the file open."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


def _wrong(path: Path) -> tuple[str, ...]:
    engine = open_engine(f"sqlite+turso:///{path}")
    try:
        return migrate.check(engine)
    finally:
        engine.dispose()


def _taken_once(found: list[tuple[list[int], list[int]]], messages: int) -> None:
    published = [seq for some, _ in found for seq in some]
    taken = [seq for _, some in found for seq in some]
    assert len(set(published)) == len(published) == PROCESSES * messages
    assert sorted(taken) == sorted(published)


@_unless_aborted
def test_each_message_is_taken_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    TransportRepository.open(path, engine="turso").close()
    _taken_once(_together(take_messages, path, 40), 40)
    assert _wrong(path) == ()
    assert _integrity(path) == [("ok",)]


@_unless_aborted
def test_each_message_of_the_queue_is_taken_exactly_once(tmp_path: Path) -> None:
    LocalQueueRepository.open(tmp_path, engine="turso").close()
    _taken_once(_together(receive_messages, tmp_path, 40), 40)
    assert _wrong(tmp_path / "localqueue.sqlite") == ()
    assert _integrity(tmp_path / "localqueue.sqlite") == [("ok",)]


@_unless_aborted
def test_one_of_all_processes_wins_each_key(tmp_path: Path) -> None:
    won = [key for some in _together(put_if_absent, tmp_path, 60) for key in some]
    assert sorted(won, key=int) == list(map(str, range(60)))


@_unless_aborted
def test_a_new_store_is_opened_by_all_processes_at_once(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.sqlite"
        seqs = [seq for some in _together(open_and_publish, path, 5) for seq in some]
        assert sorted(seqs) == list(range(1, PROCESSES * 5 + 1))
        assert _integrity(path) == [("ok",)]


@_unless_aborted
def test_whatever_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    """Of one who has the file for itself. With another writer turso has lost some of what that one had acknowledged."""
    path, ledger, random = tmp_path / "transport.sqlite", tmp_path / "ledger", Random(1)
    TransportRepository.open(path, engine="turso").close()
    for _ in range(20):
        _kill_one(path, ledger, random)
    _check_ledger(path, ledger)
    with TransportRepository.open(path, engine="turso", event_type=str) as ours:
        assert ours.publish("ours", "event") > max(_noted(ledger))
    assert _integrity(path) == [("ok",)]
    assert _wrong(path) == ()


@_unless_aborted
def test_after_a_kill_sqlite_may_use_the_file_and_turso_opens_it_again(tmp_path: Path) -> None:
    """What the killed process left beside it would make turso refuse the file."""
    path, ledger, random = tmp_path / "transport.sqlite", tmp_path / "ledger", Random(2)
    TransportRepository.open(path, engine="turso").close()
    for _ in range(6):
        _kill_one(path, ledger, random)
        assert Path(f"{path}-tshm").exists()
        assert _integrity(path) == [("ok",)]
        with TransportRepository.open(path, event_type=str) as sqlite:
            by_sqlite = sqlite.publish("sqlite", "event")
        with TransportRepository.open(path, engine="turso", event_type=str) as turso:
            assert turso.publish("turso", "event") > by_sqlite
    _check_ledger(path, ledger)


def _kill_one(path: Path, ledger: Path, random: Random) -> None:
    before = ledger.stat().st_size if ledger.exists() else 0
    with children((publish_until_killed, path, ledger)) as [victim]:
        victim.wait_until_ready()
        victim.go()
        deadline = time.monotonic() + 60
        while not ledger.exists() or ledger.stat().st_size == before:
            assert time.monotonic() < deadline
            if not victim.process.is_alive():
                return  # turso was the first to end it
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.05))
        victim.kill()


def _noted(ledger: Path) -> list[int]:
    return [int(line) for line in ledger.read_text().splitlines()]


def _check_ledger(path: Path, ledger: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        there = {seq for (seq,) in connection.execute("SELECT seq FROM messages")}
    noted = _noted(ledger)
    assert len(set(noted)) == len(noted) > 0
    assert set(noted) <= there, "what was acknowledged is lost"


@pytest.mark.parametrize(("first", "second"), [("turso", "sqlite"), ("sqlite", "turso")])
def test_two_engines_never_have_a_file_at_the_same_time(tmp_path: Path, first: str, second: str) -> None:
    path = tmp_path / "transport.sqlite"
    with children((hold_open, path, first), (try_to_open, path, second), (try_to_open, path, first)) as [one, *others]:
        one.wait_until_ready()
        refused, taken = (other.result() for other in others)
        assert refused.startswith("FormatError: "), refused
        assert "open with turso" in refused or "of SQLite's is open" in refused
        assert taken == ""
        with pytest.raises(FormatError):
            open_engine(path if second == "sqlite" else f"sqlite+turso:///{path}").connect()
        one.go()
        one.result()
    with TransportRepository.open(path, engine=second, event_type=str) as transport:  # type: ignore[arg-type]  # a str
        assert transport.publish("g", "event") == 2


def test_a_killed_process_keeps_no_engine_out(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    with children((hold_open, path, "turso")) as [one]:
        one.wait_until_ready()
        one.kill()
    with TransportRepository.open(path, event_type=str) as transport:
        assert transport.publish("g", "event") == 2


def test_a_program_that_knows_nothing_of_the_guard_is_seen_too(tmp_path: Path) -> None:
    turso = import_module("turso")
    path = tmp_path / "transport.sqlite"
    TransportRepository.open(path).close()
    theirs = turso.connect(str(path), experimental_features="multiprocess_wal")
    try:
        with pytest.raises(FormatError, match="open with turso"):
            TransportRepository.open(path)
        assert not Path(f"{path}.lock").exists()
    finally:
        theirs.close()
        del theirs
    with TransportRepository.open(path, event_type=str) as transport:
        assert transport.publish("g", "event") == 1


def test_sqlite_waits_for_a_process_that_is_about_to_have_the_file_open_with_turso(tmp_path: Path) -> None:
    """While turso opens it, the guard alone tells so: there is no lock on the index yet."""
    path = tmp_path / "transport.sqlite"
    TransportRepository.open(path, engine="turso").close()
    with open(f"{path}.lock", "rb") as guard, ThreadPoolExecutor(1) as thread:
        fcntl.flock(guard, fcntl.LOCK_EX)
        opening = thread.submit(lambda: TransportRepository.open(path).close())
        with pytest.raises(TimeoutError):
            opening.result(0.3)
        fcntl.flock(guard, fcntl.LOCK_UN)
        opening.result(30)
