"""The program, in a process of its own, as a person or a script runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["lines", "qstore", "refused"]


def qstore(*arguments: object, cwd: Path, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "qstore", *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=False,
        env={**os.environ, "COLUMNS": "160", **environment},
    )


def lines(*arguments: object, cwd: Path, code: int = 0, given: str = "") -> list[Any]:
    """What it prints with --json, line by line."""
    done = qstore(*arguments, "--json", cwd=cwd, given=given)
    assert (done.returncode, done.stderr) == (code, ""), done
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(*arguments: object, cwd: Path, code: int = 2) -> str:
    """The one line in which it said no."""
    done = qstore(*arguments, cwd=cwd)
    assert done.returncode == code, done
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "Traceback" not in line
    assert line.startswith("qstore ")
    return line
