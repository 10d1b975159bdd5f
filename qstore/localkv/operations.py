"""The key-value store's logic, over a transaction. Times are epoch milliseconds. Nothing here commits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qstore.clock import LATEST_MILLISECONDS, milliseconds
from qstore.localkv import statements
from qstore.transaction import Memory, Row, Transaction

__all__ = [
    "Looked",
    "delete",
    "delete_expired",
    "exists",
    "first_after",
    "get",
    "page",
    "purge_expired",
    "put",
    "put_if_absent",
    "put_many",
    "scan",
    "scan_after",
]

Looked = tuple[bytes | None, bool]
"""The live value or None, and whether an expired row was met."""

Items = list[tuple[bytes, bytes]]
"""Keys as they are stored, which need not be UTF-8 where others have written them, and values."""


def get(tx: Transaction, key: str) -> Looked:
    """Look a key up. An expired one reads as absent."""
    row = tx.row(statements.GET, key=key)
    if row is None:
        return None, False
    value, expires_at = row
    if expires_at is not None and _expired(tx, expires_at):
        return None, True
    return value, False


def exists(tx: Transaction, key: str) -> tuple[bool, bool]:
    """Whether a key is live, and whether an expired row was met."""
    row = tx.row(statements.EXISTS, key=key)
    if row is None:
        return False, False
    expired = row[0] is not None and _expired(tx, row[0])
    return not expired, expired


def delete_expired(tx: Transaction, key: str) -> None:
    """Delete a key if it is expired by now: since it was looked at, somebody may have put it again."""
    tx.change(statements.DELETE_EXPIRED, key=key, now=milliseconds(tx.now()))


def put(tx: Transaction, key: str, value: bytes, ttl: int | None) -> None:
    """Insert or overwrite, in one statement."""
    tx.change(statements.PUT, key=key, value=value, expires_at=_expiry(milliseconds(tx.now()), ttl))


def put_if_absent(tx: Transaction, key: str, value: bytes, ttl: int | None) -> bool:
    """Win if the key is absent or expired. One statement, so exactly one of any number of callers wins."""
    now = milliseconds(tx.now())
    return tx.change(statements.PUT_IF_ABSENT, key=key, value=value, expires_at=_expiry(now, ttl), now=now) == 1


def put_many(tx: Transaction, items: Sequence[tuple[str, bytes]], ttl: int | None) -> None:
    """Insert or overwrite all items, with one expiry."""
    expires_at = _expiry(milliseconds(tx.now()), ttl)
    for key, value in items:
        tx.change(statements.PUT, key=key, value=value, expires_at=expires_at)


def delete(tx: Transaction, key: str) -> None:
    """Delete a key, live or expired."""
    tx.change(statements.DELETE, key=key)


def purge_expired(tx: Transaction) -> int:
    """Delete what is expired. Returns how many keys that were."""
    return tx.change(statements.PURGE_EXPIRED, now=milliseconds(tx.now()))


def scan(tx: Transaction, prefix: str, offset: int, limit: int) -> Items:
    """Live items whose keys start with the prefix, in the order of the keys, from the offset on."""
    return _items(_scan(tx, prefix, offset, limit, milliseconds(tx.now())))


def scan_after(tx: Transaction, prefix: str, after: bytes, limit: int) -> Items:
    """Live items whose keys start with the prefix and come after a key, in the order of the keys."""
    return _items(_scan_after(tx, prefix, after, limit, milliseconds(tx.now())))


def page(tx: Transaction, prefix: str, offset: int, limit: int) -> Items:
    """As `scan`, and remembers where the page ends: a next one that finds all unchanged begins there."""
    with tx.unchanged() as memory:
        now = milliseconds(tx.now())
        if memory is None:
            return _items(_scan(tx, prefix, offset, limit, now))
        return _items(_page(tx, memory, prefix, offset, limit, now))


def _page(tx: Transaction, memory: Memory, prefix: str, offset: int, limit: int, now: int) -> Sequence[Row]:
    """A page, by the key at which the one before ended.

    An entry (prefix, offset) -> (after, since, until) says: at every moment since <= now < until, exactly `offset` live
    keys of the prefix are <= after. It holds for as long as nothing is changed, and so long the memory keeps it; what
    was expired by `since` still is, and `until` is when the first of the keys that were counted expires.
    """
    until = math.inf
    if not offset:
        rows = _scan(tx, prefix, 0, limit, now)
    else:
        after, since, until = memory.get((prefix, offset), (b"", math.inf, math.inf))
        if not since <= now < until:
            found = tx.row(
                statements.SKIP, prefix=prefix, end=_end(prefix), now=now, offset=min(offset, LATEST_MILLISECONDS)
            )
            count, after, expires_at = found or (0, b"", None)
            if count < offset:
                return ()
            until = _moment(expires_at)
            memory[prefix, offset] = after, now, until
        rows = _scan_after(tx, prefix, after, limit, now)
    if len(rows) == limit > 1:  # there is a next page, and it begins with the last of these
        until = min(until, *(_moment(row[2]) for row in rows[:-1]))
        memory[prefix, offset + limit - 1] = rows[-2][0], now, until
    return rows


def _scan(tx: Transaction, prefix: str, offset: int, limit: int, now: int) -> Sequence[Row]:
    return tx.rows(
        statements.SCAN,
        prefix=prefix,
        end=_end(prefix),
        now=now,
        offset=min(offset, LATEST_MILLISECONDS),
        limit=limit,
    )


def _scan_after(tx: Transaction, prefix: str, after: bytes, limit: int, now: int) -> Sequence[Row]:
    return tx.rows(statements.SCAN_AFTER, after=after, end=_end(prefix), now=now, limit=limit)


def _items(rows: Sequence[Row]) -> Items:
    return [(key, value) for key, value, _ in rows]


def _moment(expires_at: float | None) -> float:
    return math.inf if expires_at is None else expires_at


def _expired(tx: Transaction, expires_at: float) -> bool:
    return expires_at <= milliseconds(tx.now())


def _expiry(now: int, ttl: int | None) -> int | None:
    return None if ttl is None else min(now + ttl, LATEST_MILLISECONDS)


def _end(prefix: str) -> str | bytes:
    """The end of a prefix's range; an empty BLOB, which SQLite sorts after every text, if there is none."""
    end = first_after(prefix)
    return b"" if end is None else end


def first_after(prefix: str) -> str | None:
    """The first text after everything that starts with the prefix; None if there is none.

    UTF-8 keeps the order of code points, so it is the prefix with its last code point raised by one.
    """
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    last = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if last == 0xD800 else last)  # the surrogates between are no text
