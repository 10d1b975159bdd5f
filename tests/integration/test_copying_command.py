"""`python -m qstore copy`, as a person or a script runs it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from qstore import LocalKvRepository
from tests.command import qstore
from tests.integration.copied_stores import fill, new_server, rows, shown


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return qstore("copy", *arguments, cwd=cwd, **{"COLUMNS": "120", **environment})


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line in which the command said no."""
    assert "Traceback" not in done.stderr, done.stderr[-400:]
    assert done.returncode == 2, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("qstore copy: ")
    return lines[0]


def secret(url: str) -> str:
    """The URL with a password, which the server does not ask for."""
    return shown(make_url(url).set(password="s3cret"))


def test_there_and_back_with_an_exit_code_of_nothing_and_a_line_for_each_store(tmp_path: Path) -> None:
    fill(str(tmp_path / "data"))
    server = secret(new_server())
    done = run("data", server, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = rows(server)
    for store in ("transport", "localkv", "localqueue"):
        count = sum(len(its) for (name, _), its in found.items() if name == store)
        assert f"{store}: {count} rows, compared and equal" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) < 20
    back = run(server, "back/", cwd=tmp_path)
    assert (back.returncode, back.stderr) == (0, "")
    assert rows(str(tmp_path / "back")) == rows(str(tmp_path / "data"))
    said = refusal(run("data", server, cwd=tmp_path))
    assert "empty" in said
    assert "s3cret" not in said


def test_the_progress_of_every_table_is_shown_to_the_end(tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path / "data") as kv:
        kv.put_many({f"k{number:05}": b"v" for number in range(1500)})
    done = run("data", new_server(), cwd=tmp_path)
    assert re.search(r"localkv_kv.*1500/1500", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("source", "target", "named"),
    [
        ("absent", "postgresql://me:s3cret@host/x", "absent"),
        ("postgresql://me:s3cret@127.0.0.1:1/x", "data", "127.0.0.1"),
        ("full", "postgresql://me:s3cret@127.0.0.1:1/x", "127.0.0.1"),
        ("full", "postgresql://me:s3cret@host:port/x", "URL"),
        ("full", "/proc/nowhere/", "nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_without_a_password(
    source: str, target: str, named: str, tmp_path: Path
) -> None:
    with LocalKvRepository.open(tmp_path / "full") as kv:
        kv.put("k", b"v")
    done = run(source, target, cwd=tmp_path)
    assert "s3cret" not in done.stdout + done.stderr
    assert named in refusal(done)


def test_a_server_without_stores_is_told_without_its_password(tmp_path: Path) -> None:
    done = run(secret(new_server()), "data/", cwd=tmp_path)
    assert "s3cret" not in done.stdout + done.stderr
    refusal(done)


def test_help_says_what_it_does_and_names_both_arguments(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("source", "target", "postgresql", "sqlite", "compare"):
        assert word in done.stdout.lower()
    assert run(cwd=tmp_path).returncode == run("one", cwd=tmp_path).returncode == 2
