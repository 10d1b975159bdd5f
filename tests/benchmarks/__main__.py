"""What the stores cost, as ratios to a yardstick that is measured in the same run: `python -m tests.benchmarks`.

Exits with 1 where a line marked * falls short of its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks import async_cycle
from tests.benchmarks.measuring import Line, Scale, shown

SECTIONS: dict[str, Callable[[Path, Scale], Iterator[Line]]] = {
    "async": async_cycle.lines,
}


def main() -> int:
    """Run the sections, print their lines, and tell whether all that must hold does."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, []], help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="shorter: coarser figures")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there, too")
    given = parser.parse_args()
    print(_machine(), end="\n\n")
    lines: list[Line] = []
    for section in given.section or SECTIONS:
        print(section)
        with TemporaryDirectory() as directory:
            for line in SECTIONS[section](Path(directory), Scale(quick=given.quick)):
                print(f"  {shown(line)}", flush=True)
                lines.append(line)
    if given.json is not None:
        told = {"machine": _machine(), "lines": [line._asdict() for line in lines]}
        given.json.write_text(json.dumps(told, indent=1))
    short = [line for line in lines if not line.holds]
    for line in short:
        print(f"falls short: {line.what}")
    return 1 if short else 0


def _machine() -> str:
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
        f" SQLAlchemy {version('sqlalchemy')}"
    )


if __name__ == "__main__":
    sys.exit(main())
