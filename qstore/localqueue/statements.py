"""The queue's statements. All times are epoch milliseconds; due means `visible_at <= now`."""

from qstore.statement import Statement

SEND = Statement("""
    INSERT INTO {messages} (payload_type, payload_data, enqueued_at, visible_at, attempt)
    VALUES (:payload_type, :payload_data, :now, :now, 0)
""")

DUE = Statement("SELECT id FROM {messages} WHERE visible_at <= :now ORDER BY enqueued_at, id LIMIT :max_messages")

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
