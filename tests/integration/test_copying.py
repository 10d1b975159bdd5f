"""`copy`: every row as it was, and a store that goes on where the source would have."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from qstore import Event, LocalKvRepository, LocalQueueRepository, StaleLease, StaleReceipt, TransportRepository
from qstore.copying import copy
from tests import postgres
from tests.integration.copied_stores import Opened, fill, new_server, opened, rows

WAYS = ("directory to server", "server to directory", "directory to directory", "server to server")
each_way = pytest.mark.parametrize("way", WAYS[:2])


def places(way: str, directory: Path) -> tuple[str, str]:
    """A source that is to be filled and a target that is not there yet."""
    source, target = way.split(" to ")
    here, there = (new_server() if kind == "server" else "" for kind in (source, target))
    return here or f"{directory / 'source'}/", there or f"{directory / 'target'}/"


@pytest.mark.parametrize("way", WAYS)
def test_every_row_arrives_as_it_was(way: str, tmp_path: Path) -> None:
    source, target = places(way, tmp_path)
    fill(source)
    before = rows(source)
    assert len(before) == 4
    counts = copy(source, target)
    assert rows(target) == before == rows(source)
    assert counts == {
        store: sum(len(found) for (its, _), found in before.items() if its == store)
        for store in ("transport", "localkv", "localqueue")
    }


def test_there_and_back_again_nothing_is_different(tmp_path: Path) -> None:
    source, server, back = f"{tmp_path / 'source'}", new_server(), f"{tmp_path / 'back'}/"
    fill(source)
    copy(source, server)
    copy(server, back)
    assert rows(back) == rows(source)
    with closing(sqlite3.connect(tmp_path / "source" / "localqueue.sqlite")) as one:
        given = one.execute("SELECT * FROM sqlite_sequence").fetchall()
    with closing(sqlite3.connect(tmp_path / "back" / "localqueue.sqlite")) as other:
        assert other.execute("SELECT * FROM sqlite_sequence").fetchall() == given
        assert other.execute("SELECT name FROM sqlite_master WHERE name LIKE '%copied%'").fetchall() == []
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@each_way
def test_new_ids_go_on_after_the_highest_that_was_ever_given(way: str, tmp_path: Path) -> None:
    """Those of rows that were deleted before the copy included."""
    source, target = places(way, tmp_path)
    filled = fill(source)
    copy(source, target)
    with opened(target) as stores:
        assert stores.transport.publish("new", Event(kind="new")) > filled.highest_seq
        assert stores.localqueue.send("new") > filled.highest_id
        assert stores.transport.publish_many([("new", Event(kind="new"))] * 2)
        assert len(stores.localqueue.send_many(["a", "b"])) == 2


@each_way
def test_deliveries_of_the_source_are_settled_in_the_target(way: str, tmp_path: Path) -> None:
    source, target = places(way, tmp_path)
    filled = fill(source)
    copy(source, target)
    with opened(target) as stores:
        stores.transport.ack(stores.transport.extend(filled.lease, 60))
        stores.transport.ack(filled.lease)
        claimed = [stores.transport.claim("w", 3600) for _ in range(9)]
        assert filled.stale_lease.seq in {lease.seq for lease in claimed if lease}
        with pytest.raises(StaleLease):
            stores.transport.ack(filled.stale_lease)
        stores.localqueue.ack(filled.receipt)
        stores.localqueue.ack(filled.stale_receipt)
        assert stores.localqueue.receive(10) == []
        assert stores.localkv.get("expired") is None
        assert stores.localkv.get("bytes") == bytes(range(256))
        assert [key for key, _ in stores.localkv.iter_prefix("a")] == ["a", "a%_'\"\\"]


@each_way
def test_a_receipt_that_another_delivery_has_replaced_stays_stale(way: str, tmp_path: Path) -> None:
    source, target = places(way, tmp_path)
    with opened(source) as stores:
        stores.localqueue.send("m")
        [first] = stores.localqueue.receive()
        stores.localqueue.nack(first.receipt_handle)
        [second] = stores.localqueue.receive(visibility_timeout=0.001)
    copy(source, target)
    with opened(target) as stores:
        with pytest.raises(StaleReceipt):
            stores.localqueue.ack(first.receipt_handle)
        [third] = stores.localqueue.receive()
        assert third.attempt == second.attempt + 1
        with pytest.raises(StaleReceipt):
            stores.localqueue.nack(second.receipt_handle)


def drained(stores: Opened, min_priority: int) -> list[tuple[str, int]]:
    """The order in which claims hand out what is free, each acked before the next."""
    order = []
    for priority in (min_priority, 0):
        while (lease := stores.transport.claim("w", 60, min_priority=priority)) is not None:
            order.append((lease.group_id, lease.seq))
            stores.transport.ack(lease)
    return order


@each_way
@pytest.mark.parametrize("min_priority", [0, 3])
def test_claims_come_in_the_order_in_which_the_source_would_have_had_them(
    way: str, min_priority: int, tmp_path: Path
) -> None:
    """What was leased and has lapsed comes too, in its place."""
    source, target = places(way, tmp_path)
    chance = random.Random(min_priority)
    with opened(source) as stores:
        stores.transport.publish_many(
            [(f"g{chance.randrange(25)}", Event(kind="k"), chance.randrange(5)) for _ in range(80)]
        )
        for _ in range(30):
            lease = stores.transport.claim("w", chance.choice([0.001, 3600]))
            if lease is not None:
                end: Any = chance.choice([stores.transport.ack, stores.transport.nack, None])
                if end is not None:
                    end(lease)
    copy(source, target)
    with opened(source) as here, opened(target) as there:
        expected = drained(here, min_priority)
        assert drained(there, min_priority) == expected
        assert len(expected) > 20
        assert here.transport.claim("w", 1) is there.transport.claim("w", 1) is None


@each_way
def test_stores_without_a_row_are_copied_with_their_counters(way: str, tmp_path: Path) -> None:
    source, target = places(way, tmp_path)
    with opened(source) as stores:
        stores.localqueue.send_many(["a", "b", "c"])
        stores.localqueue.purge()
    assert copy(source, target) == {"transport": 0, "localkv": 0, "localqueue": 0}
    with opened(target) as stores:
        assert stores.localqueue.send("d") == 4
        assert stores.transport.publish("g", Event(kind="k")) == 1


@pytest.mark.parametrize("form", ["path", "URL object"])
def test_a_file_alone_is_a_source_and_a_target(form: str, tmp_path: Path) -> None:
    fill(str(tmp_path / "source"))
    forms: dict[str, Any] = {"path": str, "URL object": lambda path: make_url(f"sqlite:///{path}")}
    for store in ("transport", "localkv", "localqueue"):
        server = new_server()
        source, target = tmp_path / "source" / f"{store}.sqlite", tmp_path / "target" / f"{store}.sqlite"
        assert list(copy(forms[form](source), server)) == [store]
        assert {its for its, _ in rows(server)} == {store}
        assert list(copy(server, forms[form](target))) == [store]
    assert rows(str(tmp_path / "target")) == rows(str(tmp_path / "source"))


def test_the_stores_of_one_server_are_brought_together_from_several_files(tmp_path: Path) -> None:
    fill(str(tmp_path))
    server = new_server()
    for store in ("localqueue", "transport", "localkv"):
        copy(tmp_path / f"{store}.sqlite", server)
    assert rows(server) == rows(str(tmp_path))


@pytest.mark.parametrize("drivername", ["postgresql", "postgresql+psycopg"])
def test_a_servers_url_may_leave_out_the_driver(drivername: str, tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path) as kv:
        kv.put("k", b"v")
    url = postgres.empty_database().set(drivername=drivername)
    assert copy(tmp_path, url) == {"localkv": 1}
    with LocalKvRepository.open(url) as kv:
        assert kv.get("k") == b"v"


def test_thousands_of_rows_with_keys_of_all_kinds_arrive(tmp_path: Path) -> None:
    """Batches go on by key: both sides must order keys alike, and compare them by their bytes."""
    chance = random.Random(7)
    letters = "aAzZ_-. é€\uffff\U0001f600\u0300"
    keys = {"".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(3200)}
    with LocalKvRepository.open(tmp_path) as kv:
        kv.put_many({key: key.encode() for key in keys})
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send_many([str(number) for number in range(2500)])
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport:
        transport.publish_many([(key, Event(kind="k")) for key in sorted(keys)[:1500]])
    server, back = new_server(), f"{tmp_path / 'back'}/"
    copy(tmp_path, server)
    assert rows(server) == rows(str(tmp_path))
    copy(server, back)
    assert rows(back) == rows(str(tmp_path))


def test_large_values_arrive(tmp_path: Path) -> None:
    source, back, server = tmp_path / "source", f"{tmp_path / 'back'}/", new_server()
    large = random.Random(1).randbytes(1024 * 1024)
    with LocalKvRepository.open(source) as kv:
        kv.put_many({f"k{number}": large[number:] for number in range(8)})
    with LocalQueueRepository.open(source) as queue:
        queue.send("€" * 21_000)
    copy(source, server)
    copy(server, back)
    assert rows(back) == rows(str(source))


def test_a_target_that_was_made_before_and_is_empty_is_filled(tmp_path: Path) -> None:
    server = new_server()
    with opened(server):
        fill(str(tmp_path))
    copy(tmp_path, server)
    assert rows(server) == rows(str(tmp_path))


def test_progress_is_told_by_table_up_to_the_end(tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path) as kv:
        kv.put_many({f"{number:05}": b"v" for number in range(2500)})
    told: list[tuple[str, int, int]] = []
    copy(tmp_path, new_server(), progress=lambda *it: told.append(it))
    assert told == [("qstore_localkv_kv", done, 2500) for done in (0, 1000, 2000, 2500)]
