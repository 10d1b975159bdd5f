"""The key-value store: time to live, and an atomic conditional put (`localkv.v1`)."""

from qstore.localkv.records import ScanPage
from qstore.localkv.repository import AsyncLocalKvRepository, LocalKvRepository

__all__ = ["AsyncLocalKvRepository", "LocalKvRepository", "ScanPage"]
