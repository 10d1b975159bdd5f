"""A copy that was interrupted goes on where it was, and comes to the same end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qstore import Event, LocalKvRepository, LocalQueueRepository, QstoreError, TransportRepository
from qstore.copying import copy
from tests.integration.copied_stores import new_server, opened, rows
from tests.integration.situations import ROOT

WAYS = ("directory to server", "server to directory")
each_way = pytest.mark.parametrize("way", WAYS)


def places(way: str, directory: Path) -> tuple[str, str]:
    here, there = f"{directory / 'directory'}/", new_server()
    source, target = (here, there) if way == WAYS[0] else (there, here)
    with opened(source) as stores:
        stores.transport.publish_many([(f"g{number % 1300:05}", Event(kind="k"), number % 5) for number in range(2600)])
        for _ in range(3):
            assert stores.transport.claim("w", 3600)
        stores.localkv.put_many({f"k{number:05}": b"v" for number in range(2200)})
        stores.localqueue.send_many([str(number) for number in range(1100)])
        assert len(stores.localqueue.receive(5)) == 5
    return source, target


class Stopping:
    """A progress that raises when it is told of so many rows, and notes what it was told."""

    def __init__(self, *stops: tuple[str, int]) -> None:
        self.stops = list(stops)
        self.told: list[tuple[str, int, int]] = []

    def __call__(self, table: str, done: int, total: int) -> None:
        self.told.append((table, done, total))
        for stop in self.stops:
            if table.endswith(stop[0]) and done == stop[1]:
                self.stops.remove(stop)
                raise KeyboardInterrupt if len(self.stops) % 2 else RuntimeError("stopped")


@each_way
def test_an_exception_at_any_point_is_survived_by_the_next_beginning(way: str, tmp_path: Path) -> None:
    source, target = places(way, tmp_path)
    before = rows(source)
    stops = [("groups", 0), ("groups", 1000), ("messages", 1000), ("messages", 2600), ("kv", 0), ("kv", 2200)]
    stopping = Stopping(*stops)
    for _ in stops:
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            copy(source, target, progress=stopping)
    assert stopping.stops == []
    counts = copy(source, target, progress=stopping)
    assert counts == {"transport": 3900, "localkv": 2200, "localqueue": 1100}
    assert rows(target) == before == rows(source)
    with opened(target) as stores:
        assert stores.transport.publish("new", Event(kind="k")) == 2601
        assert stores.localqueue.send("new") == 1101


def test_it_goes_on_from_the_rows_that_are_there(tmp_path: Path) -> None:
    source, target = places(WAYS[0], tmp_path)
    with pytest.raises(RuntimeError):
        copy(source, target, progress=Stopping(("localkv_kv", 1000)))
    again = Stopping()
    copy(source, target, progress=again)
    assert [done for table, done, _ in again.told if table.endswith("localkv_kv")] == [1000, 2000, 2200]


@pytest.mark.parametrize(
    ("way", "table", "done"),
    [(WAYS[0], "groups", 1000), (WAYS[1], "messages", 2600), (WAYS[0], "kv", 2000), (WAYS[1], "kv", 2200)],
)
def test_a_kill_in_the_middle_is_survived_by_the_next_beginning(
    way: str, table: str, done: int, tmp_path: Path
) -> None:
    source, target = places(way, tmp_path)
    before = rows(source)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.copied_slowly", source, target, table, str(done)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.kill()
        running.wait(30)
    copy(source, target)
    assert rows(target) == before == rows(source)
    with opened(target) as stores:
        assert stores.transport.claim("w", 60)


@each_way
def test_two_copies_at_once_leave_one_whole_copy(way: str, tmp_path: Path) -> None:
    """The second one may be refused by name, or wait, or help."""
    source, target = places(way, tmp_path)
    before = rows(source)
    refused: list[QstoreError] = []

    def second(table: str, done: int, _total: int) -> None:
        if table.endswith("groups") and done == 1000:
            try:
                copy(source, target)
            except QstoreError as error:
                refused.append(error)

    try:
        copy(source, target, progress=second)
    except QstoreError as error:
        refused.append(error)
    assert len(refused) <= 1
    assert rows(target) == before


def test_a_store_whose_copy_is_unfinished_is_not_taken_for_a_source_or_a_whole_store(tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path / "source") as kv:
        kv.put_many({f"k{number:05}": b"v" for number in range(1500)})
    server = new_server()
    with pytest.raises(RuntimeError):
        copy(tmp_path / "source", server, progress=Stopping(("kv", 1000)))
    with pytest.raises(QstoreError, match="unfinished"):
        copy(server, f"{tmp_path / 'other'}/")


def test_stores_that_are_done_stay_done_when_a_later_one_fails(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport:
        transport.publish("g", Event(kind="k"))
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send("m")
    server = new_server()
    with pytest.raises(RuntimeError):
        copy(tmp_path, server, progress=Stopping(("localqueue_messages", 1)))
    copy(tmp_path, server)
    assert rows(server) == rows(str(tmp_path))
