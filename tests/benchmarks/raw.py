"""The yardstick: the seeds' own statements in plain sqlite3, on one long-lived connection with stock settings."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from tests.concurrency.seed import SeedTransport

__all__ = ["EVENT", "RawTransport", "connected"]

EVENT = '{"id":"0123456789abcdef0123456789abcdef","kind":"placed","data":{"total":40,"customer":"anna"}}'


def connected(path: Path, durability: str = "full") -> sqlite3.Connection:
    """A connection as the seeds open it."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout=5000")
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute(f"PRAGMA synchronous={durability}")
    return connection


class RawTransport:
    """The transport's seed as it is written: publish and ack commit twice."""

    def __init__(self, path: Path, durability: str = "full") -> None:
        self.connection = connected(path, durability)
        for statement in SeedTransport.DDL:
            self.connection.execute(statement)

    def publish(self, group_id: str, event: str) -> None:
        """Two inserts."""
        self.connection.execute("INSERT INTO messages (group_id, event) VALUES (?, ?)", (group_id, event))
        self.connection.execute("INSERT OR IGNORE INTO groups (group_id, priority) VALUES (?, ?)", (group_id, 0))

    def claim(self, worker_id: str, visibility: float) -> tuple[int, str, str]:
        """The claim, in its transaction."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        now = time.time()
        seq, group_id, event = execute(SeedTransport.SELECT, (now, now, 0)).fetchone()
        execute("UPDATE groups SET last_claimed_at = ? WHERE group_id = ?", (now, group_id))
        execute("UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?", (worker_id, now + visibility, seq))
        execute("COMMIT")
        return seq, group_id, event

    def ack(self, seq: int, group_id: str) -> None:
        """Two deletes."""
        self.connection.execute("DELETE FROM messages WHERE seq = ?", (seq,))
        self.connection.execute(
            "DELETE FROM groups WHERE group_id = ? AND NOT EXISTS (SELECT 1 FROM messages WHERE group_id = ?)",
            (group_id, group_id),
        )

    def cycle(self, times: int) -> None:
        """Publish, claim and ack."""
        for _ in range(times):
            self.publish("group", EVENT)
            seq, group_id, _event = self.claim("worker", 30)
            self.ack(seq, group_id)
