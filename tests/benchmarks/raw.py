"""The yardstick: the seeds' own statements in plain sqlite3, on one long-lived connection with stock settings.

They are `tests.concurrency.seed`'s, without what that needs to be stopped between them.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from uuid import uuid4

from tests.concurrency.seed import SeedLocalKv, SeedLocalQueue, SeedTransport

__all__ = ["EVENT", "RawKv", "RawQueue", "RawTransport", "connected"]

EVENT = '{"id":"0123456789abcdef0123456789abcdef","kind":"placed","data":{"total":40,"customer":"anna"}}'


def connected(path: Path, durability: str = "full") -> sqlite3.Connection:
    """A connection as the seeds open it."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout=5000")
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute(f"PRAGMA synchronous={durability}")
    return connection


class _Raw:
    DDL: tuple[str, ...]

    def __init__(self, path: Path, durability: str = "full") -> None:
        self.connection = connected(path, durability)
        for statement in self.DDL:
            self.connection.execute(statement)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class RawTransport(_Raw):
    """The transport's seed as it is written: publish and ack commit twice."""

    DDL = SeedTransport.DDL

    def publish(self, group_id: str, event: str) -> None:
        """Two inserts."""
        self.connection.execute("INSERT INTO messages (group_id, event) VALUES (?, ?)", (group_id, event))
        self.connection.execute("INSERT OR IGNORE INTO groups (group_id, priority) VALUES (?, ?)", (group_id, 0))

    def claim(self, worker_id: str, visibility: float) -> tuple[int, str, str] | None:
        """The claim, in its transaction."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        now = time.time()
        row: tuple[int, str, str] | None = execute(SeedTransport.SELECT, (now, now, 0)).fetchone()
        if row is None:
            execute("COMMIT")
            return None
        seq, group_id, _ = row
        execute("UPDATE groups SET last_claimed_at = ? WHERE group_id = ?", (now, group_id))
        execute("UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?", (worker_id, now + visibility, seq))
        execute("COMMIT")
        return row

    def ack(self, seq: int, group_id: str) -> None:
        """Two deletes."""
        self.connection.execute("DELETE FROM messages WHERE seq = ?", (seq,))
        self.connection.execute(
            "DELETE FROM groups WHERE group_id = ? AND NOT EXISTS (SELECT 1 FROM messages WHERE group_id = ?)",
            (group_id, group_id),
        )

    def cycle(self, times: int, event: str = EVENT, groups: int = 1) -> None:
        """Publish, claim and ack, in one group after the other."""
        for number in range(times):
            self.publish(f"group{number % groups}", event)
            claimed = self.claim("worker", 30)
            assert claimed is not None
            self.ack(*claimed[:2])


class RawKv(_Raw):
    """The key-value store's seed."""

    DDL = SeedLocalKv.DDL

    def get(self, key: str) -> bytes | None:
        """The read, and the look at its expiry."""
        row = self.connection.execute("SELECT value, expires_at FROM kv WHERE key = ?", (key,)).fetchone()
        if row is None or (row[1] is not None and row[1] <= int(time.time() * 1000)):
            return None
        value: bytes = row[0]
        return value

    def put(self, key: str, value: bytes) -> None:
        """The upsert."""
        self.connection.execute(
            "INSERT INTO kv (key, value, expires_at) VALUES (?, ?, ?)"
            " ON CONFLICT(key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at",
            (key, value, None),
        )

    def scan(self, prefix: str, offset: int, limit: int) -> list[tuple[str, bytes]]:
        """A page, by the offset."""
        return self.connection.execute(
            "SELECT key, value FROM kv WHERE key >= ? AND (expires_at IS NULL OR expires_at > ?)"
            " ORDER BY key LIMIT ? OFFSET ?",
            (prefix, int(time.time() * 1000), limit, offset),
        ).fetchall()


class RawQueue(_Raw):
    """The queue's seed."""

    DDL = SeedLocalQueue.DDL

    def send(self, payload: str) -> None:
        """One insert."""
        now = int(time.time() * 1000)
        self.connection.execute(
            "INSERT INTO messages (payload_type, payload_data, enqueued_at, visible_at, attempt)"
            " VALUES (?, ?, ?, ?, 0)",
            ("text", payload, now, now),
        )

    def receive(self, max_messages: int) -> list[tuple[int, str, str]]:
        """The due ones' ids, and an update each, in one transaction."""
        execute = self.connection.execute
        received = []
        execute("BEGIN IMMEDIATE")
        now = int(time.time() * 1000)
        due = "SELECT id FROM messages WHERE visible_at <= ? ORDER BY enqueued_at, id LIMIT ?"
        for (id,) in execute(due, (now, max_messages)).fetchall():
            uuid = str(uuid4())
            [(_, payload, _)] = execute(
                "UPDATE messages SET visible_at = ?, attempt = attempt + 1, receipt_handle = ? WHERE id = ?"
                " RETURNING payload_type, payload_data, attempt",
                (now + 30_000, uuid, id),
            ).fetchall()
            received.append((id, uuid, payload))
        execute("COMMIT")
        return received

    def ack(self, id: int, uuid: str) -> None:
        """The delete, in a transaction with what is looked up when it finds nothing."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute("DELETE FROM messages WHERE id = ? AND receipt_handle = ?", (id, uuid))
        self.connection.execute("COMMIT")

    def cycle(self, times: int) -> None:
        """Send, receive and ack."""
        for _ in range(times):
            self.send(EVENT)
            [(id, uuid, _payload)] = self.receive(1)
            self.ack(id, uuid)
