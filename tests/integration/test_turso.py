"""Turso as an engine: what qstore adds to it, and what is refused. Processes that share a file: tests/concurrency."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, event, select, text
from sqlalchemy.orm import Session

import qstore
from qstore import (
    BackendUnsupported,
    InvalidInput,
    LocalKvRepository,
    LocalQueueRepository,
    StoreBusy,
    TransportRepository,
    migrate,
    open_engine,
)
from qstore.engines.turso import opened
from tests.integration import turso_forks

ROOT = Path(__file__).parents[2]
SCENARIO = """
import sys; from pathlib import Path; from tests.integration import turso_forks
getattr(turso_forks, sys.argv[1])(Path(sys.argv[2]), sys.argv[3])
"""


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


def test_bytes_come_back_through_a_mapped_class(tmp_path: Path) -> None:
    """With the dialect of pyturso's own they cannot be bound."""
    with LocalKvRepository.open(tmp_path, engine="turso") as kv:
        kv.put("k", b"\0\xff")
        with qstore.open_engine(f"sqlite+turso:///{tmp_path}/localkv.sqlite").connect() as reading:
            engine = reading.engine
            entry = qstore.models.KvEntry
            assert reading.execute(select(entry.key).where(entry.value == b"\0\xff")).scalars().all() == ["k"]
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
    try:
        engine = create_engine(f"sqlite+turso:///{tmp_path}/localkv.sqlite")
    except ImportError as error:
        # The oldest SQLAlchemy that qstore is tested with is too old for pyturso's dialect: there is nothing to refuse.
        pytest.skip(f"no dialect of pyturso's: {error}")
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
