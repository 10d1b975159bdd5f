"""The queue: visibility timeouts, receipt handles and delivery counts (`localqueue.v1`)."""

from qstore.localqueue.records import ReceivedMessage
from qstore.localqueue.repository import AsyncLocalQueueRepository, LocalQueueRepository

__all__ = ["AsyncLocalQueueRepository", "LocalQueueRepository", "ReceivedMessage"]
