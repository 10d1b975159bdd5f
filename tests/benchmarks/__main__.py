"""What the stores cost, each figure against a yardstick that is measured in the same run.

Exits with 1 where a line marked * falls short of its limit. A verdict is doubtful where the rounds disagree about it:
the machine had other things to do.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sqlite3
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.lines import HEADING, Line, at_most, missing, shown, told
from tests.benchmarks.measuring import Scale

SECTIONS = {
    "claim": "line 1",
    "cycle": "line 2",
    "kv": "line 3",
    "async": "line 4",
    "queue": "line 5",
    "processes": "line 6",
    "batches": "line 7",
    "pages": "line 8",
    "peers": "line 9",
    "postgres": "line 10",
    "settings": "payloads, page size, checkpoints",
    "memory": "peak memory",
    "turso": "turso against sqlite3",
}
"""Each is a module of its name here, and what of the ratios to reach it measures."""

MODULES = {"async": "async_cycle"}
"""Where the name cannot be a module's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections, print their lines, and tell whether all that must hold does."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    named = ", ".join(f"{name} ({what})" for name, what in SECTIONS.items())
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"of {named}; without: all")
    parser.add_argument("--quick", action="store_true", help="smaller stores, fewer rounds: coarser figures")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there, too")
    given = parser.parse_args(arguments)
    for unknown in sorted({*given.section} - {*SECTIONS}):
        parser.error(f"no section {unknown}: expected some of {', '.join(SECTIONS)}")
    print(_machine(), end="\n\n")
    print(HEADING)
    began = time.monotonic()
    lines = {section: _run(section, Scale(quick=given.quick)) for section in given.section or SECTIONS}
    if given.json is not None:
        told_all = {name: [told(line) for line in found] for name, found in lines.items()}
        report = {"machine": _machine(), "quick": given.quick, "sections": told_all}
        given.json.write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"\n{time.monotonic() - began:.0f} s")
    short = [(section, line) for section, found in lines.items() for line in found if line.fails]
    for section, line in short:
        print(f"falls short: {section}: {line.what}")
    return 1 if short else 0


def _run(section: str, scale: Scale) -> list[Line]:
    """A section's lines, each printed as soon as it is there."""
    module = import_module(f"tests.benchmarks.{MODULES.get(section, section)}")
    print(f"\n{section}: {str(module.__doc__).strip().splitlines()[0]}", flush=True)
    gc.collect()
    gc.freeze()  # what was imported: it would be looked through before each round
    found: list[Line] = []
    began = time.monotonic()
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            for line in module.lines(Path(directory), scale):
                print(shown(line), flush=True)
                found.append(line)
        except Exception as error:  # noqa: BLE001  the other sections are measured all the same
            traceback.print_exc()
            found.append(missing(f"{section} failed", "", f"{type(error).__name__}: {error}", at_most(0)))
            print(shown(found[-1]), flush=True)
    print(f"    {time.monotonic() - began:.1f} s", flush=True)
    return found


def _machine() -> str:
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
        f" SQLAlchemy {version('sqlalchemy')}"
    )


if __name__ == "__main__":
    sys.exit(main())
