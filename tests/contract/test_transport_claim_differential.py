"""Transport: the claim returns what the seed's own statement returns, for every state. Semantics 14."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.backends import Backend, ManualClock
from tests.contract.events import event

SEEDS_CLAIM = """
SELECT m.seq, m.group_id, m.event
  FROM {messages} m JOIN {groups} g ON g.group_id = m.group_id
  WHERE (m.locked_by IS NULL OR m.lock_expiry < ?)          -- message free / lease lapsed (recovery)
    AND m.group_id NOT IN (                                  -- group has nothing in flight
      SELECT group_id FROM {messages} WHERE locked_by IS NOT NULL AND lock_expiry >= ?)
    AND g.priority >= ?                                      -- priority floor (min_priority)
  ORDER BY g.last_claimed_at ASC, m.seq ASC LIMIT 1         -- oldest-claimed group first (round-robin)
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_claim_returns_the_row_of_the_seeds_statement_in_any_state(
    backend: Backend, clock: ManualClock, seed: int
) -> None:
    random = Random(seed)
    transport = backend.transport(clock=clock)
    claimed = 0
    for _ in range(25):
        _make_any_state(backend, random, clock.now)
        for _ in range(4):
            floor = random.choice((0, 0, 1, 3))
            expected = backend.sql("transport", SEEDS_CLAIM, clock.now, clock.now, floor)
            lease = transport.claim("w", random.choice((1, 30)), floor)
            found = [] if lease is None else [(lease.seq, lease.group_id, lease.event.model_dump_json())]
            assert found == expected
            claimed += lease is not None
            clock.advance(random.choice((0, 0.5, 1)))
    assert claimed > 25


def _make_any_state(backend: Backend, random: Random, now: float) -> None:
    """Free, leased, lapsed and parked messages, at and around the boundary; groups of all ages; orphans."""
    backend.sql("transport", "DELETE FROM {messages}")
    backend.sql("transport", "DELETE FROM {groups}")
    groups = [f"g{n}" for n in range(random.randrange(1, 6))]
    instants = (now - 60, now - 1, now - 0.5, now, now + 0.5, now + 60)
    free = random.random()
    messages: list[Any] = []
    for _ in range(random.randrange(0, 15)):
        holder: tuple[str | None, float | None] = (None, None)
        if random.random() > free:
            holder = (random.choice(("x", "y", "__parked__")), random.choice(instants))
        messages += [random.choice(groups), event("e").model_dump_json(), *holder]
    if messages:
        rows = ", ".join(["(?, ?, ?, ?)"] * (len(messages) // 4))
        sql = f"INSERT INTO {{messages}} (group_id, event, locked_by, lock_expiry) VALUES {rows}"
        backend.sql("transport", sql, *messages)
    for group in groups:
        if random.random() < 0.9:
            stamp = random.choice((0, 0, now - 100, now - 1, now))
            backend.sql("transport", "INSERT INTO {groups} VALUES (?, ?, ?)", group, stamp, random.randrange(5))
