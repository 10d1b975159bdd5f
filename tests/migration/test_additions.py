"""transport.v1.1 and localqueue.v1.1: up from a store in use, and down again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstore import FormatError, LocalQueueRepository, TransportRepository, migrate
from tests.backends import MOUNTED
from tests.concurrency.seed import SeedLocalQueue, SeedTransport
from tests.migration.alembic_command import alembic, refusal
from tests.migration.file_state import dump, schema, table_names, unchanged
from tests.migration.in_use import ADDED, drained, filled
from tests.migration.seed_files import MARKERS, NEWEST, make_newest, rows, run
from tests.migration.ways_in import host_engine, open_store, qstore_engine


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
