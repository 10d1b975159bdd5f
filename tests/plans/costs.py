"""What a call costs, in figures that are the same on any machine, however busy it is.

statements  that SQLite runs for it; that a trigger fires counts as one, and so does each of its steps
pages       that it writes into the log
calls       of Python functions, C's included, on Python 3.11

`python -m tests.plans.costs > tests/plans/costs.txt` writes down what they are now, where that is what was meant.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from sqlalchemy import Engine

from qstore import Event, LocalKvRepository, LocalQueueRepository, TransportRepository, open_engine

__all__ = ["COSTS", "Cost", "counted", "operations", "shown", "table", "written"]

COSTS = Path(__file__).with_name("costs.txt")

NOW = 1_700_000_000.5
EVENT = Event.model_validate({"id": "0" * 32, "kind": "placed", "data": {"total": 40}})

FRAME_HEADER = 24
"""Bytes in SQLite's write-ahead log before each page."""

REPEATS = 3

TABLES = {"transport": "messages", "localkv": "kv", "localqueue": "messages"}


class Cost(NamedTuple):
    """Of one call."""

    statements: int
    pages: int
    calls: int


Operations = dict[str, tuple[Engine, Callable[[], object]]]
"""Each with the engine that it works on. They can be called in this order, and again."""


@contextmanager
def operations(directory: str, added: str = "") -> Iterator[Operations]:
    """The hot operations, on small stores. `added`: SQL that somebody adds to each, `{}` for its table."""
    with ExitStack() as stack:
        engines = {
            store: stack.enter_context(_opened(store, os.path.join(directory, f"{store}.sqlite"), added))
            for store in TABLES
        }
        transport = TransportRepository(engines["transport"], clock=lambda: NOW)
        kv = LocalKvRepository(engines["localkv"], clock=lambda: NOW)
        queue = LocalQueueRepository(engines["localqueue"], clock=lambda: NOW)
        for number in range(100):
            transport.publish(f"g{number}", EVENT)
            kv.put(f"k{number}", b"before")
            queue.send("payload")
        leases, received, keys = [], [], iter(range(1000, 2000))

        calls: dict[str, Callable[[], object]] = {
            "localkv get": lambda: kv.get("k5"),
            "localkv put, overwriting": lambda: kv.put("k5", b"%06d" % next(keys)),
            "localkv put, new key": lambda: kv.put(f"k{next(keys)}", b"new"),
            "transport publish": lambda: transport.publish("g5", EVENT),
            "transport publish, new group": lambda: transport.publish(f"g{next(keys)}", EVENT),
            "transport claim": lambda: leases.append(transport.claim("worker", 60)),
            "transport ack": lambda: transport.ack(leases.pop()),  # type: ignore[arg-type]  # there was one
            "localqueue send": lambda: queue.send("payload"),
            "localqueue receive(1)": lambda: received.extend(queue.receive(1)),
            "localqueue receive(10)": lambda: received.extend(queue.receive(10)),
            "localqueue ack": lambda: queue.ack(received.pop().receipt_handle),
        }
        yield {name: (engines[name.split()[0]], call) for name, call in calls.items()}


def counted(engine: Engine, call: Callable[[], object]) -> Cost:
    """What a call costs, when nothing is left to be found out for it. It is called a few times.

    Now and then a call also looks whether the file is still there: the fewest calls are those of one that does not.
    """
    pool: Any = engine.pool
    held = pool.take()
    pool.give(held)
    frame = int(held.driver.execute("PRAGMA page_size").fetchone()[0]) + FRAME_HEADER
    statements: list[str] = []
    before = _log(engine)
    held.driver.set_trace_callback(statements.append)
    calls = _calls(call)
    held.driver.set_trace_callback(None)
    pages = (_log(engine) - before) // frame
    return Cost(len(statements), pages, min(calls, *(_calls(call) for _ in range(REPEATS))))


def table(added: str = "") -> dict[str, Cost]:
    """What each operation costs now."""
    with TemporaryDirectory() as directory, operations(directory, added) as each:
        for _, call in each.values():
            for _ in range(REPEATS + 2):
                call()
        return {name: counted(engine, call) for name, (engine, call) in each.items()}


def written() -> dict[str, Cost]:
    """What each operation costs by `costs.txt`."""
    rows = [line for line in COSTS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    parted = [row.rsplit(maxsplit=3) for row in rows]
    return {name: Cost(*map(int, figures)) for name, *figures in parted}


@contextmanager
def _opened(store: str, path: str, added: str) -> Iterator[Engine]:
    made: dict[str, Callable[[str], Any]] = {
        "transport": TransportRepository[Event].open,
        "localkv": LocalKvRepository.open,
        "localqueue": LocalQueueRepository.open,
    }
    made[store](f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(added.format(TABLES[store]))
    engine = open_engine(path, durability="normal")
    try:
        yield engine
    finally:
        engine.dispose()


def _log(engine: Engine) -> int:
    """Bytes of log, which is not written back before it has far more than these few calls write."""
    return os.stat(f"{engine.url.database}-wal").st_size


def _calls(call: Callable[[], object]) -> int:
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count - 1  # the one that ends it


def shown(costs: dict[str, Cost]) -> str:
    """As `costs.txt` has it."""
    rows = ["# What one call costs, in small stores: tests/plans/costs.py says what is counted."]
    rows += [f"# {'operation':<30} {'statements':>10} {'pages':>6} {'calls':>6}"]
    rows += [f"{name:<32} {cost.statements:>10} {cost.pages:>6} {cost.calls:>6}" for name, cost in costs.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(shown(table()))
