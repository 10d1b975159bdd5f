"""A view of stores: what they hold, as text, frames and pictures. It never writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from sqlalchemy import Engine, MetaData

from qstore import models
from qstore.arguments import integer
from qstore.clock import Clock
from qstore.engines import described
from qstore.errors import BackendUnsupported, FormatError, InvalidInput, QstoreError
from qstore.explore import frames
from qstore.explore.explain import Explanation, explain_group, explain_key, explain_message, explain_queued
from qstore.explore.frames import Library, Payload
from qstore.explore.reading import Reader
from qstore.explore.summary import Summary, as_html, as_text, summarise
from qstore.formats import FORMATS
from qstore.mounting import mount
from qstore.places import Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["View"]

Text = Literal["text", "json"]

STORES = {"messages": "transport", "groups": "transport", "queue": "localqueue", "keys": "localkv"}
"""The store of each kind of frame."""


class View:
    """Stores that are only looked at. Nothing stays open between two calls, and no call keeps a writer waiting.

    Each call sees what is committed when it reads; a frame of several pages, in each page.
    """

    def __init__(self, places: list[Place], *, clock: Clock | None = None, owned: tuple[Engine, ...] = ()) -> None:
        self._readers = {place.store: Reader(place, clock) for place in places}
        self._owned = owned

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that are there."""
        return tuple(self._readers)

    @property
    def engine(self) -> Engine:
        """The engine behind the view, for `pandas.read_sql` and the like. It reads each result to its end at once.

        InvalidInput where there are several: a data directory has a file for each store (`engines`).
        """
        engines = set(self.engines.values())
        if len(engines) != 1:
            raise InvalidInput(
                "engine", f"expected a view of one database, found {len(engines)}: take view.engines['transport']"
            )
        return engines.pop()

    @property
    def engines(self) -> dict[str, Engine]:
        """The engine behind each store."""
        return {store: reader.place.engine for store, reader in self._readers.items()}

    @property
    def models(self) -> Any:
        """The mapped classes for `select()`, under the names that the tables have here: `view.models.QueueMessage`."""
        naming = next(iter(self._readers.values())).place.naming
        if naming.native:
            return models
        return mount(MetaData(), prefix=naming.prefix or "", schema=naming.schema, stores=self.stores)

    def summary(self) -> list[Summary]:
        """What each store holds now."""
        return [summarise(reader) for reader in self._readers.values()]

    @overload
    def messages(self, *, library: Library | None = None, payload: Text | None = "text", chunk: None = None) -> Any: ...
    @overload
    def messages(
        self, *, library: Library | None = None, payload: Text | None = "text", chunk: int
    ) -> Iterator[Any]: ...
    def messages(self, *, library: Any = None, payload: Any = "text", chunk: Any = None) -> Any:
        """The transport's messages in order of `seq`, as a frame of pandas or polars.

        `library`: the one that is installed, or `"pandas"`, `"polars"`. `payload="json"` adds a column for each thing
        that the events have (`event.kind`, `event.data.total`), None leaves them out. With `chunk` it is an iterator of
        frames of at most so many rows each. `state`: ready, in flight, parked, lapsed, stuck (locked without an end).
        """
        return self._frame("messages", library, payload, chunk)

    @overload
    def groups(self, *, library: Library | None = None, chunk: None = None) -> Any: ...
    @overload
    def groups(self, *, library: Library | None = None, chunk: int) -> Iterator[Any]: ...
    def groups(self, *, library: Any = None, chunk: Any = None) -> Any:
        """The transport's groups: how many messages each has, the head, who holds it, the time since the last claim."""
        return self._frame("groups", library, None, chunk)

    @overload
    def queue(self, *, library: Library | None = None, payload: Text | None = "text", chunk: None = None) -> Any: ...
    @overload
    def queue(self, *, library: Library | None = None, payload: Text | None = "text", chunk: int) -> Iterator[Any]: ...
    def queue(self, *, library: Any = None, payload: Any = "text", chunk: Any = None) -> Any:
        """The queue's messages in order of `id`, otherwise as `messages`.

        `state`: ready, in flight, parked (never received, and not due yet), or lapsed (received before, and due again).
        """
        return self._frame("queue", library, payload, chunk)

    @overload
    def keys(
        self, prefix: str = "", *, library: Library | None = None, payload: Payload | None = None, chunk: None = None
    ) -> Any: ...
    @overload
    def keys(
        self, prefix: str = "", *, library: Library | None = None, payload: Payload | None = None, chunk: int
    ) -> Iterator[Any]: ...
    def keys(self, prefix: str = "", *, library: Any = None, payload: Any = None, chunk: Any = None) -> Any:
        """The keys that start with a prefix, in their order, live and expired ones.

        Values come on request, as `payload="bytes"`, `"text"`, or `"json"`, which adds a column for each thing in them.
        """
        return self._frame("keys", library, payload, chunk, prefix)

    def peek(self, kind: str, most: int = 10, *, prefix: str = "") -> list[dict[str, Any]]:
        """The first rows of `messages`, `groups`, `queue` or `keys` as plain dicts, without any library."""
        if kind not in STORES:
            raise InvalidInput("kind", f"expected {', '.join(STORES)}, found {kind!r}")
        return frames.records(kind, self._reader(STORES[kind]), integer("most", most, at_least=1), prefix)

    def place(self, store: str) -> Place:
        """Where a store is. FormatError if it is not in this view."""
        return self._reader(store).place

    def explain(
        self,
        group_id: str | None = None,
        *,
        seq: int | None = None,
        id: int | None = None,
        key: str | None = None,
        min_priority: int = 0,
    ) -> Explanation:
        """Why a group is not moving; or a message of the transport (`seq`), one of the queue (`id`), or a key.

        `min_priority`: as the workers in question claim.
        """
        asked = [each for each in (group_id, seq, id, key) if each is not None]
        if len(asked) != 1:
            raise InvalidInput("group_id", f"expected one of group_id, seq, id and key, found {len(asked)}")
        if group_id is not None:
            return explain_group(self._reader("transport"), group_id, min_priority)
        if seq is not None:
            return explain_message(self._reader("transport"), seq, min_priority)
        if id is not None:
            return explain_queued(self._reader("localqueue"), id)
        return explain_key(self._reader("localkv"), key or "")

    def plot_depth(self, *, ax: Axes | None = None) -> Axes:
        """A bar for each store: how many rows are in which state."""
        drawn: Axes = _plots().depth(self.summary(), ax)
        return drawn

    def plot_age(self, *, ax: Axes | None = None) -> Axes:
        """How old the queue's messages are, by state; without a queue, how long ago groups were claimed."""
        store = "localqueue" if "localqueue" in self._readers else "transport"
        kind = "queue" if store == "localqueue" else "groups"
        columns = frames.values_of(kind, self._reader(store), "state", "age")
        drawn: Axes = _plots().age(kind, columns, ax)
        return drawn

    def plot_groups(self, *, most: int = 20, ax: Axes | None = None) -> Axes:
        """The groups with the most messages, by state."""
        columns = frames.values_of("groups", self._reader("transport"), "group_id", "state", "messages")
        drawn: Axes = _plots().groups(columns, most, ax)
        return drawn

    def close(self) -> None:
        """End the use of this view. What it was given stays open; closing twice is fine."""
        for engine in self._owned:
            engine.dispose()

    def __repr__(self) -> str:
        try:
            return f"{self._caption}\n{as_text(self.summary())}"
        except QstoreError as error:
            return f"{self._caption}: {error}"

    def _repr_html_(self) -> str:
        try:
            return as_html(self.summary(), self._caption)
        except QstoreError as error:
            return as_html((), f"{self._caption}: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _caption(self) -> str:
        return f"View of {self._target}"

    @property
    def _target(self) -> str:
        targets = {described(engine) for engine in self.engines.values()}
        return targets.pop() if len(targets) == 1 else os.path.commonpath(targets)

    def _reader(self, store: str) -> Reader:
        try:
            return self._readers[store]
        except KeyError:
            raise FormatError(
                f"there is no {store} in this view",
                found=", ".join(self._readers),
                supported=FORMATS[store].marker,
                target=self._target,
            ) from None

    def _frame(self, kind: str, library: Any, payload: Any, chunk: int | None, prefix: str = "") -> Any:
        reader = self._reader(STORES[kind])
        frames.check(payload, chunk, of_bytes=kind == "keys")
        if chunk is None:
            return frames.frame(kind, reader, library=library, payload=payload, prefix=prefix)
        return frames.frames(kind, reader, library=library, payload=payload, prefix=prefix, chunk=chunk)


def _plots() -> Any:
    try:
        from qstore.explore import plots  # noqa: PLC0415  matplotlib is in the extra
    except ModuleNotFoundError as error:
        raise BackendUnsupported(
            f"expected the package matplotlib, found no {error.name}: pip install 'qstore[notebook]'"
        ) from error
    return plots
