"""The transport's logic, over a transaction with the write lock. Times are epoch seconds. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence

from qstore.errors import StaleLease, shown
from qstore.formats import TRANSPORT_V1_1
from qstore.transaction import Row, Transaction
from qstore.transport import statements

__all__ = [
    "PARKED",
    "Claimed",
    "Fence",
    "ack",
    "ack_many",
    "claim",
    "extend",
    "gone",
    "nack",
    "publish",
    "publish_many",
    "stale",
]

PARKED = "__parked__"
"""What the seed writes in place of a worker's id while a message is parked."""

Claimed = tuple[int, str, bytes, float]
"""seq, group id, event as stored, lock_expiry."""

Fence = tuple[int, str, str, float]
"""seq, group id, worker id, lock_expiry: what a message must still carry for its lease to be good."""


def publish(tx: Transaction, group_id: str, event: str, priority: int) -> int:
    """Add a message, and its group if there is none. Returns the seq."""
    seq = tx.insert(statements.PUBLISH, group_id=group_id, event=event)
    tx.change(statements.PUBLISH_GROUP, group_id=group_id, priority=priority)
    return seq


def publish_many(tx: Transaction, messages: Sequence[tuple[str, str, int]]) -> list[int]:
    """Add messages in order."""
    return [publish(tx, group_id, event, priority) for group_id, event, priority in messages]


def claim(tx: Transaction, worker_id: str, visibility: float, min_priority: int) -> Claimed | None:
    """Lease the first free message of the group that has waited longest, among groups with nothing in flight."""
    now = tx.now()
    row = (_next_turn if tx.has(TRANSPORT_V1_1) else _next_of_all)(tx, now, min_priority)
    if row is None:
        return None
    seq, group_id, event = row
    lock_expiry = now + visibility
    # The lease first: its group waits from then on, and the stamp is not entered among those whose turn may come.
    tx.change(statements.CLAIM_LEASE, worker_id=worker_id, lock_expiry=lock_expiry, seq=seq)
    tx.change(statements.CLAIM_STAMP, now=now, group_id=group_id)
    return seq, group_id, event, lock_expiry


def ack(tx: Transaction, fence: Fence) -> None:
    """Remove the message, and its group if it was the last one."""
    seq, group_id, worker_id, lock_expiry = fence
    if tx.change(statements.ACK, seq=seq, worker_id=worker_id, lock_expiry=lock_expiry):
        tx.change(statements.ACK_GROUP, group_id=group_id)
    else:
        _refuse_if_there(tx, fence, "ack")


def ack_many(tx: Transaction, fences: Sequence[Fence]) -> None:
    """Remove all messages, or none where a lease is stale."""
    for fence in fences:
        ack(tx, fence)


def nack(tx: Transaction, fence: Fence, delay: float) -> None:
    """Free the message, or park it until the delay has passed."""
    until = tx.now() + delay if delay > 0 else None
    if not _relock(tx, fence, None if until is None else PARKED, until):
        _refuse_if_there(tx, fence, "nack")


def extend(tx: Transaction, fence: Fence, visibility: float) -> float:
    """Hold the message for `visibility` from now on. Returns the new lock_expiry."""
    lock_expiry = tx.now() + visibility
    if not _relock(tx, fence, fence[2], lock_expiry):
        _refuse_if_there(tx, fence, "extend")
        raise gone(fence, "extend")
    return lock_expiry


def _next_of_all(tx: Transaction, now: float, min_priority: int) -> Row | None:
    """What to claim, by a look at all messages."""
    tx.change(statements.SETTLE_STAMPS, now=now)
    return tx.row(statements.CLAIM, now=now, min_priority=min_priority)


def _next_turn(tx: Transaction, now: float, min_priority: int) -> Row | None:
    """What to claim, by a look at whose turn it is. Only where that finds none may there be something to settle."""
    row = tx.row(statements.CLAIM_FLAT, now=now, min_priority=min_priority)
    if row is None and _settle(tx, now):
        row = tx.row(statements.CLAIM_FLAT, now=now, min_priority=min_priority)
    return row


def _settle(tx: Transaction, now: float) -> bool:
    """Bring the turns up to now: once for each lock that lapsed and each clock that went back."""
    [(clock, lapsed)] = tx.rows(statements.UNSETTLED, now=now)
    for statement in (
        *(statements.SETTLE_CLOCK if clock else ()),
        *(statements.SETTLE_LAPSED if clock or lapsed else ()),
    ):
        tx.change(statement, now=now)
    return bool(clock or lapsed)


def _relock(tx: Transaction, fence: Fence, new_locked_by: str | None, new_lock_expiry: float | None) -> int:
    seq, _, worker_id, lock_expiry = fence
    return tx.change(
        statements.RELOCK,
        seq=seq,
        worker_id=worker_id,
        lock_expiry=lock_expiry,
        new_locked_by=new_locked_by,
        new_lock_expiry=new_lock_expiry,
    )


def _refuse_if_there(tx: Transaction, fence: Fence, operation: str) -> None:
    """Tell why a lease did not match: it is stale if the message is there; if that is gone, nothing is left to do."""
    row = tx.row(statements.HOLDER, seq=fence[0])
    if row is not None:
        raise stale(fence, operation, *row)


def gone(fence: Fence, operation: str) -> StaleLease:
    """The error for a lease on a message that is gone, where that matters."""
    return StaleLease(f"cannot {operation} the lease of message {fence[0]}: the message is gone", seq=fence[0])


def stale(fence: Fence, operation: str, locked_by: str | None, until: float | None) -> StaleLease:
    """The error for a lease that is not the one that the message carries."""
    seq, _, worker_id, lock_expiry = fence
    if locked_by is None:
        found = "it is free again"
    elif locked_by == PARKED:
        found = f"it is parked until {until}"
    else:
        found = f"it is leased to {shown(locked_by)} until {until}"
    return StaleLease(
        f"cannot {operation} message {seq}: expected it leased to {shown(worker_id)} until {lock_expiry}, but {found}",
        seq=seq,
    )
