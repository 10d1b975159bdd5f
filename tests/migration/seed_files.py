"""Files as the seeds' own implementations make and use them: the seed documents' text, run by plain sqlite3.

`tests/golden` holds the text word for word, so that qstore is held against the seeds and not against its copy of them.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.backends import STORES

__all__ = [
    "ADDED",
    "FILLING",
    "MARKERS",
    "NEWEST",
    "NOW",
    "STORES",
    "TABLES",
    "USING",
    "crash",
    "crash_in_commit",
    "create_statements",
    "make",
    "make_newest",
    "rows",
    "run",
    "statements",
]

GOLDEN = Path(__file__).parents[1] / "golden"

MARKERS = {"transport": "transport.v1", "localkv": "localkv.v1", "localqueue": "localqueue.v1"}

NEWEST = {"transport": "transport.v1.1", "localkv": "localkv.v1", "localqueue": "localqueue.v1.1"}
"""The newest revision of each store. The marker stays."""

TABLES = {"transport": ("messages", "groups"), "localkv": ("meta", "kv"), "localqueue": ("meta", "messages")}

ADDED = {"transport": ("turns",), "localkv": (), "localqueue": ("redeliveries", "redelivery_mark")}
"""The tables that its newest revision adds."""

NOW = 1_700_000_000

Script = Sequence[tuple[str, Sequence[Any] | dict[str, Any]]]

SEND = "INSERT INTO messages (payload_type, payload_data, enqueued_at, visible_at, attempt) VALUES (?, ?, ?, ?, 0)"

CLAIM = """
SELECT m.seq, m.group_id, m.event
  FROM messages m JOIN groups g ON g.group_id = m.group_id
  WHERE (m.locked_by IS NULL OR m.lock_expiry < ?)
    AND m.group_id NOT IN (
      SELECT group_id FROM messages WHERE locked_by IS NOT NULL AND lock_expiry >= ?)
    AND g.priority >= ?
  ORDER BY g.last_claimed_at ASC, m.seq ASC LIMIT 1"""

PUT_IF_ABSENT = """
INSERT INTO kv (key, value, expires_at) VALUES (?1, ?2, ?3)
ON CONFLICT(key) DO UPDATE SET value = ?2, expires_at = ?3
WHERE kv.expires_at IS NOT NULL AND kv.expires_at <= ?4"""

RECEIVE = """
UPDATE messages
SET visible_at = ?1, attempt = attempt + 1,
receipt_handle = ?2 WHERE id = ?3
RETURNING payload_type, payload_data, attempt"""


def numbered(*values: object) -> dict[str, object]:
    """Values for `?1`, `?2`, …, which the driver takes for names."""
    return {str(number): value for number, value in enumerate(values, 1)}


FILLING: dict[str, Script] = {
    "transport": [
        ("INSERT INTO messages (group_id, event) VALUES (?, ?)", ("a", '{"id":"1","kind":"k","data":{}}')),
        ("INSERT OR IGNORE INTO groups (group_id, priority) VALUES (?, ?)", ("a", 3)),
        ("INSERT INTO messages (group_id, event) VALUES (?, ?)", ("ünï😀", '{"id":"2","kind":"k","data":{"é":1.0}}')),
        ("INSERT OR IGNORE INTO groups (group_id, priority) VALUES (?, ?)", ("ünï😀", 0)),
        ("UPDATE groups SET last_claimed_at = ? WHERE group_id = ?", (NOW + 0.25, "a")),
        ("UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?", ("w", NOW + 30.125, 1)),
        ("UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?", ("__parked__", NOW + 60.5, 2)),
    ],
    "localkv": [
        ("INSERT INTO kv (key, value, expires_at) VALUES (?, ?, ?)", ("k", b"\x00\xff", None)),
        ("INSERT INTO kv (key, value, expires_at) VALUES (?, ?, ?)", ("expired", b"", 1)),
        ("INSERT INTO kv (key, value, expires_at) VALUES (?, ?, ?)", ("ünï😀", b"v" * 9000, 4_000_000_000_000)),
    ],
    "localqueue": [
        (
            SEND,
            ("json", '{"b":1,"a":1.0}', NOW * 1000, NOW * 1000),
        ),
        (
            SEND,
            ("text", "é😀", NOW * 1000, NOW * 1000),
        ),
        (
            "UPDATE messages SET visible_at = ?, attempt = attempt + 1, receipt_handle = ? WHERE id = ?",
            (NOW * 1000 + 30_000, "9d3b1c54-0000-4000-8000-000000000000", 1),
        ),
    ],
}
"""What the seeds' implementations write: rows in every state."""

USING: dict[str, Script] = {
    "transport": [
        ("INSERT INTO messages (group_id, event) VALUES (?, ?)", ("later", "{}")),
        ("INSERT OR IGNORE INTO groups (group_id, priority) VALUES (?, ?)", ("later", 4)),
        (CLAIM, (NOW, NOW, 0)),
        ("DELETE FROM messages WHERE seq = ?", (3,)),
        (
            "DELETE FROM groups WHERE group_id = ? AND NOT EXISTS (SELECT 1 FROM messages WHERE group_id = ?)",
            ("later", "later"),
        ),
    ],
    "localkv": [
        (PUT_IF_ABSENT, numbered("expired", b"taken over", None, NOW)),
        ("SELECT key, value FROM kv WHERE key >= ? ORDER BY key", ("",)),
        ("DELETE FROM kv WHERE key = ?", ("expired",)),
    ],
    "localqueue": [
        ("SELECT id FROM messages WHERE visible_at <= ? ORDER BY enqueued_at, id LIMIT ?", (NOW * 1000, 10)),
        (RECEIVE, numbered(NOW * 1000 + 30_000, "uuid", 2)),
        ("DELETE FROM messages WHERE id = ? AND receipt_handle = ?", (2, "uuid")),
    ],
}
"""The seeds' own statements on what `FILLING` wrote."""


def statements(store: str) -> list[str]:
    """The seed's DDL, a statement each (`;` at a line's end, or an empty line, is where one ends)."""
    text = (GOLDEN / f"{store}_v1.sql").read_text(encoding="utf-8")
    return [each for each in re.split(r";\n|\n\n", text.rstrip("\n") + "\n") if each.strip()]


def create_statements(store: str) -> list[str]:
    """The seed's CREATE statements as SQLite keeps them: without IF NOT EXISTS."""
    return [each.strip().replace(" IF NOT EXISTS", "", 1) for each in statements(store) if each.startswith("CREATE")]


def make(path: Path, store: str, *, journal_mode: str = "delete", filled: bool = False) -> Path:
    """A file as the seed's implementation makes it, closed in good order."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal_mode}").fetchall()
        for statement in statements(store):
            connection.execute(statement)
        for statement, values in FILLING[store] if filled else ():
            connection.execute(statement, values)
    return path


def make_newest(path: Path, store: str) -> Path:
    """A file as the newest revision makes it: the seed's, and what `tests/golden` says was added."""
    make(path, store)
    if ADDED[store]:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((GOLDEN / f"{store}_v1_1.sql").read_text(encoding="utf-8"))
    return path


def run(path: Path, *script: str, journal_mode: str = "delete") -> Path:
    """Run statements with plain sqlite3, each in a transaction of its own."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal_mode}").fetchall()
        for statement in script:
            connection.execute(statement).fetchall()
    return path


def crash(path: Path, *script: str, filled: str = "") -> Path:
    """Run statements in WAL mode in a process that dies: what it committed waits in a -wal beside the file."""
    process = get_context("spawn").Process(target=_crash, args=(str(path), script, filled))
    process.start()
    process.join(60)
    assert process.exitcode == 7
    assert os.path.getsize(f"{path}-wal") > 0
    return path


def _crash(path: str, script: Sequence[str], filled: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    for statement in script:
        connection.execute(statement).fetchall()
    for statement, values in FILLING[filled] if filled else ():
        connection.execute(statement, values)
    os._exit(7)


def crash_in_commit(path: Path, table: str) -> Path:
    """Insert rows into a table in journal mode DELETE in a process that dies when a part of them is in the file."""
    process = get_context("spawn").Process(target=_crash_in_commit, args=(str(path), table))
    process.start()
    process.join(60)
    assert process.exitcode == 7
    assert os.path.getsize(f"{path}-journal") > 0
    return path


def _crash_in_commit(path: str, table: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(f"INSERT INTO {table} VALUES (?, zeroblob(3000), NULL)", [(str(n),) for n in range(200)])
    os._exit(7)


def rows(path: Path, store: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the store's tables, as stored."""
    with closing(sqlite3.connect(path)) as connection:
        return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES[store]}
