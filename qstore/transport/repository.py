"""The transport: a FIFO queue in which one message of a group is in flight at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Generic, Self, cast

from pydantic import BaseModel, TypeAdapter

from qstore.arguments import HIGHEST_INTEGER, integer, several, text
from qstore.awaited import AsyncBind, await_to
from qstore.binding import Bind, bind_to
from qstore.clock import Clock, Seconds, seconds
from qstore.engines import Durability, FileEngine, Target
from qstore.engines.target import of_file
from qstore.errors import InvalidInput, InvalidType, shown
from qstore.naming import NATIVE, Naming
from qstore.opening import naming_at, open_async_store, open_store
from qstore.payload import dump
from qstore.repository import AsyncRepository, Opening, Repository, owning
from qstore.transport import operations, postgresql  # noqa: F401  what the operations are on a server
from qstore.transport.records import Event, EventT, Lease

__all__ = ["AsyncTransportRepository", "TransportRepository"]

LONGEST_ID = 1024
"""Bytes of UTF-8 in a group id or worker id."""

LOWEST_PRIORITY, HIGHEST_PRIORITY = 0, 4


class TransportRepository(Repository, Generic[EventT]):
    """A durable FIFO queue with one message of a group in flight at a time.

    Bound to an Engine, each call is one short transaction, and one object serves any number of threads. Bound to a
    Connection or Session, a call joins the caller's transaction, and takes effect when the caller commits.
    Errors of every call: StoreBusy (repeat it), StoreFull, InvalidInput (refused before the store was touched).
    """

    def __init__(
        self,
        bind: Bind,
        *,
        event_type: type[EventT] | TypeAdapter[EventT] = cast("type[EventT]", Event),  # noqa: B008  the default of EventT
        naming: Naming = NATIVE,
        clock: Clock | None = None,
    ) -> None:
        """Use a store that exists. `event_type`: what events are decoded to, any pydantic type."""
        self._adapter = _adapter(event_type)
        self._model = event_type if isinstance(event_type, type) and issubclass(event_type, BaseModel) else None
        super().__init__(bind_to(bind, naming, "transport", clock))

    @classmethod
    def open(
        cls,
        target: Target,
        *,
        event_type: type[EventT] | TypeAdapter[EventT] = cast("type[EventT]", Event),  # noqa: B008  the default of EventT
        create: bool = True,
        clock: Clock | None = None,
        durability: Durability = "full",
        fair: bool = True,
        engine: FileEngine = "sqlite",
    ) -> Self:
        """Open a store in a file, and make it if it is not there (`create`). The repository owns its engine: close it.

        `target`: a path, an existing directory (then `transport.sqlite` in it), or a SQLAlchemy URL. FormatError, and
        nothing is changed, if it is something else, or not there and `create` is False. `fair` as in `open_engine`.
        `engine`: what opens a path; "turso" as the URL `sqlite+turso:///`.
        """
        url = of_file(target, "transport.sqlite", engine)
        opened = open_store("transport", url, create=create, durability=durability, fair=fair)
        return owning(opened, lambda: cls(opened, event_type=event_type, naming=naming_at(url), clock=clock))

    def publish(self, group_id: str, event: EventT, priority: int = 0) -> int:
        """Append a message to its group. Returns its `seq`, which is never reused.

        `priority` is 0 to 4. The publish that creates the group sets it, and it is forgotten when the group drains.
        """
        return self._binding.write(operations.publish, *self._checked(group_id, event, priority))

    def publish_many(self, messages: Iterable[tuple[str, EventT] | tuple[str, EventT, int]]) -> list[int]:
        """Append messages `(group_id, event[, priority])` in order, all in one transaction. Returns their seqs."""
        checked = [self._checked(*_parts(each)) for each in several("messages", messages, "(group_id, event) tuples")]
        return self._binding.write(operations.publish_many, checked)

    def claim(self, worker_id: str, visibility: Seconds, min_priority: int = 0) -> Lease[EventT] | None:
        """Lease the next message for `visibility` seconds, or return None if nothing is deliverable.

        Only groups with no message leased or parked are looked at, and of those only with a priority of at least
        `min_priority`. The group claimed longest ago comes first; within a group, and among groups never claimed, the
        oldest message. A lease that was not acked lapses when its time is over, and the message is claimed again.
        """
        worker_id = _worker_id(worker_id)
        claimed = self._binding.write(
            operations.claim,
            worker_id,
            seconds("visibility", visibility, above_zero=True),
            integer("min_priority", min_priority, at_least=LOWEST_PRIORITY, at_most=HIGHEST_PRIORITY),
        )
        if claimed is None:
            return None
        seq, group_id, event, lock_expiry = claimed
        return Lease(seq, group_id, worker_id, lock_expiry, event, self._adapter)

    def ack(self, lease: Lease[EventT]) -> None:
        """Settle a message: it is removed. One that is gone already is left at that.

        A lease that has lapsed is good for as long as nobody else claimed the message; after that it is StaleLease.
        """
        self._binding.write(operations.ack, _fence(lease))

    def ack_many(self, leases: Iterable[Lease[EventT]]) -> None:
        """Settle messages, all in one transaction. StaleLease as in `ack`, and then none of them is settled."""
        self._binding.write(operations.ack_many, [_fence(lease) for lease in several("leases", leases, "leases")])

    def nack(self, lease: Lease[EventT], delay: Seconds = 0) -> None:
        """Give a message back, to be delivered again: at once, or after `delay` seconds.

        Until a delay has passed the message is parked, and its whole group waits behind it. StaleLease as in `ack`.
        """
        self._binding.write(operations.nack, _fence(lease), seconds("delay", delay))

    def extend(self, lease: Lease[EventT], visibility: Seconds) -> Lease[EventT]:
        """Hold a message for `visibility` seconds from now. Returns the new lease; the old one is stale.

        StaleLease as in `ack`, and also if the message is gone.
        """
        duration = seconds("visibility", visibility, above_zero=True)
        lock_expiry = self._binding.write(operations.extend, _fence(lease), duration)
        return replace(lease, lock_expiry=lock_expiry)

    def _checked(self, group_id: str, event: EventT, priority: int = LOWEST_PRIORITY) -> tuple[str, str, int]:
        if self._model is not None and not isinstance(event, self._model):
            raise InvalidType.of("event", event, self._model.__qualname__)
        return (
            text("group_id", group_id, at_most=LONGEST_ID),
            dump("event", event, self._adapter),
            integer("priority", priority, at_least=LOWEST_PRIORITY, at_most=HIGHEST_PRIORITY),
        )


class AsyncTransportRepository(AsyncRepository, Generic[EventT]):
    """The async twin of `TransportRepository`: the same methods, awaited, with the same arguments and errors.

    Bound to an AsyncEngine, AsyncConnection or AsyncSession, as the sync one to theirs; one object serves any number of
    tasks, and one event loop after another. A call that is cancelled has happened whole or not at all when the
    cancellation goes on: only one that was committing already has happened.
    """

    _behind: TransportRepository[EventT]

    def __init__(
        self,
        bind: AsyncBind,
        *,
        event_type: type[EventT] | TypeAdapter[EventT] = cast("type[EventT]", Event),  # noqa: B008  the default of EventT
        naming: Naming = NATIVE,
        clock: Clock | None = None,
    ) -> None:
        """Use a store that exists. `event_type`: what events are decoded to, any pydantic type."""
        super().__init__(TransportRepository(await_to(bind, naming, "transport", clock), event_type=event_type))

    @classmethod
    def open(
        cls,
        target: Target,
        *,
        event_type: type[EventT] | TypeAdapter[EventT] = cast("type[EventT]", Event),  # noqa: B008  the default of EventT
        create: bool = True,
        clock: Clock | None = None,
        durability: Durability = "full",
        fair: bool = True,
        engine: FileEngine = "sqlite",
    ) -> Opening[Self]:
        """Open a store as `TransportRepository.open`: `await` it, or use it in `async with`, which also closes it."""
        url = of_file(target, "transport.sqlite", engine)
        opening = open_async_store("transport", url, create=create, durability=durability, fair=fair)
        return Opening(opening, lambda opened: cls(opened, event_type=event_type, naming=naming_at(url), clock=clock))

    async def publish(self, group_id: str, event: EventT, priority: int = 0) -> int:
        """As `TransportRepository.publish`."""
        return await self._run(self._behind.publish, group_id, event, priority)

    async def publish_many(self, messages: Iterable[tuple[str, EventT] | tuple[str, EventT, int]]) -> list[int]:
        """As `TransportRepository.publish_many`."""
        return await self._run(self._behind.publish_many, messages)

    async def claim(self, worker_id: str, visibility: Seconds, min_priority: int = 0) -> Lease[EventT] | None:
        """As `TransportRepository.claim`."""
        return await self._run(self._behind.claim, worker_id, visibility, min_priority)

    async def ack(self, lease: Lease[EventT]) -> None:
        """As `TransportRepository.ack`."""
        await self._run(self._behind.ack, lease)

    async def ack_many(self, leases: Iterable[Lease[EventT]]) -> None:
        """As `TransportRepository.ack_many`."""
        await self._run(self._behind.ack_many, leases)

    async def nack(self, lease: Lease[EventT], delay: Seconds = 0) -> None:
        """As `TransportRepository.nack`."""
        await self._run(self._behind.nack, lease, delay)

    async def extend(self, lease: Lease[EventT], visibility: Seconds) -> Lease[EventT]:
        """As `TransportRepository.extend`."""
        return await self._run(self._behind.extend, lease, visibility)


def _adapter(event_type: type[EventT] | TypeAdapter[EventT]) -> TypeAdapter[EventT]:
    if isinstance(event_type, TypeAdapter):
        return event_type
    if isinstance(event_type, str):
        raise InvalidType.of("event_type", event_type, "a type or a TypeAdapter")
    try:
        return TypeAdapter(event_type)
    except Exception as error:  # pydantic's errors for what is no type are of every kind
        raise InvalidType("event_type", f"expected a type that pydantic knows, found {shown(event_type)}") from error


def _parts(message: tuple[str, EventT] | tuple[str, EventT, int]) -> tuple[str, EventT] | tuple[str, EventT, int]:
    if not isinstance(message, tuple) or len(message) not in (2, 3):
        raise InvalidType.of("messages", message, "tuples (group_id, event) or (group_id, event, priority)")
    return message


def _worker_id(worker_id: str) -> str:
    checked = text("worker_id", worker_id, at_most=LONGEST_ID)
    if checked == operations.PARKED:
        raise InvalidInput("worker_id", f"expected a worker's name, found {checked!r}, which marks a parked message")
    return checked


def _fence(lease: Lease[EventT]) -> operations.Fence:
    if not isinstance(lease, Lease):
        raise InvalidType.of("lease", lease, "a Lease, as claim returns it")
    fence = lease.seq, lease.group_id, lease.worker_id, lease.lock_expiry
    seq, group_id, worker_id, lock_expiry = fence
    # A lease that was kept elsewhere meanwhile may have come back as another.
    if type(seq) is not int or type(lock_expiry) is not float or not type(group_id) is type(worker_id) is str:
        raise InvalidType("lease", "expected its fields of the types that claim gives them, found others")
    if not 0 <= seq <= HIGHEST_INTEGER:
        raise InvalidInput("lease", f"expected a seq as claim returns it, found {shown(seq)}")
    for part in (group_id, worker_id):
        if not part.isascii() or "\0" in part:
            text("lease", part)
    return fence
