"""H25: workers and publishers that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qstore import Event, LocalQueueRepository, StaleLease, TransportRepository
from tests import write_lock
from tests.backends import Backend, ManualClock
from tests.integration.situations import ROOT, new_store, plain
from tests.integration.test_cases_queue import SEED_CLAIM

SIGNALS = [signal.SIGKILL, signal.SIGTERM]


def _killed(store: str, path: Path, act: str, statement: str, by: signal.Signals, *, locked: bool) -> None:
    """Start a program, let it come to the statement, and kill it there."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.killed", store, str(path), act, statement],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            assert write_lock.is_free(path) != locked
            program.send_signal(by)
            assert program.wait(30) == -by
        finally:
            program.kill()
    assert write_lock.is_free(path)


def _later() -> float:
    return time.time() + 31


@pytest.mark.parametrize("by", SIGNALS)
@pytest.mark.parametrize("statement", ["UPDATE messages", "COMMIT"])
def test_a_claim_that_is_killed_before_its_end_has_leased_nothing(
    statement: str, by: signal.Signals, tmp_path: Path
) -> None:
    """H25 (a)."""
    path = new_store(tmp_path, "transport")
    with TransportRepository.open(path) as transport:
        transport.publish("g", Event(kind="k"))
        _killed("transport", path, "claim", statement, by, locked=True)
        with plain(path) as look:
            assert look.execute("SELECT locked_by, lock_expiry FROM messages").fetchall() == [(None, None)]
            assert look.execute("SELECT last_claimed_at FROM groups").fetchall() == [(0,)]
        lease = transport.claim("w", 5)
        assert lease is not None
        transport.ack(lease)


@pytest.mark.parametrize("by", SIGNALS)
def test_a_receive_that_is_killed_before_its_end_has_delivered_nothing(by: signal.Signals, tmp_path: Path) -> None:
    """H25 (a)."""
    path = new_store(tmp_path, "localqueue")
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send_many(["a", "b"])
        _killed("localqueue", path, "receive", "COMMIT", by, locked=True)
        assert [(each.payload, each.attempt) for each in queue.receive(9)] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("by", SIGNALS)
def test_what_a_killed_worker_held_is_delivered_again_when_its_time_is_over(by: signal.Signals, tmp_path: Path) -> None:
    """H25 (b) and (c). Without anybody's help, and counted."""
    paths = {store: new_store(tmp_path, store) for store in ("transport", "localqueue")}
    with TransportRepository.open(tmp_path) as transport, LocalQueueRepository.open(tmp_path) as queue:
        seq = transport.publish("g", Event(kind="k"))
        queue.send("a")
        _killed("transport", paths["transport"], "claim", "-", by, locked=False)
        _killed("localqueue", paths["localqueue"], "receive", "-", by, locked=False)
        assert transport.claim("w", 5) is None
        assert queue.receive() == []
    with (
        TransportRepository.open(tmp_path, clock=_later) as transport,
        LocalQueueRepository.open(tmp_path, clock=_later) as queue,
    ):
        lease = transport.claim("w", 5)
        assert lease is not None
        assert lease.seq == seq
        assert [each.attempt for each in queue.receive()] == [2]


@pytest.mark.parametrize("statement", ["DELETE FROM messages", "DELETE FROM groups"])
def test_an_ack_that_is_killed_before_its_end_has_removed_nothing(statement: str, tmp_path: Path) -> None:
    """H25 (c). The work was done, and is done again."""
    path = new_store(tmp_path, "transport")
    with TransportRepository.open(path, clock=_later) as transport:
        seq = transport.publish("g", Event(kind="k"))
        _killed("transport", path, "ack", statement, signal.SIGKILL, locked=True)
        with plain(path) as look:
            assert look.execute("SELECT seq, locked_by FROM messages").fetchall() == [(seq, "killed")]
            assert look.execute("SELECT group_id FROM groups").fetchall() == [("g",)]
        lease = transport.claim("w", 5)
        assert lease is not None
        assert lease.seq == seq


def test_the_trap_is_real_a_message_without_its_group_is_never_delivered(tmp_path: Path) -> None:
    """H25 (d). What is left of a publisher that commits each of its two inserts and is killed between them."""
    with plain(new_store(tmp_path, "transport")) as seed:
        seed.execute("INSERT INTO messages (group_id, event) VALUES ('g', '{}')")
        assert seed.execute(SEED_CLAIM, {"now": 1e12}).fetchall() == []


@pytest.mark.parametrize("by", SIGNALS)
@pytest.mark.parametrize("statement", ["INSERT INTO groups", "COMMIT"])
def test_a_publish_that_is_killed_before_its_end_has_left_nothing(
    statement: str, by: signal.Signals, tmp_path: Path
) -> None:
    """H25 (d)."""
    path = new_store(tmp_path, "transport")
    _killed("transport", path, "publish", statement, by, locked=True)
    with plain(path) as look:
        assert look.execute("SELECT * FROM messages").fetchall() == []
        assert look.execute("SELECT * FROM groups").fetchall() == []
    with TransportRepository.open(path) as transport:
        transport.publish("g", Event(kind="k"))
        assert transport.claim("w", 5) is not None


def test_a_publish_that_is_killed_after_its_end_is_delivered(tmp_path: Path) -> None:
    """H25 (d)."""
    path = new_store(tmp_path, "transport")
    _killed("transport", path, "publish", "-", signal.SIGKILL, locked=False)
    with TransportRepository.open(path) as transport:
        lease = transport.claim("w", 5)
        assert lease is not None
        assert lease.event.kind == "late"


def test_messages_sent_together_are_all_there_or_none(tmp_path: Path) -> None:
    """H25 (d)."""
    path = new_store(tmp_path, "localqueue")
    _killed("localqueue", path, "send_many", "COMMIT", signal.SIGKILL, locked=True)
    with LocalQueueRepository.open(tmp_path) as queue:
        assert queue.receive(9) == []
        _killed("localqueue", path, "send_many", "-", signal.SIGKILL, locked=False)
        assert [each.payload for each in queue.receive(9)] == ["a", "b"]


def test_long_work_keeps_its_message_by_extending_the_lease(backend: Backend, clock: ManualClock) -> None:
    """H25. Also past what the first lease would have allowed."""
    transport = backend.transport(clock=clock)
    transport.publish("g", Event(kind="k"))
    lease = transport.claim("w", 5)
    assert lease is not None
    for _ in range(3):
        clock.advance(4)
        before, lease = lease, transport.extend(lease, 5)
        assert transport.claim("other", 5) is None
        with pytest.raises(StaleLease):
            transport.ack(before)
    transport.ack(lease)
    assert transport.claim("other", 5) is None
