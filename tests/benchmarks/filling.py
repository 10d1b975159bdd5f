"""Large stores, filled by SQL in bulk: what keeps a store's own tables right is put aside, and these made right after.

A million messages take seconds so.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, migrate, open_engine
from tests.benchmarks.raw import EVENT

__all__ = ["fill", "filled_kv", "filled_queue", "filled_transport", "numbers", "transport_rows"]


def numbers(many: int) -> str:
    """A table n of the numbers 0 to many - 1."""
    return f"WITH RECURSIVE n(i) AS (SELECT 0 WHERE {many} > 0 UNION ALL SELECT i + 1 FROM n WHERE i < {many - 1})"


def transport_rows(messages: int, groups: int, parked: int) -> tuple[str, ...]:
    """Statements that make free messages, group after group, and in front of them groups with a parked one each."""
    return (
        f"""{numbers(parked)} INSERT INTO messages (group_id, event, locked_by, lock_expiry)
            SELECT 'p' || i, '{EVENT}', '__parked__', 9e9 + i FROM n""",
        f"{numbers(parked)} INSERT INTO groups (group_id, last_claimed_at) SELECT 'p' || i, 1.0 + i FROM n",
        f"""{numbers(messages)} INSERT INTO messages (group_id, event)
            SELECT 'g' || (i % {groups}), '{EVENT}' FROM n""",
        f"{numbers(groups)} INSERT INTO groups (group_id, last_claimed_at) SELECT 'g' || i, 1e6 + i FROM n",
    )


def filled_transport(path: Path, *, messages: int, groups: int, parked: int = 0) -> Path:
    """A transport with so many free messages in so many groups, and the parked ones in front of them."""
    TransportRepository.open(path).close()
    return fill(path, *transport_rows(messages, groups, parked))


def filled_queue(path: Path, *, due: int, in_flight: int = 0, lapsed: int = 0) -> Path:
    """A queue with so many messages: due, received and not yet due again, and received and due again."""
    LocalQueueRepository.open(f"sqlite:///{path}").close()
    columns = "INSERT INTO messages (payload_type, payload_data, enqueued_at, visible_at, attempt, receipt_handle)"
    return fill(
        path,
        f"{numbers(in_flight)} {columns} SELECT 'text', '{EVENT}', 1 + i / 10, 9000000000000 + i, 1, 'r' || i FROM n",
        f"{numbers(lapsed)} {columns} SELECT 'text', '{EVENT}', 1 + i / 10, 500000 + i, 1, 'r' || i FROM n",
        f"{numbers(due)} {columns} SELECT 'text', '{EVENT}', 1000000 + i / 10, 1000000 + i / 10, 0, NULL FROM n",
    )


def filled_kv(path: Path, *, keys: int) -> Path:
    """A key-value store with so many keys, `k00000000` and on."""
    LocalKvRepository.open(f"sqlite:///{path}").close()
    return fill(path, f"{numbers(keys)} INSERT INTO kv (key, value) SELECT printf('k%08d', i), '{EVENT}' FROM n")


def fill(path: Path, *statements: str) -> Path:
    """Run statements on a store that is there, without its triggers and indexes; then make all as it has to be."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-200000")
        connection.execute("BEGIN IMMEDIATE")
        own = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'index') AND sql IS NOT NULL"
        aside = connection.execute(own).fetchall()
        for kind, name, _ in aside:
            connection.execute(f"DROP {kind} {name}")
        for statement in statements:
            connection.execute(statement)
        for _, _, sql in aside:
            connection.execute(sql)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    engine = open_engine(path)
    migrate.repair(engine)
    engine.dispose()
    return path
