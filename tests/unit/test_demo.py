"""The demonstration: what a newcomer sees first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qstore import demo
from qstore.cli import app


def qstore(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qstore", *arguments], capture_output=True, text=True, timeout=110, check=False
    )


def test_it_keeps_every_promise_and_leaves_the_files_where_it_was_told(tmp_path: Path) -> None:
    run = qstore("demo", "--dir", str(tmp_path / "demo"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("kept") == 8
    assert (tmp_path / "demo" / "transport.sqlite").exists()


def test_it_refuses_a_directory_that_has_stores_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "localkv.sqlite").touch()
    run = qstore("demo", "--dir", str(tmp_path))
    assert run.returncode == 2
    assert run.stderr.strip().startswith("qstore demo: dir: expected a directory without stores, found localkv.sqlite")
    assert len(run.stderr.strip().splitlines()) == 1


def test_it_exits_non_zero_where_the_data_break_a_promise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "run", lambda *_: demo.Report([demo.Line("acked", "1", "2", kept=False)], 0.1))
    outcome = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path)])
    assert outcome.exit_code == 1
    assert "BROKEN" in outcome.output


def test_the_account_counts_two_messages_of_a_group_in_flight() -> None:
    groups = {1: "a", 2: "a"}
    one_by_one = [(1, "claim", 1.0), (1, "ack", 2.0), (2, "claim", 2.5), (2, "ack", 3.0)]
    together = [(1, "claim", 1.0), (2, "claim", 1.5), (1, "ack", 2.0), (2, "ack", 3.0)]
    for history, overlaps in ((one_by_one, 0), (together, 1)):
        entries = [{"seq": seq, "did": did, "at": at} for seq, did, at in history]
        assert demo._overlaps(demo._holdings(groups, entries)["a"]) == overlaps


def test_without_the_extra_it_says_what_to_install() -> None:
    without = "import sys; sys.modules['typer'] = None; from qstore.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "pip install 'qstore[cli]'" in run.stderr
