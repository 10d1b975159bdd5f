"""Writers of several engines take turns at the write lock, by a file beside the store that nothing else rests on."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstore import (
    AsyncLocalKvRepository,
    LocalKvRepository,
    StoreBusy,
    async_write_session,
    open_async_engine,
    open_engine,
    write_session,
)
from qstore.engines import turns
from qstore.engines.turns import Turns
from tests.concurrency.cancelling import lock_held
from tests.integration.situations import disposed, waiting_at_most, watched_engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    LocalKvRepository.open(tmp_path).close()
    return tmp_path / "localkv.sqlite"


@pytest.fixture
def drivers(path: Path) -> Iterator[list[sqlite3.Connection]]:
    """Three connections that wait for nothing."""
    connections = [sqlite3.connect(path, isolation_level=None, timeout=0) for _ in range(3)]
    yield connections
    for connection in connections:
        connection.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long somebody has slept, each time."""
    seen: list[float] = []
    monkeypatch.setattr(time, "sleep", seen.append)
    return seen


def test_one_who_waits_says_so_and_whoever_had_the_lock_lets_it_try_first(
    path: Path, drivers: list[sqlite3.Connection], pauses: list[float]
) -> None:
    busy, waiting = Turns(str(path), fair=True), Turns(str(path), fair=True)
    busy.begin(drivers[0], 1)
    assert pauses == [], "nobody waits"
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        waiting.begin(drivers[1], 0.01)
    drivers[0].execute("COMMIT")
    del pauses[:]
    busy._look_again = 0.0  # it looks every now and then
    busy.begin(drivers[0], 1)
    drivers[0].execute("COMMIT")
    del pauses[:]
    busy._ends = 0.0  # its turn is over
    waiting._note(0.0)
    busy.begin(drivers[0], 1)
    assert len(pauses) == 1


def test_nobody_lets_others_first_who_wait_no_more(
    path: Path, drivers: list[sqlite3.Connection], pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, gone = Turns(str(path), fair=True), Turns(str(path), fair=True)
    gone._note(0.0)
    ours.begin(drivers[0], 1)
    drivers[0].execute("COMMIT")
    now = time.monotonic() + 1
    monkeypatch.setattr(time, "monotonic", lambda: now)
    del pauses[:]
    ours.begin(drivers[0], 1)
    assert pauses == []


def test_nobody_makes_the_file_who_need_not_wait(path: Path) -> None:
    with LocalKvRepository.open(path.parent) as kv:
        kv.put("a", b"v")
    assert not path.with_name("localkv.sqlite-turns").exists()


@pytest.mark.parametrize("fair", [True, False])
def test_the_file_is_made_by_the_first_to_wait_unless_that_is_turned_off(path: Path, fair: bool) -> None:
    _wait_in_vain_and_write(path, fair=fair)
    assert path.with_name("localkv.sqlite-turns").exists() is fair


def test_where_the_file_cannot_be_made_writers_wait_all_the_same(path: Path) -> None:
    path.with_name("localkv.sqlite-turns").mkdir()
    _wait_in_vain_and_write(path, fair=True)


def _wait_in_vain_and_write(path: Path, *, fair: bool) -> None:
    """Put while somebody else has the write lock, for a moment only, and again when nobody has."""
    with LocalKvRepository.open(path.parent, fair=fair) as kv:
        pool = kv._binding._engine.pool  # type: ignore[attr-defined]  # of a binding to an engine
        held = pool.take()
        held.patience = 0.02
        pool.give(held)
        with lock_held(path), pytest.raises(StoreBusy):
            kv.put("a", b"v")
        assert kv.put("a", b"v")


@pytest.mark.parametrize("way", ["a session", "an async session", "watched", "autocommit"])
def test_a_transaction_of_the_hosts_on_an_engine_of_qstores_takes_its_turn(way: str, path: Path) -> None:
    """While it waits it says so; and when its own turn is over it lets others try first."""
    others = Turns(str(path), fair=True)
    with lock_held(path), pytest.raises(StoreBusy):
        _put_within(path, way, 20)
    others._look(0.0)
    assert others._noted is not None
    assert abs(time.monotonic() - others._noted[0]) < 60  # it said so
    others._noted[0] = 0.0
    _put_within(path, way, 60_000)
    assert others._noted[0] == 0.0  # it had the lock at once, and has not waited


def test_a_transaction_of_the_hosts_lets_others_first_who_wait_and_once_it_has_the_lock_nobody(
    path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Turns(str(path), fair=True)
    others._note(0.0)
    with disposed(open_engine(path)) as engine:
        with write_session(engine):  # which finds the file
            pass
        monkeypatch.setattr(turns, "MOMENT", 3600)  # whoever waited does so for as long as this takes
        monkeypatch.setattr(turns, "TURN", -1)  # and a turn is over at once
        others._note(0.0)
        del pauses[:]
        with write_session(engine) as session:
            assert len(pauses) == 1
            kv = LocalKvRepository(session)
            kv.put("a", b"v")
            with session.begin_nested():
                kv.put("b", b"v")
            kv.put("c", b"v")
    assert len(pauses) == 1


def _put_within(path: Path, way: str, milliseconds: int) -> None:
    """Put in a transaction of the host's, on an engine that waits for so long."""
    if way == "an async session":
        asyncio.run(_put_in_async_session(path, milliseconds))
        return
    with disposed(waiting_at_most(watched_engine(path) if way == "watched" else open_engine(path), milliseconds)) as it:
        if way == "watched":
            LocalKvRepository(it).put("a", b"v")
        elif way == "autocommit":
            with it.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                LocalKvRepository(connection).put("a", b"v")
        else:
            with write_session(it) as session:
                LocalKvRepository(session).put("a", b"v")


async def _put_in_async_session(path: Path, milliseconds: int) -> None:
    engine = open_async_engine(path)
    waiting_at_most(engine.sync_engine, milliseconds)
    try:
        async with async_write_session(engine) as session:
            await AsyncLocalKvRepository(session).put("a", b"v")
    finally:
        await engine.dispose()


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_file_may_be_written_by_whoever_may_write_the_store(
    mode: int, path: Path, drivers: list[sqlite3.Connection], pauses: list[float]
) -> None:
    path.chmod(mode)
    drivers[0].execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        Turns(str(path), fair=True).begin(drivers[1], 0.01)
    assert (path.parent / "localkv.sqlite-turns").stat().st_mode & 0o777 == mode


def test_the_file_is_not_looked_for_behind_a_link(
    path: Path, drivers: list[sqlite3.Connection], pauses: list[float], tmp_path: Path
) -> None:
    (tmp_path / "localkv.sqlite-turns").symlink_to(tmp_path / "elsewhere")
    drivers[0].execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        Turns(str(path), fair=True).begin(drivers[1], 0.01)
    assert not (tmp_path / "elsewhere").exists()
