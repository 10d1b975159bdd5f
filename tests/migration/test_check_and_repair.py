"""What `check` finds wrong with the tables that a revision added, and what `repair` and `upgrade` do about it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from qstore import NATIVE, FormatError, LocalQueueRepository, Naming, TransportRepository, migrate
from tests.awaiting import EventLoop
from tests.backends import MOUNTED
from tests.migration.file_state import dump
from tests.migration.in_use import ADDED, filled
from tests.migration.seed_files import run
from tests.migration.ways_in import host_engine, qstore_engine

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
        [told] = migrate.repair(engine)
        assert told.startswith(sentence.partition(",")[0].partition(" messages in ")[0])
        assert migrate.check(engine) == ()
        [told] = migrate.repair(engine)
        assert "did not differ" in told


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
@pytest.mark.parametrize("act", [migrate.upgrade, migrate.repair])
def test_check_names_what_is_missing_and_upgrade_or_repair_makes_it_and_fills_anew(
    tmp_path: Path, naming: Naming, store: str, kind: str, part: str, act: Callable[..., Any]
) -> None:
    path = tmp_path / f"{store}.sqlite"
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=naming, stores=[store])
        run(path, naming.of(store).render(f"DROP {kind} {{{part}}}"))
        use = _publishing if store == "transport" else _sending
        use(engine, naming)  # what the trigger would have noted
        [sentence] = migrate.check(engine, naming=naming, stores=[store])
        assert naming.name(store, part) in sentence
        told = act(engine, naming=naming, stores=[store])
        assert migrate.check(engine, naming=naming, stores=[store]) == ()
    assert told is None or naming.name(store, part) in told[0]


def test_a_repair_that_finds_a_name_taken_changes_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "transport.sqlite", "transport")
    with qstore_engine(path) as engine:
        migrate.upgrade(engine)
        run(path, "DROP INDEX idx_turns", "CREATE INDEX idx_turns ON groups (priority)", journal_mode="wal")
        before = dump(path)
        with pytest.raises(FormatError, match="idx_turns"):
            migrate.repair(engine)
    assert dump(path) == before


def _publishing(engine: Any, naming: Naming) -> None:
    transport = TransportRepository(engine, naming=naming, event_type=str)
    transport.publish("g", "e")
    assert transport.claim("w", 1) is not None


def _sending(engine: Any, naming: Naming) -> None:
    queue = LocalQueueRepository(engine, naming=naming)
    queue.send("m")
    assert len(queue.receive(visibility_timeout=0)) == 1
    assert len(queue.receive(visibility_timeout=0)) == 1


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
