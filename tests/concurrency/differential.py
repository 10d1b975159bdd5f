"""The long run of the differential tests: `python -m tests.concurrency.differential --comparisons 1000000`.

Prints what it has compared, and fails with the history that differs; QSTORE_TEST_HISTORY replays one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from qstore import NATIVE
from tests.backends import MOUNTED
from tests.concurrency.hostile import Hostile
from tests.concurrency.hostile_queue import HostileQueue
from tests.concurrency.hostile_transport import HostileTransport

KINDS: dict[str, type[Hostile]] = {"transport": HostileTransport, "localqueue": HostileQueue}


@contextmanager
def pair(kind: type[Hostile], directory: Path) -> Iterator[list[Hostile]]:
    """The same store under its native and under mounted names."""
    stores = [kind(directory / f"{number}.sqlite", naming) for number, naming in enumerate((NATIVE, MOUNTED))]
    try:
        yield stores
    finally:
        for store in stores:
            store.close()


def main() -> int:
    """Compare until there are as many comparisons as were asked for, of each store."""
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency.differential", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=100_000, help="of each store")
    parser.add_argument("--first", type=int, default=1_000_000, help="the first history's number")
    parser.add_argument("--store", choices=KINDS, action="append", help="one store alone")
    given = parser.parse_args()
    for name in given.store or KINDS:
        began = time.monotonic()
        with TemporaryDirectory() as directory, pair(KINDS[name], Path(directory)) as stores:
            for seed in count(given.first):
                stores[seed % 2].run(seed)
                if sum(store.comparisons for store in stores) >= given.comparisons:
                    break
            compared, found = sum(store.comparisons for store in stores), sum(store.found for store in stores)
        print(f"{name}: {compared:,} comparisons, {found:,} of them with a message, none differed", end=" ")
        print(f"(histories {given.first} to {seed}, {time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
