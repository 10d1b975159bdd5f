"""H06 to H08 and H10: the database file, and what becomes of it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from qstore import Event, FormatError, LocalKvRepository, LocalQueueRepository, TransportRepository, open_engine
from tests.integration.situations import (
    STORES,
    disposed,
    host_engine,
    new_store,
    output_of,
    plain,
    watched_engine,
)

UNPRIVILEGED = """
import os, sqlite3, sys, tempfile
from sqlalchemy import URL
import qstore
from qstore import *
from qstore import migrate
path, entry = sys.argv[1:]
url = URL.create("sqlite", database=path)
ENTRIES = {
    "open": lambda path, url: LocalKvRepository.open(url).get("a"),
    "open without create": lambda path, url: LocalKvRepository.open(url, create=False).get("a"),
    "engine": lambda path, url: LocalKvRepository(open_engine(path)).get("a"),
    "read-only engine": lambda path, url: LocalKvRepository(open_engine(path, read_only=True)).get("a"),
    "migrate": lambda path, url: migrate.upgrade(open_engine(path), stores=("localkv",)),
    "bare": lambda path, url: sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("SELECT * FROM kv"),
    "bare, immutable": lambda path, url: print(
        sqlite3.connect(f"file:{path}?immutable=1", uri=True).execute("SELECT value FROM kv").fetchall()
    ),
}
with tempfile.TemporaryDirectory() as warm:  # what is imported late is imported now, while it may be read
    LocalKvRepository.open(warm).close()
    migrate.upgrade(open_engine(os.path.join(warm, "localkv.sqlite")))
if os.geteuid() == 0:
    os.setuid(65534)
try:
    ENTRIES[entry](path, url)
    print("no error")
except QstoreError as error:
    print("qstore", type(error).__name__, error)
except sqlite3.Error as error:
    print("sqlite3", error.sqlite_errorname, error)
"""


def _said(entry: str, path: Path) -> str:
    before = path.read_bytes()
    said = output_of(UNPRIVILEGED, path, entry)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    return said


def test_the_trap_is_real_a_read_only_directory_keeps_even_readers_out(read_only_file: Path) -> None:
    """H06."""
    assert _said("bare", read_only_file).startswith("sqlite3 SQLITE_READONLY_DIRECTORY")
    assert "b'1'" in _said("bare, immutable", read_only_file)


@pytest.mark.parametrize("entry", ["open", "open without create", "engine", "read-only engine", "migrate"])
def test_a_read_only_file_in_a_read_only_directory_is_refused_by_name(entry: str, read_only_file: Path) -> None:
    """H06. It says what must be writable, and what for; nothing is left there."""
    said = _said(entry, read_only_file)
    assert said.startswith("qstore ")
    assert str(read_only_file) in said
    assert "directory must" in said
    assert "writable" in said
    assert "-wal" in said
    assert "-shm" in said


@pytest.mark.parametrize("entry", ["open", "engine", "migrate"])
def test_a_new_file_in_a_read_only_directory_is_refused_by_name(entry: str, read_only_file: Path) -> None:
    """H06."""
    path = read_only_file.with_name("new.sqlite")
    said = output_of(UNPRIVILEGED, path, entry)
    assert said.startswith("qstore ")
    assert str(path) in said
    assert "writable" in said
    assert os.listdir(path.parent) == [read_only_file.name]


@pytest.mark.parametrize("entry", ["open", "engine", "migrate"])
def test_a_read_only_file_in_a_writable_directory_is_refused_by_name_or_read(entry: str, read_only_file: Path) -> None:
    """H06. Reading works there: the side files can be made. Nothing of them stays that was not there."""
    read_only_file.parent.chmod(0o777)
    said = output_of(UNPRIVILEGED, read_only_file, entry)
    assert said.startswith(("qstore ", "no error"))
    assert str(read_only_file) in said or said == "no error\n"


WRITABLE_AGAIN = """
import asyncio, os, sys
from sqlalchemy import event
from qstore import *
directory, way = sys.argv[1:]
path, kept = os.path.join(directory, "localkv.sqlite"), []
LocalKvRepository.open(directory).close()
if os.geteuid() == 0:
    os.chown(directory, 65534, -1)
    os.chown(path, 65534, -1)
    os.setuid(65534)
os.chmod(path, 0o444)
def open_files():
    if not os.path.isdir("/proc/self/fd"):
        return []
    links = (os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd"))
    return [found for found in map(os.readlink, filter(os.path.exists, links)) if found.startswith(directory)]
def writable():
    for each in os.listdir(directory):  # what SQLite has made beside the file has its mode
        os.chmod(os.path.join(directory, each), 0o644)
async def awaited():
    engine = open_async_engine(path)
    if "watched" in way:
        event.listen(engine.sync_engine, "before_cursor_execute", lambda *_: None)
    async with AsyncLocalKvRepository(engine) as kv:
        try:
            await kv.put("a", b"1")
        except BackendUnsupported as error:
            kept.append(error)
            print("refused", "read-only" in str(error), open_files(), end=" ")
        writable()
        print(await kv.put("a", b"2"), await kv.get("a"))
    await engine.dispose()
def called():
    engine = open_engine(path)
    if "watched" in way:
        event.listen(engine, "before_cursor_execute", lambda *_: None)
    kv = LocalKvRepository(engine)
    try:
        kv.put("a", b"1")
    except BackendUnsupported as error:
        kept.append(error)
        print("refused", "read-only" in str(error), open_files(), end=" ")
    writable()
    print(kv.put("a", b"2"), kv.get("a"))
    engine.dispose()
asyncio.run(awaited()) if way.startswith("async") else called()
"""


@pytest.mark.parametrize("way", ["opened", "watched", "async", "async, watched"])
def test_a_store_that_was_opened_while_its_file_was_read_only_writes_as_soon_as_that_is_writable(
    way: str, read_only_file: Path
) -> None:
    """H06. SQLite itself keeps a connection read-only for good that it opened so."""
    read_only_file.parent.chmod(0o777)
    assert output_of(WRITABLE_AGAIN, read_only_file.parent, way) == "refused True [] True b'2'\n"


def test_the_trap_is_real_a_copy_of_the_main_file_alone_has_lost_what_is_in_the_log(tmp_path: Path) -> None:
    """H07."""
    with LocalKvRepository.open(tmp_path) as kv:
        kv.put_many({f"{number}": b"" for number in range(100)})
        copyfile(tmp_path / "localkv.sqlite", tmp_path / "copy.sqlite")
    with plain(tmp_path / "copy.sqlite") as copy, pytest.raises(sqlite3.OperationalError, match="no such table"):
        copy.execute("SELECT * FROM kv")


def test_a_snapshot_through_an_engine_has_every_committed_row(tmp_path: Path) -> None:
    """H07. VACUUM INTO, while the store is in use."""
    with LocalKvRepository.open(tmp_path) as kv, disposed(open_engine(tmp_path / "localkv.sqlite")) as engine:
        kv.put_many({f"{number}": b"" for number in range(100)})
        (tmp_path / "copy").mkdir()
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM INTO :copy"), {"copy": str(tmp_path / "copy" / "localkv.sqlite")})
    with LocalKvRepository.open(tmp_path / "copy", create=False) as copy:
        assert len(copy.scan_prefix("").items) == 100


MEMORY = [
    ":memory:",
    Path(":memory:"),
    "sqlite://",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite+pysqlite:///:memory:",
    "file::memory:?cache=shared",
    "file:shared?mode=memory&cache=shared",
    "sqlite:///file::memory:?cache=shared&uri=true",
    "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
    "sqlite:///file:/shared?vfs=memdb&uri=true",
]


@pytest.mark.parametrize("target", MEMORY, ids=str)
def test_a_database_in_memory_is_refused_with_a_clear_text(
    target: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H08."""
    monkeypatch.chdir(tmp_path)
    openings: list[Callable[[str | Path], object]] = [open_engine, *(kind.open for kind in STORES.values())]  # type: ignore[attr-defined]  # each kind has it
    for opening in openings:
        with pytest.raises(ValueError, match="memory"):
            opening(target)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make_engine", [open_engine, watched_engine], ids=["opened", "watched"])
@pytest.mark.parametrize("gone", ["deleted", "replaced by a new file", "replaced by another store"])
def test_a_file_that_was_deleted_or_replaced_is_not_written_to(
    gone: str, make_engine: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H10. A second store opened at the path is whole, and what the first one reports is there."""
    path = new_store(tmp_path, "transport")
    other = new_store(tmp_path / "other", "transport") if gone.endswith("store") else tmp_path / "fresh"
    with disposed(make_engine(path)) as engine:
        transport = TransportRepository(engine)
        transport.publish("g", Event(kind="first"))
        for file in tmp_path.glob("transport.sqlite?*"):
            file.unlink()
        if gone == "deleted":
            path.unlink()
        else:
            other.touch()
            other.rename(path)
        for operation in (lambda: transport.publish("g", Event(kind="lost")), lambda: transport.claim("w", 5)):
            with pytest.raises(FormatError, match="deleted or replaced"):
                operation()
        assert path.exists() == (gone != "deleted")
        with TransportRepository.open(path) as second:
            published = [second.publish("g", Event(kind="second"))]
            with suppress(FormatError):  # or it has found the new file, which may have the inode of the old one
                published.append(transport.publish("g", Event(kind="late")))
            with plain(path) as look:
                assert look.execute("SELECT seq FROM messages").fetchall() == [(seq,) for seq in published]


def _read_for_a_while(kv: LocalKvRepository) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        kv.get("a")


@pytest.mark.parametrize("make_engine", [open_engine, watched_engine], ids=["opened", "watched"])
@pytest.mark.parametrize("gone", ["deleted", "replaced"])
def test_a_file_that_was_deleted_or_replaced_is_read_for_a_moment_at_most(
    gone: str, make_engine: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H10. Whoever only reads is told as well."""
    path = new_store(tmp_path, "localkv")
    with disposed(make_engine(path)) as engine:
        kv = LocalKvRepository(engine)
        kv.put("a", b"1")
        assert kv.get("a") == b"1"
        path.rename(tmp_path / "elsewhere")
        if gone == "replaced":
            path.touch()
        with pytest.raises(FormatError, match="deleted or replaced"):
            _read_for_a_while(kv)


@pytest.mark.parametrize("make_engine", [open_engine, watched_engine], ids=["opened", "watched"])
def test_a_file_that_was_lost_stays_so_whatever_lies_there_later(
    make_engine: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H10. A new file may get the number by which the old one was known; this is the old one itself."""
    path = new_store(tmp_path, "localkv")
    with disposed(make_engine(path)) as engine:
        kv = LocalKvRepository(engine)
        kv.put("a", b"1")
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(FormatError, match="deleted or replaced"):
            kv.put("a", b"2")
        (tmp_path / "elsewhere").rename(path)
        with pytest.raises(FormatError, match="deleted or replaced"):
            kv.put("a", b"2")


def test_the_trap_is_real_a_write_to_a_deleted_file_commits(tmp_path: Path) -> None:
    """H10."""
    path = new_store(tmp_path, "localkv")
    with disposed(host_engine(path)) as engine:
        for number in range(2):
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO kv VALUES (:key, x'', NULL)"), {"key": f"{number}"})
            path.unlink(missing_ok=True)
        with disposed(host_engine(path)) as second, second.connect() as connection:
            assert connection.execute(text("SELECT * FROM sqlite_master")).all() == []


@pytest.mark.parametrize("store", STORES)
def test_a_file_deleted_between_opening_and_the_first_call_is_not_made_again(store: str, tmp_path: Path) -> None:
    """H10. An empty file in its place would be taken for a new store."""
    path = new_store(tmp_path, store)
    kind: Any = STORES[store]
    calls: dict[str, Callable[[Any], object]] = {
        "transport": lambda transport: transport.publish("g", Event(kind="k")),
        "localkv": lambda kv: kv.put("a", b""),
        "localqueue": lambda queue: queue.send("a"),
    }
    with kind.open(tmp_path, create=False) as repository:
        path.unlink()
        with pytest.raises(FormatError):
            calls[store](repository)
    assert os.listdir(tmp_path) == []


def test_a_store_that_was_deleted_is_opened_anew(tmp_path: Path) -> None:
    """H10. After close and open all is well."""
    path = new_store(tmp_path, "localqueue")
    with LocalQueueRepository.open(tmp_path) as first:
        first.send("a")
        path.unlink()
        with pytest.raises(FormatError):
            first.send("b")
    with LocalQueueRepository.open(tmp_path) as again:
        again.send("c")
        assert [message.payload for message in again.receive(9)] == ["c"]


@pytest.mark.parametrize("make_engine", [open_engine, watched_engine], ids=["opened", "watched"])
@pytest.mark.parametrize("code", [None, sqlite3.SQLITE_IOERR_FSYNC], ids=["of no code", "of a sync"])
def test_an_error_that_nobody_knows_is_told_where_the_file_is_lost_meanwhile(
    make_engine: Callable[[Path], Engine], code: int | None, tmp_path: Path
) -> None:
    """It may be a commit's, which has perhaps happened: no other error may say that nothing has."""
    path = new_store(tmp_path, "localkv")
    error = sqlite3.OperationalError("disk I/O error")
    if code is not None:
        error.sqlite_errorcode = code

    def fails() -> float:
        path.unlink()
        raise error

    with (
        disposed(make_engine(path)) as engine,
        pytest.raises((sqlite3.OperationalError, OperationalError), match="disk I/O error"),
    ):
        LocalKvRepository(engine, clock=fails).put("a", b"1")
