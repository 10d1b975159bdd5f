"""Transport: the claim returns what the seed's own statement returns, for every state. Semantics 14."""

from __future__ import annotations

from itertools import chain
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
    """Free, leased, lapsed and parked messages, at and around the boundary; groups of all ages; orphans.

    On a server any message but a group's first is free, and each has its group: the groups' rows tell no other state.
    """
    backend.sql("transport", "DELETE FROM {messages}")
    backend.sql("transport", "DELETE FROM {groups}")
    groups = [f"g{n}" for n in range(random.randrange(1, 6))]
    instants = (now - 60, now - 1, now - 0.5, now, now + 0.5, now + 60)
    free = random.random()
    messages: list[Any] = []
    for _ in range(random.randrange(0, 15)):
        holder: tuple[str | None, float | None] = (None, None)
        group = random.choice(groups)
        if random.random() > free and (backend.one_writer or group not in messages):
            holder = (random.choice(("x", "y", "__parked__")), random.choice(instants))
        messages += [group, event("e").model_dump_json(), *holder]
    if messages:
        rows = ", ".join(["(?, ?, ?, ?)"] * (len(messages) // 4))
        sql = f"INSERT INTO {{messages}} (group_id, event, locked_by, lock_expiry) VALUES {rows}"
        backend.sql("transport", sql, *messages)
    kept = [group for group in groups if not backend.one_writer or random.random() < 0.9]
    stamped = [(group, random.choice((0, 0, now - 100, now - 1, now)), random.randrange(5)) for group in kept]
    if stamped:
        rows = ", ".join(["(?, ?, ?)"] * len(stamped))
        sql = f"INSERT INTO {{groups}} (group_id, last_claimed_at, priority) VALUES {rows}"
        backend.by_hand("transport", sql, *chain(*stamped))
