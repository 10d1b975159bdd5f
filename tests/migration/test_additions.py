"""transport.v1.1 and localqueue.v1.1: up from a store in use, down again, checked and repaired."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from qstore import NATIVE, FormatError, LocalQueueRepository, Naming, TransportRepository, migrate
from tests.awaiting import EventLoop
from tests.backends import MOUNTED
from tests.concurrency.seed import SeedLocalQueue, SeedTransport
from tests.migration.alembic_command import alembic, refusal
from tests.migration.file_state import dump, opened, schema, table_names, unchanged
from tests.migration.seed_files import MARKERS, NEWEST, make, make_newest, rows, run
from tests.migration.ways_in import host_engine, open_store, qstore_engine

ADDED = ("transport", "localqueue")
SABOTAGE = {
    "transport": (
        "DELETE FROM turns WHERE group_id = 'a'",
        "UPDATE turns SET head = head + 1 WHERE group_id = 'a'",
        "UPDATE turns SET slot = 4, at = 0.0 WHERE group_id = 'a'",
        "INSERT INTO turns (group_id, head, slot, at, until, held) VALUES ('nobody', 9, 0, 0.0, -9e999, 0)",
        "DELETE FROM turns WHERE id = 0",
        "UPDATE turns SET until = 0.0 WHERE id = 0",
    ),
    "localqueue": (
        "INSERT INTO redeliveries VALUES (77, 1)",
        "INSERT INTO redeliveries SELECT id, enqueued_at FROM messages",
        "UPDATE redelivery_mark SET visible_at = 9000000000000",
        "DELETE FROM redelivery_mark",
    ),
}


def filled(path: Path, store: str) -> Path:
    """A seed's file with messages in every state: many groups, held, parked, lapsed, orphaned; fresh and returned."""
    make(path, store, journal_mode="wal", filled=True)
    with opened(path) as connection:
        connection.execute("BEGIN")
        for number in range(300):
            if store == "transport":
                held = (None, None) if number % 3 else ("w", 1_700_000_000.0 + number)
                columns = "(group_id, event, locked_by, lock_expiry) VALUES (?, '{}', ?, ?)"
                connection.execute(f"INSERT INTO messages {columns}", (f"g{number % 70}", *held))
                group = (f"g{number % 70}", float(number), number % 5)
                connection.execute("INSERT OR IGNORE INTO groups VALUES (?, ?, ?)", group) if number % 70 else None
            else:
                columns = "(payload_type, payload_data, enqueued_at, visible_at) VALUES ('text', 'p', ?, ?)"
                connection.execute(f"INSERT INTO messages {columns}", (number, number + number % 4))
        connection.execute("COMMIT")
    return path


def drained(path: Path, store: str) -> list[Any]:
    """What a store delivers, in order, late enough for all of it."""
    if store == "transport":
        with TransportRepository.open(path, event_type=Any, clock=lambda: 1_800_000_000.0) as transport:
            taken = []
            while (lease := transport.claim("w", 60)) is not None:
                taken.append((lease.seq, lease.group_id))
                transport.ack(lease)
            return taken
    with open_store(path, store, clock=lambda: 1_800_000_000.0) as queue:
        found: list[Any] = []
        while received := queue.receive(7, visibility_timeout=9):
            found += [(each.id, each.payload_data) for each in received]
            for each in received:
                queue.ack(each.receipt_handle)
        return found


@pytest.mark.parametrize("store", ADDED)
def test_an_upgrade_fills_the_side_tables_from_the_messages_that_are_there(tmp_path: Path, store: str) -> None:
    path = filled(tmp_path / "in use.sqlite", store)
    as_v1 = drained(filled(tmp_path / "v1.sqlite", store), store)
    before = rows(path, store)
    with qstore_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])
        assert migrate.current(engine) == (NEWEST[store],)
        assert migrate.check(engine) == ()
    assert rows(path, store) == before
    assert schema(path) == schema(make_newest(tmp_path / "whole", store))
    assert drained(path, store) == as_v1
    assert len(as_v1) > 200


@pytest.mark.parametrize("store", ADDED)
def test_opening_a_file_of_the_seeds_leaves_it_at_v1_and_uses_it(tmp_path: Path, store: str) -> None:
    path = filled(tmp_path / f"{store}.sqlite", store)
    described = schema(path)
    for _ in range(2):
        open_store(path, store).close()
    with qstore_engine(path) as engine:
        assert migrate.current(engine) == (MARKERS[store],)
        assert migrate.check(engine) == ()
        migrate.repair(engine)
        migrate.stamp(engine)
        assert migrate.current(engine) == (MARKERS[store],)
    assert schema(path) == described
    assert drained(path, store) == drained(filled(tmp_path / "other.sqlite", store), store)


@pytest.mark.parametrize("store", ADDED)
def test_a_downgrade_to_v1_drops_what_was_added_and_keeps_every_row(tmp_path: Path, store: str) -> None:
    path = filled(tmp_path / f"{store}.sqlite", store)
    before, described = rows(path, store), schema(path)
    for _ in range(2):
        for command, revision in (("upgrade", NEWEST[store]), ("downgrade", MARKERS[store])):
            done = alembic("-x", f"url={path}", command, revision, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            with qstore_engine(path) as engine:
                assert migrate.current(engine) == (revision,)
                assert migrate.check(engine) == ()
        assert rows(path, store) == before
        assert schema(path) == described


def test_a_mounted_store_goes_up_and_down_likewise(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    mounted = ("-x", f"url={path}", "-x", "prefix=qstore_")
    for revision in MARKERS.values():
        done = alembic(*mounted, "upgrade", revision, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    at_v1 = schema(path)
    with host_engine(path) as engine:
        assert migrate.check(engine, naming=MOUNTED) == ()
        TransportRepository(engine, naming=MOUNTED, event_type=str).publish("g", "e")
        LocalQueueRepository(engine, naming=MOUNTED).send("m")
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()
        assert {"qstore_transport_turns", "qstore_localqueue_redeliveries"} <= table_names(path)
    for store in ADDED:
        done = alembic(*mounted, "downgrade", MARKERS[store], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert schema(path) == at_v1
    with host_engine(path) as engine:
        assert migrate.check(engine, naming=MOUNTED) == ()
        assert TransportRepository(engine, naming=MOUNTED).claim("w", 5) is not None
        assert len(LocalQueueRepository(engine, naming=MOUNTED).receive()) == 1


@pytest.mark.parametrize(("store", "wrong"), [(store, wrong) for store in ADDED for wrong in SABOTAGE[store]])
def test_check_finds_a_side_table_that_differs_and_repair_makes_it_right(
    tmp_path: Path, store: str, wrong: str
) -> None:
    path = filled(tmp_path / f"{store}.sqlite", store)
    with qstore_engine(path) as engine:
        migrate.upgrade(engine)
    run(path, wrong, journal_mode="wal")
    with qstore_engine(path) as engine:
        [sentence] = migrate.check(engine)
        assert sentence.startswith(f"{store}: ")
        assert ("groups" if store == "transport" else "messages") in sentence
        assert "migrate.repair" in sentence
        migrate.repair(engine)
        assert migrate.check(engine) == ()


def test_check_counts_the_groups_that_differ(tmp_path: Path) -> None:
    path = filled(tmp_path / "transport.sqlite", "transport")
    with qstore_engine(path) as engine:
        migrate.upgrade(engine)
        run(path, "DELETE FROM turns WHERE group_id IN ('g1', 'g2', 'g3')", journal_mode="wal")
        [sentence] = migrate.check(engine)
    assert " 3 groups" in sentence


@pytest.mark.parametrize("naming", [NATIVE, MOUNTED], ids=["native", "mounted"])
@pytest.mark.parametrize(
    ("store", "kind", "part"),
    [
        ("transport", "TRIGGER", "turns_message_insert"),
        ("transport", "INDEX", "idx_messages_group"),
        ("localqueue", "TRIGGER", "redeliveries_delete"),
        ("localqueue", "INDEX", "idx_messages_again"),
    ],
)
def test_check_names_what_is_missing_and_upgrade_makes_it_and_fills_anew(
    tmp_path: Path, naming: Naming, store: str, kind: str, part: str
) -> None:
    path = tmp_path / f"{store}.sqlite"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=naming, stores=[store])
        run(path, naming.of(store).render(f"DROP {kind} {{{part}}}"))
        use = _publishing if store == "transport" else _sending
        use(engine, naming)  # what the trigger would have noted
        [sentence] = migrate.check(engine, naming=naming, stores=[store])
        assert naming.name(store, part) in sentence
        before = dump(path)
        with pytest.raises(FormatError, match=part):
            migrate.repair(engine, naming=naming, stores=[store])
        assert dump(path) == before
        migrate.upgrade(engine, naming=naming, stores=[store])
        assert migrate.check(engine, naming=naming, stores=[store]) == ()


def _publishing(engine: Any, naming: Naming) -> None:
    transport = TransportRepository(engine, naming=naming, event_type=str)
    transport.publish("g", "e")
    assert transport.claim("w", 1) is not None


def _sending(engine: Any, naming: Naming) -> None:
    queue = LocalQueueRepository(engine, naming=naming)
    queue.send("m")
    assert len(queue.receive(visibility_timeout=0)) == 1
    assert len(queue.receive(visibility_timeout=0)) == 1


@pytest.mark.parametrize(
    "taken",
    [
        "CREATE TABLE turns (precious TEXT)",
        "CREATE VIEW turns AS SELECT 1",
        "CREATE INDEX idx_turns ON groups (priority)",
        "CREATE INDEX idx_messages_group ON messages (event)",
        "CREATE TRIGGER turns_group_insert AFTER INSERT ON groups BEGIN SELECT 1; END",
    ],
)
def test_an_upgrade_refuses_a_name_that_is_taken_and_changes_nothing(tmp_path: Path, taken: str) -> None:
    path = filled(tmp_path / "transport.sqlite", "transport")
    open_store(path, "transport").close()
    run(path, taken, journal_mode="wal")
    before = dump(path)
    with qstore_engine(path) as engine, pytest.raises(FormatError, match=r"turns|idx_messages_group"):
        migrate.upgrade(engine)
    assert dump(path) == before
    with open_store(path, "transport", create=False) as transport:
        assert transport.claim("w", 5) is not None


@pytest.mark.parametrize("store", ADDED)
def test_the_command_does_not_stamp_what_is_not_there(tmp_path: Path, store: str) -> None:
    path = filled(tmp_path / f"{store}.sqlite", store)
    with unchanged(tmp_path):
        done = alembic("-x", f"url={path}", "stamp", "heads", cwd=tmp_path)
    assert NEWEST[store] in refusal(done)
    done = alembic("-x", f"url={path}", "stamp", MARKERS[store], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("store", ADDED)
def test_stamp_notes_the_newest_revision_of_a_store_that_has_all_of_it(tmp_path: Path, store: str) -> None:
    path = make_newest(tmp_path / f"{store}.sqlite", store)
    with qstore_engine(path) as engine:
        migrate.stamp(engine)
        assert migrate.current(engine) == (NEWEST[store],)
        assert migrate.check(engine) == ()


def test_the_upgrade_tells_what_it_fills(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path / "transport.sqlite", "transport")
    with caplog.at_level(logging.INFO, "qstore.migrate"), qstore_engine(path) as engine:
        migrate.upgrade(engine)
    said = [record.getMessage() for record in caplog.records if record.name == "qstore.migrate"]
    assert len(said) == 2
    assert all("transport.v1.1" in line for line in said)
    assert "302 messages" in said[0]


def test_a_repair_is_awaited_likewise(tmp_path: Path) -> None:
    path = filled(tmp_path / "transport.sqlite", "transport")
    with closing(EventLoop()) as loop, qstore_engine(path) as engine:
        loop.run(migrate.upgrade_async(engine))
        run(path, "DELETE FROM turns", journal_mode="wal")
        loop.run(migrate.repair_async(engine))
        assert loop.run(migrate.check_async(engine)) == ()


def test_a_repair_in_a_callers_transaction_shares_its_fate(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        run(path, "DELETE FROM qstore_transport_turns")
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            migrate.repair(connection, naming=MOUNTED)
            assert migrate.check(connection, naming=MOUNTED) == ()
            connection.rollback()
        assert migrate.check(engine, naming=MOUNTED) != ()


def test_up_and_down_while_a_repository_is_at_work_change_nothing_of_what_it_sees(tmp_path: Path) -> None:
    """Its answer to whether the side table is there may be out of date: it asks again."""
    path = tmp_path / "transport.sqlite"
    SeedTransport.create(path).close()
    with open_store(path, "transport", event_type=str) as transport, qstore_engine(path) as engine:
        for number in range(6):
            transport.publish_many([(f"g{each}", f"{number}") for each in range(3)])
            lease = transport.claim("w", 60)
            assert lease is not None
            transport.ack(lease)
            if number % 2:
                done = alembic("-x", f"url={path}", "downgrade", "transport.v1", cwd=tmp_path)
                assert done.returncode == 0, done.stderr
            else:
                migrate.upgrade(engine)
        assert migrate.check(engine) == ()
        left = 0
        while (lease := transport.claim("w", 60)) is not None:
            transport.ack(lease)
            left += 1
    assert left == 18 - 6


SEEDS: dict[str, Callable[[Path], Any]] = {"transport": SeedTransport, "localqueue": SeedLocalQueue}


@pytest.mark.parametrize("store", ADDED)
def test_the_seeds_own_opening_and_statements_work_on_a_file_at_the_newest_revision(tmp_path: Path, store: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    open_store(path, store).close()
    with SEEDS[store](path) as seed:
        for statement in seed.DDL:
            seed.connection.execute(statement)
        if store == "transport":
            seed.publish("g", '"e"')
            lease = seed.claim("w", 5)
            assert lease.group_id == "g"
            seed.nack(lease)
        else:
            seed.send("m")
            [message] = seed.receive()
            seed.nack(message.receipt_handle)
    with qstore_engine(path) as engine:
        assert migrate.check(engine) == ()
    assert len(drained(path, store)) == 1
