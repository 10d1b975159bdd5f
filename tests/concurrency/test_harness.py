"""The short form of the harness; the long one is a command: `python -m tests.concurrency.harness`. Issue 7."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.concurrency.harness.broken import VARIANTS
from tests.concurrency.harness.disks import not_possible
from tests.concurrency.harness.foreign import look_after, migrate_to_and_fro
from tests.concurrency.harness.points import REVISING
from tests.concurrency.harness.rounds import Round, run
from tests.concurrency.processes import children
from tests.integration.situations import new_store

ROOT = Path(__file__).parent.parent.parent

IN_TWO = "a revision in two transactions"


@pytest.mark.parametrize(
    ("backend", "seconds", "steps"),
    [("opened", 8, 3000), ("async", 8, 3000), ("psycopg", 8, 3000), ("asyncpg", 8, 3000), ("turso", 3, 1500)],
)
def test_whatever_befalls_its_processes_a_store_loses_nothing_and_gives_nothing_twice(
    backend: str, seconds: int, steps: int
) -> None:
    command = [sys.executable, "-m", "tests.concurrency.harness", "--backend", backend, "--seconds", f"{seconds}"]
    command += ["--processes", "3", "--steps", f"{steps}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-10_000:] + done.stderr
    counted = {
        what: int(number.replace(",", "")) for what, number in re.findall(r"^  (.+): ([\d,]+)$", done.stdout, re.M)
    }
    assert counted["calls done"] > 100
    assert counted["processes killed"]
    assert len([what for what in counted if what.startswith("fault ")]) > 4


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != IN_TWO])
def test_it_finds_a_broken_variant_out(variant: str) -> None:
    _, found_as, faults = VARIANTS[variant]
    if missing := not_possible(faults):
        pytest.skip(f"not possible here: {missing}")
    for seed in range(5):  # what is to happen for it may come too late in a round, on a busy machine
        found = run(Round("opened", f"{seed}", 1, faults, processes=3, steps=5_000, variant=variant))
        if found.kinds.intersection(found_as):
            return
    pytest.fail(f"it was not found out: {found.wrong[:5]}")


def test_who_dies_at_a_point_of_a_revision_leaves_a_whole_store_unless_it_is_the_broken_one(tmp_path: Path) -> None:
    path = new_store(tmp_path, "transport")
    for point in REVISING:
        assert _left_by_a_death(path, point, None) == [], point
    assert _left_by_a_death(path, "INSERT INTO", IN_TWO)


def _left_by_a_death(path: Path, point: str, variant: str | None) -> Any:
    """What is wrong with the store that a process has left, which was killed there."""
    with children((migrate_to_and_fro, path, 60, (point, 1), variant)) as [dying]:
        dying.go()
        dying.process.join(60)
        assert dying.process.exitcode == -signal.SIGKILL
    with children((look_after, path)) as [looking]:
        return looking.result()
