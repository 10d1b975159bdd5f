"""H40 on PostgreSQL: a server that has no room left for its tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, TypeVar

import pytest
from sqlalchemy import URL

from qstore import StoreFull
from tests import postgres
from tests.concurrency.harness.places import KINDS
from tests.concurrency.postgres_account import wrong_states
from tests.integration.situations import mounted_disk

T = TypeVar("T")

ROOM = 400_000
"""Bytes that are left on the disk when it is about to be full."""

LARGE = os.urandom(20_000).hex()
"""Text that the server finds nothing to compress in."""


@pytest.fixture
def small() -> Iterator[tuple[URL, Path]]:
    """A database with all stores on a disk of forty megabytes, and that disk."""
    parent = Path(mkdtemp(prefix="qstore-disk-"))
    parent.chmod(0o755)
    try:
        with mounted_disk(parent / "disk", "40m") as disk, postgres.tablespace(disk) as tablespace:
            url = postgres.database(tablespace)
            try:
                yield url, disk
            finally:
                postgres.drop(url)
    finally:
        rmtree(parent)


@contextmanager
def _filled(disk: Path) -> Iterator[None]:
    """Another program has filled the disk, and removes its file later."""
    room, filler = os.statvfs(disk), disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - ROOM)
    try:
        yield
    finally:
        filler.unlink()


def _until_full(call: Callable[[int], T]) -> list[T]:
    """What so many calls returned before one was told that there is no room."""
    found = []
    with pytest.raises(StoreFull, match="room"):  # noqa: PT012  which of them is the last, the server decides
        for number in range(1000):
            found.append(call(number))
    return found


@pytest.mark.parametrize("kind", ["psycopg", "async psycopg", "asyncpg"])
def test_a_server_without_room_says_so_loses_nothing_and_goes_on_when_there_is_some(
    kind: str, small: tuple[URL, Path]
) -> None:
    """H40. What it has acknowledged is there, and of what it has refused nothing."""
    url, disk = small
    place = KINDS[kind](url.render_as_string(hide_password=False))
    with place.opened(None) as stores:
        transport, queue, kv = stores
        transport.publish("held", "held")
        held = transport.claim("w", 600)
        with _filled(disk):
            seqs = _until_full(lambda number: transport.publish(f"g{number}", LARGE))
            ids = _until_full(lambda _: queue.send(LARGE))
            keys = _until_full(lambda number: (kv.put(f"{number}", LARGE.encode()), f"{number}")[1])
            for refused in _refused(transport, queue, kv):
                with pytest.raises(StoreFull):
                    refused()
            assert all(kv.get(key) == LARGE.encode() for key in keys)
            assert seqs or ids or keys
        assert (place.count("transport", "messages"), place.count("transport", "groups")) == (len(seqs) + 1,) * 2
        assert place.count("localqueue", "messages") == len(ids)
        assert wrong_states(url) == []
        transport.ack(held)
        seqs.append(transport.publish("again", LARGE))
        ids.append(queue.send(LARGE))
        kv.put("again", LARGE.encode())
        assert sorted(key for key, _ in kv.iter_prefix("")) == sorted([*keys, "again"])
        assert [_acked(transport) for _ in seqs] == seqs
        assert [message.id for message in queue.receive(1000)] == ids
        assert wrong_states(url) == []


def _acked(transport: Any) -> int:
    lease = transport.claim("w", 60)
    transport.ack(lease)
    return int(lease.seq)


def _refused(transport: Any, queue: Any, kv: Any) -> Iterator[Callable[[], object]]:
    """Calls of which a part would have found room."""
    large = LARGE.encode() * 20
    yield lambda: transport.publish_many([("many", "small"), *[(f"many{number}", LARGE) for number in range(9)]])
    yield lambda: queue.send_many(["small", *[LARGE] * 9])
    yield lambda: kv.put_many({"many": b"small", "many large": large})
    yield lambda: kv.put("0", large)
    yield lambda: kv.put("new", large, if_not_exists=True)
