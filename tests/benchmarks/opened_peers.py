"""How each peer is opened and used: as its own documentation does, with what SQLite syncs set to be as ours.

Each function takes the peer's module, an empty directory and the durability. Their modules may not be installed where
this is type-checked, so they come as `Any`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from qstore.engines import Durability
from tests.benchmarks.raw import EVENT, connected

__all__ = [
    "Opened",
    "Used",
    "diskcache",
    "diskcache_queue",
    "dramatiq",
    "huey",
    "kombu",
    "litequeue",
    "persistqueue",
    "sqlitedict",
]

Used = tuple[Callable[[], object], Callable[[], object], Callable[[], object]]
"""A message through it, or a put into it; what it wants cleared away now and then, which is not timed; its end."""

Opened = Callable[[Any, Path, Durability], Used]


def _nothing() -> None:
    """Clear nothing away."""


def litequeue(module: Any, directory: Path, durability: Durability) -> Used:
    """It keeps what is done, for `prune`."""
    queue = module.LiteQueue(directory / "queue.sqlite")
    queue.conn.execute(f"PRAGMA synchronous={durability}")

    def through() -> None:
        queue.put(EVENT)
        queue.done(queue.pop().message_id)

    return through, queue.prune, queue.close


def persistqueue(module: Any, directory: Path, durability: Durability) -> Used:
    """It keeps what is acknowledged, for `clear_acked_data`."""
    queue = module.SQLiteAckQueue(str(directory), multithreading=True)
    for connection in (queue._putter, queue._getter):
        connection.execute(f"PRAGMA synchronous={durability}")

    def through() -> None:
        queue.put(EVENT)
        queue.ack(id=queue.get(block=False, raw=True)["pqid"])

    return through, lambda: queue.clear_acked_data(max_delete=100_000, keep_latest=0), queue.close


def huey(module: Any, directory: Path, durability: Durability) -> Used:
    """Its storage alone, which is faster than its tasks."""
    storage = module.SqliteStorage("queue", str(directory / "queue.sqlite"), strict_fifo=True)
    storage.sql(f"pragma synchronous={durability}")
    data = EVENT.encode()

    def through() -> None:
        storage.enqueue(data)
        assert storage.dequeue() is not None

    return through, _nothing, storage.close


def dramatiq(module: Any, directory: Path, durability: Durability) -> Used:
    """Its broker and consumer, without workers and middleware. It keeps what is acknowledged for 30 days."""
    message = import_module("dramatiq").Message
    broker = module.SQLiteBroker(url=str(directory / "queue.sqlite"), middleware=[])
    broker.declare_queue("queue")
    consumer = broker.consume("queue")
    for database in (broker.db, consumer.db):
        database.conn.execute(f"PRAGMA synchronous={durability}")

    def through() -> None:
        broker.enqueue(message(queue_name="queue", actor_name="actor", args=(EVENT,), kwargs={}, options={}))
        consumer.ack(next(consumer))

    def close() -> None:
        for database in (broker.db, consumer.db):
            database.conn.close()

    return through, _nothing, close


def kombu(module: Any, directory: Path, durability: Durability) -> Used:
    """Its SQLAlchemy transport, on a file with a write-ahead log. It keeps what was taken until a purge."""
    path = directory / "queue.sqlite"
    connected(path).close()

    def creator() -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False)
        connection.execute(f"PRAGMA synchronous={durability}")
        return connection

    broker = module.Connection(f"sqla+sqlite:///{path}", transport_options={"creator": creator})
    queue = broker.SimpleQueue("queue")

    def through() -> None:
        queue.put(EVENT)
        queue.get_nowait().ack()

    def close() -> None:
        channel = queue.channel
        queue.close()
        channel.session.close()
        engine, _ = channel._engines.pop(channel.connection.client.hostname)
        engine.dispose()
        broker.release()

    return through, queue.clear, close


def diskcache_queue(module: Any, directory: Path, durability: Durability) -> Used:
    """Its push and pull."""
    cache = _cache(module, directory, durability)

    def through() -> None:
        cache.push(EVENT)
        assert cache.pull()[1] == EVENT

    return through, _nothing, cache.close


def diskcache(module: Any, directory: Path, durability: Durability) -> Used:
    """A put."""
    cache = _cache(module, directory, durability)
    numbers = count()
    return lambda: cache.set(f"k{next(numbers) % 20:08}", b"%012d" % next(numbers)), _nothing, cache.close


def sqlitedict(module: Any, directory: Path, durability: Durability) -> Used:
    """A put, and its commit awaited."""
    kept = module.SqliteDict(str(directory / "dict.sqlite"), journal_mode="WAL")
    kept.conn.execute(f"PRAGMA synchronous={durability}")
    numbers = count()

    def put() -> None:
        kept[f"k{next(numbers) % 20:08}"] = b"%012d" % next(numbers)
        kept.commit(blocking=True)

    return put, _nothing, kept.close


def _cache(module: Any, directory: Path, durability: Durability) -> Any:
    return module.Cache(str(directory), sqlite_synchronous=2 if durability == "full" else 1)
