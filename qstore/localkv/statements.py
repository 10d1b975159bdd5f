"""The key-value store's statements. Times are epoch milliseconds; expired means `expires_at <= now`."""

from qstore.statement import Statement

# What others wrote in place of a number is later than any number, to SQLite and so here: it never expires. Numbers are
# less than any text.
_EXPIRES_AT = "CASE WHEN expires_at < '' THEN expires_at END"

GET = Statement(f"SELECT CAST(value AS BLOB), {_EXPIRES_AT} FROM {{kv}} WHERE key = :key")

EXISTS = Statement(f"SELECT {_EXPIRES_AT} FROM {{kv}} WHERE key = :key")

DELETE_EXPIRED = Statement("DELETE FROM {kv} WHERE key = :key AND expires_at IS NOT NULL AND expires_at <= :now")

PUT = Statement("""
    INSERT INTO {kv} (key, value, expires_at) VALUES (:key, :value, :expires_at)
    ON CONFLICT(key) DO UPDATE SET value = :value, expires_at = :expires_at
""")

PUT_IF_ABSENT = Statement("""
    INSERT INTO {kv} (key, value, expires_at) VALUES (:key, :value, :expires_at)
    ON CONFLICT(key) DO UPDATE SET value = :value, expires_at = :expires_at
    WHERE {kv}.expires_at IS NOT NULL AND {kv}.expires_at <= :now
""")

DELETE = Statement("DELETE FROM {kv} WHERE key = :key")

PURGE_EXPIRED = Statement("DELETE FROM {kv} WHERE expires_at IS NOT NULL AND expires_at <= :now")

# A range ends before the first key that no longer starts with the prefix. Where there is no such key (the empty prefix,
# or nothing but U+10FFFF) `:end` is an empty BLOB: SQLite sorts every text before every BLOB.
# Keys are read as bytes, so that one that is not UTF-8 does not keep the others back.
SCAN = Statement(f"""
    SELECT CAST(key AS BLOB), CAST(value AS BLOB), {_EXPIRES_AT} FROM {{kv}}
    WHERE key >= :prefix AND key < :end AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY key LIMIT :limit OFFSET :offset
""")

# Of the keys before an offset: how many there are, the last one, and when the first of them expires.
SKIP = Statement(f"""
    SELECT count(*), CAST(max(key) AS BLOB), min(expires_at) FROM (
      SELECT key, {_EXPIRES_AT} AS expires_at FROM {{kv}}
      WHERE key >= :prefix AND key < :end AND (expires_at IS NULL OR expires_at > :now)
      ORDER BY key LIMIT :offset)
""")

SCAN_AFTER = Statement(f"""
    SELECT CAST(key AS BLOB), CAST(value AS BLOB), {_EXPIRES_AT} FROM {{kv}}
    WHERE key > CAST(:after AS TEXT) AND key < :end AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY key LIMIT :limit
""")
