"""What is saved by a hundred in one call, and by many threads that share a repository, at FULL (line 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository
from tests.benchmarks.cycle import event_of
from tests.benchmarks.lines import Limit, Line, at_least, faster
from tests.benchmarks.measuring import Contender, Contenders, Scale, interleaved
from tests.benchmarks.raw import EVENT

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
        with ThreadPoolExecutor(THREADS) as threads:
            for name in singles if not scale.quick else ("publish",):
                yield _threads(threads, name, singles[name], scale, at_least(8, aim=12))


def _threads(threads: ThreadPoolExecutor, name: str, call: Callable[[], object], scale: Scale, limit: Limit) -> Line:
    def all_at_once(times: int) -> None:
        each = _repeated(call)
        for done in [threads.submit(each, times // THREADS) for _ in range(THREADS)]:
            done.result()

    contenders: Contenders = {"one thread": _repeated(call), "threads": Contender(all_at_once, times=20 * THREADS)}
    figures = interleaved(contenders, scale, times=5)
    return faster(f"{name}, {THREADS} threads, FULL", figures, "threads", "one thread", limit)


def _repeated(call: Callable[[], object], each: int = 1) -> Callable[[int], None]:
    """A call that does so much of the work."""

    def run(times: int) -> None:
        for _ in range(max(1, times // each)):
            call()

    return run
