"""The queue on PostgreSQL: receivers work in parallel, and skip what another is just taking. At the server's time.

What is not here is as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from qstore.localqueue import operations
from qstore.localqueue.operations import Delivered, Receipt, refuse_if_there
from qstore.localqueue.statements import ACK
from qstore.parallel import parallel
from qstore.statement import SERVER_MILLISECONDS, Statement
from qstore.transaction import MOST_TIDIED, Transaction, keeps_snapshot, tidied

__all__ = ["ack", "ack_many", "nack", "receive", "send", "send_many"]

SEND = Statement(f"""
    INSERT INTO {{messages}} (payload_type, payload_data, enqueued_at, visible_at)
    SELECT CAST(:payload_type AS text), CAST(:payload_data AS text), t.now, t.now
      FROM (SELECT {SERVER_MILLISECONDS} AS now) AS t
    RETURNING id
""")

SEND_MANY = Statement(f"""
    INSERT INTO {{messages}} (payload_type, payload_data, enqueued_at, visible_at)
    SELECT i.payload_type, i.payload_data, t.now, t.now
      FROM (SELECT {SERVER_MILLISECONDS} AS now) AS t,
        unnest(CAST(:payload_types AS text[]), CAST(:payload_datas AS text[]))
          WITH ORDINALITY AS i (payload_type, payload_data, ord)
     ORDER BY i.ord
    RETURNING id
""")

# Delivers nothing while a delivery has lapsed that nobody has made ready yet: it has to come first. `due` is read
# once, so never more than :max_messages. CASE … <> 0 is for the planner: it takes it to hold for nearly every row, so
# that LIMIT in the order of the index looks cheap, also to a plan that is made while the table is small. LIMIT (SELECT
# ...) and = ANY (ARRAY ...) are for it too: see the transport's TIDY.
RECEIVE = Statement(f"""
    WITH due AS MATERIALIZED (
      SELECT m.id, t.now FROM (SELECT {SERVER_MILLISECONDS} AS now) AS t CROSS JOIN LATERAL (
        SELECT m.id FROM {{messages}} AS m
         WHERE m.ready AND CASE WHEN m.visible_at <= t.now THEN 1 ELSE 0 END <> 0
           AND coalesce((SELECT w.visible_at FROM {{messages}} AS w WHERE NOT w.ready
                          ORDER BY w.visible_at LIMIT 1) > t.now, true)
         ORDER BY m.enqueued_at, m.id LIMIT CAST(:max_messages AS bigint) FOR UPDATE SKIP LOCKED) AS m),
    r AS (
      UPDATE {{messages}} AS m SET visible_at = (SELECT now FROM due LIMIT 1) + CAST(:visibility_timeout AS bigint),
             attempt = m.attempt + 1, receipt_handle = CAST(gen_random_uuid() AS text), ready = false
       WHERE m.id = ANY (ARRAY(SELECT id FROM due))
      RETURNING m.id, m.receipt_handle, m.payload_type, m.payload_data, m.attempt, m.enqueued_at)
    SELECT r.id, r.receipt_handle, r.payload_type, r.payload_data, r.attempt FROM r ORDER BY r.enqueued_at, r.id
""")

# Right also while deliveries have lapsed (of those, the 1,000 that lapsed first): in a caller's transaction, and where
# more lapsed since TIDY.
RECEIVE_LAPSED = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_MILLISECONDS} AS now),
    lapsed AS MATERIALIZED (
      SELECT w.id, w.enqueued_at FROM {{messages}} AS w
       WHERE NOT w.ready AND w.visible_at <= (SELECT now FROM t) ORDER BY w.visible_at
       LIMIT (SELECT {MOST_TIDIED})),
    f AS MATERIALIZED (
      (SELECT a.enqueued_at, a.id FROM {{messages}} AS a WHERE a.ready AND a.visible_at <= (SELECT now FROM t)
        ORDER BY a.enqueued_at, a.id LIMIT (SELECT 10000))
      UNION ALL (SELECT l.enqueued_at, l.id FROM lapsed AS l ORDER BY l.enqueued_at, l.id)
      ORDER BY enqueued_at, id LIMIT 10000),
    due AS MATERIALIZED (
      SELECT m.id FROM f CROSS JOIN LATERAL (
        SELECT m.id FROM {{messages}} AS m WHERE m.id = f.id AND m.visible_at <= (SELECT now FROM t)
           FOR UPDATE SKIP LOCKED) AS m
       LIMIT CAST(:max_messages AS bigint)),
    r AS (
      UPDATE {{messages}} AS m SET visible_at = (SELECT now FROM t) + CAST(:visibility_timeout AS bigint),
             attempt = m.attempt + 1, receipt_handle = CAST(gen_random_uuid() AS text), ready = false
       WHERE m.id = ANY (ARRAY(SELECT id FROM due))
      RETURNING m.id, m.receipt_handle, m.payload_type, m.payload_data, m.attempt, m.enqueued_at)
    SELECT r.id, r.receipt_handle, r.payload_type, r.payload_data, r.attempt FROM r ORDER BY r.enqueued_at, r.id
""")

# Makes deliveries that lapsed ready again, at most 1,000 a call. `seen`: there are some, or there were.
TIDY = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_MILLISECONDS} AS now),
    p AS MATERIALIZED (
      SELECT w.id FROM {{messages}} AS w WHERE NOT w.ready AND w.visible_at <= (SELECT now FROM t)
       ORDER BY w.visible_at LIMIT (SELECT {MOST_TIDIED}) FOR UPDATE SKIP LOCKED),
    u AS (UPDATE {{messages}} AS m SET ready = true WHERE m.id = ANY (ARRAY(SELECT id FROM p)) RETURNING 1)
    SELECT (SELECT count(*) FROM u) AS changed,
           coalesce((SELECT w.visible_at FROM {{messages}} AS w WHERE NOT w.ready
                      ORDER BY w.visible_at LIMIT 1) <= (SELECT now FROM t), false) AS seen
""")

NACK = Statement(f"""
    UPDATE {{messages}} SET visible_at = {SERVER_MILLISECONDS}, ready = true
     WHERE id = CAST(:id AS bigint) AND receipt_handle = CAST(:receipt AS text)
""")


@parallel(operations.send)
def send(tx: Transaction, payload_type: str, payload_data: str) -> int:
    """Add a message that is due at once. Returns its id."""
    [(id,)] = tx.rows(SEND, payload_type=payload_type, payload_data=payload_data, now=tx.given_now())
    return int(id)


@parallel(operations.send_many)
def send_many(tx: Transaction, payloads: Sequence[tuple[str, str]]) -> list[int]:
    """Add messages in order, all at one time. Returns their ids."""
    types, datas = [kind for kind, _ in payloads], [data for _, data in payloads]
    rows = tx.rows(SEND_MANY, payload_types=types, payload_datas=datas, now=tx.given_now())
    return sorted(int(id) for (id,) in rows)


@parallel(operations.receive)
def receive(tx: Transaction, max_messages: int, visibility_timeout: int) -> list[Delivered]:
    """Deliver the first due messages, each under a fresh receipt."""
    binds = {"max_messages": max_messages, "visibility_timeout": visibility_timeout, "now": tx.given_now()}
    rows = tx.rows(RECEIVE, **binds)
    if not rows and (not tx.own or tidied(tx, TIDY)):
        rows = tx.rows(RECEIVE_LAPSED, **binds)
    return [
        (id, receipt, payload_type.encode(), payload_data.encode(), attempt)
        for id, receipt, payload_type, payload_data, attempt in rows
    ]


# Locks the message, if it is there. In a transaction that keeps its snapshot this is refused, as a conflict, when the
# message is another by now than in the snapshot, or not in it yet. UNLOCK takes away what it makes if there is none.
LOCK = Statement("""
    INSERT INTO {messages} AS m (id, payload_type, payload_data, enqueued_at, visible_at)
    VALUES (CAST(:id AS bigint), '', '', 0, 0) ON CONFLICT (id) DO UPDATE SET attempt = m.attempt WHERE false
""")

UNLOCK = Statement("DELETE FROM {messages} WHERE id = CAST(:id AS bigint)")


@parallel(operations.ack)
def ack(tx: Transaction, receipt: Receipt) -> None:
    """Remove a message that is still under this receipt."""
    id, uuid = receipt
    if not tx.change(ACK, id=id, receipt=uuid):
        _refuse_if_there(tx, id, "ack")


@parallel(operations.ack_many)
def ack_many(tx: Transaction, receipts: Sequence[Receipt]) -> None:
    """Remove the messages that are still under these receipts, or none where one was delivered again."""
    with tx.together():
        for receipt in sorted(receipts):  # so that rows are locked in one order
            ack(tx, receipt)


@parallel(operations.nack)
def nack(tx: Transaction, receipt: Receipt) -> None:
    """Make a message that is still under this receipt due at once."""
    id, uuid = receipt
    if not tx.change(NACK, id=id, receipt=uuid, now=tx.given_now()):
        _refuse_if_there(tx, id, "nack")


def _refuse_if_there(tx: Transaction, id: int, operation: str) -> None:
    if keeps_snapshot(tx) and tx.change(LOCK, id=id):
        tx.change(UNLOCK, id=id)
    refuse_if_there(tx, id, operation)
