"""What `copy` refuses, by name, and with source and target as they were."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from qstore import (
    BackendUnsupported,
    Event,
    FormatError,
    InvalidInput,
    LocalKvRepository,
    LocalQueueRepository,
)
from qstore.copying import copy
from tests import postgres
from tests.integration.copied_stores import fill, new_server, opened, rows, run_on_file

TARGETS = ("directory", "server")
each_target = pytest.mark.parametrize("target", TARGETS)


def place(kind: str, directory: Path) -> str:
    """A target of the kind, that is not there yet."""
    return f"{directory / 'target'}/" if kind == "directory" else new_server()


def tables_on(server: str) -> set[str]:
    with closing(postgres.connect(make_url(server))) as connection:
        return {name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


@each_target
@pytest.mark.parametrize("store", ["transport", "localkv", "localqueue"])
def test_a_target_that_has_rows_in_any_store_is_refused_and_none_of_its_stores_changes(
    target: str, store: str, tmp_path: Path
) -> None:
    fill(str(tmp_path / "source"))
    there = place(target, tmp_path)
    with opened(there) as stores:
        if store == "transport":
            stores.transport.publish("theirs", Event(kind="k"))
        elif store == "localkv":
            stores.localkv.put("theirs", b"v")
        else:
            stores.localqueue.send("theirs")
    before = rows(there)
    for _ in range(2):
        with pytest.raises(InvalidInput, match="empty") as caught:
            copy(tmp_path / "source", there)
        assert caught.value.field == "target"
        assert rows(there) == before


@each_target
def test_a_target_that_holds_a_finished_copy_is_refused(target: str, tmp_path: Path) -> None:
    fill(str(tmp_path / "source"))
    there = place(target, tmp_path)
    copy(tmp_path / "source", there)
    before = rows(there)
    with pytest.raises(InvalidInput, match="empty"):
        copy(tmp_path / "source", there)
    assert rows(there) == before


@each_target
def test_another_sources_unfinished_copy_is_refused_and_left_alone(target: str, tmp_path: Path) -> None:
    for name in ("source", "other"):
        with LocalKvRepository.open(tmp_path / name) as kv:
            kv.put_many({f"{name}{number:05}": b"v" for number in range(1500)})
    there = place(target, tmp_path)
    _interrupted(tmp_path / "source", there)
    before = rows(there)
    assert len(before["localkv", "kv"]) == 1000
    with pytest.raises(InvalidInput, match=r"unfinished copy of .*source") as caught:
        copy(tmp_path / "other", there)
    assert caught.value.field == "target"
    assert rows(there) == before
    copy(tmp_path / "source", there)
    assert rows(there)["localkv", "kv"] == rows(str(tmp_path / "source"))["localkv", "kv"]


def _interrupted(source: Path, target: str) -> None:
    def stop(_table: str, done: int, _total: int) -> None:
        if done == 1000:
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        copy(source, target, progress=stop)


CHANGES = {
    "a row that was copied": lambda kv: kv.put("00001", b"changed"),
    "a row before the others": lambda kv: kv.put("!", b"new"),
    "a row to come": lambda kv: kv.delete("01400"),
    "a row after the others": lambda kv: kv.put("~", b"new"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", ["directory to server", "server to directory"])
def test_a_source_that_changes_during_the_copy_is_told(way: str, change: str, tmp_path: Path) -> None:
    source, target = (str(tmp_path / "source"), new_server())
    if way == "server to directory":
        source, target = target, f"{tmp_path / 'target'}/"
    with LocalKvRepository.open(source) as kv:
        kv.put_many({f"{number:05}": b"v" for number in range(1500)})
        changed: list[object] = []

        def write(_table: str, done: int, _total: int) -> None:
            if done == 1000 and not changed:
                changed.append(CHANGES[change](kv))

        with pytest.raises(FormatError, match="changed"):
            copy(source, target, progress=write)
        assert changed


def test_a_source_that_changes_between_two_beginnings_is_told(tmp_path: Path) -> None:
    server = new_server()
    with LocalKvRepository.open(tmp_path / "source") as kv:
        kv.put_many({f"{number:05}": b"v" for number in range(1500)})
        _interrupted(tmp_path / "source", server)
        kv.put("00001", b"changed")
        with pytest.raises(FormatError, match="changed"):
            copy(tmp_path / "source", server)


@pytest.mark.parametrize("lost", ["DROP INDEX qstore_localkv_idx_kv_expires", "DELETE FROM qstore_localqueue_meta"])
def test_a_store_that_is_there_and_not_whole_is_not_left_out_in_silence(lost: str, tmp_path: Path) -> None:
    source = new_server()
    fill(source)
    with closing(postgres.connect(make_url(source))) as connection:
        connection.execute(lost.encode())
    before = rows(source)
    try:
        copy(source, f"{tmp_path / 'target'}/")
    except FormatError:
        return
    assert rows(str(tmp_path / "target")) == before


def test_several_stores_do_not_go_into_one_file(tmp_path: Path) -> None:
    """A path that is not there, and does not end in a slash, is that of a file or of a directory to be made."""
    source = new_server()
    fill(source)
    before = rows(source)
    refused: list[InvalidInput] = []
    try:
        copy(source, tmp_path / "data")
    except InvalidInput as error:
        refused.append(error)
    if refused:
        assert refused[0].field == "target"
        assert list(tmp_path.iterdir()) == []
    else:
        assert rows(str(tmp_path / "data")) == before


@each_target
def test_a_place_is_not_copied_onto_itself(target: str, tmp_path: Path) -> None:
    there = place(target, tmp_path)
    fill(there)
    before = rows(there)
    with pytest.raises(InvalidInput) as caught:
        copy(there, there)
    assert caught.value.field in ("source", "target")
    assert rows(there) == before


@pytest.mark.parametrize("source", ["absent", "absent/", "absent/localkv.sqlite", "empty", "sqlite:///absent.sqlite"])
def test_a_source_that_is_not_there_is_refused_and_nothing_is_made(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    server = new_server()
    given = source if source.startswith("sqlite") else str(tmp_path / source)
    with pytest.raises(InvalidInput) as caught:
        copy(given, server)
    assert caught.value.field == "source"
    assert tables_on(server) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_server_without_stores_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        copy(new_server(), tmp_path / "target")
    assert caught.value.field == "source"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_somebody_elses_is_refused_on_either_side(tmp_path: Path) -> None:
    run_on_file(tmp_path / "theirs.sqlite", "CREATE TABLE messages (id)", "CREATE TABLE kv (a)")
    before = (tmp_path / "theirs.sqlite").read_bytes()
    server = new_server()
    with pytest.raises(FormatError):
        copy(tmp_path / "theirs.sqlite", server)
    assert tables_on(server) == set()
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send("m")
    with pytest.raises(FormatError):
        copy(tmp_path / "localqueue.sqlite", tmp_path / "theirs.sqlite")
    assert (tmp_path / "theirs.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://me:s3cret@host/x", "mysql"),
        ("postgresql+asyncpg://me:s3cret@host/x", "asyncpg"),
        ("postgresql+psycopg2://me:s3cret@host/x", "psycopg2"),
        ("sqlite://", "memory"),
        ("postgresql://me:s3cret@host:port/x", "URL"),
    ],
)
def test_a_wrong_url_is_refused_by_name_on_either_side(url: str, named: str, tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send("m")
    for source, target in ((url, str(tmp_path / "target")), (str(tmp_path), url)):
        with pytest.raises((BackendUnsupported, InvalidInput)) as caught:
            copy(source, target)
        assert named in str(caught.value)
        assert "s3cret" not in str(caught.value)
