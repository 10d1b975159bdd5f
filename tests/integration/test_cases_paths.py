"""H23: odd characters in paths and URLs. Exactly that file, by every way in."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic.config import main as alembic
from sqlalchemy import URL, Engine, create_engine, make_url

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, migrate, open_engine
from tests.integration.situations import ROOT, disposed, plain

NAMES = [
    "a b",
    "a?b",
    "a#b",
    "a%20b",
    "a%b",
    "a%(here)s",
    "a&b=c",
    "ünï😀",
    "a\\b",
    "a'b\"c",
    "a:b",
    "file:a",
    " a ",
    "-a",
]


def _url(path: object) -> str:
    return URL.create("sqlite", database=str(path)).render_as_string()


IN_A_URL = [name for name in NAMES if make_url(_url(f"/{name}")).database == f"/{name}"]
"""SQLAlchemy escapes all of them from 2.1 on; before that its URLs in strings cannot say every path."""


def _with(engine: Engine, use: Callable[[Engine], object]) -> None:
    with disposed(engine):
        use(engine)


def _alembic(*arguments: str) -> None:
    alembic(["-c", str(ROOT / "alembic.ini"), *arguments])


def _upgrade(engine: Engine) -> None:
    migrate.upgrade(engine, stores=("localkv",))


def _opened_url(path: str) -> None:
    LocalKvRepository.open(URL.create("sqlite", database=path)).close()


WAYS: dict[str, Callable[[str], None]] = {
    "open_engine": lambda path: _with(open_engine(path), lambda engine: engine.connect().close()),
    "open_engine by a URL object": lambda path: _with(
        open_engine(URL.create("sqlite", database=path)), lambda engine: engine.connect().close()
    ),
    "transport": lambda path: TransportRepository.open(path).close(),
    "localkv by a URL object": _opened_url,
    "localqueue by a URL object": lambda path: LocalQueueRepository.open(URL.create("sqlite", database=path)).close(),
    "migrate": lambda path: _with(open_engine(path), _upgrade),
    "migrate on a host's engine": lambda path: _with(create_engine(URL.create("sqlite", database=path)), _upgrade),
    "the command, with a path": lambda path: _alembic("-x", f"url={path}", "upgrade", "localkv@head"),
}

URL_WAYS: dict[str, Callable[[str], None]] = {
    "open_engine": lambda url: _with(open_engine(url), lambda engine: engine.connect().close()),
    "transport": lambda url: TransportRepository.open(url).close(),
    "localkv": lambda url: LocalKvRepository.open(url).close(),
    "localqueue": lambda url: LocalQueueRepository.open(url).close(),
    "the command": lambda url: _alembic("-x", f"url={url}", "upgrade", "localkv@head"),
}


def _files(directory: Path) -> list[str]:
    """The databases there. Side files belong to one of them."""
    return sorted(name for name in os.listdir(directory) if not name.endswith(("-wal", "-shm", "-journal")))


def test_the_trap_is_real_a_url_by_string_join_makes_another_file(tmp_path: Path) -> None:
    """H23."""
    with disposed(create_engine(f"sqlite:///{tmp_path}/a?b.db")) as engine:
        engine.connect().close()
    assert _files(tmp_path) == ["a"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_exactly_that_file_is_made(name: str, way: str, tmp_path: Path) -> None:
    """H23."""
    WAYS[way](str(tmp_path / f"{name}.db"))
    assert _files(tmp_path) == [f"{name}.db"]


@pytest.mark.parametrize("way", URL_WAYS)
@pytest.mark.parametrize("name", IN_A_URL)
def test_exactly_that_file_is_made_by_a_url_in_a_string(name: str, way: str, tmp_path: Path) -> None:
    """H23."""
    URL_WAYS[way](_url(tmp_path / f"{name}.db"))
    assert _files(tmp_path) == [f"{name}.db"]


@pytest.mark.parametrize("name", NAMES)
def test_exactly_that_directory_holds_the_files(name: str, tmp_path: Path) -> None:
    """H23."""
    directory = tmp_path / name
    LocalKvRepository.open(str(directory)).close()
    LocalQueueRepository.open(directory).close()
    TransportRepository.open(directory).close()
    assert _files(tmp_path) == [name]
    assert _files(directory) == ["localkv.sqlite", "localqueue.sqlite", "transport.sqlite"]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_and_the_stores_use_the_same_files_of_a_directory(name: str, tmp_path: Path) -> None:
    """H23."""
    directory = tmp_path / name
    _alembic("-x", f"data_dir={directory}", "upgrade", "heads")
    assert _files(tmp_path) == [name]
    assert _files(directory) == ["localkv.sqlite", "localqueue.sqlite", "transport.sqlite"]
    for opened in (
        LocalKvRepository.open(directory, create=False),
        LocalQueueRepository.open(directory, create=False),
        TransportRepository.open(directory, create=False),
    ):
        opened.close()


@pytest.mark.parametrize("name", NAMES)
def test_migrations_store_and_readers_use_the_same_file(name: str, tmp_path: Path) -> None:
    """H23."""
    path = tmp_path / f"{name}.db"
    url = URL.create("sqlite", database=str(path))
    _alembic("-x", f"url={path}", "upgrade", "localkv@head")
    with LocalKvRepository.open(url, create=False) as kv:
        kv.put("a", b"1")
    with disposed(open_engine(path, read_only=True)) as engine:
        assert LocalKvRepository(engine).get("a") == b"1"
        assert migrate.current(engine) == ("localkv.v1",)
    with plain(path) as look:
        assert look.execute("SELECT key FROM kv").fetchall() == [("a",)]
    assert _files(tmp_path) == [path.name]


RELATIVE: dict[str, Callable[[], LocalKvRepository]] = {
    "a directory": lambda: LocalKvRepository.open("data"),
    "a URL": lambda: LocalKvRepository.open("sqlite:///data/localkv.sqlite"),
    "an engine": lambda: LocalKvRepository(open_engine("data/localkv.sqlite")),
}


@pytest.mark.parametrize("way", RELATIVE)
def test_a_relative_path_stays_what_it_was_when_the_working_directory_changes(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H23. For connections that are made later, too."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second" / "data").mkdir(parents=True)
    LocalKvRepository.open(tmp_path / "first" / "data").close()
    monkeypatch.chdir(tmp_path / "first")
    kv = RELATIVE[way]()
    engine: Engine = kv._binding._engine  # type: ignore[attr-defined]  # of a binding to an engine
    with closing(kv), disposed(engine):
        monkeypatch.chdir(tmp_path / "second")
        kv.put("a", b"1")
        engine.dispose()
        kv.put("b", b"2")
    assert _files(tmp_path / "second" / "data") == []
    with plain(tmp_path / "first" / "data" / "localkv.sqlite") as look:
        assert look.execute("SELECT key FROM kv").fetchall() == [("a",), ("b",)]
