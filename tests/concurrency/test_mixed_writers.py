"""Processes that run the seeds' statements in plain sqlite3 share a file with processes that run qstore."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, migrate, open_engine
from tests.concurrency import ledger
from tests.concurrency.ledger import Entry, Holding
from tests.concurrency.processes import CONTEXT, children
from tests.concurrency.seed import SeedLocalKv, SeedLocalQueue, SeedTransport, rows
from tests.concurrency.workers import ENOUGH, LEASE, put_worker, queue_worker, transport_worker
from tests.integration.situations import disposed

SECONDS = float(os.environ.get("QSTORE_TEST_SECONDS", "10"))
KINDS = ("seed", "qstore", "seed", "qstore")
KILLED = 2
"""The first of each kind is killed half-way."""


def _later() -> float:
    return time.time() + 2 * LEASE


@pytest.mark.timeout(120 + 2 * SECONDS)
@pytest.mark.parametrize("revision", ["transport.v1", "transport.v1.1"])
def test_the_seeds_processes_and_qstores_share_a_transport_and_lose_nothing(tmp_path: Path, revision: str) -> None:
    store = tmp_path / "transport.sqlite"
    SeedTransport.create(store).close()
    _bring_to(store, revision)
    ledgers = [tmp_path / f"{number}.ledger" for number in range(len(KINDS))]
    calls = [
        (transport_worker, kind, store, path, SECONDS / 2, number)
        for number, (kind, path) in enumerate(zip(KINDS, ledgers, strict=True))
    ]
    _run(calls, ledgers)
    entries = [ledger.read(path) for path in ledgers]
    _check_settled_once(entries, {int(str(seq)) for (seq,) in rows(store, "SELECT seq FROM messages")})
    held = [holding for each in entries for holding in ledger.holdings(each, LEASE)]
    assert ledger.overlaps(held) == []
    assert ledger.disorder(held) == []

    _check_is_at(store, revision)
    _check_left_over_is_delivered_in_order(store, held)
    _check_is_at(store, revision)


def _check_left_over_is_delivered_in_order(store: Path, held: list[Holding]) -> None:
    left = rows(store, "SELECT seq, group_id FROM messages ORDER BY seq")
    # A seed that was killed between the two commits of a publish leaves a message without its group's row, which its
    # own text never delivers before somebody publishes to the group again. Nobody was told of its seq.
    orphans = rows(store, "SELECT seq FROM messages WHERE group_id NOT IN (SELECT group_id FROM groups)")
    assert len(orphans) <= 1
    began = time.monotonic() + 2 * LEASE
    with TransportRepository.open(store, event_type=str, clock=_later) as transport:
        drained: list[Holding] = []
        while (lease := transport.claim("last", LEASE)) is not None:
            drained.append(Holding(lease.seq, lease.group_id, began + len(drained), began + len(drained) + 1))
            transport.ack(lease)
    assert sorted((each.id, each.group) for each in drained) == [each for each in left if (each[0],) not in orphans]
    assert ledger.disorder([*held, *drained]) == []


@pytest.mark.timeout(120 + 2 * SECONDS)
@pytest.mark.parametrize("revision", ["localqueue.v1", "localqueue.v1.1"])
def test_the_seeds_processes_and_qstores_share_a_queue_and_lose_nothing(tmp_path: Path, revision: str) -> None:
    store = tmp_path / "localqueue.sqlite"
    SeedLocalQueue.create(store).close()
    _bring_to(store, revision)
    ledgers = [tmp_path / f"{number}.ledger" for number in range(len(KINDS))]
    calls = [
        (queue_worker, kind, tmp_path, path, SECONDS / 4, number)
        for number, (kind, path) in enumerate(zip(KINDS, ledgers, strict=True))
    ]
    _run(calls, ledgers)
    entries = [ledger.read(path) for path in ledgers]
    left = [int(str(id)) for (id,) in rows(store, "SELECT id FROM messages ORDER BY enqueued_at, id")]
    _check_settled_once(entries, set(left))
    assert ledger.overlaps(holding for each in entries for holding in ledger.holdings(each, LEASE)) == []

    with LocalQueueRepository.open(tmp_path, clock=_later) as queue:
        drained: list[int] = []
        while received := queue.receive(1000):
            drained += [message.id for message in received]
    assert drained == left
    _check_is_at(store, revision)


def _bring_to(store: Path, revision: str) -> None:
    """Adopt a file of the seed's, at its own revision or at the newest."""
    if revision.endswith(".v1.1"):
        with disposed(open_engine(store)) as engine:
            migrate.upgrade(engine)


def _check_is_at(store: Path, revision: str) -> None:
    """The workers have left the store at its revision, and all of it right."""
    with disposed(open_engine(store)) as engine:
        assert migrate.current(engine) == (revision,)
        assert migrate.check(engine) == ()
    assert rows(store, "PRAGMA integrity_check") == [("ok",)]


def _run(calls: Sequence[tuple[Any, ...]], ledgers: list[Path]) -> None:
    with children(*calls) as running:
        for child in running:
            child.wait_until_ready()
        for child in running:
            child.go()
        time.sleep(SECONDS / 4)
        deadline = time.monotonic() + 60
        while min(path.read_bytes().count(b"acked") for path in ledgers) < ENOUGH:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for child in running[:KILLED]:
            child.kill()
        for child in running[KILLED:]:
            child.result(SECONDS + 60)


def _check_settled_once(entries: list[list[Entry]], left: set[int]) -> None:
    every = [entry for each in entries for entry in each]
    acked = ledger.ids(every, "acked")
    assert len(acked) == len(set(acked)), "acked twice"
    # Of an ack that was under way when its process was killed nobody knows whether it took place.
    perhaps = {id for each in entries[:KILLED] for id in ledger.ids(each, "settling")}
    sent = ledger.ids(every, "sent")
    assert len(sent) == len(set(sent)), "one id was issued twice"
    assert set(sent) <= left | set(acked) | perhaps, "lost"
    assert not left & set(acked), "acked, and still there"


def test_of_sixteen_processes_that_race_for_a_key_exactly_one_wins(tmp_path: Path) -> None:
    """Half of them run the seed's statement, half qstore; on keys that are absent, expired and live."""
    won = _race(tmp_path, ("seed", "qstore"))
    with LocalKvRepository.open(tmp_path) as kv:
        for key, winners in won.items():
            assert len(winners) == (0 if "live" in key else 1), key
            assert kv.get(key) == (b"before" if "live" in key else winners[0])


def test_several_win_a_key_that_is_looked_up_first_and_put_then(tmp_path: Path) -> None:
    """The trap is real, and the race finds it."""
    won = _race(tmp_path, ("naive", "naive"), rounds=3)
    assert max(len(winners) for winners in won.values()) > 1


def _race(directory: Path, kinds: tuple[str, str], rounds: int = 15) -> dict[str, list[bytes]]:
    """Who won each key."""
    SeedLocalKv.create(directory / "localkv.sqlite").close()
    keys = [f"{state} {number}" for number in range(rounds) for state in ("absent", "expired", "live")]
    with closing(sqlite3.connect(directory / "localkv.sqlite")) as connection, connection:
        connection.executemany(
            "INSERT INTO kv (key, value, expires_at) VALUES (?, ?, ?)",
            [(key, b"before", 1 if "expired" in key else None) for key in keys if "absent" not in key],
        )
    barrier = CONTEXT.Barrier(16)
    names = [f"{number}".encode() for number in range(16)]
    calls = [(put_worker, kinds[number % 2], directory, barrier, keys, name) for number, name in enumerate(names)]
    with children(*calls) as running:
        for child in running:
            child.wait_until_ready()
        for child in running:
            child.go()
        won = {name: child.result() for name, child in zip(names, running, strict=True)}
    return {key: [name for name in names if key in won[name]] for key in keys}
