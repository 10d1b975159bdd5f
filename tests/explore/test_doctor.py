"""`doctor`: what will hurt is found, by its kind, and nothing where all is well."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, event

from qstore import Event, LocalKvRepository, LocalQueueRepository, Naming, TransportRepository, doctor, migrate
from qstore.explore import server, sqlite
from tests import postgres
from tests.backends import Backend, ManualClock
from tests.explore.looking import fill
from tests.made_files import made, made_v1


def kinds(target: Any) -> dict[str, str]:
    return {each.kind: str(each) for each in doctor(target)}


def by_hand(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_where_all_is_well_nothing_is_found_and_nothing_is_changed(tmp_path: Path, clock: ManualClock) -> None:
    backend = Backend(tmp_path)
    fill(backend, clock)
    backend.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert doctor(tmp_path) == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    assert "nothing to look at" in kinds(tmp_path)["cannot be opened"]
    assert "Connection refused" in kinds("postgresql://me:s3cret@127.0.0.1:1/x")["cannot be opened"]
    assert "s3cret" not in str(doctor("postgresql://me:s3cret@127.0.0.1:1/x"))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's file with all stores mounted in it, in WAL."""
    path = tmp_path / "host.sqlite"
    path.write_bytes(made("host").read_bytes())
    by_hand(path, "PRAGMA journal_mode = WAL")
    return path


def begin_deferred(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def begin_immediate(engine: Engine) -> None:
    event.listen(engine, "connect", lambda connection, _record: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))


@pytest.mark.parametrize(
    ("arguments", "change", "kind"),
    [
        ({}, lambda engine: None, None),
        ({"connect_args": {"timeout": 0}}, lambda engine: None, "no busy timeout"),
        ({}, begin_deferred, "deferred"),
        ({}, begin_immediate, None),
    ],
)
def test_a_hosts_engine_is_looked_at(
    host: Path, arguments: dict[str, Any], change: Callable[[Engine], None], kind: str | None
) -> None:
    engine = create_engine(f"sqlite:///{host}", **arguments)
    change(engine)
    found = kinds(engine)
    assert list(found) == ([] if kind is None else [kind]), found
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool counts
    engine.dispose()


def test_a_database_in_memory_is_found() -> None:
    for arguments in ({}, {"poolclass": StaticPool}):
        engine = create_engine("sqlite://", **arguments)
        assert list(kinds(engine)) == ["memory"]
        engine.dispose()


def test_a_file_that_is_not_in_wal_is_found(host: Path) -> None:
    by_hand(host, "PRAGMA journal_mode = DELETE")
    assert "journal mode delete" in kinds(host)["not in WAL"]


def test_a_network_drive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalKvRepository.open(tmp_path).close()
    monkeypatch.setattr(sqlite, "_file_system", lambda _: "nfs4")
    assert "nfs4" in kinds(tmp_path)["network"]


@pytest.mark.skipif(not Path("/proc/mounts").exists(), reason="Linux tells what a path is on")
def test_the_kind_of_file_system_is_what_the_system_says() -> None:
    assert sqlite._file_system("/proc/self/status") == "proc"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="Linux tells who holds a lock")
def test_a_pinned_log_is_found_with_the_process_that_pins_it(tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path, durability="normal") as kv:
        kv.put("a", b"")
        with closing(sqlite3.connect(tmp_path / "localkv.sqlite", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM kv").fetchall()
            for number in range(10):
                kv.put(f"{number}", os.urandom(1_000_000))
            found = kinds(tmp_path)["pinned log"]
            assert f"process {os.getpid()} (" in found
            assert "keeps it from being written back" in found
            reader.execute("ROLLBACK")
        assert "nobody was seen to hold it" in kinds(tmp_path)["pinned log"]


@pytest.mark.parametrize(
    ("store", "statement", "said"),
    [
        ("transport", "UPDATE turns SET head = head + 7 WHERE id > 0", "differ from the messages"),
        ("transport", "DROP INDEX idx_turns", "idx_turns missing"),
        ("localqueue", "DROP INDEX idx_messages_visible", "missing"),
        ("localkv", "DELETE FROM qstore_alembic_version", "is not noted"),
        ("localkv", "DELETE FROM meta", "marker"),
    ],
)
def test_a_store_that_is_not_whole_is_found(store: str, statement: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / f"{store}.sqlite"
    path.write_bytes(made(store).read_bytes())
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport:
        transport.publish("g", Event(kind="k"))
    by_hand(path, statement)
    assert said in kinds(path)["not whole"]


def test_a_large_store_at_its_first_revision_is_found(tmp_path: Path) -> None:
    path = tmp_path / "localqueue.sqlite"
    path.write_bytes(made_v1("localqueue").read_bytes())
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send_many(range(10_000))
    assert "qstore migrate upgrade" in kinds(path)["first revision"]


def test_rows_that_no_claim_takes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    path.write_bytes(made("transport").read_bytes())
    by_hand(
        path,
        "INSERT INTO messages (group_id, event) VALUES ('orphan', '{}')",
        "INSERT INTO messages (group_id, event, locked_by) VALUES ('stuck', '{}', 'gone')",
        "INSERT INTO groups (group_id) VALUES ('stuck')",
    )
    assert set(kinds(path)) == {"orphaned", "stuck"}


def test_a_server_is_looked_at() -> None:
    url = postgres.database()
    found = kinds(url)
    assert "fsync is off" in found.pop("durability")  # as the tests' server has it
    assert found == {}
    with postgres.connect(url) as connection:
        connection.execute(f"ALTER DATABASE {url.database} SET default_transaction_isolation = 'serializable'")
        assert "serializable by default" in kinds(url)["isolation level"]
        engine = create_engine(url)
        assert "isolation level" in kinds(engine)
        migrate.downgrade(engine, naming=Naming("qstore_"))
        engine.dispose()
    assert "no store" in kinds(url)["cannot be opened"]
    postgres.drop(url)


def test_an_old_transaction_and_the_dead_rows_that_it_keeps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3. Claims go through the dead rows, which no vacuum may take away before the transaction ends."""
    monkeypatch.setattr(server, "LONG", 1)
    monkeypatch.setattr(server, "MANY_DEAD", 20)
    url = postgres.database()
    with postgres.connect(url) as holder, postgres.connect(url) as writer:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT pg_sleep(1.1)")
        writer.execute("INSERT INTO qstore_localkv_kv SELECT n::text, '', NULL FROM generate_series(1, 100) AS n")
        writer.execute("DELETE FROM qstore_localkv_kv")
        writer.execute("SELECT pg_stat_force_next_flush()")
        writer.execute("VACUUM qstore_localkv_kv")
        found = kinds(url)
        assert f"process {holder.info.backend_pid}" in found["old snapshot"]
        assert "qstore_localkv_kv has 100 dead rows beside 0 live ones" in found["dead rows"]
        holder.execute("ROLLBACK")
        writer.execute("VACUUM qstore_localkv_kv")
        assert not {"old snapshot", "dead rows"} & kinds(url).keys()
    postgres.drop(url)
