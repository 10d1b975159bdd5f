"""Opening: what is there is looked at before anything is made, and settings are the stores'. Semantics 11 and 12."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from qstore import FormatError, open_async_engine, open_engine
from qstore.formats import FORMATS
from qstore.naming import NATIVE
from tests.awaiting import EventLoop
from tests.backends import STORES
from tests.contract.events import drained, event
from tests.contract.twins import behind, each_twin, opened

each_store = pytest.mark.parametrize("store", STORES)


def _make(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(";".join(statements))


def _seed(store: str) -> list[str]:
    return FORMATS[store].statements(NATIVE.of(store), "sqlite")


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@each_twin
@each_store
def test_a_store_that_is_absent_is_made_with_its_directory(tmp_path: Path, store: str, twin: str) -> None:
    directory = tmp_path / "new" / "deeper"
    target = directory / "transport.sqlite" if store == "transport" else directory
    with opened(twin, store, target):
        assert (directory / f"{store}.sqlite").exists()


@each_twin
@each_store
def test_a_file_of_zero_bytes_is_a_new_store(tmp_path: Path, store: str, twin: str) -> None:
    (tmp_path / f"{store}.sqlite").touch()
    with opened(twin, store, tmp_path):
        pass
    with opened(twin, store, tmp_path, create=False):
        pass


@each_twin
@each_store
@pytest.mark.parametrize("there", ["no directory", "no file", "empty file"])
def test_create_false_makes_nothing(tmp_path: Path, store: str, there: str, twin: str) -> None:
    directory = tmp_path / "data"
    if there != "no directory":
        directory.mkdir()
    if there == "empty file":
        (directory / f"{store}.sqlite").touch()
    with pytest.raises(FormatError) as caught, opened(twin, store, directory, create=False):
        pass
    assert caught.value.code == "BINDING_SETUP_FAILED"
    assert directory.exists() is (there != "no directory")
    if directory.exists():
        assert _files(directory) == ({f"{store}.sqlite": b""} if there == "empty file" else {})


FOREIGN: dict[str, tuple[str, ...]] = {
    "localkv.v2": (*_seed("localkv"), "UPDATE meta SET value = 'localkv.v2'"),
    "localqueue.v2": (*_seed("localqueue"), "UPDATE meta SET value = 'localqueue.v2'"),
    "another application": (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)",
        "INSERT INTO orders VALUES (1, 'a')",
    ),
    "other messages": ("CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)", "CREATE TABLE kv (a, b)"),
}


@each_twin
@each_store
@pytest.mark.parametrize("foreign", [*FOREIGN, "no database", "half a header"])
def test_what_is_somebody_elses_is_refused_and_its_bytes_do_not_change(
    tmp_path: Path, store: str, foreign: str, twin: str
) -> None:
    path = tmp_path / f"{store}.sqlite"
    if foreign in FOREIGN:
        _make(path, *FOREIGN[foreign])
    else:
        path.write_bytes(b"This is not a database. " * 100 if foreign == "no database" else b"SQLite form")
    before = _files(tmp_path)
    for create in (True, False):
        with pytest.raises(FormatError) as caught, opened(twin, store, tmp_path, create=create):
            pass
        error = caught.value
        assert (error.code, error.target) == ("BINDING_SETUP_FAILED", str(path))
        assert error.found in str(error)
        assert error.supported in str(error)
        if foreign == f"{store}.v2":
            assert (error.found, error.supported) == (f"{store}.v2", f"{store}.v1")
        assert _files(tmp_path) == before


@each_twin
@pytest.mark.parametrize("other", STORES)
@each_store
def test_another_store_in_a_native_file_is_refused(tmp_path: Path, store: str, other: str, twin: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    _make(path, *_seed(other))
    before = _files(tmp_path)
    if store == other:
        with opened(twin, store, tmp_path):
            return
    with pytest.raises(FormatError), opened(twin, store, tmp_path):
        pass
    assert _files(tmp_path) == before


@each_twin
def test_a_v1_store_of_another_implementation_is_adopted_as_it_is(tmp_path: Path, twin: str) -> None:
    _make(
        tmp_path / "localkv.sqlite", *_seed("localkv"), "INSERT INTO kv VALUES ('k', x'00FF', NULL), ('t', 'text', 1)"
    )
    _make(
        tmp_path / "localqueue.sqlite",
        *_seed("localqueue"),
        "INSERT INTO messages VALUES (7, 'json', '[1]', 1, 1, 2, 'uuid')",
    )
    _make(
        tmp_path / "transport.sqlite",
        *_seed("transport"),
        f"INSERT INTO messages VALUES (5, 'g', '{event('a').model_dump_json()}', NULL, NULL)",
        "INSERT INTO groups VALUES ('g', 0.0, 3)",
    )
    with opened(twin, "localkv", tmp_path) as kv:
        assert (kv.get("k"), kv.get("t")) == (b"\x00\xff", None)
    with opened(twin, "localqueue", tmp_path) as queue:
        [message] = queue.receive()
        assert (message.id, message.payload, message.attempt) == (7, [1], 3)
        assert queue.send("next") == 8
    with opened(twin, "transport", tmp_path) as transport:
        assert drained(transport, floor=3) == ["a"]
        assert transport.publish("g", event("b")) == 6


@each_twin
@each_store
def test_reopening_keeps_what_is_there(tmp_path: Path, store: str, twin: str) -> None:
    with opened(twin, store, tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / f"{store}.sqlite")) as connection:
        before = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    for create in (True, False):
        with opened(twin, store, tmp_path, create=create):
            pass
    with closing(sqlite3.connect(tmp_path / f"{store}.sqlite")) as connection:
        assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == before


def _open_at_once(directory: str, store: str, number: int) -> int:
    while not os.path.exists(os.path.join(directory, "go")):
        pass
    with opened("async" if number % 2 else "sync", store, directory) as repository:
        calls: dict[str, Any] = {
            "transport": lambda: repository.publish("g", event("a")),
            "localkv": lambda: repository.put(f"k{number}", b""),
            "localqueue": lambda: repository.send("a"),
        }
        return int(calls[store]())


@each_store
def test_12_processes_open_a_new_store_at_the_same_instant(tmp_path: Path, store: str) -> None:
    """Half of them await it."""
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        results = [pool.apply_async(_open_at_once, (str(tmp_path), store, number)) for number in range(12)]
        (tmp_path / "go").touch()
        assert len([result.get(100) for result in results]) == 12
        pool.close()
        pool.join()
    table = "kv" if store == "localkv" else "messages"
    with closing(sqlite3.connect(tmp_path / f"{store}.sqlite")) as connection:
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (12,)


@pytest.mark.parametrize(("durability", "synchronous"), [(None, 2), ("full", 2), ("normal", 1)])
def test_an_engine_of_qstores_has_the_stores_settings_on_every_connection(
    tmp_path: Path, durability: Any, synchronous: int
) -> None:
    arguments = {} if durability is None else {"durability": durability}
    engine = open_engine(tmp_path / "a.sqlite", **arguments)
    expected = {"journal_mode": "wal", "busy_timeout": 5000, "synchronous": synchronous, "foreign_keys": 1}
    try:
        with engine.connect() as one, engine.connect() as other:
            assert _settings(one) == _settings(other) == expected
    finally:
        engine.dispose()


@pytest.mark.parametrize(("durability", "synchronous"), [(None, 2), ("normal", 1)])
def test_an_async_engine_of_qstores_has_them_on_the_drivers_connections_and_on_those_behind(
    tmp_path: Path, durability: Any, synchronous: int
) -> None:
    arguments = {} if durability is None else {"durability": durability}
    engine = open_async_engine(tmp_path / "a.sqlite", **arguments)
    expected = {"journal_mode": "wal", "busy_timeout": 5000, "synchronous": synchronous, "foreign_keys": 1}

    async def awaited() -> list[dict[str, Any]]:
        async with engine.connect() as one, engine.connect() as other:
            return [await one.run_sync(_settings), await other.run_sync(_settings)]

    with closing(EventLoop()) as loop:
        try:
            with behind(engine.sync_engine).connect() as connection:
                assert [_settings(connection), *loop.run(awaited())] == [expected] * 3
        finally:
            loop.run(engine.dispose())


def _settings(connection: Connection) -> dict[str, Any]:
    names = ("journal_mode", "busy_timeout", "synchronous", "foreign_keys")
    return {name: connection.execute(text(f"PRAGMA {name}")).scalar() for name in names}
