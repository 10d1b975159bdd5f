"""The key-value store: time to live, and an atomic conditional put."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import chain
from typing import Self

from qstore.arguments import HIGHEST_INTEGER, integer, text
from qstore.awaited import AsyncBind, await_to
from qstore.binding import Bind, bind_to
from qstore.clock import Clock, Seconds, ttl_milliseconds
from qstore.engines import Durability, FileEngine, Target
from qstore.engines.target import in_directory
from qstore.errors import InvalidInput, InvalidType, PayloadTooLarge, shown
from qstore.localkv import operations, postgresql  # noqa: F401  what the operations are on a server
from qstore.localkv.records import ScanPage
from qstore.naming import NATIVE, Naming
from qstore.opening import naming_at, open_async_store, open_store
from qstore.repository import AsyncRepository, Opening, Repository, owning

__all__ = ["AsyncLocalKvRepository", "LocalKvRepository"]

LONGEST_KEY = 512
"""Bytes of UTF-8."""

LARGEST_VALUE = 16 * 1024 * 1024
LARGEST_PORTABLE_VALUE = 24_576

EVERYTHING = HIGHEST_INTEGER
"""As a limit of rows."""

Value = bytes | bytearray | memoryview

_PORTABLE_KEY = re.compile(r"[A-Za-z0-9\-_:.]*")
_CURSOR = re.compile(r"[0-9]+")


class LocalKvRepository(Repository):
    """A durable key-value store (`localkv.v1`).

    Bound to an Engine, each call is one short transaction, and one object serves any number of threads. Bound to a
    Connection or Session, a call joins the caller's transaction, and takes effect when the caller commits.
    Expired means `expires_at <= now`, in whole milliseconds, everywhere.
    Errors of every call: StoreBusy (repeat it), StoreFull, InvalidInput (refused before the store was touched).
    """

    def __init__(
        self, bind: Bind, *, naming: Naming = NATIVE, clock: Clock | None = None, portable: bool = False
    ) -> None:
        """Use a store that exists.

        `portable` narrows keys and values to what other implementations of the format take: keys of
        `a-z A-Z 0-9 - _ : .`, values of up to 24,576 bytes, no empty prefix.
        """
        self._portable = portable
        self._largest_value = LARGEST_PORTABLE_VALUE if portable else LARGEST_VALUE
        super().__init__(bind_to(bind, naming, "localkv", clock))

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
        portable: bool = False,
    ) -> Self:
        """Open the store `localkv.sqlite` in a directory, and make both if they are not there (`create`).

        The repository owns its engine: close it. A SQLAlchemy URL names a file directly. FormatError, and nothing is
        changed, if the file is something else, or not there and `create` is False. `engine`: what opens a path; "turso"
        as the URL `sqlite+turso:///`.
        """
        url = in_directory(data_dir_or_url, "localkv.sqlite", engine)
        opened = open_store("localkv", url, create=create, durability=durability, fair=fair)
        return owning(opened, lambda: cls(opened, naming=naming_at(url), clock=clock, portable=portable))

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None if it is absent or expired.

        A live key is read without the write lock. An expired one is deleted on the way, unless the transaction is the
        caller's or the store read-only.
        """
        key = self._key(key)
        value, expired = self._binding.read(operations.get, key)
        if expired:
            self._binding.tidy(operations.delete_expired, key)
        return value

    def exists(self, key: str) -> bool:
        """Whether a key is there and not expired. Otherwise as `get`."""
        key = self._key(key)
        live, expired = self._binding.read(operations.exists, key)
        if expired:
            self._binding.tidy(operations.delete_expired, key)
        return live

    def put(self, key: str, value: Value, *, ttl: Seconds | None = None, if_not_exists: bool = False) -> bool:
        """Set a key, and return True; with `if_not_exists`, only if it is absent or expired, and return whether it was.

        Of any number of callers that race with `if_not_exists`, in any processes, exactly one wins.
        `ttl`: seconds, in whole milliseconds rounded up; 0 is expired at once; None never expires, and clears an
        earlier expiry.
        """
        arguments = self._key(key), self._value(value), _ttl(ttl)
        if if_not_exists:
            return self._binding.write(operations.put_if_absent, *arguments)
        self._binding.write(operations.put, *arguments)
        return True

    def put_many(self, items: Mapping[str, Value], *, ttl: Seconds | None = None) -> None:
        """Set all keys in one transaction, with one `ttl`."""
        if not isinstance(items, Mapping):
            raise InvalidType.of("items", items, "a mapping of keys to values")
        checked = [(self._key(key), self._value(value)) for key, value in items.items()]
        self._binding.write(operations.put_many, checked, _ttl(ttl))

    def delete(self, key: str) -> None:
        """Delete a key. One that is absent is left at that."""
        self._binding.write(operations.delete, self._key(key))

    def scan_prefix(self, prefix: str, *, limit: int | None = None, cursor: str | None = None) -> ScanPage:
        """A page of live items whose keys start with `prefix`, in the order of the keys' bytes.

        The prefix is literal and case-sensitive, and a key equal to it belongs. `limit` is 1 or more, or None for
        everything. `cursor` is the `next_cursor` of the page before: a plain offset, as the format has it, so that
        keys that come or go between two pages can make one be missed or seen twice. `iter_prefix` has no such gap.
        """
        prefix = self._prefix(prefix)
        offset = _offset(cursor)
        if limit is None:
            return ScanPage(_readable(self._binding.read(operations.scan, prefix, offset, EVERYTHING)), None)
        limit = integer("limit", limit, at_least=1)
        items = self._binding.read(operations.page, prefix, offset, min(limit, EVERYTHING - 1) + 1)
        return ScanPage(_readable(items[:limit]), str(offset + limit) if len(items) > limit else None)

    def iter_prefix(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Walk live items whose keys start with `prefix`, in the order of the keys' bytes.

        It walks by key, with a short read for each few: a key that lives through the whole walk is seen exactly once,
        whatever comes and goes meanwhile, and no transaction stays open between two items.
        """
        return chain.from_iterable(self._pages(self._prefix(prefix)))

    def purge_expired(self) -> int:
        """Delete all expired keys in one transaction. Returns how many there were."""
        return self._binding.write(operations.purge_expired)

    def _pages(self, prefix: str) -> Iterator[list[tuple[str, bytes]]]:
        size = 1
        items = self._binding.read(operations.scan, prefix, 0, size)
        while items:
            yield _readable(items)
            # As many rows as make about a megabyte, so that large values do not fill the memory.
            mean = sum(len(value) for _, value in items) // len(items) + 1
            size = max(1, min(1024, 8 * size, 1_048_576 // mean))
            items = self._binding.read(operations.scan_after, prefix, items[-1][0], size)

    def _key(self, key: str) -> str:
        key = text("key", key, at_most=LONGEST_KEY)
        if self._portable:
            _check_portable("key", key)
        return key

    def _prefix(self, prefix: str) -> str:
        prefix = text("prefix", prefix, or_empty=not self._portable)
        if self._portable:
            _check_portable("prefix", prefix)
        return prefix

    def _value(self, value: Value) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidType.of("value", value, "bytes, bytearray or memoryview")
        try:
            size = memoryview(value).nbytes
        except ValueError as error:
            raise InvalidInput("value", f"expected bytes that can be read: {error}") from error
        if size > self._largest_value:
            raise PayloadTooLarge("value", size=size, limit=self._largest_value)
        return value if type(value) is bytes else bytes(value)


class AsyncLocalKvRepository(AsyncRepository):
    """The async twin of `LocalKvRepository`: the same methods, awaited, with the same arguments and errors.

    Bound to an AsyncEngine, AsyncConnection or AsyncSession, as the sync one to theirs; one object serves any number of
    tasks, and one event loop after another. A call that is cancelled has happened whole or not at all when the
    cancellation goes on: only one that was committing already has happened.
    """

    _behind: LocalKvRepository

    def __init__(
        self, bind: AsyncBind, *, naming: Naming = NATIVE, clock: Clock | None = None, portable: bool = False
    ) -> None:
        """Use a store that exists. `portable` as in `LocalKvRepository`."""
        super().__init__(LocalKvRepository(await_to(bind, naming, "localkv", clock), portable=portable))

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
        portable: bool = False,
    ) -> Opening[Self]:
        """Open a store as `LocalKvRepository.open`: `await` it, or use it in `async with`, which also closes it."""
        url = in_directory(data_dir_or_url, "localkv.sqlite", engine)
        opening = open_async_store("localkv", url, create=create, durability=durability, fair=fair)
        return Opening(opening, lambda opened: cls(opened, naming=naming_at(url), clock=clock, portable=portable))

    async def get(self, key: str) -> bytes | None:
        """As `LocalKvRepository.get`."""
        return await self._run(self._behind.get, key)

    async def exists(self, key: str) -> bool:
        """As `LocalKvRepository.exists`."""
        return await self._run(self._behind.exists, key)

    async def put(self, key: str, value: Value, *, ttl: Seconds | None = None, if_not_exists: bool = False) -> bool:
        """As `LocalKvRepository.put`."""
        return await self._run(self._behind.put, key, value, ttl=ttl, if_not_exists=if_not_exists)

    async def put_many(self, items: Mapping[str, Value], *, ttl: Seconds | None = None) -> None:
        """As `LocalKvRepository.put_many`."""
        await self._run(self._behind.put_many, items, ttl=ttl)

    async def delete(self, key: str) -> None:
        """As `LocalKvRepository.delete`."""
        await self._run(self._behind.delete, key)

    async def scan_prefix(self, prefix: str, *, limit: int | None = None, cursor: str | None = None) -> ScanPage:
        """As `LocalKvRepository.scan_prefix`."""
        return await self._run(self._behind.scan_prefix, prefix, limit=limit, cursor=cursor)

    def iter_prefix(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """As `LocalKvRepository.iter_prefix`, for `async for`."""
        return self._walk(self._behind._pages(self._behind._prefix(prefix)))

    async def purge_expired(self) -> int:
        """As `LocalKvRepository.purge_expired`."""
        return await self._run(self._behind.purge_expired)

    async def _walk(self, pages: Iterator[list[tuple[str, bytes]]]) -> AsyncIterator[tuple[str, bytes]]:
        while (page := await self._run(next, pages, None)) is not None:
            for item in page:
                yield item


def _check_portable(field: str, key: str) -> None:
    if not _PORTABLE_KEY.fullmatch(key):
        raise InvalidInput(field, f"expected only a-z A-Z 0-9 - _ : . (portable=True), found {shown(key)}")


def _readable(items: operations.Items) -> list[tuple[str, bytes]]:
    """Without the keys that are not UTF-8: others have written them, and no call can name them."""
    try:
        return [(key.decode(), value) for key, value in items]
    except UnicodeDecodeError:
        return [(key.decode(), value) for key, value in items if key == key.decode(errors="ignore").encode()]


def _ttl(ttl: Seconds | None) -> int | None:
    return None if ttl is None else ttl_milliseconds("ttl", ttl)


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not isinstance(cursor, str):
        raise InvalidType.of("cursor", cursor, "str, the next_cursor of the page before")
    if not _CURSOR.fullmatch(cursor) or len(cursor) > 1000:
        raise InvalidInput(
            "cursor", f"expected ASCII digits, the next_cursor of the page before, found {shown(cursor)}"
        )
    return min(int(cursor), HIGHEST_INTEGER)
