"""H40: a full disk, a page limit, and a limit on the size of files."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from qstore import Event, LocalKvRepository, LocalQueueRepository, StoreFull, TransportRepository
from tests.integration.situations import (
    ENGINES,
    disposed,
    mounted_disk,
    new_store,
    on_each_connection,
    output_of,
    plain,
)

MORE_PAGES = 24
LARGE = "x" * 3000


@pytest.fixture(params=ENGINES)
def limited(request: pytest.FixtureRequest) -> Callable[[Path], Engine]:
    """An engine on a file that may only grow by a few pages."""

    def make(path: Path) -> Engine:
        with plain(path) as look:
            [(pages,)] = look.execute("PRAGMA page_count").fetchall()
        engine = ENGINES[request.param](path)
        on_each_connection(engine, lambda each: each.execute(f"PRAGMA max_page_count = {pages + MORE_PAGES}"))
        return engine

    return make


def _until_full(call: Callable[[], object]) -> int:
    """How many calls went well before the store was full."""
    for done in range(100):
        try:
            call()
        except StoreFull:
            return done
    raise AssertionError("the store was never full")


def test_the_trap_is_real_a_full_database_is_an_error_like_any_other(tmp_path: Path) -> None:
    """H40. It has SQLite's result code, and leaves no transaction open."""
    path = new_store(tmp_path, "localqueue")
    with plain(path) as bare:
        [(pages,)] = bare.execute("PRAGMA page_count").fetchall()
        bare.execute(f"PRAGMA max_page_count = {pages + MORE_PAGES}")
        rows = ((f"{number}", LARGE) for number in range(100))
        with pytest.raises(sqlite3.OperationalError) as refused:
            bare.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        assert refused.value.sqlite_errorcode == sqlite3.SQLITE_FULL
        assert not bare.in_transaction


def test_a_full_transport_says_so_keeps_what_it_has_and_goes_on_after_an_ack(
    limited: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H40. Each message in a group of its own: neither of the two rows of the refused one is there.

    A lease makes a row longer, and a page of 1,024 bytes may have no room for that: it is an ack that makes room first.
    """
    path = new_store(tmp_path, "transport")
    with disposed(limited(path)) as engine, plain(path) as look:
        transport = TransportRepository(engine)
        numbers = iter(range(100))
        transport.publish("held", Event(kind="k", data={"x": LARGE}))
        held = transport.claim("w", 60)
        assert held is not None
        done = 1 + _until_full(lambda: transport.publish(f"g{next(numbers)}", Event(kind="k", data={"x": LARGE})))
        assert done >= 3
        for table in ("messages", "groups"):
            assert look.execute(f"SELECT count(*) FROM {table}").fetchall() == [(done,)]
        with pytest.raises(StoreFull, match="transport"):
            transport.publish_many([(f"many{number}", Event(kind="k", data={"x": LARGE})) for number in range(3)])
        assert look.execute("SELECT count(*) FROM messages").fetchall() == [(done,)]
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool's
        transport.ack(held)
        for _ in range(2):
            lease = transport.claim("w", 60)
            assert lease is not None
            assert lease.event.data == {"x": LARGE}
            transport.ack(transport.extend(lease, 60))
        transport.publish("again", Event(kind="k", data={"x": LARGE}))
        assert look.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_full_queue_says_so_keeps_what_it_has_and_goes_on_after_an_ack(
    limited: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H40."""
    path = new_store(tmp_path, "localqueue")
    with disposed(limited(path)) as engine:
        queue = LocalQueueRepository(engine)
        queue.send(LARGE)
        [held] = queue.receive()
        done = _until_full(lambda: queue.send(LARGE))
        assert done >= 3
        with pytest.raises(StoreFull, match="localqueue"):
            queue.send_many(["small", LARGE, LARGE, LARGE])
        queue.ack(held.receipt_handle)
        received = queue.receive(2)
        assert [message.payload for message in received] == [LARGE] * 2
        assert [message.attempt for message in received] == [1] * 2
        queue.nack(received[0].receipt_handle)
        queue.ack(received[1].receipt_handle)
        queue.send(LARGE)
        assert queue.purge() == done


def test_a_full_key_value_store_says_so_keeps_what_it_has_and_goes_on_after_a_delete(
    limited: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H40. The value of a key that was to be overwritten stays."""
    with disposed(limited(new_store(tmp_path, "localkv"))) as engine:
        kv = LocalKvRepository(engine)
        numbers = iter(range(100))
        done = _until_full(lambda: kv.put(f"{next(numbers):03}", LARGE.encode()))
        refusals: list[Callable[[], object]] = [
            lambda: kv.put("000", LARGE.encode() * 10),
            lambda: kv.put("new", LARGE.encode() * 10, if_not_exists=True),
            lambda: kv.put_many({"small": b"", "new": LARGE.encode() * 10}),
        ]
        for refused in refusals:
            with pytest.raises(StoreFull, match="localkv"):
                refused()
        assert kv.scan_prefix("").items == [(f"{number:03}", LARGE.encode()) for number in range(done)]
        kv.delete("000")
        kv.delete("001")
        assert kv.put("new", LARGE.encode(), if_not_exists=True)


def test_a_hosts_transaction_that_meets_a_full_database_is_told_what_became_of_it(tmp_path: Path) -> None:
    """H40. Either what it did before is still there to be committed, or the error says that it is not."""
    path = new_store(tmp_path, "localkv")
    with disposed(ENGINES["host"](path)) as engine, engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + MORE_PAGES}")
        connection.rollback()
        kv = LocalKvRepository(connection)
        kv.put("before", b"1")
        with pytest.raises(StoreFull) as refused:
            kv.put("large", LARGE.encode() * 100)
        told = "rolled back" in " ".join(getattr(refused.value, "__notes__", []))
        connection.commit()
        assert kv.get("before") == (None if told else b"1")


OPENED_WITH = pytest.mark.parametrize("engine", ["sqlite", "turso"])

FILLED = """
import json, os, signal, sys
from qstore import *
directory, limit, settings = sys.argv[1], int(sys.argv[2]), {"durability": "normal", "engine": sys.argv[3]}
transport, numbers = TransportRepository.open(directory, **settings), iter(range(10**6))
queue = LocalQueueRepository.open(directory, **settings)
large = "x" * 3000
for _ in range(2):
    transport.publish(f"first{next(numbers)}", Event(kind="first", data={"x": large}))
if limit:
    import resource
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, soft[1]))
done, error = 2, None
while error is None:
    try:
        transport.publish(f"g{next(numbers)}", Event(kind="k", data={"x": large}))
        done += 1
    except Exception as found:
        error = found
answer = {"done": done, "error": type(error).__name__, "text": str(error)}
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, soft)
else:
    os.unlink(os.path.join(directory, "filler"))
lease = transport.claim("w", 60)
answer["first"] = lease.event.kind
transport.ack(lease)
transport.publish("again", Event(kind="k", data={"x": large}))
transport.close()
queue.close()
print(json.dumps(answer))
"""


def _checked(directory: Path, said: str) -> dict[str, object]:
    """What a program said that filled a store, once the store was found whole."""
    answer: dict[str, object] = json.loads(said)
    assert answer["first"] == "first"
    with plain(directory / "transport.sqlite") as look:
        assert look.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert look.execute("SELECT count(*) FROM messages").fetchall() == [(answer["done"],)]
        assert look.execute("SELECT count(*) FROM groups").fetchall() == [(answer["done"],)]
    return answer


@OPENED_WITH
def test_a_file_that_may_not_grow_is_full_and_leaves_a_whole_store(engine: str, tmp_path: Path) -> None:
    """H40. `ulimit -f`: nothing is half there, and all goes on when the limit is lifted."""
    answer = _checked(tmp_path, output_of(FILLED, tmp_path, 300_000, engine))
    assert answer["error"] == "StoreFull", answer["text"]
    assert str(tmp_path / "transport.sqlite") in str(answer["text"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    with mounted_disk(tmp_path / "disk", "2m") as disk:
        yield disk


@OPENED_WITH
@pytest.mark.parametrize("left", [40_000, 200_000, 700_000])
def test_a_full_disk_is_told_and_leaves_a_whole_store(left: int, engine: str, small_disk: Path) -> None:
    """H40. Another program has filled it up, but for so many bytes, and removes its file later."""
    new_store(small_disk, "transport")
    new_store(small_disk, "localqueue")
    size = os.statvfs(small_disk)
    with (small_disk / "filler").open("wb") as filler:
        filler.write(b"\0" * (size.f_bavail * size.f_frsize - left - 100_000))
    answer = _checked(small_disk, output_of(FILLED, small_disk, 0, engine))
    assert answer["error"] == "StoreFull", answer["text"]


OPENED = """
import sys
from qstore import *
try:
    LocalKvRepository.open(sys.argv[1]).close()
    print("opened")
except QstoreError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("left", [0, 4096, 12_288, 40_960])
def test_opening_a_new_store_on_a_full_disk_is_told_and_leaves_nothing_that_keeps_it_from_opening_later(
    left: int, small_disk: Path
) -> None:
    """H40."""
    size = os.statvfs(small_disk)
    with (small_disk / "filler").open("wb") as filler:
        filler.write(b"\0" * (size.f_bavail * size.f_frsize - left))
    said = output_of(OPENED, small_disk)
    assert said.startswith("StoreFull"), said
    (small_disk / "filler").unlink()
    with LocalKvRepository.open(small_disk) as kv:
        assert kv.put("a", b"1")
