"""Turso as an engine: what qstore adds to it, and what is refused. Processes that share a file: tests/concurrency."""

from __future__ import annotations

import platform
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, create_engine, event, inspect, select, text
from sqlalchemy.orm import Session

import qstore
from qstore import (
    BackendUnsupported,
    FormatError,
    InvalidInput,
    LocalKvRepository,
    LocalQueueRepository,
    StoreBusy,
    TransportRepository,
    migrate,
    open_engine,
)
from qstore.copying import copy
from qstore.engines.guard import turso_has
from qstore.engines.turso import opened
from qstore.engines.turso.driver import Connection
from tests.backends import STORES
from tests.concurrency.processes import children
from tests.concurrency.turso_workers import hold_open
from tests.integration import turso_forks

ROOT = Path(__file__).parents[2]
SCENARIO = """
import sys; from pathlib import Path; from tests.integration import turso_forks
getattr(turso_forks, sys.argv[1])(Path(sys.argv[2]), sys.argv[3])
"""


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A driver's connection to a new file with a table."""
    with closing(Connection(str(tmp_path / "file.sqlite"))) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, value)")
        yield connection


@pytest.fixture
def turso_engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine of qstore's on a new file."""
    engine = open_engine(f"sqlite+turso:///{tmp_path}/localqueue.sqlite")
    migrate.upgrade(engine)
    yield engine
    engine.dispose()


def test_the_index_for_several_processes_is_there_and_a_lock_beside_it(tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path, engine="turso") as kv:
        kv.put("k", b"v")
        assert {path.name for path in tmp_path.iterdir()} >= {"localkv.sqlite-tshm", "localkv.sqlite.lock"}


def test_a_feature_that_turso_does_not_know_is_not_taken_for_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "FEATURES", "multi_process_wal")
    with pytest.raises(BackendUnsupported, match="-tshm"):
        LocalKvRepository.open(tmp_path, engine="turso")
    monkeypatch.undo()
    LocalKvRepository.open(tmp_path, engine="turso").close()


@pytest.mark.parametrize("end", ["_exit", "exit", "close"])
def test_a_forked_child_is_refused_and_harms_nothing(tmp_path: Path, end: str) -> None:
    _run(turso_forks.a_child_is_refused.__name__, tmp_path, end)


@pytest.mark.parametrize("end", ["_exit", "exit"])
def test_a_forked_child_that_lives_on_keeps_nobody_out(tmp_path: Path, end: str) -> None:
    _run(turso_forks.a_child_that_lives_on_keeps_nobody_out.__name__, tmp_path, end)


def test_a_forked_child_may_open_what_its_parent_has_closed(tmp_path: Path) -> None:
    _run(turso_forks.a_child_of_a_process_that_has_closed_it_opens_it.__name__, tmp_path, "_exit")


def _run(scenario: str, directory: Path, end: str) -> None:
    """In a process that has no threads, and that may be aborted."""
    result = subprocess.run(
        [sys.executable, "-c", SCENARIO, scenario, str(directory), end],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_what_returns_rows_is_done_without_a_fetch(connection: Connection) -> None:
    connection.execute("INSERT INTO t (value) VALUES (1), (2) RETURNING id")
    connection.execute("UPDATE t SET value = 3 RETURNING id")
    assert connection.execute("SELECT value FROM t").fetchall() == [(3,), (3,)]
    connection.execute("DELETE FROM t WHERE id = 1 RETURNING id")
    assert connection.execute("SELECT id FROM t").fetchall() == [(2,)]


def test_counts_and_ids_are_as_with_sqlite3(connection: Connection, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite", isolation_level=None)) as other:
        other.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, value)")
        for sql in (
            "INSERT INTO t (value) VALUES (1)",
            "INSERT INTO t (value) VALUES (1), (2), (3)",
            "UPDATE t SET value = 5 WHERE value = 1",
            "DELETE FROM t WHERE value = 3",
            "INSERT INTO t (id, value) VALUES (1, 1) ON CONFLICT (id) DO NOTHING",
            "INSERT INTO t (id, value) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET value = 9",
            "SELECT * FROM t ORDER BY id",
            "-- nothing",
        ):
            ours, theirs = connection.execute(sql), other.execute(sql)
            assert (ours.fetchall(), ours.rowcount) == (theirs.fetchall(), theirs.rowcount), sql
            if sql.startswith("INSERT") and ours.rowcount:
                assert ours.lastrowid == theirs.lastrowid


@pytest.mark.parametrize("value", [b"", b"\x00\xff", bytes(range(256)) * 300, bytearray(b"a\0"), memoryview(b"b\0")])
def test_bytes_come_back_as_they_were(connection: Connection, value: Any) -> None:
    connection.execute("INSERT INTO t (value) VALUES (?)", (value,))
    assert connection.execute("SELECT value, typeof(value) FROM t").fetchall() == [(bytes(value), "blob")]


def test_bytes_come_back_through_a_mapped_class(tmp_path: Path) -> None:
    """With the dialect of pyturso's own they cannot be bound."""
    with LocalKvRepository.open(tmp_path, engine="turso") as kv:
        kv.put("k", b"\0\xff")
        with qstore.open_engine(f"sqlite+turso:///{tmp_path}/localkv.sqlite").connect() as reading:
            engine = reading.engine
            entry = qstore.models.KvEntry
            assert reading.execute(select(entry.key).where(entry.value == b"\0\xff")).scalars().all() == ["k"]
        engine.dispose()


@pytest.mark.parametrize(
    ("sql", "values", "error"),
    [
        ("SELECT :a", {}, sqlite3.ProgrammingError),
        ("SELECT ?", (), sqlite3.ProgrammingError),
        ("SELECT ?", (1, 2), sqlite3.ProgrammingError),
        ("SELECT ?", (2**63,), OverflowError),
        ("SELECT ?", (object(),), sqlite3.ProgrammingError),
        ("SELECT ?", ("\ud800",), UnicodeEncodeError),
        ("SELECT 1; SELECT 2", (), sqlite3.ProgrammingError),
        ("SELECT nothing FROM t", (), sqlite3.OperationalError),
        ("INSERT INTO t (id) VALUES (1), (1)", (), sqlite3.IntegrityError),
    ],
)
def test_what_sqlite3_refuses_is_refused(connection: Connection, sql: str, values: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        connection.execute(sql, values)
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_connections_of_one_process_take_turns(tmp_path: Path, connection: Connection) -> None:
    with closing(Connection(str(tmp_path / "file.sqlite"))) as other:
        other.execute("PRAGMA busy_timeout = 50")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t (value) VALUES (1)")
        assert not other.in_transaction
        with pytest.raises(sqlite3.OperationalError) as busy:
            other.execute("SELECT * FROM t")
        assert busy.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
        threading.Timer(0.2, connection.rollback).start()
        other.execute("PRAGMA busy_timeout = 5000")
        assert other.execute("SELECT * FROM t").fetchall() == []


def test_a_schema_that_another_process_has_changed_is_seen_in_a_transaction(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    with closing(Connection(str(path))) as ours, children((hold_open, path, "turso")) as [other]:
        ours.execute("SELECT * FROM sqlite_master")
        other.wait_until_ready()
        ours.execute("BEGIN")
        assert ours.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]
        ours.execute("COMMIT")
        other.go()
        other.result()


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


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "turso", None)
    for call in (
        lambda: LocalKvRepository.open(tmp_path, engine="turso"),
        lambda: open_engine(f"sqlite+turso:///{tmp_path}/localkv.sqlite"),
    ):
        with pytest.raises(BackendUnsupported, match=r"qstore\[turso\]"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("system", "library"), [("win32", "glibc"), ("linux", "")])
def test_where_there_is_no_turso_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, library: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (library, ""))
    with pytest.raises(BackendUnsupported, match="SQLite"):
        open_engine(f"sqlite+turso:///{tmp_path}/localkv.sqlite")


def test_an_engine_is_one_of_two_and_for_files() -> None:
    wrong: Any = "duckdb"
    with pytest.raises(InvalidInput, match="engine"):
        LocalKvRepository.open("data", engine=wrong)
    with pytest.raises(InvalidInput, match="engine"):
        LocalKvRepository.open("postgresql+psycopg://localhost/db", engine="turso")


def test_pytursos_own_dialect_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite+turso:///{tmp_path}/localkv.sqlite")
    with pytest.raises(BackendUnsupported, match="qstore_turso"):
        LocalKvRepository(engine)
    engine.dispose()


def test_a_host_has_its_tables_and_the_stores_in_one_transaction(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite+qstore_turso:///{tmp_path}/host.sqlite")
    stores = qstore.mount(MetaData())
    migrate.upgrade(engine, naming=stores.naming)
    with Session(engine) as session:
        session.execute(text("CREATE TABLE orders (name TEXT)"))
        session.commit()
        session.execute(text("INSERT INTO orders VALUES ('a')"))
        stores.localqueue(session).send("a")
        session.rollback()
        session.execute(text("INSERT INTO orders VALUES ('b')"))
        stores.localqueue(session).send("b")
        session.commit()
        assert session.execute(text("SELECT name FROM orders")).scalars().all() == ["b"]
    assert [message.payload for message in stores.localqueue(engine).receive(5)] == ["b"]
    engine.dispose()


def test_an_autocommitting_engine_commits_each_statement(turso_engine: Engine) -> None:
    with turso_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE TABLE other (x)"))
        connection.execute(text("INSERT INTO other VALUES (1)"))
        connection.rollback()
        assert connection.execute(text("SELECT x FROM other")).all() == [(1,)]


def test_statements_may_be_listened_to(turso_engine: Engine) -> None:
    heard: list[str] = []
    event.listen(turso_engine, "before_cursor_execute", lambda *it: heard.append(it[2]))
    queue = LocalQueueRepository(turso_engine)
    queue.send("a")
    assert [message.payload for message in queue.receive()] == ["a"]
    assert any("INSERT INTO messages" in sql for sql in heard)


def test_an_engine_that_only_reads_never_writes(turso_engine: Engine) -> None:
    LocalQueueRepository(turso_engine).send("a")
    engine = open_engine(turso_engine.url, read_only=True)
    with pytest.raises(BackendUnsupported, match="read-only"):
        LocalQueueRepository(engine).send("b")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM messages")).scalar() == 1
    engine.dispose()
    assert LocalQueueRepository(turso_engine).send("c") == 2


def test_tables_of_tursos_own_are_nobodys_business(turso_engine: Engine, tmp_path: Path) -> None:
    with turso_engine.connect() as connection:
        names = connection.execute(text("SELECT name FROM sqlite_master")).scalars().all()
    assert any(name.startswith("__turso_internal_") for name in names)
    assert not any(name.startswith("__turso") for name in inspect(turso_engine).get_table_names())
    assert migrate.check(turso_engine) == ()
    assert _dropped(turso_engine) == []
    turso_engine.dispose()
    sqlite = open_engine(tmp_path / "localqueue.sqlite")  # to which they are tables like any other
    assert migrate.check(sqlite) == ()
    assert _dropped(sqlite) == []
    sqlite.dispose()


def _dropped(engine: Engine) -> list[Any]:
    """What a host's revision would drop that has none of the tables in its metadata."""
    with engine.connect() as connection:
        script = produce_migrations(MigrationContext.configure(connection), MetaData())
    assert script.upgrade_ops is not None
    named = [str(getattr(operation, "table_name", "")) for operation in script.upgrade_ops.ops]
    return [name for name in named if name.startswith("__turso")]


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


def test_a_closed_file_is_let_go_of_while_somebody_keeps_an_error(tmp_path: Path) -> None:
    """turso has the file open for as long as anything refers to its connection, such as an error's traceback."""
    with closing(Connection(str(tmp_path / "localkv.sqlite"))) as connection:
        with pytest.raises(sqlite3.OperationalError) as kept:
            connection.execute("SELECT * FROM nothing")
        connection.execute("CREATE TABLE t (x NOT NULL)")
        with pytest.raises(sqlite3.IntegrityError) as other:
            connection.execute("INSERT INTO t VALUES (NULL)")
    assert not turso_has(str(tmp_path / "localkv.sqlite"))
    assert kept.value.sqlite_errorcode != other.value.sqlite_errorcode


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


def test_the_views_of_a_file_tell_the_states_that_they_tell_with_sqlite(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path, engine="turso", event_type=str) as transport:
        transport.publish_many([("a", "1"), ("a", "2"), ("b", "3")])
        transport.claim("w", 3600)
    sql = "SELECT seq, group_id, state, event FROM qstore_messages_view ORDER BY seq"
    groups = "SELECT group_id, state, messages, head, locked_by FROM qstore_groups_view ORDER BY group_id"
    with closing(Connection(str(tmp_path / "transport.sqlite"))) as turso:
        found = [turso.execute(each).fetchall() for each in (sql, groups)]
    with closing(sqlite3.connect(tmp_path / "transport.sqlite")) as plain:
        assert found == [plain.execute(each).fetchall() for each in (sql, groups)]
    assert [row[2] for row in found[0]] == ["in flight", "ready", "ready"]


def test_a_copy_is_made_with_sqlite(tmp_path: Path) -> None:
    """It sees two moments of its source at the same time."""
    with LocalQueueRepository.open(tmp_path, engine="turso") as queue:
        queue.send("a")
    here, there = tmp_path / "localqueue.sqlite", tmp_path / "copy.sqlite"
    for pair in ((f"sqlite+turso:///{here}", there), (here, f"sqlite+turso:///{here}")):
        with pytest.raises(InvalidInput, match="turso"):
            copy(*pair)
    assert copy(here, there) == {"localqueue": 1}


def test_a_full_store_is_store_full(tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path, engine="turso") as kv:
        engine = open_engine(f"sqlite+turso:///{tmp_path}/localkv.sqlite")
        with engine.connect() as connection:
            connection.execute(text("PRAGMA max_page_count = 10"))
        with pytest.raises(qstore.StoreFull):
            kv.put("k", bytes(200_000))
        engine.dispose()
        assert kv.get("k") is None


def test_a_lock_that_another_process_holds_is_store_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import turso

    with TransportRepository.open(tmp_path / "transport.sqlite", engine="turso", event_type=str) as transport:
        engine: Any = transport._engine
        event.listen(engine.pool, "connect", lambda driver, _: driver.execute("PRAGMA busy_timeout = 50"))
        engine.pool.dispose()
        with turso.locked(tmp_path / "transport.sqlite"), pytest.raises(StoreBusy):
            transport.publish("g", "a")
        assert transport.publish("g", "b") == 1


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
