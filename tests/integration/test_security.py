"""Names and values are never SQL, files are nobody else's, and nothing says a password or runs what it has read."""

from __future__ import annotations

import ast
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData

import qstore
from qstore import (
    AsyncTransportRepository,
    Event,
    InvalidInput,
    LocalKvRepository,
    LocalQueueRepository,
    Naming,
    PayloadTooLarge,
    QstoreError,
    TransportRepository,
    UndecodablePayload,
    migrate,
    mount,
    open_async_engine,
    open_engine,
)
from qstore.copying import copy
from qstore.places import shown
from tests.backends import Backend
from tests.integration.situations import STORES

HOSTILE = [
    "'; DROP TABLE kv; --",
    '"; DROP TABLE "kv"; --',
    "' OR '1'='1",
    "{kv}",
    "{0.__class__}",
    "%(key)s",
    ":key",
    "?",
    "$1",
    "\\",
    "]]",
    "`",
    "a; ATTACH 'b' AS c",
]


def test_a_value_is_never_sql(backend: Backend) -> None:
    transport: Any = backend.transport()
    kv, queue = backend.localkv(), backend.localqueue()
    for text in HOSTILE:
        kv.put(text, text.encode())
        transport.publish(text, Event(kind=text))
        queue.send(text)
    assert {key: value.decode() for key, value in kv.iter_prefix("")} == {text: text for text in HOSTILE}
    for text in HOSTILE:
        assert [key for key, _ in kv.scan_prefix(text).items] == [text]
        lease = transport.claim(text, 30)
        assert (lease.group_id, lease.event.kind, lease.worker_id) == (text, text, text)
        transport.ack(lease)
        kv.delete(text)
    messages = queue.receive(100)
    assert [message.payload for message in messages] == HOSTILE
    for text in HOSTILE:
        queue.ack(f"{messages[0].id}0000:{text}")
    assert backend.sql("localkv", "SELECT * FROM {kv}") == []
    assert len(backend.sql("localqueue", "SELECT * FROM {messages}")) == len(HOSTILE)


@pytest.mark.parametrize("name", [*HOSTILE, "a b", "a-b", "a.b", "é", "a\0", "1a", "", "a" * 64])
def test_a_name_that_could_be_sql_is_refused(name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: Naming(name),
        lambda: Naming("qstore_", schema=name),
        lambda: mount(MetaData(), prefix=name),
        lambda: mount(MetaData(), schema=name),
        lambda: mount(MetaData(), stores=[name]),
        lambda: mount(MetaData(schema=name or "?")),
        lambda: migrate.sql(name),
        lambda: migrate.sql(naming=Naming("a_"), stores=[name]),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()


SOURCES = sorted(
    [*Path(qstore.__file__).parent.rglob("*.py"), *(Path(__file__).parents[2] / "migrations").rglob("*.py")]
)
RUNS_DATA = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle", "subprocess", "code", "runpy"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
RUNS_COMMANDS = {"system", "popen", "load_extension", "enable_load_extension"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_the_source_runs_nothing_that_it_has_read(source: Path) -> None:
    """No pickle, no eval, no commands; only texts that stand in the source are imported by name."""
    assert not list(_running(ast.parse(source.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "os.system('ls')",
        "__import__(name)",
        "import_module(n)",
        "import_module(f'{n}.qstore.')",
    ],
)
def test_source_that_runs_what_it_has_read_is_found(text: str) -> None:
    assert list(_running(ast.parse(text)))


def _running(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] in RUNS_DATA)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in RUNS_DATA:
            yield node.module or ""
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in (RUNS_TEXT if isinstance(node.func, ast.Name) else RUNS_COMMANDS):
                yield name
            if name == "import_module" and not _own_or_constant(node.args[0]):
                yield name


def _own_or_constant(module: ast.expr) -> bool:
    """Whether the name of a module stands in the source, or begins with this package's there."""
    if isinstance(module, ast.JoinedStr):
        first = module.values[0]
        return isinstance(first, ast.Constant) and str(first.value).startswith("qstore.")
    return isinstance(module, ast.Constant)


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022])
@pytest.mark.parametrize("store", STORES)
def test_a_file_and_its_directory_are_as_the_umask_says_and_so_is_what_lies_beside(
    store: str, mask: int, tmp_path: Path
) -> None:
    directory = tmp_path / "made"
    kind: Any = STORES[store]
    with _umask(mask), kind.open(directory / f"{store}.sqlite" if store == "transport" else directory):
        found = {path.name: _mode(path) for path in directory.iterdir()}
        assert {f"{store}.sqlite", f"{store}.sqlite-wal", f"{store}.sqlite-shm"} >= set(found) >= {f"{store}.sqlite"}
        assert set(found.values()) == {0o644 & ~mask}
        assert _mode(directory) == 0o777 & ~mask


def test_a_file_that_is_nobody_elses_stays_so_with_what_lies_beside(tmp_path: Path) -> None:
    """SQLite gives the log and its index the file's own permissions, whatever the umask of a later process."""
    with _umask(0o077):
        LocalKvRepository.open(tmp_path).close()
    with _umask(0), LocalKvRepository.open(tmp_path) as kv:
        kv.put("a", b"1")
        assert len(list(tmp_path.iterdir())) == 3
        assert {_mode(path) for path in tmp_path.iterdir()} == {0o600}


def test_a_copy_is_as_the_umask_says(tmp_path: Path) -> None:
    LocalKvRepository.open(tmp_path / "source").close()
    with _umask(0o077):
        copy(tmp_path / "source", f"{tmp_path}/target/")
    assert {_mode(path) for path in (tmp_path / "target").iterdir()} == {0o600}


def test_a_symbolic_link_is_followed_and_both_names_are_one_store(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "localkv.sqlite").symlink_to(tmp_path / "real" / "localkv.sqlite")
    with LocalKvRepository.open(tmp_path / "real") as real:
        for other in ("link", "file"):
            with LocalKvRepository.open(tmp_path / other, create=False) as linked:
                linked.put(other, b"1")
                assert real.get(other) == b"1"
                assert real.put(other, b"2", if_not_exists=True) is False
    assert sorted(path.name for path in (tmp_path / "file").iterdir()) == ["localkv.sqlite"]


def test_a_link_that_leads_nowhere_or_in_a_circle_is_refused_or_made_whole(tmp_path: Path) -> None:
    circle = tmp_path / "circle" / "localkv.sqlite"
    circle.parent.mkdir()
    circle.symlink_to(circle)
    with pytest.raises(QstoreError):
        LocalKvRepository.open(circle.parent)
    assert os.readlink(circle) == str(circle)
    nowhere = tmp_path / "nowhere" / "localkv.sqlite"
    nowhere.parent.mkdir()
    nowhere.symlink_to(tmp_path / "elsewhere.sqlite")
    with pytest.raises(QstoreError):
        LocalKvRepository.open(nowhere.parent, create=False)
    assert not (tmp_path / "elsewhere.sqlite").exists()


@pytest.mark.parametrize("special", ["/dev/null", "/dev/zero"])
def test_what_is_no_regular_file_is_refused_unread(special: str) -> None:
    for opening in (TransportRepository.open, lambda path: open_engine(path).connect()):
        with pytest.raises(QstoreError):
            opening(special)


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "localkv.sqlite")
    with pytest.raises(QstoreError):
        LocalKvRepository.open(tmp_path)


SECRET = "hunter2-secret"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/db",
        f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/db?connect_timeout=2",
        f"postgresql://u@127.0.0.1:1/db?password={SECRET}",
        f"postgresql://u@127.0.0.1:1/db?sslpassword={SECRET}",
        f"mysql://u:{SECRET}@127.0.0.1/db",
        f"postgresql://u:{SECRET}@127.0.0.1:port/db",
        f"postgresql://u:p@{SECRET}@127.0.0.1/db",
        f"sqlite://u:{SECRET}@h/db",
        f"sqlite:///a.sqlite?key={SECRET}",
    ],
)
def test_neither_an_error_nor_a_log_says_a_password(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    calls: list[Callable[[], object]] = [
        *(lambda kind=kind: kind.open(url).close() for kind in STORES.values()),
        lambda: _connected(url),
        lambda: repr(TransportRepository(open_engine(url))),
        lambda: repr(AsyncTransportRepository(open_async_engine(url))),
        lambda: shown(url),
        lambda: copy(url, tmp_path / "copy"),
        lambda: copy(tmp_path / "source", url),
    ]
    LocalKvRepository.open(tmp_path / "source").close()
    for call in calls:
        try:
            said = str(call())
        except Exception as error:  # noqa: BLE001  whoever's it is
            said = "".join(map(str, _told(error)))
        assert SECRET not in said
    assert SECRET not in caplog.text


def _connected(url: str) -> str:
    engine = open_engine(url)
    try:
        return repr(TransportRepository(engine)) + str(engine.connect())
    finally:
        engine.dispose()


def _told(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_a_payload_is_not_told_by_errors_records_or_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """But where it is asked for: `UndecodablePayload.raw`. Its cause is pydantic's error, which shows what it wants."""
    caplog.set_level(logging.DEBUG)
    with TransportRepository.open(tmp_path) as transport, LocalQueueRepository.open(tmp_path) as queue:
        transport.publish("g", Event(kind=SECRET))
        queue.send({"password": SECRET})
        with closing(sqlite3.connect(tmp_path / "transport.sqlite", isolation_level=None)) as connection:
            connection.execute("UPDATE messages SET event = ?", (f'{{"password": "{SECRET}"}}',))
        lease: Any = transport.claim("w", 5)
        with pytest.raises(UndecodablePayload, match="kind: Field required") as undecodable:
            _ = lease.event
        [message] = queue.receive()
        said = [repr(lease), str(lease), repr(message), str(message), str(undecodable.value)]
        for payload in (SECRET * 10_000, [SECRET * 10_000]):
            with pytest.raises(PayloadTooLarge) as caught:
                queue.send(payload)
            said += _told(caught.value)
    assert SECRET not in "".join(said) + caplog.text


def test_what_a_store_takes_has_a_limit_that_is_asked_before_the_store_is(tmp_path: Path) -> None:
    with LocalKvRepository.open(tmp_path) as kv, LocalQueueRepository.open(tmp_path) as queue:
        for call in (
            lambda: kv.put("a", bytes(16 * 1024 * 1024 + 1)),
            lambda: kv.put_many({"b": b"", "a": bytearray(16 * 1024 * 1024 + 1)}),
            lambda: queue.send("x" * 65_537),
            lambda: queue.send_many(["a", {"a": "x" * 65_537}]),
        ):
            with pytest.raises(PayloadTooLarge):
                call()
        with pytest.raises(InvalidInput):
            queue.receive(1001)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(InvalidInput):
            queue.send(deep)
    for store, table in (("localkv", "kv"), ("localqueue", "messages")):
        with closing(sqlite3.connect(tmp_path / f"{store}.sqlite")) as connection:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
