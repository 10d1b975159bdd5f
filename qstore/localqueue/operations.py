"""The queue's logic, over a transaction with the write lock. Times are epoch milliseconds. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from qstore.clock import milliseconds
from qstore.errors import FormatError, StaleReceipt
from qstore.formats import LOCALQUEUE_V1_1
from qstore.localqueue import statements
from qstore.transaction import Row, Transaction

__all__ = [
    "Delivered",
    "Receipt",
    "ack",
    "ack_many",
    "nack",
    "purge",
    "receive",
    "refuse_if_there",
    "send",
    "send_many",
]

Delivered = tuple[int, str, bytes, bytes, int]
"""id, receipt, payload type and data as stored, attempt."""

Receipt = tuple[int, str]
"""The two halves of a receipt handle: id, and the UUID of one delivery."""


def send(tx: Transaction, payload_type: str, payload_data: str) -> int:
    """Add a message that is due at once. Returns its id."""
    return _insert(tx, payload_type, payload_data, milliseconds(tx.now()))


def send_many(tx: Transaction, payloads: Sequence[tuple[str, str]]) -> list[int]:
    """Add messages in order, all at one time. Returns their ids."""
    now = milliseconds(tx.now())
    return [_insert(tx, payload_type, payload_data, now) for payload_type, payload_data in payloads]


def receive(tx: Transaction, max_messages: int, visibility_timeout: int) -> list[Delivered]:
    """Deliver the first due messages, each under a fresh receipt."""
    now = milliseconds(tx.now())
    delivered: list[Delivered] = []
    for (id,) in (_due if tx.has(LOCALQUEUE_V1_1) else _due_of_all)(tx, now, max_messages):
        receipt = str(uuid4())
        rows = tx.rows(statements.RECEIVE, visible_at=now + visibility_timeout, receipt=receipt, id=id)
        if not rows:
            raise _damaged(id)
        [(payload_type, payload_data, attempt)] = rows
        delivered.append((id, receipt, payload_type, payload_data, attempt))
    return delivered


def ack(tx: Transaction, receipt: Receipt) -> None:
    """Remove a message that is still under this receipt."""
    id, uuid = receipt
    if not tx.change(statements.ACK, id=id, receipt=uuid):
        refuse_if_there(tx, id, "ack")


def ack_many(tx: Transaction, receipts: Sequence[Receipt]) -> None:
    """Remove the messages that are still under these receipts, or none where one was delivered again."""
    for receipt in receipts:
        ack(tx, receipt)


def nack(tx: Transaction, receipt: Receipt) -> None:
    """Make a message that is still under this receipt due at once."""
    id, uuid = receipt
    if not tx.change(statements.NACK, now=milliseconds(tx.now()), id=id, receipt=uuid):
        refuse_if_there(tx, id, "nack")


def purge(tx: Transaction) -> int:
    """Remove every message. Returns how many there were."""
    return tx.change(statements.PURGE)


def _due_of_all(tx: Transaction, now: int, max_messages: int) -> Sequence[Row]:
    """The ids of the first due messages, of all that are due."""
    return tx.rows(statements.DUE, now=now, max_messages=max_messages)


def _due(tx: Transaction, now: int, max_messages: int) -> Sequence[Row]:
    """The same, in order from the start. Only where that finds none may the mark have to be moved."""
    ids = tx.rows(statements.DUE_FLAT, now=now, max_messages=max_messages)
    if not ids and _move_mark(tx, now):
        ids = tx.rows(statements.DUE_FLAT, now=now, max_messages=max_messages)
    return ids


def _move_mark(tx: Transaction, now: int) -> bool:
    """Move the mark of redeliveries to now, if it is ahead or if more is due again than it covers."""
    [(back, on)] = tx.rows(statements.UNMARKED, now=now)
    for statement in (*(statements.MARK_BACK if back else ()), *(statements.MARK_ON if on else ())):
        tx.change(statement, now=now)
    return bool(back or on)


def _insert(tx: Transaction, payload_type: str, payload_data: str, now: int) -> int:
    return tx.insert(statements.SEND, payload_type=payload_type, payload_data=payload_data, now=now)


def _damaged(id: int) -> FormatError:
    return FormatError(
        "the file is damaged: an index names a message that the table does not have. Restore a copy, or REINDEX it",
        found=f"no message {id}",
        supported="a SQLite database that passes PRAGMA integrity_check",
        target="localqueue",
    )


def refuse_if_there(tx: Transaction, id: int, operation: str) -> None:
    """Tell why a receipt did not match: it is stale if the message is there; if that is gone, nothing is left to do."""
    if tx.row(statements.EXISTS, id=id) is not None:
        raise StaleReceipt(
            f"cannot {operation} message {id}: expected the receipt handle of its newest delivery, found another; the"
            " message was delivered again since",
            id=id,
        )
