"""The `alembic` command as a person runs it: a process, with the repository's alembic.ini."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "alembic", "refusal"]

ROOT = Path(__file__).parents[2]


def alembic(*arguments: str, cwd: Path, ini: Path = ROOT / "alembic.ini") -> subprocess.CompletedProcess[str]:
    """Run `alembic -c alembic.ini …` in a working directory."""
    return subprocess.run(
        [sys.executable, "-m", "alembic", "-c", str(ini), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line in which the command said no."""
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("FAILED: ")
    return lines[0]
