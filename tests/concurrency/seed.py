"""The seeds' own statements, word for word, in plain sqlite3: the yardstick that qstore is held against.

Where a seed commits twice, the two halves are methods of their own, so that a crash between them can be made.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

Clock = Callable[[], float]


class SeedLease(NamedTuple):
    seq: int
    group_id: str
    event: str
    lock_expiry: float


class SeedMessage(NamedTuple):
    id: int
    receipt_handle: str
    attempt: int
    payload_type: str
    payload_data: str


class StaleInSeed(Exception):
    """The queue's seed rejects a stale receipt with QUEUE_OPERATION_FAILED."""


class _Seed:
    DDL: tuple[str, ...]

    def __init__(self, path: Path, clock: Clock = time.time) -> None:
        self.clock = clock
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA busy_timeout=5000")

    @classmethod
    def create(cls, path: Path, clock: Clock = time.time) -> Self:
        """Open a file and make its tables, as the seed does."""
        seed = cls(path, clock)
        seed.connection.execute("PRAGMA journal_mode=WAL").fetchall()
        for statement in cls.DDL:
            seed.connection.execute(statement)
        return seed

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _immediate(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")


class SeedTransport(_Seed):
    """SqliteTransport."""

    DDL = (
        """CREATE TABLE IF NOT EXISTS messages (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,  -- monotonic id: FIFO order + the Lease handle
  group_id     TEXT NOT NULL,                      -- the execution id (the exclusivity group)
  event        TEXT NOT NULL,                      -- the Event JSON (event.model_dump_json())
  locked_by    TEXT,                               -- worker id while leased / "__parked__" / NULL when free
  lock_expiry  REAL                                -- epoch when the lease (or park) ends; NULL when free
)""",
        """CREATE TABLE IF NOT EXISTS groups (
  group_id       TEXT PRIMARY KEY,    -- one row per group that has messages
  last_claimed_at REAL NOT NULL DEFAULT 0.0,  -- epoch of last claim (0 = never claimed)
  priority        INT  NOT NULL DEFAULT 0     -- set on first publish; 0–4
)""",  # noqa: RUF001  the seed's own dash
    )
    SELECT = """SELECT m.seq, m.group_id, m.event
  FROM messages m JOIN groups g ON g.group_id = m.group_id
  WHERE (m.locked_by IS NULL OR m.lock_expiry < ?)          -- message free / lease lapsed (recovery)
    AND m.group_id NOT IN (                                  -- group has nothing in flight
      SELECT group_id FROM messages WHERE locked_by IS NOT NULL AND lock_expiry >= ?)
    AND g.priority >= ?                                      -- priority floor (min_priority)
  ORDER BY g.last_claimed_at ASC, m.seq ASC LIMIT 1         -- oldest-claimed group first (round-robin)"""

    def publish(self, group_id: str, event: str, priority: int = 0) -> int:
        seq = self.publish_message(group_id, event)
        self.publish_group(group_id, priority)
        return seq

    def publish_message(self, group_id: str, event: str) -> int:
        cursor = self.connection.execute("INSERT INTO messages (group_id, event) VALUES (?, ?)", (group_id, event))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def publish_group(self, group_id: str, priority: int) -> None:
        self.connection.execute("INSERT OR IGNORE INTO groups (group_id, priority) VALUES (?, ?)", (group_id, priority))

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> SeedLease | None:
        with self._immediate():
            now = self.clock()
            row = self.select(now, min_priority)
            if row is None:
                return None
            seq, group_id, event = row
            self.connection.execute("UPDATE groups SET last_claimed_at = ? WHERE group_id = ?", (now, group_id))
            self.connection.execute(
                "UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?", (worker_id, now + visibility, seq)
            )
        return SeedLease(seq, group_id, event, now + visibility)

    def select(self, now: float, min_priority: int) -> tuple[int, str, str] | None:
        """What the claim would take."""
        rows = self.connection.execute(self.SELECT, (now, now, min_priority)).fetchall()
        return rows[0] if rows else None

    def ack(self, lease: SeedLease) -> None:
        self.ack_message(lease.seq)
        self.ack_group(lease.group_id)

    def ack_message(self, seq: int) -> None:
        self.connection.execute("DELETE FROM messages WHERE seq = ?", (seq,))

    def ack_group(self, group_id: str) -> None:
        self.connection.execute(
            "DELETE FROM groups WHERE group_id = ? AND NOT EXISTS (SELECT 1 FROM messages WHERE group_id = ?)",
            (group_id, group_id),
        )

    def nack(self, lease: SeedLease, delay: float = 0) -> None:
        self.connection.execute(
            "UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?",
            ("__parked__", self.clock() + delay, lease.seq) if delay > 0 else (None, None, lease.seq),
        )


class ForgivingSeedTransport(SeedTransport):
    """The seed with the one exception that qstore makes: a `last_claimed_at` that lies in the future counts as now.

    It does so from the first claim that meets it on. If it counted as each claim's own now, its group would lose to a
    busy one for as long as ever.
    """

    SELECT = SeedTransport.SELECT.replace("ORDER BY g.last_claimed_at ASC", "ORDER BY MIN(g.last_claimed_at, ?) ASC")

    def select(self, now: float, min_priority: int) -> tuple[int, str, str] | None:
        rows = self.connection.execute(self.SELECT, (now, now, min_priority, now)).fetchall()
        return rows[0] if rows else None

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> SeedLease | None:
        now = self.clock()
        self.connection.execute("UPDATE groups SET last_claimed_at = ? WHERE last_claimed_at > ?", (now, now))
        return super().claim(worker_id, visibility, min_priority)


class SeedLocalKv(_Seed):
    """LocalKv."""

    DDL = (
        "CREATE TABLE IF NOT EXISTS meta (\nkey TEXT PRIMARY KEY,\nvalue TEXT NOT NULL\n);",
        "INSERT OR IGNORE INTO meta (key, value) VALUES ('format', 'localkv.v1');",
        """CREATE TABLE IF NOT EXISTS kv (
key TEXT PRIMARY KEY,
value BLOB NOT NULL,
expires_at INTEGER -- unix epoch MILLISECONDS, NULL = no expiry
);""",
    )

    def put_if_absent(self, key: str, value: bytes, expires_at: int | None = None) -> bool:
        changed = self.connection.execute(
            """INSERT INTO kv (key, value, expires_at) VALUES (?1, ?2, ?3)
ON CONFLICT(key) DO UPDATE SET value = ?2, expires_at = ?3
WHERE kv.expires_at IS NOT NULL AND kv.expires_at <= ?4;""",
            numbered(key, value, expires_at, int(self.clock() * 1000)),
        )
        return changed.rowcount == 1


class SeedLocalQueue(_Seed):
    """LocalQueue."""

    DDL = (
        "CREATE TABLE IF NOT EXISTS meta (\nkey TEXT PRIMARY KEY,\nvalue TEXT NOT NULL\n);",
        "INSERT OR IGNORE INTO meta (key, value) VALUES ('format', 'localqueue.v1');",
        """CREATE TABLE IF NOT EXISTS messages (
id INTEGER PRIMARY KEY AUTOINCREMENT,
payload_type TEXT NOT NULL, -- "json" | "text"
payload_data TEXT NOT NULL, -- serialized JSON for "json", raw string for "text"
enqueued_at INTEGER NOT NULL, -- unix epoch MILLISECONDS
visible_at INTEGER NOT NULL, -- unix epoch MILLISECONDS; due when <= now
attempt INTEGER NOT NULL DEFAULT 0, -- delivery count, incremented per receive
receipt_handle TEXT -- UUID of the CURRENT delivery, NULL if never delivered
);""",
        "CREATE INDEX IF NOT EXISTS idx_messages_visible ON messages (visible_at, enqueued_at, id);",
    )

    def now(self) -> int:
        return int(self.clock() * 1000)

    def send(self, payload_data: str, payload_type: str = "text") -> int:
        cursor = self.connection.execute(
            """INSERT INTO messages (payload_type, payload_data, enqueued_at, visible_at, attempt)
VALUES (?1, ?2, ?3, ?3, 0);""",
            numbered(payload_type, payload_data, self.now()),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def receive(self, max_messages: int = 1, visibility_timeout: float = 30) -> list[SeedMessage]:
        received = []
        with self._immediate():
            now = self.now()
            due = "SELECT id FROM messages WHERE visible_at <= ?1 ORDER BY enqueued_at,\nid LIMIT ?2"
            for (id,) in self.connection.execute(due, numbered(now, max_messages)).fetchall():
                uuid = str(uuid4())
                [(payload_type, payload_data, attempt)] = self.connection.execute(
                    """UPDATE messages
SET visible_at = ?1, attempt = attempt + 1,
receipt_handle = ?2 WHERE id = ?3
RETURNING payload_type, payload_data, attempt;""",
                    numbered(now + int(visibility_timeout * 1000), uuid, id),
                ).fetchall()
                received.append(SeedMessage(id, f"{id}:{uuid}", attempt, payload_type, payload_data))
        return received

    def ack(self, receipt_handle: str) -> None:
        self._settle("DELETE FROM messages WHERE id = ?1 AND receipt_handle = ?2;", receipt_handle)

    def nack(self, receipt_handle: str) -> None:
        self._settle(
            "UPDATE messages SET visible_at = ?3 WHERE id = ?1 AND receipt_handle = ?2;", receipt_handle, self.now()
        )

    def purge(self) -> int:
        return self.connection.execute("DELETE FROM messages").rowcount

    def _settle(self, statement: str, receipt_handle: str, *more: int) -> None:
        id, _, uuid = receipt_handle.partition(":")
        if not (id.isdecimal() and uuid):
            return
        with self._immediate():
            if self.connection.execute(statement, numbered(int(id), uuid, *more)).rowcount:
                return
            if self.connection.execute("SELECT 1 FROM messages WHERE id = ?1", numbered(int(id))).fetchall():
                raise StaleInSeed(receipt_handle)


def numbered(*values: object) -> dict[str, object]:
    """Values for `?1`, `?2`, …, which the driver takes for names."""
    return {str(number): value for number, value in enumerate(values, 1)}


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    """What a query finds in a file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()
