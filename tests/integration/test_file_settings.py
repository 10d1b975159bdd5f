"""What qstore sets on the files that it opens: small pages in new ones, and a log that is written back early."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from qstore import LocalQueueRepository, TransportRepository, open_engine
from tests.integration.situations import disposed
from tests.migration.seed_files import make


def number(path: Path, pragma: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def test_a_new_file_has_small_pages_and_keeps_them(tmp_path: Path) -> None:
    TransportRepository.open(tmp_path / "t.sqlite").close()
    LocalQueueRepository.open(tmp_path / "q").close()
    for path in (tmp_path / "t.sqlite", tmp_path / "q" / "localqueue.sqlite"):
        assert number(path, "page_size") == 1024
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_zero_byte_file_is_new_in_this_too(tmp_path: Path) -> None:
    (tmp_path / "t.sqlite").touch()
    TransportRepository.open(tmp_path / "t.sqlite").close()
    assert number(tmp_path / "t.sqlite", "page_size") == 1024


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_a_file_that_is_there_keeps_its_pages_also_through_a_vacuum(tmp_path: Path, page_size: int) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute("VACUUM")
    make(path, "transport")
    with disposed(open_engine(path)) as engine, engine.connect() as opened:
        driver = opened.connection.driver_connection
        assert driver is not None
        pages = driver.execute("PRAGMA wal_autocheckpoint").fetchone()[0]
        assert pages * page_size == 2 * 1024 * 1024
        driver.execute("PRAGMA journal_mode = DELETE").fetchall()  # with a log, VACUUM never changes it
        driver.execute("VACUUM")
    assert number(path, "page_size") == page_size


def test_the_log_is_written_back_after_two_mebibytes(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "t.sqlite", durability="normal") as transport:
        engine = transport._engine
        assert engine is not None
        for pragma, expected in (("wal_autocheckpoint", 2048), ("temp_store", 2), ("page_size", 1024)):
            with engine.connect() as connection:
                assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == expected


def test_a_read_only_engine_sets_nothing_on_the_file(tmp_path: Path) -> None:
    path = make(tmp_path / "t.sqlite", "transport", journal_mode="wal")
    before = path.read_bytes()
    with disposed(open_engine(path, read_only=True)) as engine, engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA temp_store").scalar_one() == 2
    assert path.read_bytes() == before
