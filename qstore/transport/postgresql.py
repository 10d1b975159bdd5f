"""The transport on PostgreSQL: workers claim different groups in parallel, at the server's time.

Each operation is one statement. It locks the group's row first, and decides by the state on that row alone: after a
lock is granted, only the locked row's own conditions are asked again, and another row is seen as it was before.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack

from qstore.errors import StoreBusy
from qstore.parallel import parallel
from qstore.transaction import Transaction, keeps_snapshot, tidied
from qstore.transport import operations
from qstore.transport import statements_postgresql as statements
from qstore.transport.operations import PARKED, Claimed, Fence, gone, stale

__all__ = ["ack", "ack_many", "claim", "extend", "nack", "publish", "publish_many"]

MOST_RACES = 100
"""Publishes that may come between an ack and the group's lock before it gives up."""


@parallel(operations.publish)
def publish(tx: Transaction, group_id: str, event: str, priority: int) -> int:
    """Add a message, and its group if there is none. Returns the seq."""
    [(seq,)] = tx.rows(statements.PUBLISH, group_id=group_id, event=event, priority=priority)
    return int(seq)


@parallel(operations.publish_many)
def publish_many(tx: Transaction, messages: Sequence[tuple[str, str, int]]) -> list[int]:
    """Add messages in order. All their groups are locked, in one order, before any seq is drawn."""
    groups = [group_id for group_id, _, _ in messages]
    events = [event for _, event, _ in messages]
    with tx.together():
        tx.change(statements.LOCK_GROUPS, group_ids=groups, priorities=[priority for _, _, priority in messages])
        return [int(seq) for (seq,) in tx.rows(statements.PUBLISH_ALL, group_ids=groups, events=events)]


@parallel(operations.claim)
def claim(tx: Transaction, worker_id: str, visibility: float, min_priority: int) -> Claimed | None:
    """Lease the head of the group that has waited longest, among groups with nothing in flight."""
    binds = {"worker_id": worker_id, "visibility": visibility, "now": tx.given_now()}
    if min_priority == 0:
        row = tx.row(statements.CLAIM, **binds)
    else:
        row = tx.row(statements.CLAIM_FLOOR, **binds, min_priority=min_priority, anyway=False)
    if row is None and _settled(tx):
        row = tx.row(statements.CLAIM_FLOOR, **binds, min_priority=min_priority, anyway=True)
    if row is None:
        return None
    seq, group_id, event, lock_expiry = row
    return seq, group_id, event.encode(), _float(lock_expiry)


@parallel(operations.ack)
def ack(tx: Transaction, fence: Fence) -> None:
    """Remove the message, and its group if it was the last one."""
    seq, group_id, worker_id, lock_expiry = fence
    binds = {"seq": seq, "group_id": group_id, "worker_id": worker_id, "lock_expiry": lock_expiry}
    for _ in range(MOST_RACES):
        if tx.row(statements.ACK, **binds, now=tx.given_now()) is not None or not _raced(tx, fence, "ack"):
            return
    raise _unsettled(fence, "ack")


@parallel(operations.ack_many)
def ack_many(tx: Transaction, fences: Sequence[Fence]) -> None:
    """Remove all messages, or none where a lease is stale. Groups are locked in one order."""
    with tx.together():
        for fence in sorted(fences, key=lambda fence: (fence[1], fence[0])):
            ack(tx, fence)


@parallel(operations.nack)
def nack(tx: Transaction, fence: Fence, delay: float) -> None:
    """Free the message, or park it until the delay has passed."""
    _relock(tx, fence, "nack", PARKED if delay > 0 else None, delay if delay > 0 else None)


@parallel(operations.extend)
def extend(tx: Transaction, fence: Fence, visibility: float) -> float:
    """Hold the message for `visibility` from now on. Returns the new lock_expiry."""
    lock_expiry = _relock(tx, fence, "extend", fence[2], visibility)
    if lock_expiry is None:
        raise gone(fence, "extend")
    return lock_expiry


def _relock(tx: Transaction, fence: Fence, operation: str, new_holder: str | None, hold: float | None) -> float | None:
    seq, group_id, worker_id, lock_expiry = fence
    binds = {"seq": seq, "group_id": group_id, "worker_id": worker_id, "lock_expiry": lock_expiry}
    for _ in range(MOST_RACES):
        row = tx.row(statements.RELOCK, **binds, new_holder=new_holder, hold=hold, now=tx.given_now())
        if row is not None:
            return None if row[0] is None else _float(row[0])
        if not _raced(tx, fence, operation):
            return None
    raise _unsettled(fence, operation)


def _settled(tx: Transaction) -> bool:
    """Settle what may hide a message from a claim. Whether it is worth another look."""
    if tx.own:
        return tidied(tx, statements.TIDY)
    tx.change(statements.SETTLE_STAMPS, now=tx.given_now())
    return True


def _unsettled(fence: Fence, operation: str) -> StoreBusy:
    return StoreBusy(
        f"cannot {operation} message {fence[0]}: its lease is this one, and its group's state is another, again and"
        " again. Nothing was changed: repeat the call; if it stays so, migrate.repair"
    )


def _raced(tx: Transaction, fence: Fence, operation: str) -> bool:
    """Why a lease did not match: a publish came between (True, repeat), or the message is gone (False).

    StaleLease if another one is on it.
    """
    seq, group_id, *lease = fence
    # What a snapshot shows may be over. The lock is refused, as a conflict, if the group is another by now than there:
    # every change of a message changes its group's row.
    if keeps_snapshot(tx) and tx.change(statements.LOCK_GROUPS, group_ids=[group_id], priorities=[0]):
        tx.change(statements.UNLOCK_GROUP, group_id=group_id)
    row = tx.row(statements.HOLDER, seq=seq)
    if row is None:
        return False
    locked_by, until = row[0], None if row[1] is None else _float(row[1])
    if [locked_by, until] == lease:
        return True
    raise stale(fence, operation, locked_by, until)


def _float(sent: bytes) -> float:
    [value] = unpack("!d", sent)
    return float(value)
