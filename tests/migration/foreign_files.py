"""Databases that look like a store and are none: the store asked for, the statements that make one, what is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.migration.seed_files import crash, run, statements

__all__ = ["FOREIGN", "Foreign", "changed", "in_state"]


@dataclass(frozen=True)
class Foreign:
    """`found`: words that the refusal must have in what it says it found."""

    store: str
    script: Sequence[str]
    found: str


def in_state(path: Path, foreign: Foreign, state: str) -> Path:
    """The foreign file at rest in a journal mode, or with what a crashed process left beside it."""
    if not state.startswith("crashed"):
        return run(path, *foreign.script, journal_mode=state)
    crash(path, *foreign.script)
    if state == "crashed, no -shm":  # as after a copy of the file and its log
        Path(f"{path}-shm").unlink()
    return path


KV_KEY = "key TEXT PRIMARY KEY,\nvalue BLOB"


def changed(store: str, old: str, new: str) -> list[str]:
    """The seed's DDL with one thing changed."""
    script = statements(store)
    done = [each.replace(old, new) for each in script]
    assert done != script
    return done


FOREIGN: dict[str, Foreign] = {
    "a later format": Foreign("localkv", changed("localkv", "localkv.v1", "localkv.v2"), "localkv.v2"),
    "a later format of the queue": Foreign(
        "localqueue", changed("localqueue", "localqueue.v1", "localqueue.v2"), "localqueue.v2"
    ),
    "a later format with nothing but its meta": Foreign(
        "localkv", changed("localkv", "localkv.v1", "localkv.v2")[:2], "localkv.v2"
    ),
    "a marker in capitals": Foreign("localkv", changed("localkv", "localkv.v1", "LOCALKV.V1"), "LOCALKV.V1"),
    "a marker with a space": Foreign("localkv", changed("localkv", "localkv.v1", "localkv.v1 "), "localkv.v1 "),
    "an empty marker": Foreign("localkv", changed("localkv", "'localkv.v1'", "''"), ""),
    "a marker of bytes": Foreign("localkv", changed("localkv", "'localkv.v1'", "x'6c6f63616c6b762e7631'"), "b'"),
    "a queue opened as a key-value store": Foreign("localkv", statements("localqueue"), "localqueue.v1"),
    "a queue opened as a transport": Foreign("transport", statements("localqueue"), "localqueue.v1"),
    "a key-value store opened as a queue": Foreign("localqueue", statements("localkv"), "localkv.v1"),
    "a key-value store opened as a transport": Foreign("transport", statements("localkv"), "localkv.v1"),
    "a transport opened as a key-value store": Foreign("localkv", statements("transport"), "groups"),
    "a transport opened as a queue": Foreign("localqueue", statements("transport"), "seq"),
    "another application's messages": Foreign(
        "transport", ["CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)"], "body"
    ),
    "another application's messages in the queue's place": Foreign(
        "localqueue", ["CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)"], "body"
    ),
    "another application's messages under a name in capitals": Foreign(
        "transport", ["CREATE TABLE Messages (id INTEGER PRIMARY KEY, body TEXT)"], "body"
    ),
    "another application's groups": Foreign("transport", ["CREATE TABLE groups (id INTEGER PRIMARY KEY)"], "id"),
    "another application's meta": Foreign("localkv", ["CREATE TABLE meta (id INTEGER PRIMARY KEY, v TEXT)"], "id"),
    "another application's tables": Foreign("localkv", ["CREATE TABLE orders (id INTEGER PRIMARY KEY)"], "orders"),
    "another application's view": Foreign("transport", ["CREATE VIEW report AS SELECT 1 AS one"], "report"),
    "a column missing": Foreign("transport", changed("transport", "  locked_by    TEXT,", "  "), "lock_expiry"),
    "a column more": Foreign(
        "localkv", changed("localkv", "expires_at INTEGER", "extra TEXT, expires_at INTEGER"), "extra"
    ),
    "a generated column more": Foreign(
        "localkv", changed("localkv", "expires_at INTEGER", "size INT AS (length(value)), expires_at INTEGER"), "size"
    ),
    "a column of another name": Foreign("localqueue", changed("localqueue", "visible_at", "due_at"), "due_at"),
    "a column of another type": Foreign("localkv", changed("localkv", "BLOB", "TEXT"), "value TEXT"),
    "an integer key": Foreign("localkv", changed("localkv", KV_KEY, "key INT PRIMARY KEY,\nvalue BLOB"), "INT"),
    "a column that takes NULL": Foreign(
        "transport", changed("transport", "event        TEXT NOT NULL", "event TEXT"), "event"
    ),
    "a column that takes no NULL": Foreign(
        "localqueue", changed("localqueue", "receipt_handle TEXT", "receipt_handle TEXT NOT NULL"), "receipt_handle"
    ),
    "another default": Foreign("localqueue", changed("localqueue", "DEFAULT 0", "DEFAULT 1"), "DEFAULT 1"),
    "no default": Foreign("transport", changed("transport", "NOT NULL DEFAULT 0.0", "NOT NULL"), "last_claimed_at"),
    "no primary key": Foreign("localkv", changed("localkv", KV_KEY, "key TEXT,\nvalue BLOB"), "key"),
    "ids that are used again": Foreign("localqueue", changed("localqueue", " AUTOINCREMENT", ""), "id"),
    "ids that are used again, and a comment that says so": Foreign(
        "localqueue", changed("localqueue", " AUTOINCREMENT,", ", -- without AUTOINCREMENT\n"), "id"
    ),
    "a key that ignores case": Foreign(
        "localkv",
        changed("localkv", KV_KEY, "key TEXT COLLATE NOCASE PRIMARY KEY,\nvalue BLOB"),
        "NOCASE",
    ),
    "a group that ignores case": Foreign(
        "transport",
        changed("transport", "group_id     TEXT NOT NULL", "group_id TEXT NOT NULL COLLATE NOCASE"),
        "collation",
    ),
    "a column that is unique": Foreign(
        "transport", changed("transport", "group_id     TEXT NOT NULL", "group_id TEXT NOT NULL UNIQUE"), "UNIQUE"
    ),
    "an index that makes a column unique": Foreign(
        "transport", [*statements("transport"), "CREATE UNIQUE INDEX one_each ON messages (group_id)"], "UNIQUE"
    ),
    "a view in the place of a table": Foreign(
        "localkv",
        [
            *statements("localkv")[:2],
            "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, expires_at INTEGER)",
            "CREATE VIEW kv AS SELECT key, value, expires_at FROM entries",
        ],
        "view kv",
    ),
    "a view in the place of meta": Foreign(
        "localkv", ["CREATE VIEW meta AS SELECT 'format' AS key, 'localkv.v1' AS value"], "view meta"
    ),
}
