"""`python -m tests.concurrency.harness`: rounds on one kind of back end. Exit code 1: something is wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import postgres
from tests.concurrency.harness.broken import VARIANTS
from tests.concurrency.harness.disks import not_possible
from tests.concurrency.harness.faults import FAULTS, ON_SHIMS
from tests.concurrency.harness.places import KINDS
from tests.concurrency.harness.rounds import Round, run
from tests.concurrency.harness.shim import preloaded


def main() -> int:
    """Run rounds until the time is over, and print what they came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency.harness", description=__doc__)
    parser.add_argument("--backend", choices=KINDS, default="opened")
    parser.add_argument("--seed", default="1", help="of the first round; the next ones have SEED.1, SEED.2, …")
    parser.add_argument("--seconds", type=float, default=60, help="all rounds together")
    parser.add_argument("--round", type=float, default=20, help="seconds of work in a round")
    parser.add_argument("--steps", type=int, default=0, help="in a round, at least, however long that takes")
    parser.add_argument("--faults", default="all", help=f"all, none, or some of: {','.join(FAULTS)}")
    parser.add_argument("--processes", type=int, default=4, help="with turso one, with as many threads as these have")
    parser.add_argument("--variant", choices=VARIANTS, help="a broken one: this must fail")
    parser.add_argument("--keep", help="a directory for the histories of rounds in which something was wrong")
    given = parser.parse_args()
    faults = list(FAULTS) if given.faults == "all" else [] if given.faults == "none" else given.faults.split(",")
    counts, wrong, number = Counter[str](), Counter[str](), 0
    with TemporaryDirectory(prefix="qstore-shim-") as directory:
        with preloaded(Path(directory)) as shim:
            forkserver.ensure_running()
        missing = not_possible(faults)
        if shim is None:
            missing |= dict.fromkeys(ON_SHIMS, "no C compiler, or not Linux")
        for fault in [fault for fault in faults if fault in missing]:
            faults.remove(fault)
            print(f"not possible here: {fault}: {missing[fault]}")
        ends = time.monotonic() + given.seconds  # what came before may have taken long
        try:
            while time.monotonic() < ends:
                seed = f"{given.seed}.{number}" if number else given.seed
                number += 1
                seconds = min(given.round, max(3, ends - time.monotonic()))
                it = Round(given.backend, seed, seconds, faults, given.processes)
                outcome = run(it._replace(steps=given.steps, variant=given.variant, keep=given.keep), shim)
                counts += outcome.counts
                wrong += Counter(line.partition(":")[0] for line in outcome.wrong)
                calls = sum(number for what, number in outcome.counts.items() if what.startswith("calls "))
                print(f"round {seed}: {calls:,} calls, {len(outcome.wrong)} wrong", flush=True)
                for line in outcome.wrong[:20]:
                    print(f"  WRONG {line[:2000]}", flush=True)
        finally:
            postgres.stop()
    print(f"{given.backend}: {number} rounds")
    for what, times in sorted(counts.items()):
        print(f"  {what}: {times:,}")
    for what, times in wrong.most_common():
        print(f"  NOT AS IT MUST BE: {what}: {times:,}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
