"""Whether a claim and ack stay as fast in a store of a million messages as among a hundred (line 1)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from qstore import NATIVE, Event, TransportRepository
from qstore.engines import Durability
from qstore.transport import statements
from tests.benchmarks.filling import filled_transport
from tests.benchmarks.lines import Line, at_least, at_most, faster, slower
from tests.benchmarks.measuring import Contender, Contenders, Figures, Scale, interleaved, short
from tests.benchmarks.raw import EVENT
from tests.concurrency.seed import SeedTransport

__all__ = ["lines"]

FEW = 100
EACH_ROUND = 80
"""Claims a round: fewer than the small store has messages."""

GROWN = "claim+ack, {messages} messages, {groups} groups, {parked} parked, {durability}"


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """Both durabilities through the repository, and the choice of the message alone against the seed's."""
    parked = groups = scale.of(100_000, 20_000)
    messages = scale.of(1_000_000, 200_000)
    large = filled_transport(directory / "large.sqlite", messages=messages - parked, groups=groups, parked=parked)
    sizes = {"messages": short(messages), "groups": short(groups), "parked": short(parked)}
    for durability in ("normal", "full"):
        small = filled_transport(directory / f"small-{durability}.sqlite", messages=FEW, groups=FEW // 10)
        yield _grown(small, large, durability, scale, GROWN.format(**sizes, durability=durability.upper()))
    with closing(sqlite3.connect(large, isolation_level=None)) as connection:
        figures = _choices(connection, scale)
    seeds = f"the select of a claim, {short(messages)} messages, {short(parked)} parked"
    # The seed's takes time by the number of messages: the limit is for a million.
    limit = at_least(10_000 * messages / 1_000_000)
    yield faster(seeds, figures, "ours", "the seed's select", limit)


def _grown(small: Path, large: Path, durability: Durability, scale: Scale, what: str) -> Line:
    with (
        TransportRepository.open(small, durability=durability) as few,
        TransportRepository.open(large, durability=durability) as many,
    ):
        kept = [FEW]

        def refill(times: int) -> None:
            few.publish_many((f"g{n % (FEW // 10)}", _event()) for n in range(FEW - kept[0]))
            kept[0] = FEW - times

        figures = interleaved(
            {
                f"the same among {FEW}": Contender(lambda times: _claim_and_ack(few, times), before=refill),
                "large": lambda times: _claim_and_ack(many, times),
            },
            scale,
            times=EACH_ROUND,
        )
        return slower(what, figures, "large", f"the same among {FEW}", at_most(1.5))


def _choices(connection: sqlite3.Connection, scale: Scale) -> Figures:
    """The seed's select and ours, read-only, on one connection."""
    sql = statements.CLAIM_FLAT.rendered(NATIVE.of("transport"))
    binds = {"now": time.time(), "min_priority": 0}

    def ours(times: int) -> None:
        for _ in range(times):
            assert connection.execute(sql, binds).fetchone()

    def seeds(times: int) -> None:
        for _ in range(times):
            now = time.time()
            assert connection.execute(SeedTransport.SELECT, (now, now, 0)).fetchone()

    contenders: Contenders = {"ours": ours, "the seed's select": Contender(seeds, times=1)}
    return interleaved(contenders, scale, times=100)


def _event() -> Event:
    return Event.model_validate_json(EVENT)


def _claim_and_ack(transport: TransportRepository[Event], times: int) -> None:
    for _ in range(times):
        lease = transport.claim("worker", 30)
        assert lease is not None
        transport.ack(lease)
