"""The key-value store on PostgreSQL: the same operations, each one statement, at the server's time.

What is not here is as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from qstore.localkv import operations
from qstore.localkv.operations import Items, Looked, first_after
from qstore.parallel import parallel
from qstore.statement import SERVER_MILLISECONDS, Statement
from qstore.transaction import Transaction

__all__ = [
    "delete_expired",
    "exists",
    "get",
    "purge_expired",
    "put",
    "put_if_absent",
    "put_many",
    "scan",
    "scan_after",
]

GET = Statement(f"""
    SELECT value, coalesce(expires_at <= {SERVER_MILLISECONDS}, false) FROM {{kv}} WHERE key = CAST(:key AS text)
""")

EXISTS = Statement(f"""
    SELECT coalesce(expires_at <= {SERVER_MILLISECONDS}, false) FROM {{kv}} WHERE key = CAST(:key AS text)
""")

DELETE_EXPIRED = Statement(f"""
    DELETE FROM {{kv}} WHERE key = CAST(:key AS text) AND expires_at IS NOT NULL AND expires_at <= {SERVER_MILLISECONDS}
""")

# The sum saturates at 2^63-1, which the largest ttl alone may be.
_EXPIRES_AT = """CAST(least(CAST(t.now AS numeric) + CAST(:ttl AS bigint),
      CASE WHEN CAST(:ttl AS bigint) IS NOT NULL THEN 9223372036854775807 END) AS bigint)"""

PUT = Statement(f"""
    INSERT INTO {{kv}} AS kv (key, value, expires_at)
    SELECT CAST(:key AS text), CAST(:value AS bytea), {_EXPIRES_AT} FROM (SELECT {SERVER_MILLISECONDS} AS now) AS t
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
""")

# The condition is asked of the row once it is locked, with the time that it is then: of any number of callers one wins.
PUT_IF_ABSENT = Statement(f"""
    INSERT INTO {{kv}} AS kv (key, value, expires_at)
    SELECT CAST(:key AS text), CAST(:value AS bytea), {_EXPIRES_AT} FROM (SELECT {SERVER_MILLISECONDS} AS now) AS t
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
    WHERE kv.expires_at IS NOT NULL AND kv.expires_at <= {SERVER_MILLISECONDS}
    RETURNING 1
""")

# In the order of the keys, so that two of these never wait for each other.
PUT_MANY = Statement(f"""
    INSERT INTO {{kv}} AS kv (key, value, expires_at)
    SELECT i.key, i.value, {_EXPIRES_AT} FROM (SELECT {SERVER_MILLISECONDS} AS now) AS t,
      unnest(CAST(:keys AS text[]), CAST(:values AS bytea[])) AS i (key, value)
    ORDER BY i.key COLLATE "C"
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
""")

PURGE_EXPIRED = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_MILLISECONDS} AS now)
    DELETE FROM {{kv}} WHERE expires_at IS NOT NULL AND expires_at <= (SELECT now FROM t)
""")

# Where nothing comes after the prefix's range, `:end` comes after every key. (NULL and an OR would not be found by the
# index.) The pairs are for the planner: it takes a range between two bounds that it does not know for a few rows, and
# sorts them, and this for a large part of the table, which it reads in the order of the index.
NO_END = "\U0010ffff" * 129
SCAN = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_MILLISECONDS} AS now)
    SELECT key, value FROM {{kv}}
    WHERE key >= CAST(:prefix AS text) AND (key, 0) < (CAST(:end AS text), 0)
      AND (expires_at IS NULL OR expires_at > (SELECT now FROM t))
    ORDER BY key LIMIT CAST(:limit AS bigint) OFFSET CAST(:offset AS bigint)
""")

SCAN_AFTER = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_MILLISECONDS} AS now)
    SELECT key, value FROM {{kv}}
    WHERE key > CAST(:after AS text) AND (key, 0) < (CAST(:end AS text), 0)
      AND (expires_at IS NULL OR expires_at > (SELECT now FROM t))
    ORDER BY key LIMIT CAST(:limit AS bigint)
""")


@parallel(operations.get)
def get(tx: Transaction, key: str) -> Looked:
    """Look a key up. An expired one reads as absent."""
    row = tx.row(GET, key=key, now=tx.given_now())
    if row is None:
        return None, False
    value, expired = row
    return (None, True) if expired else (bytes(value), False)


@parallel(operations.exists)
def exists(tx: Transaction, key: str) -> tuple[bool, bool]:
    """Whether a key is live, and whether an expired row was met."""
    row = tx.row(EXISTS, key=key, now=tx.given_now())
    return (False, False) if row is None else (not row[0], bool(row[0]))


@parallel(operations.delete_expired)
def delete_expired(tx: Transaction, key: str) -> None:
    """Delete a key if it is expired by now: since it was looked at, somebody may have put it again."""
    tx.change(DELETE_EXPIRED, key=key, now=tx.given_now())


@parallel(operations.put)
def put(tx: Transaction, key: str, value: bytes, ttl: int | None) -> None:
    """Insert or overwrite, in one statement."""
    tx.change(PUT, key=key, value=value, ttl=ttl, now=tx.given_now())


@parallel(operations.put_if_absent)
def put_if_absent(tx: Transaction, key: str, value: bytes, ttl: int | None) -> bool:
    """Win if the key is absent or expired. One statement, so exactly one of any number of callers wins."""
    return tx.row(PUT_IF_ABSENT, key=key, value=value, ttl=ttl, now=tx.given_now()) is not None


@parallel(operations.put_many)
def put_many(tx: Transaction, items: Sequence[tuple[str, bytes]], ttl: int | None) -> None:
    """Insert or overwrite all items, with one expiry. A key that is there twice keeps its last value."""
    last = dict(items)
    tx.change(PUT_MANY, keys=list(last), values=list(last.values()), ttl=ttl, now=tx.given_now())


@parallel(operations.purge_expired)
def purge_expired(tx: Transaction) -> int:
    """Delete what is expired. Returns how many keys that were."""
    return tx.change(PURGE_EXPIRED, now=tx.given_now())


@parallel(operations.page)
@parallel(operations.scan)
def scan(tx: Transaction, prefix: str, offset: int, limit: int) -> Items:
    """Live items whose keys start with the prefix, in the order of the keys, from the offset on."""
    end = first_after(prefix) or NO_END
    rows = tx.rows(SCAN, prefix=prefix, end=end, offset=offset, limit=limit, now=tx.given_now())
    return [(key.encode(), bytes(value)) for key, value in rows]


@parallel(operations.scan_after)
def scan_after(tx: Transaction, prefix: str, after: bytes, limit: int) -> Items:
    """Live items whose keys start with the prefix and come after a key, in the order of the keys."""
    end = first_after(prefix) or NO_END
    rows = tx.rows(SCAN_AFTER, after=after.decode(), end=end, limit=limit, now=tx.given_now())
    return [(key.encode(), bytes(value)) for key, value in rows]
