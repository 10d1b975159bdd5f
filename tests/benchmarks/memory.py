"""How much memory a process takes that drains a million messages, or walks a million keys."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository
from tests.benchmarks.filling import filled_kv, filled_queue, filled_transport
from tests.benchmarks.lines import Line, at_most, plain
from tests.benchmarks.measuring import Scale, short

__all__ = ["lines"]

MOST = at_most(120)
PATIENCE = 1200
"""Seconds for the slowest of the processes."""


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """A process each, at the same time: how long they take is not what is measured."""
    many = scale.of(1_000_000, 10_000)
    paths = {
        "transport": filled_transport(directory / "transport.sqlite", messages=many, groups=many // 10),
        "localqueue": filled_queue(directory / "localqueue.sqlite", due=many),
        "localkv": filled_kv(directory / "localkv.sqlite", keys=many),
    }
    command = [sys.executable, "-m", "tests.benchmarks.memory"]
    started = {
        store: subprocess.Popen([*command, store, str(path)], stdout=subprocess.PIPE, text=True)
        for store, path in [*paths.items(), ("nothing", directory)]
    }
    said = {}
    try:
        for store, process in started.items():
            said[store] = process.communicate(timeout=PATIENCE)[0].split()
    finally:
        for process in started.values():
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()
    done = {"transport": "claims and acks of", "localqueue": "receives and acks of", "localkv": "a walk along"}
    for store, what in done.items():
        count, peak = said[store]
        if int(count) != many:
            raise RuntimeError(f"expected {many:,} from the {store}, found {count}")
        yield plain(f"{what} {short(many)}, peak memory", int(peak) / 1024, "MiB", MOST)
    yield plain("a process that has imported all that and opened nothing", int(said["nothing"][1]) / 1024, "MiB")


def _drain(store: str, path: str) -> int:
    count = 0
    if store == "transport":
        with TransportRepository.open(path, durability="normal") as transport:
            while (lease := transport.claim("worker", 30)) is not None:
                transport.ack(lease)
                count += 1
    elif store == "localqueue":
        with LocalQueueRepository.open(f"sqlite:///{path}", durability="normal") as queue:
            while received := queue.receive(10):
                for message in received:
                    queue.ack(message.receipt_handle)
                    count += 1
    elif store == "localkv":
        with LocalKvRepository.open(f"sqlite:///{path}") as kv:
            count = sum(1 for _ in kv.iter_prefix("k"))
    return count


def _peak() -> int:
    """KiB. What getrusage tells includes, on Linux, what the parent had when it started this process."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


if __name__ == "__main__":
    print(_drain(*sys.argv[1:]), _peak())
