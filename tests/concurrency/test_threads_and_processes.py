"""Semantics 1 and 3: one repository object in many threads, one file in many processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qstore import TransportRepository
from qstore.engines.holding import Held, HoldingPool
from qstore.engines.line import Line
from qstore.statement import Statement
from qstore.transport import statements
from tests.backends import Backend
from tests.concurrency import ledger
from tests.concurrency.processes import children
from tests.concurrency.workers import LEASE, drain, draining_worker

MESSAGES, GROUPS = 5_000, 50
THREADS, PROCESSES = 8, 4
SHORT = 0.2
"""A lease that workers outstay."""


@pytest.mark.timeout(300)
def test_eight_threads_on_one_repository_take_each_message_through_once_and_in_order(
    shared_backend: Backend, tmp_path: Path
) -> None:
    transport = shared_backend.transport(event_type=str)
    ledgers = _in_threads(transport, tmp_path, MESSAGES, GROUPS)
    _check(ledgers, MESSAGES)
    assert shared_backend.sql("transport", "SELECT * FROM {messages}") == []
    assert shared_backend.sql("transport", "SELECT * FROM {groups}") == []


@pytest.mark.timeout(300)
def test_four_processes_on_one_file_take_each_message_through_once_and_in_order(tmp_path: Path) -> None:
    store = tmp_path / "transport.sqlite"
    TransportRepository.open(store).close()
    ledgers = [tmp_path / f"{number}.ledger" for number in range(PROCESSES)]
    calls = [
        (draining_worker, store, path, MESSAGES // PROCESSES, GROUPS, number) for number, path in enumerate(ledgers)
    ]
    with children(*calls) as running:
        for child in running:
            child.wait_until_ready()
        for child in running:
            child.go()
        for child in running:
            child.result()
    _check(ledgers, MESSAGES)


def test_workers_that_outstay_their_leases_break_neither_order_nor_exclusivity(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "transport.sqlite", event_type=str) as transport:
        ledgers = _in_threads(transport, tmp_path, messages=160, groups=4, lease=SHORT, stall=1.5 * SHORT)
    _check(ledgers, 160, lease=SHORT)
    assert any(ledger.ids(ledger.read(path), "stale") for path in ledgers), "no lease lapsed: nothing was tried"


READ_FIRST = Statement("SELECT 1 FROM {groups} WHERE last_claimed_at > :now")
"""In place of the claim's first statement, which would take the write lock by itself."""


def test_the_ledgers_catch_an_ack_without_a_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed's ack: a late worker deletes a message that another one holds, and opens its group to a third."""
    fenced = "AND locked_by = :worker_id AND lock_expiry = :lock_expiry"
    assert fenced in statements.ACK._text
    unfenced = statements.ACK._text.replace(fenced, "AND :worker_id IS NOT NULL AND :lock_expiry > 0")
    monkeypatch.setattr(statements, "ACK", Statement(unfenced))
    told = []
    for attempt in range(5):  # two workers have to be late in the same moment
        (directory := tmp_path / f"{attempt}").mkdir()
        with pytest.raises(AssertionError) as caught:
            test_workers_that_outstay_their_leases_break_neither_order_nor_exclusivity(directory)
        told.append(str(caught.value))
        if "Holding" in told[-1]:
            return
    pytest.fail(f"it was not caught: {told}")


class _Driver:
    """A driver's connection that begins another transaction than it is told to."""

    def __init__(self, driver: Any, begin: str | None) -> None:
        self.driver = driver
        self.begin = begin

    def execute(self, sql: str, *values: Any) -> Any:
        if sql == "BEGIN IMMEDIATE":
            return self.driver.execute(self.begin) if self.begin else None
        return self.driver.commit() if sql == "COMMIT" else self.driver.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


def _beginning(monkeypatch: pytest.MonkeyPatch, begin: str | None) -> None:
    """Let all transactions begin like this, and read first. Threads do not wait in line for each other."""
    take = HoldingPool.take

    def taken(pool: HoldingPool) -> Held:
        held: Held = take(pool)
        held.driver = _Driver(getattr(held.driver, "driver", held.driver), begin)
        return held

    monkeypatch.setattr(Line, "enter", lambda *_: True)
    monkeypatch.setattr(Line, "leave", lambda *_: None)
    monkeypatch.setattr(HoldingPool, "take", taken)
    monkeypatch.setattr(statements, "SETTLE_STAMPS", READ_FIRST)


def test_the_ledgers_catch_a_claim_that_takes_the_write_lock_only_when_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _beginning(monkeypatch, None)
    with (
        TransportRepository.open(tmp_path / "transport.sqlite", event_type=str) as transport,
        pytest.raises(AssertionError),
    ):
        _check(_in_threads(transport, tmp_path, messages=1_000, groups=5), 1_000)


def test_the_ledgers_catch_a_deferred_transaction_that_is_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _beginning(monkeypatch, "BEGIN")
    with (
        TransportRepository.open(tmp_path / "transport.sqlite", event_type=str) as transport,
        pytest.raises(AssertionError, match="did not wait"),
    ):
        _in_threads(transport, tmp_path, messages=1_000, groups=5)


def _in_threads(
    transport: Any, directory: Path, messages: int, groups: int, lease: float = LEASE, stall: float = 0
) -> list[Path]:
    ledgers = [directory / f"{number}.ledger" for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        running = [
            pool.submit(drain, transport, path, messages // THREADS, groups, number, lease, stall)
            for number, path in enumerate(ledgers)
        ]
        for each in running:
            each.result()
    return ledgers


def _check(ledgers: list[Path], messages: int, lease: float = LEASE) -> None:
    entries = [ledger.read(path) for path in ledgers]
    every = [entry for each in entries for entry in each]
    sent = ledger.ids(every, "sent")
    assert len(set(sent)) == len(sent) == messages
    acked = ledger.ids(every, "acked")
    assert set(acked) == set(sent), "lost"
    assert lease < LEASE or len(acked) == len(sent), "acked twice"  # a late ack of what is gone is no error
    held = [holding for each in entries for holding in ledger.holdings(each, lease)]
    assert ledger.overlaps(held) == []
    assert ledger.disorder(held) == []
