"""The queue: visibility timeouts, receipt handles and delivery counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Self

from pydantic import BaseModel

from qstore.arguments import HIGHEST_INTEGER, integer, several, text
from qstore.awaited import AsyncBind, await_to
from qstore.binding import Bind, bind_to
from qstore.clock import Clock, Seconds, seconds, ttl_milliseconds
from qstore.engines import Durability, FileEngine, Target
from qstore.engines.target import in_directory
from qstore.errors import InvalidType, PayloadTooLarge
from qstore.localqueue import operations, postgresql  # noqa: F401  what the operations are on a server
from qstore.localqueue.records import ReceivedMessage
from qstore.naming import NATIVE, Naming
from qstore.opening import naming_at, open_async_store, open_store
from qstore.payload import dump_json, dump_model
from qstore.repository import AsyncRepository, Opening, Repository, owning

__all__ = ["AsyncLocalQueueRepository", "LocalQueueRepository"]

LARGEST_PAYLOAD = 65_536
"""Bytes of UTF-8, as stored."""

MOST_MESSAGES = 1000

_RECEIPT_HANDLE = re.compile(r"0*([0-9]{1,19}):(.+)", re.DOTALL)

Payload = str | int | float | bool | dict[str, Any] | list[Any] | tuple[Any, ...] | BaseModel | None
"""Text, any JSON value, or a pydantic model."""


class LocalQueueRepository(Repository):
    """A durable queue with visibility timeouts (`localqueue.v1`).

    Bound to an Engine, each call is one short transaction, and one object serves any number of threads. Bound to a
    Connection or Session, a call joins the caller's transaction, and takes effect when the caller commits.
    Errors of every call: StoreBusy (repeat it), StoreFull, InvalidInput (refused before the store was touched).
    """

    def __init__(self, bind: Bind, *, naming: Naming = NATIVE, clock: Clock | None = None) -> None:
        """Use a store that exists."""
        super().__init__(bind_to(bind, naming, "localqueue", clock))

    @classmethod
    def open(
        cls,
        data_dir_or_url: Target,
        *,
        create: bool = True,
        clock: Clock | None = None,
        durability: Durability = "full",
        fair: bool = True,
        engine: FileEngine = "sqlite",
    ) -> Self:
        """Open the store `localqueue.sqlite` in a directory, and make both if they are not there (`create`).

        The repository owns its engine: close it. A SQLAlchemy URL names a file directly. FormatError, and nothing is
        changed, if the file is something else, or not there and `create` is False. `engine`: what opens a path; "turso"
        as the URL `sqlite+turso:///`.
        """
        url = in_directory(data_dir_or_url, "localqueue.sqlite", engine)
        opened = open_store("localqueue", url, create=create, durability=durability, fair=fair)
        return owning(opened, lambda: cls(opened, naming=naming_at(url), clock=clock))

    def send(self, payload: Payload) -> int:
        """Append a message, due at once. Returns its id, which is never reused.

        A `str` is stored as text; any other JSON value, or a pydantic model, as compact JSON. PayloadTooLarge over
        65,536 bytes of stored UTF-8.
        """
        return self._binding.write(operations.send, *_stored(payload))

    def send_many(self, payloads: Iterable[Payload]) -> list[int]:
        """Append messages in their order, all in one transaction. Returns their ids."""
        checked = [_stored(payload) for payload in several("payloads", payloads, "payloads")]
        return self._binding.write(operations.send_many, checked)

    def receive(self, max_messages: int = 1, *, visibility_timeout: Seconds = 30) -> list[ReceivedMessage]:
        """Take up to `max_messages` (1 to 1,000) due messages, and hide them for `visibility_timeout` seconds.

        In the order in which they were sent; one that is delivered again keeps its place in front. All in one
        transaction: each message goes to one receiver, and under a receipt handle that makes its earlier ones stale.
        """
        max_messages = integer("max_messages", max_messages, at_least=1, at_most=MOST_MESSAGES)
        hidden = ttl_milliseconds("visibility_timeout", seconds("visibility_timeout", visibility_timeout))
        delivered = self._binding.write(operations.receive, max_messages, hidden)
        return [
            ReceivedMessage(id, f"{id}:{receipt}", attempt, payload_type, payload_data)
            for id, receipt, payload_type, payload_data, attempt in delivered
        ]

    def ack(self, receipt_handle: str) -> None:
        """Settle a delivery: the message is removed.

        A message that is gone, and a handle that this format never issues, are left at that. A late receipt is good
        for as long as the message was not delivered again; after that it is StaleReceipt, and nothing is changed.
        """
        if (receipt := _receipt(receipt_handle)) is not None:
            self._binding.write(operations.ack, receipt)

    def ack_many(self, receipt_handles: Iterable[str]) -> None:
        """Settle deliveries, all in one transaction. StaleReceipt as in `ack`, and then none of them is settled."""
        given = several("receipt_handles", receipt_handles, "receipt handles")
        receipts = [receipt for handle in given if (receipt := _receipt(handle)) is not None]
        self._binding.write(operations.ack_many, receipts)

    def nack(self, receipt_handle: str) -> None:
        """Give a message back, to be delivered again at once; its attempts stay counted. Otherwise as `ack`."""
        if (receipt := _receipt(receipt_handle)) is not None:
            self._binding.write(operations.nack, receipt)

    def purge(self) -> int:
        """Remove every message, visible or not. Returns how many there were."""
        return self._binding.write(operations.purge)


class AsyncLocalQueueRepository(AsyncRepository):
    """The async twin of `LocalQueueRepository`: the same methods, awaited, with the same arguments and errors.

    Bound to an AsyncEngine, AsyncConnection or AsyncSession, as the sync one to theirs; one object serves any number of
    tasks, and one event loop after another. A call that is cancelled has happened whole or not at all when the
    cancellation goes on: only one that was committing already has happened.
    """

    _behind: LocalQueueRepository

    def __init__(self, bind: AsyncBind, *, naming: Naming = NATIVE, clock: Clock | None = None) -> None:
        """Use a store that exists."""
        super().__init__(LocalQueueRepository(await_to(bind, naming, "localqueue", clock)))

    @classmethod
    def open(
        cls,
        data_dir_or_url: Target,
        *,
        create: bool = True,
        clock: Clock | None = None,
        durability: Durability = "full",
        fair: bool = True,
        engine: FileEngine = "sqlite",
    ) -> Opening[Self]:
        """Open a store as `LocalQueueRepository.open`: `await` it, or use it in `async with`, which also closes it."""
        url = in_directory(data_dir_or_url, "localqueue.sqlite", engine)
        opening = open_async_store("localqueue", url, create=create, durability=durability, fair=fair)
        return Opening(opening, lambda opened: cls(opened, naming=naming_at(url), clock=clock))

    async def send(self, payload: Payload) -> int:
        """As `LocalQueueRepository.send`."""
        return await self._run(self._behind.send, payload)

    async def send_many(self, payloads: Iterable[Payload]) -> list[int]:
        """As `LocalQueueRepository.send_many`."""
        return await self._run(self._behind.send_many, payloads)

    async def receive(self, max_messages: int = 1, *, visibility_timeout: Seconds = 30) -> list[ReceivedMessage]:
        """As `LocalQueueRepository.receive`."""
        return await self._run(self._behind.receive, max_messages, visibility_timeout=visibility_timeout)

    async def ack(self, receipt_handle: str) -> None:
        """As `LocalQueueRepository.ack`."""
        await self._run(self._behind.ack, receipt_handle)

    async def ack_many(self, receipt_handles: Iterable[str]) -> None:
        """As `LocalQueueRepository.ack_many`."""
        await self._run(self._behind.ack_many, receipt_handles)

    async def nack(self, receipt_handle: str) -> None:
        """As `LocalQueueRepository.nack`."""
        await self._run(self._behind.nack, receipt_handle)

    async def purge(self) -> int:
        """As `LocalQueueRepository.purge`."""
        return await self._run(self._behind.purge)


def _stored(payload: Payload) -> tuple[str, str]:
    """The payload's type and text, as they are stored."""
    if isinstance(payload, str):
        payload_type, data = "text", text("payload", payload, or_empty=True)
    elif isinstance(payload, BaseModel):
        payload_type, data = "json", dump_model("payload", payload)
    else:
        payload_type, data = "json", dump_json("payload", payload)
    if (size := len(data.encode())) > LARGEST_PAYLOAD:
        raise PayloadTooLarge("payload", size=size, limit=LARGEST_PAYLOAD)
    return payload_type, data


def _receipt(receipt_handle: str) -> operations.Receipt | None:
    """The halves of a receipt handle; None if this format never issues such a one."""
    if not isinstance(receipt_handle, str):
        raise InvalidType.of("receipt_handle", receipt_handle, "str, the receipt_handle of a message")
    match = _RECEIPT_HANDLE.fullmatch(receipt_handle)
    if match is None or int(match[1]) > HIGHEST_INTEGER:
        return None
    # What no database takes as text cannot be a UUID either, so that any text in its place compares alike.
    return int(match[1]), match[2].replace("\0", "?").encode(errors="replace").decode()
