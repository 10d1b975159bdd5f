"""Every error that qstore raises itself, in one tree.

QstoreError                      .code, and data as attributes
├── FormatError                  BINDING_SETUP_FAILED · found, supported, target
├── StoreBusy                    safe to repeat
├── StoreFull                    disk or page limit reached; nothing half-written
├── StaleLease · StaleReceipt    QUEUE_OPERATION_FAILED
├── InvalidInput                 INVALID_INPUT, also a ValueError · field
│   ├── InvalidType              also a TypeError
│   └── PayloadTooLarge          size, limit
├── UndecodablePayload           id, raw
└── BackendUnsupported           names the extra to install or the version needed

Where one is raised, the operation has changed nothing. A database error that qstore does not recognise passes through
unchanged; if the disk or the connection has failed in a commit, nobody knows whether that was done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

__all__ = [
    "BackendUnsupported",
    "FormatError",
    "InvalidInput",
    "InvalidType",
    "PayloadTooLarge",
    "QstoreError",
    "StaleLease",
    "StaleReceipt",
    "StoreBusy",
    "StoreFull",
    "UndecodablePayload",
]


class QstoreError(Exception):
    """Any error of qstore's own. `code` is the seed formats' code where they have one."""

    code: ClassVar[str | None] = None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Errors cross process boundaries (multiprocessing), keyword-only attributes included.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[QstoreError], args: tuple[Any, ...], data: dict[str, Any]) -> QstoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(data)
    return error


def shown(value: object) -> str:
    """A value for a message: as it is written, cut where that is long."""
    try:
        written = repr(value)
    except ValueError:  # Python does not write whole numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return written if len(written) <= 100 else f"{written[:80]}… ({len(written):,} characters)"


class FormatError(QstoreError):
    """The store cannot be opened as what was asked for. It was left as it was found."""

    code = "BINDING_SETUP_FAILED"

    def __init__(self, message: str, *, found: str, supported: str, target: str) -> None:
        super().__init__(f"{target}: {message} (found: {found}; supported: {supported})")
        self.found = found
        self.supported = supported
        self.target = target


class StoreBusy(QstoreError):
    """The write lock was not had in time, or the snapshot was lost. Nothing was changed: repeat the call."""


class StoreFull(QstoreError):
    """The disk, or the database's page limit, is full. Nothing was half-written."""


class StaleLease(QstoreError):
    """The lease is no longer the one on the message: another worker has it. Nothing was changed."""

    code = "QUEUE_OPERATION_FAILED"

    def __init__(self, message: str, *, seq: int) -> None:
        super().__init__(message)
        self.seq = seq


class StaleReceipt(QstoreError):
    """The message was redelivered under a newer receipt handle. Nothing was changed."""

    code = "QUEUE_OPERATION_FAILED"

    def __init__(self, message: str, *, id: int) -> None:
        super().__init__(message)
        self.id = id


class InvalidInput(QstoreError, ValueError):
    """An argument that no store takes. It was refused before the store was touched."""

    code = "INVALID_INPUT"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class InvalidType(InvalidInput, TypeError):
    """An argument of the wrong type. It was refused before the store was touched."""

    @classmethod
    def of(cls, field: str, value: object, expected: str) -> Self:
        """Name what was found and what was expected."""
        return cls(field, f"expected {expected}, found {type(value).__qualname__}")


class PayloadTooLarge(InvalidInput):
    """A payload over the store's limit, both in bytes as stored."""

    def __init__(self, field: str, *, size: int, limit: int) -> None:
        super().__init__(field, f"{size:,} bytes as stored, the limit is {limit:,} bytes")
        self.size = size
        self.limit = limit


class UndecodablePayload(QstoreError):
    """The stored payload does not decode. The message is still held: ack it, nack it or set it aside.

    `id` is the message's id (`seq` in the transport); `raw` the payload as it is stored: text, or bytes where it is
    not UTF-8.
    """

    def __init__(self, message: str, *, id: int, raw: str | bytes) -> None:
        super().__init__(message)
        self.id = id
        self.raw = raw


class BackendUnsupported(QstoreError):
    """The back end, or this version of it, cannot do what was asked. The message names what is needed."""
