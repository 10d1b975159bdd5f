"""What workers on one transport on a server note down, and what must hold of it and of the tables. H30, H31."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import URL, create_engine

from qstore import TransportRepository
from tests import postgres
from tests.backends import MOUNTED

STATE = """
SELECT g.group_id, m.group_id, g.head, g.tail, g.holder, g.until, m.head, m.tail, m.locked_by, m.lock_expiry, m.others
  FROM {groups} AS g FULL JOIN (
    SELECT m.group_id, min(m.seq) AS head, max(m.seq) AS tail, (array_agg(m.locked_by ORDER BY m.seq))[1] AS locked_by,
           (array_agg(m.lock_expiry ORDER BY m.seq))[1] AS lock_expiry,
           count(m.locked_by) - count((SELECT m.locked_by FROM {groups} AS h WHERE h.head = m.seq)) AS others
      FROM {messages} AS m GROUP BY m.group_id) AS m ON m.group_id = g.group_id
 WHERE (g.group_id, g.head, g.tail, g.holder, g.until) IS DISTINCT FROM
       (m.group_id, m.head, m.tail, m.locked_by, m.lock_expiry) OR m.others <> 0
    OR NOT (g.ready OR g.until IS NOT NULL)
    OR g.ready AND g.until >= date_part('epoch', clock_timestamp())
"""
"""Groups whose state differs from what their messages say, and orphans of both kinds. One snapshot."""


class Note(NamedTuple):
    """What a worker did, or is about to do. `at` and `until` are epoch seconds: the server runs on this machine."""

    what: str
    event: str = ""
    group: str = ""
    seq: int = 0
    at: float = 0
    until: float = 0


def wrong_states(url: URL) -> list[Any]:
    """Groups whose state is not what their messages say."""
    with postgres.connect(url) as connection:
        connection.execute("SET default_transaction_isolation = 'read committed'")
        return connection.execute(MOUNTED.of("transport").render(STATE).encode()).fetchall()


def deadlocks(url: URL) -> int:
    """How many the server has counted in this database."""
    with postgres.connect(url) as connection:
        row = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


def drained(url: URL) -> list[Note]:
    """Claim and ack all that is left, once what is leased or parked has lapsed."""
    notes: list[Note] = []
    engine = create_engine(url)
    transport = TransportRepository(engine, event_type=str, naming=MOUNTED)
    deadline = time.monotonic() + 20
    while _left(url) != (0, 0) and time.monotonic() < deadline:
        while (lease := transport.claim("drain", 60)) is not None:
            transport.ack(lease)
            notes.append(Note("acked", lease.event, lease.group_id, lease.seq, time.time()))
        time.sleep(0.02)
    engine.dispose()
    if (left := _left(url)) != (0, 0):
        notes.append(Note(f"left: {left[0]} groups, {left[1]} messages"))
    return notes


def _left(url: URL) -> Any:
    tables = MOUNTED.of("transport").render("SELECT (SELECT count(*) FROM {groups}), (SELECT count(*) FROM {messages})")
    with postgres.connect(url) as connection:
        return connection.execute(tables.encode()).fetchone()


def faults(notes: list[Note]) -> Counter[str]:
    """What must not be, by kind: an empty one if all is well."""
    found = Counter(note.what for note in notes if note.what.startswith(("failed", "surfaced", "stale", "left")))
    acked = Counter(note.event for note in notes if note.what == "acked")
    published = {note.event for note in notes if note.what == "published"}
    begun = {note.event for note in notes if note.what == "publishing"}
    unsure = {note.event for note in notes if note.what == "acking"}
    found["lost"] = len(published - acked.keys() - unsure)
    found["acked twice"] = sum(number > 1 for number in acked.values())
    found["out of nothing"] = len(acked.keys() - begun)
    found["a seq twice"] = len(published) - len({note.seq for note in notes if note.what == "published"})
    for held in _by_group(_held(notes)):
        found["two in flight"] += sum(
            later.at < earlier.until for earlier, later in pairwise(held) if later.seq != earlier.seq
        )
    # Of two publishes at the same time, the one that drew its seq first may come into the group when the other's
    # message has gone through it already.
    there = {note.seq: note.at for note in notes if note.what == "published"}
    for done in _by_group([note for note in notes if note.what == "acked"]):
        found["out of order"] += sum(
            later.seq < earlier.seq and there.get(later.seq, 0.0) < earlier.at for earlier, later in pairwise(done)
        )
    return +found


def _held(notes: list[Note]) -> list[Note]:
    """What was held: until it was let go, or, by one who was killed, until the lease lapsed."""
    ends = {(note.seq, note.at): note.until for note in notes if note.what == "let go"}
    held = [note._replace(until=ends.get((note.seq, note.at), note.until)) for note in notes if note.what == "held"]
    return [note for note in held if note.at <= note.until]


def _by_group(notes: list[Note]) -> list[list[Note]]:
    """In the order of their times."""
    groups = defaultdict(list)
    for note in notes:
        groups[note.group].append(note)
    return [sorted(group, key=lambda note: note.at) for group in groups.values()]
