"""What a publish, claim and ack through the public repository cost beside the seed's statements (line 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qstore import Event, TransportRepository
from qstore.engines import Durability
from tests.benchmarks.lines import Limit, Line, at_most, slower
from tests.benchmarks.measuring import Scale, interleaved
from tests.benchmarks.raw import EVENT, RawTransport

__all__ = ["GROUPS", "cycles", "event_of", "lines"]

GROUPS = 50
"""Groups that the standing messages and the new ones are in."""

SETTINGS: tuple[tuple[int, Durability, Limit], ...] = (
    (0, "normal", at_most(1.4, aim=1.25)),
    (0, "full", at_most(1.2, aim=1.1)),
    (200, "normal", at_most(1.1)),
    (200, "full", at_most(1.1, must=False)),
)


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """New files; an empty store, and one in which messages stand."""
    for standing, durability, limit in SETTINGS:
        name = f"{standing}-{durability}"
        what = f"publish+claim+ack, {f'{standing} standing' if standing else 'empty'}, {durability.upper()}"
        yield _line(directory / name, scale, what, standing, durability, limit)


def _line(stem: Path, scale: Scale, what: str, standing: int, durability: Durability, limit: Limit) -> Line:
    raw = RawTransport(stem.with_suffix(".raw"), durability)
    with TransportRepository.open(stem.with_suffix(".sqlite"), durability=durability) as ours:
        for number in range(standing):
            raw.publish(f"group{number % GROUPS}", EVENT)
            ours.publish(f"group{number % GROUPS}", event_of(EVENT))
        figures = interleaved(
            {
                "raw sqlite3": lambda times: raw.cycle(times, groups=GROUPS),
                "ours": lambda times: cycles(ours, event_of(EVENT), times),
            },
            scale,
            times=200 if durability == "normal" else 10,
            warm=scale.of(150, 10),
        )
    raw.close()
    return slower(what, figures, "ours", "raw sqlite3", limit)


def event_of(text: str) -> Event:
    """An event as a caller has it."""
    return Event.model_validate_json(text)


def cycles(transport: TransportRepository[Event], event: Event, times: int) -> None:
    """Publish, claim and ack, in one group after the other."""
    for number in range(times):
        transport.publish(f"group{number % GROUPS}", event)
        lease = transport.claim("worker", 30)
        assert lease is not None
        transport.ack(lease)
