"""Eight processes on one transport on a server while sessions are ended and processes killed.

`python -m tests.concurrency.postgres_stress` is the long form; it exits with 1 if anything is not as it must be.
`--naive`: with the obvious claim, which it must catch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sqlalchemy import URL, create_engine, make_url

from qstore import TransportRepository
from qstore.transport import statements_postgresql as statements
from tests import postgres
from tests.backends import MOUNTED
from tests.concurrency.harness.broken import NAIVE_CLAIM
from tests.concurrency.postgres_account import Note, deadlocks, drained, faults, wrong_states
from tests.concurrency.postgres_storm import Plan, Worker, end_a_session, through_asyncpg
from tests.concurrency.processes import Child, Ready, children

DRIVERS = ("psycopg", "asyncpg")


class Journal:
    """A worker's own file. One write a note, so that it survives the SIGKILL that follows it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, note: Note) -> None:
        self.extend([note])

    def extend(self, notes: Iterable[Note]) -> None:
        os.write(self._file, b"".join(json.dumps(note).encode() + b"\n" for note in notes))

    def close(self) -> None:
        os.close(self._file)


def work(ready: Ready, url: str, driver: str, path: str, plan: Plan, naive: bool) -> None:
    """Do everything at random until the time is over, on an engine of this process."""
    if naive:
        statements.CLAIM = NAIVE_CLAIM
    with ExitStack() as stack:
        engine = create_engine(url)
        stack.callback(engine.dispose)
        transport = TransportRepository(engine, event_type=str, naming=MOUNTED)
        if driver == "asyncpg":
            transport = stack.enter_context(through_asyncpg(make_url(url), plan))
        journal = Journal(path)
        stack.callback(journal.close)
        ready()
        Worker(Path(path).name, transport, engine, plan, journal).run()


class Outcome(NamedTuple):
    """What a stress came to."""

    faults: Counter[str]
    """What must not be, by kind: empty if all is well."""
    counts: Counter[str]
    """What was done."""


def stressed(url: URL, seconds: float, *, groups: int = 200, publishing: float = 0.2, naive: bool = False) -> Outcome:
    """Let eight processes work for so long, end sessions and kill processes meanwhile, and check all they did.

    The smaller the share of operations that publish, the more often groups are emptied.
    """
    plan = Plan(sys.maxsize, seconds, groups, publishing, joining=0.1, joined=1, killed=True)
    random, counts = Random(1), Counter[str]()
    found = Counter[str]()
    logged, counted = _deadlocks_logged(), deadlocks(url)
    with TemporaryDirectory() as directory, children() as running:

        def start(seconds: float) -> Child:
            name = f"worker {counts['processes']}"
            driver = DRIVERS[counts["processes"] % 2]
            path = str(Path(directory, name))
            counts["processes"] += 1
            arguments = url.render_as_string(hide_password=False), driver, path, plan._replace(seconds=seconds), naive
            running.append(Child(work, *arguments))
            return running[-1]

        working = [start(seconds) for _ in range(8)]
        for child in working:
            child.wait_until_ready()
        for child in working:
            child.go()
        ends, kill_at = time.monotonic() + seconds, time.monotonic() + seconds / 8
        while time.monotonic() < ends:
            time.sleep(0.2)
            counts["sessions ended"] += end_a_session(url, random)
            if random.random() < 0.2:
                found["wrong states met"] += len(wrong_states(url))
            if time.monotonic() > kill_at:
                kill_at = time.monotonic() + seconds / 8
                killed = random.randrange(len(working))
                working[killed].kill()
                counts["processes killed"] += 1
                working[killed] = start(max(0, ends - time.monotonic()))
                working[killed].wait_until_ready()
                working[killed].go()
        for child in working:
            child.result(60)
        notes = [note for path in sorted(Path(directory).iterdir()) for note in read(path)]
    notes += drained(url)
    found += faults(notes) + Counter({"wrong states left": len(wrong_states(url))})
    found["deadlocks counted"] = deadlocks(url) - counted
    found["deadlocks logged"] = _deadlocks_logged() - logged
    counts += Counter(note.what for note in notes if note.what in ("published", "held", "acked"))
    return Outcome(+found, counts)


def read(path: Path) -> list[Note]:
    """A worker's notes. Its death may cut the last one short: that was not noted."""
    whole, _, _cut = path.read_bytes().rpartition(b"\n")
    return [Note(*json.loads(line)) for line in whole.splitlines()]


def _deadlocks_logged() -> int:
    return postgres.logged().count("deadlock detected")


def main() -> int:
    """Run the long form and print what it came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency.postgres_stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--naive", action="store_true", help="claim as one would write it first: this must fail")
    given = parser.parse_args()
    try:
        outcome = stressed(postgres.database(), given.seconds, naive=given.naive)
        print(postgres.described())
    finally:
        postgres.stop()
    for what, number in outcome.counts.items():
        print(f"  {what}: {number:,}")
    for what, number in outcome.faults.most_common(20):
        print(f"  NOT AS IT MUST BE: {what}: {number:,}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
