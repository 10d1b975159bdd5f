"""What the transport hands to its callers: events and leases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypeVar

from qstore.payload import decode

__all__ = ["Event", "EventT", "Lease"]


def _new_id() -> str:
    return uuid4().hex


class Event(BaseModel):
    """The default event. Other fields than these are kept as well."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(default_factory=_new_id)
    kind: str
    data: dict[str, Any] = Field(default_factory=dict)


EventT = TypeVar("EventT", default=Event)


@dataclass(frozen=True, slots=True)
class Lease(Generic[EventT]):
    """A claimed message, held by one worker until `lock_expiry` (epoch seconds, inclusive).

    (`seq`, `worker_id`, `lock_expiry`) is the fence: ack, nack and extend act only where the stored message still
    carries all three.
    """

    seq: int
    group_id: str
    worker_id: str
    lock_expiry: float
    _raw: bytes = field(repr=False)
    _adapter: TypeAdapter[EventT] = field(repr=False, compare=False)
    _decoded: tuple[EventT] | None = field(default=None, repr=False, compare=False)

    @property
    def event(self) -> EventT:
        """The event, decoded when it is first asked for.

        UndecodablePayload if it does not decode; the lease can be acked, nacked and extended all the same.
        """
        if self._decoded is None:
            object.__setattr__(self, "_decoded", (decode(self.seq, self._raw, self._adapter),))
            return self.event
        return self._decoded[0]
