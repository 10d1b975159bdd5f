"""The queue's statements. All times are epoch milliseconds; due means `visible_at <= now`."""

from qstore.statement import Statement

SEND = Statement("""
    INSERT INTO {messages} (payload_type, payload_data, enqueued_at, visible_at, attempt)
    VALUES (:payload_type, :payload_data, :now, :now, 0)
""")

DUE = Statement("SELECT id FROM {messages} WHERE visible_at <= :now ORDER BY enqueued_at, id LIMIT :max_messages")

# idx_messages_visible covers this too, but there the fresh ones would be gone through.
_UNMARKED = """{messages} INDEXED BY {idx_messages_again} WHERE visible_at <> enqueued_at
        AND visible_at > coalesce((SELECT visible_at FROM {redelivery_mark}), -9e999) AND visible_at <= :now"""

# The same ids where the store has `redeliveries` (localqueue.v1.1), and none as long as the mark is to be moved first.
# Both arms are in order, and they are merged: no temporary b-tree. Rows are looked up by a scalar subquery: for a join,
# an ANALYZE would have SQLite build a Bloom filter of the whole table.
DUE_FLAT = Statement(f"""
    SELECT id FROM (
      SELECT enqueued_at, id FROM {{messages}} INDEXED BY {{idx_messages_fresh}}
        WHERE visible_at = enqueued_at AND enqueued_at <= :now
      UNION ALL
      SELECT r.enqueued_at, r.id FROM {{redeliveries}} AS r INDEXED BY {{idx_redeliveries}}
        WHERE (SELECT m.visible_at FROM {{messages}} AS m WHERE m.id = r.id) <= :now
      ORDER BY enqueued_at, id LIMIT :max_messages)
    WHERE NOT EXISTS (SELECT 1 FROM {{redelivery_mark}} WHERE visible_at > :now)
      AND NOT EXISTS (SELECT 1 FROM {_UNMARKED})
""")

# Does the mark lie in the future; is there more that is due again than it covers?
UNMARKED = Statement(f"""
    SELECT EXISTS (SELECT 1 FROM {{redelivery_mark}} WHERE visible_at > :now), EXISTS (SELECT 1 FROM {_UNMARKED})
""")

_MARK = Statement("INSERT OR REPLACE INTO {redelivery_mark} (id, visible_at) VALUES (0, :now)")

MARK_BACK = (
    Statement("""
        DELETE FROM {redeliveries}
          WHERE (SELECT m.visible_at FROM {messages} AS m WHERE m.id = {redeliveries}.id) > :now
    """),
    _MARK,
)

MARK_ON = (
    Statement(f"INSERT OR REPLACE INTO {{redeliveries}} (id, enqueued_at) SELECT id, enqueued_at FROM {_UNMARKED}"),
    _MARK,
)

# Payloads are read as bytes, so that one that is not UTF-8 fails when it is decoded and not here.
RECEIVE = Statement("""
    UPDATE {messages}
    SET visible_at = :visible_at, attempt = attempt + 1,
    receipt_handle = :receipt WHERE id = :id
    RETURNING CAST(payload_type AS BLOB), CAST(payload_data AS BLOB), attempt
""")

ACK = Statement("DELETE FROM {messages} WHERE id = :id AND receipt_handle = :receipt")

NACK = Statement("UPDATE {messages} SET visible_at = :now WHERE id = :id AND receipt_handle = :receipt")

EXISTS = Statement("SELECT 1 FROM {messages} WHERE id = :id")

PURGE = Statement("DELETE FROM {messages}")
