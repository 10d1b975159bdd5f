"""Stores with something in them for the newest revision to be filled from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qstore import TransportRepository
from tests.migration.file_state import opened
from tests.migration.seed_files import make
from tests.migration.ways_in import open_store

ADDED = ("transport", "localqueue")
"""The stores that have a revision after v1."""


def filled(path: Path, store: str) -> Path:
    """A seed's file with messages in every state: many groups, held, parked, lapsed, orphaned; fresh and returned."""
    make(path, store, journal_mode="wal", filled=True)
    with opened(path) as connection:
        connection.execute("BEGIN")
        for number in range(300):
            if store == "transport":
                held = (None, None) if number % 3 else ("w", 1_700_000_000.0 + number)
                columns = "(group_id, event, locked_by, lock_expiry) VALUES (?, '{}', ?, ?)"
                connection.execute(f"INSERT INTO messages {columns}", (f"g{number % 70}", *held))
                group = (f"g{number % 70}", float(number), number % 5)
                connection.execute("INSERT OR IGNORE INTO groups VALUES (?, ?, ?)", group) if number % 70 else None
            else:
                columns = "(payload_type, payload_data, enqueued_at, visible_at) VALUES ('text', 'p', ?, ?)"
                connection.execute(f"INSERT INTO messages {columns}", (number, number + number % 4))
        connection.execute("COMMIT")
    return path


def drained(path: Path, store: str) -> list[Any]:
    """What a store delivers, in order, late enough for all of it."""
    if store == "transport":
        with TransportRepository.open(path, event_type=Any, clock=lambda: 1_800_000_000.0) as transport:
            taken = []
            while (lease := transport.claim("w", 60)) is not None:
                taken.append((lease.seq, lease.group_id))
                transport.ack(lease)
            return taken
    with open_store(path, store, clock=lambda: 1_800_000_000.0) as queue:
        found: list[Any] = []
        while received := queue.receive(7, visibility_timeout=9):
            found += [(each.id, each.payload_data) for each in received]
            for each in received:
                queue.ack(each.receipt_handle)
        return found
