"""The transport: a FIFO queue in which one message of a group is in flight at a time."""

from qstore.transport.records import Event, Lease
from qstore.transport.repository import AsyncTransportRepository, TransportRepository

__all__ = ["AsyncTransportRepository", "Event", "Lease", "TransportRepository"]
