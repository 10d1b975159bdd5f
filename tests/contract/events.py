"""Short events, and what was claimed, by kind."""

from __future__ import annotations

from qstore import Event, Lease, TransportRepository


def event(kind: str) -> Event:
    return Event(kind=kind)


def claim(transport: TransportRepository, worker_id: str = "w", visibility: float = 30, floor: int = 0) -> Lease:
    """Claim what must be there."""
    lease = transport.claim(worker_id, visibility, floor)
    assert lease is not None
    return lease


def drained(transport: TransportRepository, floor: int = 0) -> list[str]:
    """The kinds of all that can be claimed and acked, in that order."""
    kinds: list[str] = []
    while (lease := transport.claim("drain", 30, floor)) is not None:
        kinds.append(lease.event.kind)
        transport.ack(lease)
    return kinds
