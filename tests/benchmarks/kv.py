"""What a get and a put through the public repository cost beside the seed's statements (line 3)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from qstore import LocalKvRepository
from qstore.engines import Durability
from tests.benchmarks.filling import filled_kv
from tests.benchmarks.lines import Line, at_most, missing, plain, slower
from tests.benchmarks.measuring import Figures, Scale, interleaved
from tests.benchmarks.raw import RawKv

__all__ = ["KEYS", "callgrind", "lines"]

KEYS = 1000

GETS = """
import os, subprocess, sys
if sys.argv[1] == "ours":
    from qstore import LocalKvRepository
    get = LocalKvRepository.open(f"sqlite:///{sys.argv[2]}").get
else:
    from tests.benchmarks.raw import RawKv
    get = RawKv(sys.argv[2]).get
keys = [f"k{n % 1000:08}" for n in range(int(sys.argv[3]))]
get(keys[0])
subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
for key in keys:
    get(key)
"""
"""Gets, as many as the arguments say, for Callgrind to count from when it is told to."""

CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null")
COLLECTED = re.compile(r"Collected : (\d+)")


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """Reads, overwriting puts with changing values, and a get in a caller's Session."""
    path = filled_kv(directory / "ours.sqlite", keys=KEYS)
    raw_path = directory / "raw.sqlite"
    for durability in ("normal", "full"):
        yield from _repository(path, raw_path, durability, scale)
    yield _session(path, raw_path, scale)
    limit = at_most(32_000)
    if scale.quick:
        yield missing("get, instructions", "callgrind", "not in a quick run", limit._replace(must=False))
    elif shutil.which("callgrind_control") is None:
        yield missing("get, instructions", "callgrind", "valgrind is not installed", limit._replace(must=False))
    else:
        ours, raw = (callgrind(which, where) for which, where in (("ours", path), ("raw", raw_path)))
        yield plain(f"get, instructions ({raw:,.0f} in raw sqlite3)", ours, "instructions", limit)


def _repository(path: Path, raw_path: Path, durability: Durability, scale: Scale) -> Iterator[Line]:
    raw = _raw(raw_path, durability)
    with LocalKvRepository.open(f"sqlite:///{path}", durability=durability) as ours:
        if durability == "normal":
            figures = _gets({"ours": ours.get, "raw sqlite3": raw.get}, scale)
            yield slower("get", figures, "ours", "raw sqlite3", at_most(1.5))
        figures = interleaved(
            {"raw sqlite3": _puts(raw.put), "ours": _puts(ours.put)},
            scale,
            times=scale.of(2000, 500) if durability == "normal" else 10,
        )
        yield slower(f"put, overwriting, {durability.upper()}", figures, "ours", "raw sqlite3", at_most(1.3))
    raw.close()


def _session(path: Path, raw_path: Path, scale: Scale) -> Line:
    raw = _raw(raw_path, "normal")
    engine = create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        figures = _gets({"ours": LocalKvRepository(session).get, "raw sqlite3": raw.get}, scale)
    engine.dispose()
    raw.close()
    return slower("get in a caller's Session", figures, "ours", "raw sqlite3", at_most(6))


def _raw(path: Path, durability: str) -> RawKv:
    raw = RawKv(path, durability)
    raw.connection.execute("BEGIN")
    for number in range(KEYS):
        raw.put(f"k{number:08}", b"value")
    raw.connection.execute("COMMIT")
    return raw


def _gets(gets: dict[str, Callable[[str], bytes | None]], scale: Scale) -> Figures:
    keys = [f"k{number:08}" for number in range(KEYS)]

    def all_of(get: Callable[[str], bytes | None]) -> Callable[[int], None]:
        def run(times: int) -> None:
            for key in keys[:times]:
                get(key)

        return run

    return interleaved({name: all_of(get) for name, get in gets.items()}, scale, times=KEYS)


def _puts(put: Callable[[str, bytes], object]) -> Callable[[int], None]:
    """With another value each time: an upsert of the same value would not be written at all."""
    numbers = count()

    def run(times: int) -> None:
        for number in range(times):
            put(f"k{number % KEYS:08}", b"%012d" % next(numbers))

    return run


def callgrind(which: str, path: Path, gets: int = 2000) -> float:
    """Instructions a get: what a process with more of them takes beyond one with a few, so that nothing else counts."""
    started = [
        subprocess.Popen(
            [*CALLGRIND, sys.executable, "-c", GETS, which, str(path), str(times)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for times in (1000, 1000 + gets)
    ]
    collected = []
    for process in started:
        try:
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
        found = COLLECTED.search(said)
        if found is None:
            raise RuntimeError(f"expected callgrind's total, found: {said[-500:]}")
        collected.append(int(found[1]))
    few, more = collected
    return (more - few) / gets
