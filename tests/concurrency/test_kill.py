"""Semantics 2: a process killed at any instruction leaves the store as before or as after."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qstore import TransportRepository
from tests.concurrency import ledger
from tests.concurrency.processes import children
from tests.concurrency.seed import SeedTransport, rows
from tests.concurrency.victims import (
    BATCH,
    LOOPS,
    OPERATIONS,
    die_before_statement,
    open_store,
    put_batch,
    work_until_killed,
)
from tests.concurrency.workers import LEASE

TABLES = {"transport": ("messages", "groups"), "localkv": ("kv",), "localqueue": ("messages",)}
FILES = {store: f"{store}.sqlite" for store in TABLES}


def _later() -> float:
    return time.time() + 2 * LEASE


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_before_any_of_its_statements_an_operation_has_done_nothing(operation: str, tmp_path: Path) -> None:
    tried = _kill_before_each_statement(operation, tmp_path)
    assert tried >= 3, "at least BEGIN, a statement and COMMIT"


def test_a_publish_that_commits_each_statement_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="before statement"):
        _kill_before_each_statement("publish", tmp_path, broken=True)


def _kill_before_each_statement(operation: str, tmp_path: Path, *, broken: bool = False) -> int:
    """Returns the number of its statements."""
    store, _ = OPERATIONS[operation]
    _fill(store, tmp_path / "original")
    for number in range(1, 100):
        directory = tmp_path / str(number)
        path = directory / FILES[store]
        shutil.copytree(tmp_path / "original", directory)
        with children((die_before_statement, operation, directory, number, broken)) as [victim]:
            victim.wait_until_ready()
            before = _shape(path, store)
            victim.go()
            try:
                victim.result()
            except EOFError:
                survived = False
            else:
                survived = True
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        if survived:
            assert _shape(path, store) != before, "the operation changes something, or this test shows nothing"
            return number - 1
        assert _shape(path, store) == before, f"killed before statement {number}"
        _still_works(store, directory)
    raise AssertionError("it has more than 99 statements")


def test_the_seed_killed_between_its_two_commits_leaves_half_a_publish(tmp_path: Path) -> None:
    """The trap is real: so written, the message is never delivered."""
    with SeedTransport.create(tmp_path / "transport.sqlite") as seed:
        seed.publish_message("group", "event")
    with SeedTransport(tmp_path / "transport.sqlite") as seed:
        assert seed.claim("w", 1) is None
    assert rows(tmp_path / "transport.sqlite", "SELECT count(*) FROM messages") == [(1,)]


@pytest.mark.parametrize("loop", LOOPS)
def test_killed_at_random_instants_a_worker_leaves_a_whole_store(loop: str, tmp_path: Path) -> None:
    store = {"receive": "localqueue", "put_many": "localkv"}.get(loop, "transport")
    path = tmp_path / FILES[store]
    open_store(store, tmp_path).close()
    random = Random(loop)
    ledgers = []
    for number in range(6):
        ledgers.append(tmp_path / f"{number}.ledger")
        with children((work_until_killed, loop, tmp_path, ledgers[-1])) as [victim]:
            victim.wait_until_ready()
            victim.go()
            time.sleep(random.uniform(0.005, 0.1))
            victim.kill()
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        if store == "transport":
            _check_transport(path, ledgers, loop)
        elif store == "localkv":
            _check_kv(path, ledgers[-1])
        else:
            _check_queue(path, ledgers)
    assert any(path.stat().st_size for path in ledgers), "no call was ever finished"


def test_what_a_killed_worker_held_is_delivered_again_when_its_lease_is_over(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    with TransportRepository.open(path, event_type=str) as transport:
        transport.publish_many([("group", "first"), ("group", "second")])
        with children((work_until_killed, "claim", tmp_path, tmp_path / "ledger")) as [victim]:
            victim.wait_until_ready()
            victim.go()
            _wait_for(lambda: (tmp_path / "ledger").read_bytes().count(b"claimed") >= 1)
            victim.kill()
        held = {int(str(seq)) for (seq,) in rows(path, "SELECT seq FROM messages WHERE locked_by = 'victim'")}
        assert 1 in held
        assert not held & _drained(transport)
        with TransportRepository.open(path, event_type=str, clock=_later) as later:
            assert held <= _drained(later)


def _drained(transport: TransportRepository[str]) -> set[int]:
    seqs = set()
    while (lease := transport.claim("other", 5)) is not None:
        seqs.add(lease.seq)
        transport.ack(lease)
    return seqs


def _wait_for(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _fill(store: str, directory: Path) -> None:
    directory.mkdir()
    with open_store(store, directory) as repository:
        if store == "transport":
            repository.publish("alone", "event")
        elif store == "localkv":
            put_batch(repository, b"before")
            repository.put("expired", b"", ttl=0)
        else:
            repository.send_many(["a", "b", "c", "d"])


def _shape(path: Path, store: str) -> list[list[tuple[object, ...]]]:
    return [rows(path, f"SELECT * FROM {table}") for table in TABLES[store]]


def _still_works(store: str, directory: Path) -> None:
    with open_store(store, directory, clock=_later) as repository:
        if store == "transport":
            lease = repository.claim("other", 5)
            assert lease.group_id == "alone"
            repository.ack(lease)
            assert repository.publish("alone", "next") > lease.seq
        elif store == "localkv":
            assert repository.get("key 0") == b"before"
            assert repository.put("key 0", b"later")
        else:
            assert [message.payload for message in repository.receive(10)] == ["a", "b", "c", "d"]


def _check_transport(path: Path, ledgers: list[Path], loop: str) -> None:
    _check_groups(path)
    entries = [entry for each in ledgers for entry in ledger.read(each)]
    left = {int(str(seq)) for (seq,) in rows(path, "SELECT seq FROM messages")}
    acked, settling = set(ledger.ids(entries, "acked")), set(ledger.ids(entries, "settling"))
    assert set(ledger.ids(entries, "sent")) <= left | acked | settling
    assert not acked & left
    if loop != "ack":
        assert len(left) % BATCH == 0, "a batch is there in part"
    in_flight = "SELECT group_id FROM messages WHERE locked_by IS NOT NULL GROUP BY group_id HAVING count(*) > 1"
    assert rows(path, in_flight) == []


def _check_groups(path: Path) -> None:
    messages = set(rows(path, "SELECT DISTINCT group_id FROM messages"))
    assert messages == set(rows(path, "SELECT group_id FROM groups"))


def _check_kv(path: Path, newest: Path) -> None:
    values = {bytes(value) for (value,) in rows(path, "SELECT CAST(value AS BLOB) FROM kv")}  # type: ignore[call-overload]  # a driver's rows
    assert len(values) <= 1, "a batch is there in part"
    reported = ledger.ids(ledger.read(newest), "sent")
    if reported:
        assert values <= {str(reported[-1]).encode(), str(reported[-1] + 1).encode()}


def _check_queue(path: Path, ledgers: list[Path]) -> None:
    entries = [entry for each in ledgers for entry in ledger.read(each)]
    left = {int(str(id)) for (id,) in rows(path, "SELECT id FROM messages")}
    acked, settling = set(ledger.ids(entries, "acked")), set(ledger.ids(entries, "settling"))
    assert set(ledger.ids(entries, "sent")) <= left | acked | settling
    assert not acked & left
    issued = rows(path, "SELECT seq FROM sqlite_sequence WHERE name = 'messages'")
    assert all(int(str(seq)) % BATCH == 0 for (seq,) in issued), "a batch is there in part"
    received = rows(path, "SELECT count(*) FROM messages WHERE attempt > 0 AND visible_at <= enqueued_at")
    assert received == [(0,)]
