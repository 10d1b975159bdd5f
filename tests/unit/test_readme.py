"""The README's examples run, and its test command is the one that CI calls."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_python_blocks_run_one_after_the_other_in_a_new_directory(tmp_path: Path) -> None:
    for block in blocks("python"):
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", block],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, run.stderr


def test_the_commands_of_the_shell_run_on_what_the_python_blocks_have_made(tmp_path: Path) -> None:
    test_the_python_blocks_run_one_after_the_other_in_a_new_directory(tmp_path)
    [commands] = [block for block in blocks("sh") if block.startswith("qstore ")]
    for command in commands.splitlines():
        run = subprocess.run(
            [sys.executable, "-W", "error", "-m", *shlex.split(command)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (run.returncode, run.stderr) == (0, ""), command
        assert run.stdout or " put " in command


def test_the_alembic_commands_run_in_a_clone_on_a_new_directory(tmp_path: Path) -> None:
    [commands] = [block for block in blocks("sh") if block.startswith(".venv/bin/alembic ")]
    for command in commands.splitlines():
        moved = (
            command.removeprefix(".venv/bin/")
            .replace("./data", str(tmp_path))
            .replace("sqlite:///data", f"sqlite:///{tmp_path}")
        )
        assert moved != command
        run = subprocess.run(
            [sys.executable, "-m", *moved.split()], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert run.returncode == 0, run.stderr


def test_ci_calls_exactly_the_test_command() -> None:
    [command] = [line for block in blocks("sh") for line in block.splitlines() if "pytest" in line]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("library", ["sqlalchemy", "alembic", "pydantic", "typing-extensions", "pandas"])
def test_ci_tries_the_oldest_release_that_the_project_admits(library: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = (ROOT / ".ci" / "oldest.txt").read_text(encoding="utf-8")
    [admitted] = re.findall(rf'"{library}>=([0-9.]+)', project)
    [tried] = re.findall(rf"^{library}==([0-9.]+)$", oldest, re.MULTILINE)
    assert (tried + ".0").startswith(admitted)
