"""Whether a receive is as fast however many messages are due, in flight or lapsed, and what a cycle costs (line 5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from qstore import LocalQueueRepository
from qstore.engines import Durability
from tests.benchmarks.filling import filled_queue
from tests.benchmarks.lines import Line, at_most, plain, slower
from tests.benchmarks.measuring import Contender, Scale, interleaved, short
from tests.benchmarks.raw import EVENT, RawQueue

__all__ = ["lines"]

FEW = 1000
EACH_ROUND = 50
"""Receives a round: of ten messages each they take half of the small store, which is filled up again."""


class Receiving:
    """Receives in a store that stays as full as it was: it is acked and sent again, which is not timed."""

    def __init__(self, path: Path, max_messages: int) -> None:
        self.queue = LocalQueueRepository.open(f"sqlite:///{path}", durability="normal")
        self.max_messages = max_messages
        self._handles: list[str] = []

    def contender(self) -> Contender:
        """To be measured."""
        return Contender(self._receive, before=self._restore)

    def _receive(self, times: int) -> None:
        for _ in range(times):
            received = self.queue.receive(self.max_messages)
            assert len(received) == self.max_messages
            self._handles += [message.receipt_handle for message in received]

    def _restore(self, times: int) -> None:
        if self._handles:
            self.queue.send_many([EVENT] * len(self._handles))
        for handle in self._handles:
            self.queue.ack(handle)
        self._handles.clear()


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """Receives of one and of ten in stores of all kinds, and send, receive and ack in an empty one."""
    many, lapsed = scale.of(1_000_000), scale.of(100_000)
    paths = {
        f"{short(FEW)} due": filled_queue(directory / "few.sqlite", due=FEW),
        f"{short(many // 10)} due": filled_queue(directory / "more.sqlite", due=many // 10),
        f"{short(many)} due": filled_queue(directory / "many.sqlite", due=many),
        f"{short(many)} in flight": filled_queue(directory / "flight.sqlite", due=FEW, in_flight=many),
        f"{short(lapsed)} lapsed": filled_queue(directory / "lapsed.sqlite", due=FEW, lapsed=lapsed),
    }
    few, *others = paths
    yield _first_after_lapses(paths[others[-1]], short(lapsed))
    for max_messages in (1, 10):
        with ExitStack() as stack:
            receiving = {name: Receiving(path, max_messages) for name, path in paths.items()}
            for each in receiving.values():
                stack.enter_context(each.queue)
            contenders = {name: each.contender() for name, each in receiving.items()}
            figures = interleaved(contenders, scale, times=scale.of(EACH_ROUND))
        for name in others:
            yield slower(f"receive({max_messages}), {name}, NORMAL", figures, name, few, at_most(1.5))
    yield _cycle(directory, "normal", scale, must=True)
    yield _cycle(directory, "full", scale, must=False)


def _first_after_lapses(path: Path, lapsed: str) -> Line:
    """What the first receive pays once, after so many lapsed."""
    with LocalQueueRepository.open(f"sqlite:///{path}", durability="normal") as queue:
        began = time.perf_counter()
        [message] = queue.receive()
        took = time.perf_counter() - began
        queue.nack(message.receipt_handle)
    return plain(f"the first receive after {lapsed} lapsed", took * 1000, "ms")


def _cycle(directory: Path, durability: Durability, scale: Scale, *, must: bool) -> Line:
    raw = RawQueue(directory / f"raw-{durability}.sqlite", durability)
    with LocalQueueRepository.open(f"sqlite:///{directory}/cycle-{durability}.sqlite", durability=durability) as ours:

        def cycle(times: int) -> None:
            for _ in range(times):
                ours.send(EVENT)
                [message] = ours.receive()
                ours.ack(message.receipt_handle)

        times = 200 if durability == "normal" else 10
        figures = interleaved({"raw sqlite3": raw.cycle, "ours": cycle}, scale, times=times, warm=scale.of(150, 10))
    raw.close()
    what = f"send+receive+ack, empty, {durability.upper()}"
    return slower(what, figures, "ours", "raw sqlite3", at_most(1.3, must=must))
