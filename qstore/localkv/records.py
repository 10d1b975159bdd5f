"""What the key-value store hands to its callers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ScanPage"]


@dataclass(frozen=True, slots=True)
class ScanPage:
    """One page of a scan, in the order of the keys' bytes. `next_cursor` is None at the end."""

    items: list[tuple[str, bytes]]
    next_cursor: str | None
