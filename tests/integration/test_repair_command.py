"""`python -m qstore repair`: what was found and done, a line a store."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from qstore import TransportRepository
from tests import postgres
from tests.command import qstore
from tests.concurrency.seed import SeedTransport
from tests.integration.copied_stores import fill, new_server, opened, rows, run_on_file


def repair(target: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return qstore("repair", target, cwd=cwd)


def said(target: str | Path, cwd: Path) -> list[str]:
    done = repair(target, cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_side_tables_of_a_directory_are_made_right(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(str(data))
    before = rows(str(data))
    run_on_file(data / "transport.sqlite", "DELETE FROM turns WHERE id <> 0", "DROP TRIGGER turns_message_lock")
    run_on_file(data / "localqueue.sqlite", "UPDATE redelivery_mark SET visible_at = 9000000000000")
    first, second, third = said("data", tmp_path)
    assert first.startswith("transport: turns_message_lock missing; made again")
    assert "localkv" in second
    assert third.startswith("localqueue: redeliveries, redelivery_mark differ from the messages in ")
    assert all("did not differ" in line or "nothing" in line for line in said("data", tmp_path))
    assert rows(str(data)) == before
    with opened(str(data)) as stores:
        assert stores.transport.claim("w", 60) is not None


def test_a_store_at_the_seeds_revision_stays_there(tmp_path: Path) -> None:
    SeedTransport.create(tmp_path / "transport.sqlite").close()
    [line] = said(tmp_path / "transport.sqlite", tmp_path)
    assert line.startswith("transport: has nothing")


def test_the_groups_on_a_server_are_made_right(tmp_path: Path) -> None:
    server = new_server()
    with TransportRepository.open(server, event_type=str) as transport:
        transport.publish("g", "e")
        with closing(postgres.connect(make_url(server))) as connection:
            connection.execute("DELETE FROM qstore_transport_groups")
        assert transport.claim("w", 60) is None
        [line] = said(server, tmp_path)
        assert " 1 groups" in line
        assert transport.claim("w", 60) is not None


@pytest.mark.parametrize(
    ("target", "named"),
    [("absent", "absent"), ("postgresql://me:s3cret@127.0.0.1:1/x", "127.0.0.1"), ("theirs.sqlite", "theirs.sqlite")],
)
def test_what_cannot_be_repaired_is_said_in_one_line(target: str, named: str, tmp_path: Path) -> None:
    run_on_file(tmp_path / "theirs.sqlite", "CREATE TABLE orders (id)")
    before = (tmp_path / "theirs.sqlite").read_bytes()
    done = repair(target, tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("qstore repair: ")
    assert named in line
    assert "s3cret" not in line
    assert (tmp_path / "theirs.sqlite").read_bytes() == before
