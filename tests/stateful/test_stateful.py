"""In random histories each store does what its model does, on every back end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from qstore.localkv import statements as localkv
from qstore.localqueue import statements as localqueue
from qstore.statement import Statement
from qstore.transport import statements as transport
from tests import postgres
from tests.backends import CHOSEN, ON_A_SERVER
from tests.stateful.localkv import LocalKvMachine
from tests.stateful.localqueue import LocalQueueMachine
from tests.stateful.machine import StoreMachine, run
from tests.stateful.transport import TransportMachine

MACHINES: list[type[StoreMachine]] = [TransportMachine, LocalKvMachine, LocalQueueMachine]


@pytest.fixture(params=CHOSEN)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, URL | None]]:
    """A back end, and a server's database if it is on one."""
    if request.param not in ON_A_SERVER:
        yield request.param, None
        return
    url = postgres.database()
    yield request.param, url
    postgres.drop(url)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_store_does_what_its_model_does(
    machine: type[StoreMachine], place: tuple[str, URL | None], tmp_path: Path
) -> None:
    run(machine, *place, tmp_path, histories=20 if place[1] is None else 5)


STATEMENTS = {TransportMachine: transport, LocalKvMachine: localkv, LocalQueueMachine: localqueue}

BROKEN: dict[str, tuple[type[StoreMachine], str, str, str]] = {
    "an ack that is not fenced": (
        TransportMachine,
        "ACK",
        "AND locked_by = :worker_id AND lock_expiry =",
        "AND :worker_id <>",
    ),
    "a nack by a lease that lapsed": (TransportMachine, "RELOCK", "AND lock_expiry =", "AND 0 <"),
    "a group with two in flight": (TransportMachine, "CLAIM", "AND lock_expiry >= :now", "AND lock_expiry < 0"),
    "a lease that is over too early": (TransportMachine, "CLAIM", "lock_expiry >= :now", "lock_expiry >= :now + 1"),
    "a group in the wrong turn": (TransportMachine, "CLAIM", "g.last_claimed_at ASC, m.seq", "m.seq"),
    "a priority that is not asked": (TransportMachine, "CLAIM", "g.priority >=", "4 >="),
    "a group that is never forgotten": (TransportMachine, "ACK_GROUP", "group_id = :group_id\n", "0\n"),
    "an expiry that comes too late": (LocalKvMachine, "SCAN", "expires_at > :now", "expires_at >= :now"),
    "a conditional put that loses": (LocalKvMachine, "PUT_IF_ABSENT", "expires_at <= :now", "expires_at <= :now - 900"),
    "a put that keeps the expiry": (
        LocalKvMachine,
        "PUT",
        "value = :value, expires_at = :expires_at",
        "value = :value",
    ),
    "a lazy delete of other keys": (LocalKvMachine, "DELETE_EXPIRED", "key = :key", ":key <> ''"),
    "a walk that skips": (LocalKvMachine, "SCAN_AFTER", "LIMIT :limit", "LIMIT :limit OFFSET 1"),
    "a message due too late": (LocalQueueMachine, "DUE", "visible_at <= :now", "visible_at < :now"),
    "messages out of order": (LocalQueueMachine, "DUE", "ORDER BY enqueued_at, id", "ORDER BY visible_at, id"),
    "a receipt compared by id": (LocalQueueMachine, "ACK", "receipt_handle = :receipt", ":receipt <> ''"),
    "a nack that takes the receipt": (LocalQueueMachine, "NACK", ":now", ":now, receipt_handle = NULL"),
    "an attempt that is not counted": (LocalQueueMachine, "RECEIVE", "attempt + 1", "max(attempt, 1)"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_store_that_is_broken_is_caught(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, name, right, wrong = BROKEN[broken]
    text = getattr(STATEMENTS[machine], name)._text
    assert right in text
    monkeypatch.setattr(STATEMENTS[machine], name, Statement(text.replace(right, wrong)))
    with pytest.raises(AssertionError, match="replay with QSTORE_TEST_HISTORY"):
        run(machine, "opened, v1", None, tmp_path, histories=1000)
