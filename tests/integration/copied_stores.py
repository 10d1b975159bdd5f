"""Stores to copy: filled through their repositories, and read back as plain rows wherever they are."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, make_url

from qstore import Event, Lease, LocalKvRepository, LocalQueueRepository, TransportRepository
from tests import postgres

__all__ = ["COLUMNS", "Filled", "Opened", "fill", "new_server", "opened", "rows", "run_on_file", "shown"]

COLUMNS = {
    ("transport", "messages"): ("seq", "group_id", "event", "locked_by", "lock_expiry"),
    ("transport", "groups"): ("group_id", "last_claimed_at", "priority"),
    ("localkv", "kv"): ("key", "value", "expires_at"),
    ("localqueue", "messages"): (
        *("id", "payload_type", "payload_data", "enqueued_at", "visible_at", "attempt", "receipt_handle"),
    ),
}

Place = str
"""A data directory's path, or a server's URL."""


@dataclass(frozen=True)
class Opened:
    """The three stores of a place."""

    transport: TransportRepository[Event]
    localkv: LocalKvRepository
    localqueue: LocalQueueRepository


@dataclass(frozen=True)
class Filled:
    """What the filled stores have handed out, and the highest ids that they ever gave."""

    lease: Lease
    stale_lease: Lease
    receipt: str
    stale_receipt: str
    highest_seq: int
    highest_id: int


def new_server() -> Place:
    """The URL of a database with nothing in it."""
    return shown(postgres.empty_database())


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@contextmanager
def opened(place: Place) -> Iterator[Opened]:
    """The stores of a place, made where they are missing."""
    with ExitStack() as closing_:
        directory = "://" not in place
        if directory:
            os.makedirs(place, exist_ok=True)
        transport = TransportRepository.open(os.path.join(place, "transport.sqlite") if directory else place)
        yield Opened(
            closing_.enter_context(transport),
            closing_.enter_context(LocalKvRepository.open(place)),
            closing_.enter_context(LocalQueueRepository.open(place)),
        )


def fill(place: Place) -> Filled:
    """Messages that are free, leased, lapsed and parked, keys of every kind, and ids that are given no more."""
    with opened(place) as stores:
        transport = stores.transport
        transport.publish_many([(f"g{number % 7}", Event(kind=str(number)), number % 5) for number in range(30)])
        transport.publish("ünï😀", Event(kind="odd", data={"a": "\U0001f600\u2028", "n": 10**30}))
        lapsed = transport.claim("late", 0.001)
        lease = transport.claim("w", 3600)
        stale = transport.claim("w", 3600)
        parked = transport.claim("w", 3600)
        acked = transport.claim("w", 3600)
        assert lapsed
        assert lease
        assert stale
        assert parked
        assert acked
        transport.nack(stale)
        transport.nack(parked, delay=3600)
        transport.ack(acked)
        highest_seq = transport.publish("last", Event(kind="gone"))
        last = transport.claim("w", 60, min_priority=0)
        while last is not None and last.group_id != "last":
            transport.nack(last)
            last = transport.claim("w", 60)
        assert last is not None
        transport.ack(last)
        kv = stores.localkv
        kv.put_many({key: key.encode() for key in ("", "A", "a", "é", "\uffff", "\U0001f600", "a%_'\"\\") if key})
        kv.put_many({"bytes": bytes(range(256)), "empty": b""})
        kv.put("lives", b"v", ttl=3600)
        kv.put("expired", b"v", ttl=0)
        queue = stores.localqueue
        queue.send_many(["text", {"a": [1.0, None, "ü"]}, "quoted \"\u2028'", "", 5, None])
        [_, second] = queue.receive(2, visibility_timeout=3600)
        queue.nack(second.receipt_handle)
        [again] = queue.receive(1, visibility_timeout=3600)
        highest_id = queue.send("gone")
        [*_, gone] = queue.receive(10, visibility_timeout=3600)
        queue.ack(gone.receipt_handle)
        queue.send_many(["after", "wards"])
        for message in queue.receive(10, visibility_timeout=3600):
            queue.ack(message.receipt_handle)
        time.sleep(0.01)
        return Filled(
            lease, stale, again.receipt_handle, second.receipt_handle, highest_seq, max(highest_id, highest_id + 2)
        )


def rows(place: Place) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """All rows of the stores of a place, in the formats' columns. A store that is not there has no entry."""
    found = {}
    for (store, table), columns in COLUMNS.items():
        query = f"SELECT {', '.join(columns)} FROM {{}} ORDER BY 1"
        if "://" not in place:
            path = Path(place, f"{store}.sqlite")
            if path.exists():
                with closing(sqlite3.connect(path)) as connection:
                    found[store, table] = connection.execute(query.format(table)).fetchall()
            continue
        with closing(postgres.connect(make_url(place))) as server:
            name = f"qstore_{store}_{table}"
            if server.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchall() == [(True,)]:
                found[store, table] = server.execute(query.format(name).encode()).fetchall()
    return found


def run_on_file(path: Path, *statements: str) -> None:
    """Change a file as nothing of qstore's would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
