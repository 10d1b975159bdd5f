"""Variants of qstore that are broken on purpose: what the harness is worth is that it finds them out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from qstore import wholeness
from qstore.binding.engine import ServerBinding
from qstore.binding.opened import OpenedBinding
from qstore.engines import sqlite
from qstore.localkv import postgresql as localkv_on_a_server
from qstore.localkv import statements as localkv_statements
from qstore.localqueue import postgresql as localqueue_on_a_server
from qstore.localqueue import statements as localqueue_statements
from qstore.statement import SERVER_NOW, Statement
from qstore.transport import operations as transport
from qstore.transport import statements as transport_statements
from qstore.transport import statements_postgresql as transport_on_a_server

__all__ = ["NAIVE_CLAIM", "VARIANTS", "Variant"]

# What one would write first: SKIP LOCKED on messages, and "nothing in flight" as a look at other rows.
NAIVE_CLAIM = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_NOW} AS now),
    m AS (
      UPDATE {{messages}} SET locked_by = CAST(:worker_id AS text),
             lock_expiry = (SELECT now FROM t) + CAST(:visibility AS double precision)
       WHERE seq = (
         SELECT m.seq FROM {{messages}} AS m JOIN {{groups}} AS g ON g.group_id = m.group_id
          WHERE (m.locked_by IS NULL OR m.lock_expiry < (SELECT now FROM t))
            AND m.group_id NOT IN (SELECT group_id FROM {{messages}}
              WHERE locked_by IS NOT NULL AND lock_expiry >= (SELECT now FROM t))
          ORDER BY g.last_claimed_at, m.seq LIMIT 1 FOR UPDATE OF m SKIP LOCKED)
      RETURNING seq, group_id, event, locked_by, lock_expiry),
    g AS (
      UPDATE {{groups}} AS g SET last_claimed_at = (SELECT now FROM t), head = m.seq, holder = m.locked_by,
             until = m.lock_expiry, ready = false
        FROM m WHERE g.group_id = m.group_id)
    SELECT seq, group_id, event, float8send(lock_expiry) FROM m
""")


class Variant(NamedTuple):
    """What is broken, by whom it is done in a process, and as which kinds of faults it may be found out."""

    apply: Callable[[bool], None]
    """Whether it is on files."""
    found_as: tuple[str, ...]
    faults: tuple[str, ...] = ()
    """What must happen for that."""


def _without(module: Any, name: str, part: str, instead: str = "") -> None:
    """A statement without a part of it."""
    whole = getattr(module, name)._text
    assert part in whole, f"{name} has no {part!r}"
    setattr(module, name, Statement(whole.replace(part, instead)))


def _unfenced_ack(_: bool) -> None:
    fence = "AND locked_by = :worker_id AND lock_expiry = :lock_expiry"
    _without(transport_statements, "ACK", fence, "AND :worker_id IS NOT NULL AND :lock_expiry > 0")
    worker, expiry = "CAST(:worker_id AS text)", "CAST(:lock_expiry AS double precision)"
    _without(transport_on_a_server, "ACK", f"g.holder = {worker}", f"{worker} IS NOT NULL")
    _without(transport_on_a_server, "ACK", f"g.until = {expiry}", f"{expiry} > 0")


def _claim_without_the_lock(files: bool) -> None:
    transport_on_a_server.CLAIM = NAIVE_CLAIM
    if not files:
        return
    claim = transport.claim

    def unlocked(tx: Any, *args: Any) -> Any:
        driver = tx._connection
        driver.execute("COMMIT")
        try:
            return claim(tx, *args)
        finally:
            if not driver.in_transaction:
                driver.execute("BEGIN IMMEDIATE")

    setattr(transport, "claim", unlocked)  # noqa: B010  in a process that is nothing else


def _publish_in_two_transactions(files: bool) -> None:
    if not files:
        return  # it is one statement there

    def publish(tx: Any, group_id: str, event: str, priority: int) -> int:
        seq: int = tx.insert(transport_statements.PUBLISH, group_id=group_id, event=event)
        tx._connection.execute("COMMIT")
        tx._connection.execute("BEGIN IMMEDIATE")
        tx.change(transport_statements.PUBLISH_GROUP, group_id=group_id, priority=priority)
        return seq

    setattr(transport, "publish", publish)  # noqa: B010  in a process that is nothing else


def _lazy_delete_without_its_guard(_: bool) -> None:
    guard = "AND expires_at IS NOT NULL AND expires_at <= :now"
    _without(localkv_statements, "DELETE_EXPIRED", guard, "AND :now > 0")
    expired = "AND expires_at IS NOT NULL AND expires_at <= "
    _without(localkv_on_a_server, "DELETE_EXPIRED", expired, "AND 0 < ")
    for binding in (OpenedBinding, ServerBinding):
        _pause_before(binding, "tidy", 0.003)


def _pause_before(kind: type, name: str, seconds: float) -> None:
    """Do what a busy machine does at any time anyway."""
    method: Callable[..., object] = getattr(kind, name)

    def late(*args: object) -> object:
        time.sleep(seconds)
        return method(*args)

    setattr(kind, name, late)


def _receipt_by_id_only(_: bool) -> None:
    _without(localqueue_statements, "ACK", "AND receipt_handle = :receipt", "AND length(:receipt) > 0")
    setattr(localqueue_on_a_server, "ACK", localqueue_statements.ACK)  # noqa: B010  in a process that is nothing else


def _revision_in_two_transactions(_: bool) -> None:
    fill = wholeness._fill

    def late(connection: Any, *args: Any) -> None:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        fill(connection, *args)

    setattr(wholeness, "_fill", late)  # noqa: B010  in a process that is nothing else


def _answer_before_the_sync(_: bool) -> None:
    sqlite._SYNCHRONOUS["full"] = "OFF"


VARIANTS = {
    "an ack without a fence": Variant(_unfenced_ack, ("a stale lease was taken",)),
    "a claim without the lock": Variant(_claim_without_the_lock, ("two in flight",)),
    "a publish in two transactions": Variant(_publish_in_two_transactions, ("out of nothing", "left")),
    "a lazy delete without its guard": Variant(_lazy_delete_without_its_guard, ("no order explains it",)),
    "a receipt compared by its id only": Variant(_receipt_by_id_only, ("a stale receipt was taken",)),
    "a revision in two transactions": Variant(
        _revision_in_two_transactions,
        ("left in the middle", "nothing claimed where there was something"),
        ("migrate-point",),
    ),
    "an answer before the sync": Variant(_answer_before_the_sync, ("lost", "no order explains it"), ("ro-disk",)),
}
