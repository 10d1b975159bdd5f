"""Durable queues and a key-value store on SQLAlchemy."""

from qstore.clock import Clock, Seconds
from qstore.engines import Checkpoint, checkpoint, log_size, open_async_engine, open_engine
from qstore.errors import (
    BackendUnsupported,
    FormatError,
    InvalidInput,
    InvalidType,
    PayloadTooLarge,
    QstoreError,
    StaleLease,
    StaleReceipt,
    StoreBusy,
    StoreFull,
    UndecodablePayload,
)
from qstore.explore import Finding, View, doctor, open_view
from qstore.localkv import AsyncLocalKvRepository, LocalKvRepository, ScanPage
from qstore.localqueue import AsyncLocalQueueRepository, LocalQueueRepository, ReceivedMessage
from qstore.mounting import MountedStores, mount
from qstore.naming import NATIVE, Naming
from qstore.repository import Opening
from qstore.session import async_write_session, write_session
from qstore.transport import AsyncTransportRepository, Event, Lease, TransportRepository

__all__ = [
    "NATIVE",
    "AsyncLocalKvRepository",
    "AsyncLocalQueueRepository",
    "AsyncTransportRepository",
    "BackendUnsupported",
    "Checkpoint",
    "Clock",
    "Event",
    "Finding",
    "FormatError",
    "InvalidInput",
    "InvalidType",
    "Lease",
    "LocalKvRepository",
    "LocalQueueRepository",
    "MountedStores",
    "Naming",
    "Opening",
    "PayloadTooLarge",
    "QstoreError",
    "ReceivedMessage",
    "ScanPage",
    "Seconds",
    "StaleLease",
    "StaleReceipt",
    "StoreBusy",
    "StoreFull",
    "TransportRepository",
    "UndecodablePayload",
    "View",
    "async_write_session",
    "checkpoint",
    "doctor",
    "log_size",
    "mount",
    "open_async_engine",
    "open_engine",
    "open_view",
    "write_session",
]
