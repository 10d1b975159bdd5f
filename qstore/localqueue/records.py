"""What the queue hands to its callers."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import JsonValue

from qstore.errors import UndecodablePayload
from qstore.payload import as_text, decode_json

__all__ = ["ReceivedMessage"]


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A delivery. `receipt_handle` settles it, until the message is delivered again; `attempt` counts from 1."""

    id: int
    receipt_handle: str
    attempt: int
    _type: bytes = field(repr=False)
    _data: bytes = field(repr=False)

    @property
    def payload_type(self) -> str:
        """`json` or `text`, as stored."""
        return as_text(self.id, self._type)

    @property
    def payload_data(self) -> str:
        """The payload as stored: serialized JSON, or the text itself. UndecodablePayload if it is not UTF-8."""
        return as_text(self.id, self._data)

    @property
    def payload(self) -> JsonValue:
        """The payload, decoded. UndecodablePayload if it does not decode; the message can be settled all the same."""
        if self._type == b"text":
            return self.payload_data
        if self._type == b"json":
            return decode_json(self.id, self._data)
        raise UndecodablePayload(
            f"message {self.id}: expected payload type json or text, found {self._type.decode(errors='replace')!r}",
            id=self.id,
            raw=self._data.decode(errors="replace"),
        )
