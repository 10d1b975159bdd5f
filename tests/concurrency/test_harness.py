"""The short form of the harness; the long one is a command: `python -m tests.concurrency.harness`. Issue 7."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.concurrency.harness.broken import VARIANTS
from tests.concurrency.harness.disks import not_possible
from tests.concurrency.harness.rounds import Round, run

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("backend", ["opened", "async", "psycopg", "asyncpg"])
def test_whatever_befalls_its_processes_a_store_loses_nothing_and_gives_nothing_twice(backend: str) -> None:
    command = [sys.executable, "-m", "tests.concurrency.harness", "--backend", backend, "--seconds", "8"]
    command += ["--processes", "3", "--steps", "3000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-10_000:] + done.stderr
    counted = {
        what: int(number.replace(",", "")) for what, number in re.findall(r"^  (.+): ([\d,]+)$", done.stdout, re.M)
    }
    assert counted["calls done"] > 100
    assert counted["processes killed"]
    assert len([what for what in counted if what.startswith("fault ")]) > 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_finds_a_broken_variant_out(variant: str) -> None:
    _, found_as, faults, seconds = VARIANTS[variant]
    if missing := not_possible(faults):
        pytest.skip(f"not possible here: {missing}")
    for seed in range(5):  # what is to happen for it may come too late in a round, on a busy machine
        found = run(Round("opened", f"{seed}", seconds, faults, processes=3, steps=5_000, variant=variant))
        if found.kinds.intersection(found_as):
            return
    pytest.fail(f"it was not found out: {found.wrong[:5]}")
