"""The native mapped classes of all three stores, in one import for queries and notebooks."""

from qstore.localkv.models import KvEntry, KvMeta
from qstore.localqueue.models import QueueMessage, QueueMeta
from qstore.transport.models import TransportGroup, TransportMessage

__all__ = ["KvEntry", "KvMeta", "QueueMessage", "QueueMeta", "TransportGroup", "TransportMessage"]
