"""`python -m tests.fuzz`: all targets, each for its share of the time. Exit code 1: something was found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.hunting import hunt
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Hunt, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of them; may be repeated")
    parser.add_argument("--keep", help="a directory for the inputs that went wrong")
    given = parser.parse_args()
    chosen = given.target or list(TARGETS)
    faults = tried = 0
    for target in chosen:
        came = hunt(target, given.seed, seconds=given.minutes * 60 / len(chosen))
        tried += came.tried
        print(f"{target}: {came.tried:,} inputs, {came.kept} kept, {came.lines:,} lines reached", flush=True)
        for number, found in enumerate(came.found):
            faults += 1
            print(f"  FOUND {found.what}", flush=True)
            if given.keep:
                Path(given.keep, f"{target} {number}").write_bytes(found.given)
    print(f"{tried:,} inputs, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
