"""What is saved by a hundred in one call, and by many threads that share a repository, at FULL (line 7).

How much threads save depends on what it takes to wake one, which every call does, beside what a sync takes. So they are
held against the least that can be done: raw sqlite3 behind one thread that writes for all, woken in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from threading import Lock, Thread
from typing import NamedTuple

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository
from tests.benchmarks.cycle import event_of
from tests.benchmarks.lines import Line, at_least, faster
from tests.benchmarks.measuring import Contender, Contenders, Scale, interleaved
from tests.benchmarks.raw import EVENT, RawKv, RawQueue, RawTransport

__all__ = ["lines"]

BATCH = 100
THREADS = 64


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """One message and one key a call against a hundred, and one thread against 64."""
    with ExitStack() as stack:
        transport = stack.enter_context(TransportRepository.open(directory / "transport.sqlite"))
        queue = stack.enter_context(LocalQueueRepository.open(directory))
        kv = stack.enter_context(LocalKvRepository.open(directory))
        event = event_of(EVENT)
        numbers = count()

        def keys(many: int) -> dict[str, bytes]:
            return {f"k{next(numbers) % 10_000:08}": b"%012d" % next(numbers) for _ in range(many)}

        singles: dict[str, Callable[[], object]] = {
            "publish": lambda: transport.publish("group", event),
            "send": lambda: queue.send(EVENT),
            "put": lambda: kv.put(*next(iter(keys(1).items()))),
        }
        many: dict[str, Callable[[], object]] = {
            "publish": lambda: transport.publish_many([("group", event)] * BATCH),
            "send": lambda: queue.send_many([EVENT] * BATCH),
            "put": lambda: kv.put_many(keys(BATCH)),
        }
        for name, single in singles.items():
            contenders: Contenders = {
                "one a call": _repeated(single),
                "many": Contender(_repeated(many[name], each=BATCH), times=BATCH),
            }
            figures = interleaved(contenders, scale, times=3)
            yield faster(f"{name}_many of {BATCH}, FULL", figures, "many", "one a call", at_least(8))
        raw_transport = stack.enter_context(closing(RawTransport(directory / "raw_transport.sqlite")))
        raw_queue = stack.enter_context(closing(RawQueue(directory / "raw_queue.sqlite")))
        raw_kv = stack.enter_context(closing(RawKv(directory / "raw_kv.sqlite")))
        plain: dict[str, Plain] = {
            "publish": Plain(raw_transport.connection, lambda: raw_transport.publish("group", EVENT)),
            "send": Plain(raw_queue.connection, lambda: raw_queue.send(EVENT)),
            "put": Plain(raw_kv.connection, lambda: raw_kv.put(*next(iter(keys(1).items())))),
        }
        with ThreadPoolExecutor(THREADS) as threads:
            for name in singles if not scale.quick else ("publish",):
                yield from _threads(threads, name, singles[name], plain[name], scale)


class Plain(NamedTuple):
    """A write in plain sqlite3, and the connection that it is on."""

    connection: Connection
    write: Callable[[], None]


def _threads(
    threads: ThreadPoolExecutor, name: str, call: Callable[[], object], plain: Plain, scale: Scale
) -> Iterator[Line]:
    calls: SimpleQueue[Lock | None] = SimpleQueue()

    def written() -> None:
        done = Lock()
        done.acquire()
        calls.put(done)
        done.acquire()

    def crowd(call: Callable[[], object]) -> Contender:
        def all_at_once(times: int) -> None:
            each = _repeated(call)
            for done in [threads.submit(each, times // THREADS) for _ in range(THREADS)]:
                done.result()

        return Contender(all_at_once, times=50 * THREADS)

    behind_one = f"raw sqlite3, {THREADS} threads behind one that writes"
    contenders: Contenders = {
        "one thread": _repeated(call),
        "threads": crowd(call),
        "raw sqlite3, one thread": _repeated(plain.write),
        behind_one: crowd(written),
    }
    writer = Thread(target=_write_for_all, args=(plain, calls))
    writer.start()
    try:
        figures = interleaved(contenders, scale, times=5)
    finally:
        calls.put(None)
        writer.join()
    what = f"{name}, {THREADS} threads, FULL"
    yield faster(what, figures, "threads", behind_one, at_least(0.65))
    yield faster(what, figures, "threads", "one thread", at_least(8, aim=12, must=False))
    yield faster(f"{what}, {behind_one}", figures, behind_one, "raw sqlite3, one thread")


def _write_for_all(plain: Plain, calls: SimpleQueue[Lock | None]) -> None:
    """Do what others call for, all that has come in one transaction, until None comes."""
    execute = plain.connection.execute
    while (done := calls.get()) is not None:
        execute("BEGIN IMMEDIATE")
        written = []
        while done is not None:
            execute("SAVEPOINT one")
            plain.write()
            execute("RELEASE one")
            written.append(done)
            try:
                done = calls.get_nowait()
            except Empty:
                break
        execute("COMMIT")
        for each in written:
            each.release()


def _repeated(call: Callable[[], object], each: int = 1) -> Callable[[int], None]:
    """A call that does so much of the work."""

    def run(times: int) -> None:
        for _ in range(max(1, times // each)):
            call()

    return run
