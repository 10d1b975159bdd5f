"""A file that is used with turso and with SQLite, one after the other."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import alembic.util
import pytest
from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, inspect, text

import qstore
from qstore import (
    FormatError,
    InvalidInput,
    LocalKvRepository,
    LocalQueueRepository,
    TransportRepository,
    migrate,
    open_engine,
)
from qstore.autogenerate import include_name
from qstore.copying import copy
from tests.backends import STORES


def test_a_text_that_turso_cannot_read_is_told_by_name_and_by_doctor(tmp_path: Path) -> None:
    """Only SQLite can write one: turso's own texts are UTF-8."""
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send("a")
    with closing(sqlite3.connect(tmp_path / "localqueue.sqlite")) as plain, plain:
        plain.execute("UPDATE messages SET payload_data = CAST(x'61ff' AS TEXT)")
    target = f"sqlite+turso:///{tmp_path}/localqueue.sqlite"
    with LocalQueueRepository.open(target) as queue, pytest.raises(FormatError, match="UTF-8"):
        queue.receive()
    [found] = qstore.doctor(target)
    assert found.kind == "unreadable"
    assert "messages.payload_data" in found.sentence
    assert qstore.doctor(tmp_path / "localqueue.sqlite") == []
    with LocalQueueRepository.open(tmp_path) as queue:
        assert len(queue.receive()) == 1


def test_a_view_of_a_store_has_it_open_only_while_it_reads(tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path, engine="turso") as queue:
        queue.send("a")
        with qstore.open_view(f"sqlite+turso:///{tmp_path}/localqueue.sqlite") as view:
            assert [row["payload"] for row in view.peek("queue")] == ["a"]
            queue.send("b")
            assert view.summary()[0].rows == 2
            queue.close()
            with LocalQueueRepository.open(tmp_path) as sqlite:
                assert sqlite.send("c") == 3
            assert view.summary()[0].rows == 3


def test_a_copy_is_made_with_sqlite(tmp_path: Path) -> None:
    """It sees two moments of its source at the same time."""
    with LocalQueueRepository.open(tmp_path, engine="turso") as queue:
        queue.send("a")
    here, there = tmp_path / "localqueue.sqlite", tmp_path / "copy.sqlite"
    for pair in ((f"sqlite+turso:///{here}", there), (here, f"sqlite+turso:///{here}")):
        with pytest.raises(InvalidInput, match="turso"):
            copy(*pair)
    assert copy(here, there) == {"localqueue": 1}


def test_tables_of_tursos_own_are_nobodys_business(tmp_path: Path) -> None:
    turso_engine = open_engine(f"sqlite+turso:///{tmp_path}/localqueue.sqlite")
    migrate.upgrade(turso_engine)
    with turso_engine.connect() as connection:
        names = connection.execute(text("SELECT name FROM sqlite_master")).scalars().all()
    assert any(name.startswith("__turso_internal_") for name in names)
    assert not any(name.startswith("__turso") for name in inspect(turso_engine).get_table_names())
    assert migrate.check(turso_engine) == ()
    assert _dropped(turso_engine) == []
    turso_engine.dispose()
    sqlite = open_engine(tmp_path / "localqueue.sqlite")  # to which they are tables like any other
    assert migrate.check(sqlite) == ()
    assert _dropped(sqlite, include_name=include_name(MetaData())) == []
    if hasattr(alembic.util, "DispatchPriority"):  # from Alembic 1.18 on, without any configuration
        assert _dropped(sqlite) == []
    sqlite.dispose()


def _dropped(engine: Engine, **options: Any) -> list[Any]:
    """What a host's revision would drop that has none of the tables in its metadata."""
    with engine.connect() as connection:
        script = produce_migrations(MigrationContext.configure(connection, opts=options), MetaData())
    assert script.upgrade_ops is not None
    named = [str(getattr(operation, "table_name", "")) for operation in script.upgrade_ops.ops]
    return [name for name in named if name.startswith("__turso")]


def test_a_journal_of_a_transaction_that_was_broken_off_is_refused(tmp_path: Path) -> None:
    """turso would read the file as it is, half written."""
    path = tmp_path / "localkv.sqlite"
    torn = f"""
import os, sqlite3
c = sqlite3.connect({str(path)!r}, isolation_level=None)
c.execute("CREATE TABLE t (x)")
c.execute("INSERT INTO t VALUES (zeroblob(400000))")
c.execute("PRAGMA cache_size = 1")
c.execute("BEGIN IMMEDIATE")
c.execute("UPDATE t SET x = zeroblob(400001)")
c.execute("INSERT INTO t VALUES (zeroblob(400000))")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", torn], check=True, timeout=60)
    assert Path(f"{path}-journal").stat().st_size > 0
    before = path.read_bytes()
    engine = open_engine(f"sqlite+turso:///{path}")
    with pytest.raises(FormatError, match="journal"):
        engine.connect()
    assert path.read_bytes() == before
    with closing(sqlite3.connect(path)) as healing:
        assert healing.execute("SELECT length(x) FROM t").fetchall() == [(400_000,)]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT length(x) FROM t")).all() == [(400_000,)]
    engine.dispose()


@pytest.mark.parametrize("store", STORES)
def test_a_file_goes_from_one_engine_to_the_other_and_back(tmp_path: Path, store: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    ids: list[int] = []
    for number in range(24):
        with _repository(store, tmp_path, "turso") as turso:
            ids += _used(store, turso, f"turso {number}")
        with closing(sqlite3.connect(path, isolation_level=None)) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            ids += _used_by_hand(store, plain, f"hand {number}")
        with _repository(store, tmp_path, "sqlite") as sqlite:
            ids += _used(store, sqlite, f"sqlite {number}")
            assert migrate.check(sqlite._engine) == ()
    assert ids == sorted(set(ids))
    assert len(ids) >= 24


def _repository(store: str, directory: Path, engine: Any) -> Any:
    if store == "transport":
        return TransportRepository.open(directory, engine=engine, event_type=str)
    return (LocalKvRepository if store == "localkv" else LocalQueueRepository).open(directory, engine=engine)


_numbers = iter(range(10**9))


def _used(store: str, repository: Any, word: str) -> list[int]:
    """Write, and read what the others wrote. The ids that were given."""
    if store == "localkv":
        left = dict(repository.iter_prefix(""))
        assert all(value == key.encode() for key, value in left.items())
        repository.put(word, word.encode())
        return [next(_numbers)]
    if store == "transport":
        ids = [repository.publish(f"g{word}", word), repository.publish(f"g{word}", word)]
        lease = repository.claim("w", 5)
        repository.ack(lease)
        return ids
    ids = [repository.send(word), repository.send(word)]
    [message] = repository.receive()
    repository.ack(message.receipt_handle)
    return ids


def _used_by_hand(store: str, plain: sqlite3.Connection, word: str) -> list[int]:
    if store == "localkv":
        plain.execute("INSERT INTO kv (key, value) VALUES (?, ?)", (word, word.encode()))
        return [next(_numbers)]
    if store == "transport":
        plain.execute("INSERT OR IGNORE INTO groups (group_id) VALUES (?)", (word,))
        added = plain.execute("INSERT INTO messages (group_id, event) VALUES (?, ?)", (word, f'"{word}"'))
    else:
        added = plain.execute(
            "INSERT INTO messages (payload_type, payload_data, enqueued_at, visible_at, attempt)"
            " VALUES ('text', ?, 1, 1, 0)",
            (word,),
        )
    assert added.lastrowid is not None
    if added.lastrowid % 3 == 0:  # the highest goes, and its id is never given again
        plain.execute(f"DELETE FROM messages WHERE {'seq' if store == 'transport' else 'id'} = ?", (added.lastrowid,))
    return [added.lastrowid]


def test_a_file_is_let_go_of_where_turso_fails_to_close_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It syncs the file then, and raises what a disk says that has become read-only. What was committed is there."""
    turso = import_module("turso.lib")
    close = turso.Connection.close

    def fails(connection: Any) -> None:
        close(connection)
        raise turso.OperationalError("sync: ReadOnlyFilesystem")

    with LocalKvRepository.open(tmp_path, engine="turso") as kv:
        kv.put("a", b"1")
        monkeypatch.setattr(turso.Connection, "close", fails)
    assert caplog.messages == []
    with LocalKvRepository.open(tmp_path) as kv:
        assert kv.get("a") == b"1"


def test_a_directory_that_has_become_read_only_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that a killed process has left is taken away by the first who opens the file."""
    with LocalKvRepository.open(tmp_path, engine="turso"):
        pass

    def fails(_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "remove", fails)
    with pytest.raises(FormatError, match="Read-only file system") as caught:
        LocalKvRepository.open(tmp_path, engine="turso")
    assert "writable directory" in str(caught.value)
