"""A store that another hand has made is adopted as it is: every row stays, and the other hand works on. H21."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from qstore import Event, FormatError, migrate
from qstore.models import KvEntry, KvMeta, TransportMessage
from tests.migration.alembic_command import alembic
from tests.migration.file_state import opened, schema, unchanged
from tests.migration.seed_files import (
    FILLING,
    MARKERS,
    NEWEST,
    NOW,
    STORES,
    USING,
    crash,
    make,
    make_newest,
    rows,
    run,
    statements,
)
from tests.migration.test_formats_agree import METADATA
from tests.migration.ways_in import WAYS, Way, host_engine, open_store, qstore_engine


def by_the_command(path: Path, store: str) -> None:
    done = alembic("-x", f"url={path}", "upgrade", f"{store}@head", cwd=path.parent)
    assert done.returncode == 0, done.stderr


def by_upgrade_on_a_hosts_engine(path: Path, store: str) -> None:
    with host_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])


ADOPTING: dict[str, Way] = {
    **{name: WAYS[name] for name in ("open", "upgrade", "stamp")},
    "upgrade by a host": by_upgrade_on_a_hosts_engine,
    "alembic": by_the_command,
}
STAYING = ("open", "stamp")
"""Those that leave a file at the format's first revision. The others bring it to the newest."""


def noted(path: Path) -> list[str]:
    with opened(path) as connection:
        return [row[0] for row in connection.execute("SELECT version_num FROM qstore_alembic_version").fetchall()]


@pytest.mark.parametrize("way", ADOPTING)
@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
@pytest.mark.parametrize("store", STORES)
def test_a_file_of_the_seeds_is_adopted_with_every_row(tmp_path: Path, store: str, journal_mode: str, way: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store, journal_mode=journal_mode, filled=True)
    before, described = rows(path, store), schema(path)
    ADOPTING[way](path, store)
    assert rows(path, store) == before
    assert noted(path) == [(MARKERS if way in STAYING else NEWEST)[store]]
    assert schema(path) == (described if way in STAYING else schema(make_newest(tmp_path / "whole", store)))


@pytest.mark.parametrize("way", ADOPTING)
@pytest.mark.parametrize("store", STORES)
def test_rows_that_wait_in_the_log_of_a_crashed_process_are_adopted(tmp_path: Path, store: str, way: str) -> None:
    whole = make(tmp_path / "seed", store, filled=True)
    path = crash(tmp_path / f"{store}.sqlite", *statements(store), filled=store)
    ADOPTING[way](path, store)
    assert rows(path, store) == rows(whole, store)
    assert noted(path) == [(MARKERS if way in STAYING else NEWEST)[store]]


@pytest.mark.parametrize("way", ADOPTING)
@pytest.mark.parametrize("store", STORES)
def test_a_file_that_the_seeds_process_has_open_is_adopted_under_its_hands(
    tmp_path: Path, store: str, way: str
) -> None:
    """Frames that are not checkpointed, and a connection that works on through and after the adoption."""
    path = make(tmp_path / f"{store}.sqlite", store, journal_mode="wal")
    with opened(path) as seed:
        for statement, values in FILLING[store]:
            seed.execute(statement, values).fetchall()
        assert Path(f"{path}-wal").stat().st_size > 0
        before = rows(path, store)
        ADOPTING[way](path, store)
        assert rows(path, store) == before
        answers = [seed.execute(statement, values).fetchall() for statement, values in USING[store]]
    assert (answers, rows(path, store)) == used_by_the_seed_alone(tmp_path, store)


@pytest.mark.parametrize("store", STORES)
def test_the_seeds_statements_do_the_same_on_an_adopted_store(tmp_path: Path, store: str) -> None:
    path = make(tmp_path / f"{store}.sqlite", store, filled=True)
    open_store(path, store).close()
    with opened(path) as seed:
        for statement in statements(store):  # the seed's own opening
            seed.execute(statement)
        answers = [seed.execute(statement, values).fetchall() for statement, values in USING[store]]
    assert (answers, rows(path, store)) == used_by_the_seed_alone(tmp_path, store)


def used_by_the_seed_alone(tmp_path: Path, store: str) -> tuple[list[Any], dict[str, list[Any]]]:
    path = make(tmp_path / "never adopted", store, filled=True)
    with opened(path) as seed:
        answers = [seed.execute(statement, values).fetchall() for statement, values in USING[store]]
    return answers, rows(path, store)


def test_qstore_goes_on_with_what_the_seeds_transport_left(tmp_path: Path) -> None:
    path = make(tmp_path / "transport.sqlite", "transport", filled=True)
    with open_store(path, "transport", clock=lambda: NOW + 31.0) as transport:
        lease = transport.claim("w2", 5)
        assert (lease.seq, lease.group_id, lease.event.id) == (1, "a", "1")
        assert transport.claim("w3", 5) is None
        transport.ack(lease)
        assert transport.publish("a", Event(kind="k")) == 3


def test_qstore_goes_on_with_what_the_seeds_key_value_store_left(tmp_path: Path) -> None:
    path = make(tmp_path / "localkv.sqlite", "localkv", filled=True)
    with open_store(path, "localkv") as kv:
        assert kv.get("k") == b"\x00\xff"
        assert kv.get("expired") is None
        assert kv.get("ünï😀") == b"v" * 9000


def test_qstore_goes_on_with_what_the_seeds_queue_left(tmp_path: Path) -> None:
    path = make(tmp_path / "localqueue.sqlite", "localqueue", filled=True)
    with open_store(path, "localqueue", clock=lambda: NOW + 0.5) as queue:
        [message] = queue.receive(10)
        assert (message.id, message.payload, message.attempt) == (2, "é😀", 1)
        queue.ack("1:9d3b1c54-0000-4000-8000-000000000000")
        assert queue.send({"a": 1}) == 3
        assert queue.purge() == 2


@pytest.mark.parametrize("way", [name for name in ADOPTING if name != "stamp"])
@pytest.mark.parametrize("store", STORES)
def test_tables_that_the_models_made_are_recognised_noted_and_completed(tmp_path: Path, store: str, way: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    with host_engine(path) as engine:
        METADATA[store].create_all(engine)
    ADOPTING[way](path, store)
    whole = make_newest(tmp_path / "whole", store)
    assert rows(path, store) == rows(whole, store)  # the marker, which create_all does not write
    assert schema(path) == schema(whole)
    assert noted(path) == [NEWEST[store]]


def test_rows_that_were_written_through_the_models_are_adopted(tmp_path: Path) -> None:
    path = tmp_path / "localkv.sqlite"
    with host_engine(path) as engine:
        METADATA["localkv"].create_all(engine)
        with Session(engine) as session, session.begin():
            session.add(KvMeta(key="format", value="localkv.v1"))
            session.execute(insert(KvEntry).values(key="k", value=b"v"))
    with open_store(path, "localkv") as kv:
        assert kv.get("k") == b"v"


def test_plain_alembic_cannot_upgrade_tables_that_are_there(tmp_path: Path) -> None:
    """The trap is real: a CREATE TABLE without a look at what is there fails on an unstamped database."""
    path = tmp_path / "transport.sqlite"
    with host_engine(path) as engine:
        METADATA["transport"].create_all(engine)
        table: Any = TransportMessage.__table__
        with pytest.raises(Exception, match="already exists"):
            table.create(engine)


@pytest.mark.parametrize("stamping", ["qstore", "host"])
def test_tables_that_lack_something_are_not_stamped(tmp_path: Path, stamping: str) -> None:
    path = make(tmp_path / "localqueue.sqlite", "localqueue", journal_mode="wal", filled=True)
    run(path, "DROP INDEX idx_messages_visible", journal_mode="wal")
    engine_of: Callable[[Path], Any] = qstore_engine if stamping == "qstore" else host_engine
    with unchanged(tmp_path), engine_of(path) as engine, pytest.raises(FormatError, match="stamp"):
        migrate.stamp(engine, stores=["localqueue"])


def test_adopting_twice_changes_nothing_more(tmp_path: Path) -> None:
    path = make(tmp_path / "localkv.sqlite", "localkv", filled=True)
    open_store(path, "localkv").close()
    with unchanged(tmp_path):
        for way in ("open", "upgrade", "stamp", "alembic"):
            ADOPTING[way](path, "localkv")
