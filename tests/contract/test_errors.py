"""The tree of errors, what each one carries, and that they cross process boundaries. Semantics' "Errors"."""

from __future__ import annotations

import multiprocessing
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as listening
from sqlalchemy import text

import qstore
import qstore.migrate
from qstore import (
    BackendUnsupported,
    Event,
    FormatError,
    InvalidInput,
    InvalidType,
    PayloadTooLarge,
    QstoreError,
    StaleLease,
    StaleReceipt,
    StoreBusy,
    StoreFull,
    UndecodablePayload,
)
from tests.backends import Backend, ManualClock
from tests.contract.contents import contents, unchanged
from tests.contract.events import claim, event
from tests.contract.hosts import Host
from tests.contract.twins import each_twin, on_engine, opened

TREE: dict[type[QstoreError], tuple[type[Exception], ...]] = {
    QstoreError: (Exception,),
    FormatError: (QstoreError,),
    StoreBusy: (QstoreError,),
    StoreFull: (QstoreError,),
    StaleLease: (QstoreError,),
    StaleReceipt: (QstoreError,),
    InvalidInput: (QstoreError, ValueError),
    InvalidType: (InvalidInput, TypeError),
    PayloadTooLarge: (InvalidInput,),
    UndecodablePayload: (QstoreError,),
    BackendUnsupported: (QstoreError,),
}


@pytest.mark.parametrize("kind", TREE)
def test_the_tree_is_as_drawn_and_public(kind: type[QstoreError]) -> None:
    assert kind.__bases__ == TREE[kind]
    assert kind.__name__ in qstore.__all__
    assert getattr(qstore, kind.__name__) is kind


def _format_error(directory: Path, twin: str) -> None:
    with opened(twin, "localkv", directory / "none", create=False):
        pass


def _unsupported(directory: Path, twin: str) -> None:
    open_one = qstore.open_engine if twin == "sync" else qstore.open_async_engine
    open_one("mysql://u:secret@h/db")


def _invalid(directory: Path, twin: str) -> None:
    with opened(twin, "localkv", directory) as kv:
        kv.get("")


def _invalid_type(directory: Path, twin: str) -> None:
    with opened(twin, "localkv", directory) as kv:
        kv.get(5)


def _too_large(directory: Path, twin: str) -> None:
    with opened(twin, "localqueue", directory) as queue:
        queue.send("x" * 65_537)


def _stale_lease(directory: Path, twin: str) -> None:
    clock = ManualClock()
    with opened(twin, "transport", directory, clock=clock) as transport:
        transport.publish("g", Event(kind="a"))
        late = claim(transport)
        clock.advance(60)
        claim(transport)
        transport.ack(late)


def _stale_receipt(directory: Path, twin: str) -> None:
    with opened(twin, "localqueue", directory) as queue:
        queue.send("a")
        queue.ack("1:x")


def _undecodable(directory: Path, twin: str) -> None:
    with opened(twin, "localqueue", directory) as queue:
        queue.send("a")
        _sql(directory / "localqueue.sqlite", "UPDATE messages SET payload_type = 'json'")
        _ = queue.receive()[0].payload


def _full(directory: Path, twin: str) -> None:
    with on_engine(twin, "localkv", directory / "localkv.sqlite") as (kv, engine):
        qstore.migrate.upgrade(engine)
        with engine.connect() as connection:
            connection.execute(text("PRAGMA max_page_count = 10"))
        kv.put("k", bytes(100_000))


def _busy(directory: Path, twin: str) -> None:
    with on_engine(twin, "localkv", directory / "localkv.sqlite") as (kv, engine):
        qstore.migrate.upgrade(engine)
        with engine.connect() as connection:
            connection.execute(text("PRAGMA busy_timeout = 1"))
        with closing(sqlite3.connect(directory / "localkv.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            kv.put("k", b"")


def _too_big_for_a_row(directory: Path, twin: str) -> None:
    with on_engine(twin, "localkv", directory / "localkv.sqlite") as (kv, engine):
        qstore.migrate.upgrade(engine)
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
        kv.put("k", bytes(100_000))


def _sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


Raising = Callable[[Path, str], None]
"""Meets an error in a directory, with one of the twins."""

RAISE: dict[Raising, tuple[type[QstoreError], str | None, dict[str, Any]]] = {
    _format_error: (FormatError, "BINDING_SETUP_FAILED", {"found": "no file", "supported": "localkv.v1"}),
    _busy: (StoreBusy, None, {}),
    _full: (StoreFull, None, {}),
    _stale_lease: (StaleLease, "QUEUE_OPERATION_FAILED", {"seq": 1}),
    _stale_receipt: (StaleReceipt, "QUEUE_OPERATION_FAILED", {"id": 1}),
    _invalid: (InvalidInput, "INVALID_INPUT", {"field": "key"}),
    _invalid_type: (InvalidType, "INVALID_INPUT", {"field": "key"}),
    _too_large: (PayloadTooLarge, "INVALID_INPUT", {"field": "payload", "size": 65_537, "limit": 65_536}),
    _too_big_for_a_row: (InvalidInput, "INVALID_INPUT", {"field": "payload"}),
    _undecodable: (UndecodablePayload, None, {"id": 1, "raw": "a"}),
    _unsupported: (BackendUnsupported, None, {}),
}


@pytest.mark.parametrize("raising", RAISE, ids=lambda raising: raising.__name__[1:])
def test_an_error_carries_its_code_and_data_here_awaited_and_out_of_another_process(
    raising: Raising, tmp_path: Path
) -> None:
    kind, code, data = RAISE[raising]
    here, awaited, there = directories = [tmp_path / name for name in ("here", "awaited", "there")]
    for directory in directories:
        directory.mkdir()
    errors: list[QstoreError] = []
    for directory, twin in ((here, "sync"), (awaited, "async")):
        with pytest.raises(kind) as caught:
            raising(directory, twin)
        errors += [caught.value, pickle.loads(pickle.dumps(caught.value))]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with pytest.raises(kind) as caught:
            pool.apply_async(raising, (there, "sync")).get(60)
        pool.close()
        pool.join()
    for error in (*errors, caught.value):
        assert type(error) is kind
        assert error.code == code
        assert {name: getattr(error, name) for name in data} == data
    [said] = {_anywhere(error, directories) for error in (*errors, caught.value)}
    assert said


def _anywhere(error: QstoreError, directories: list[Path]) -> str:
    """What an error says, wherever it was met."""
    said = str(error)
    for directory in directories:
        said = said.replace(str(directory), "<directory>")
    return said


@each_twin
@pytest.mark.parametrize("raising", [_busy, _full, _too_big_for_a_row], ids=["busy", "full", "too big"])
def test_an_error_of_the_database_is_the_cause_of_its_translation(raising: Raising, tmp_path: Path, twin: str) -> None:
    with pytest.raises(QstoreError) as caught:
        raising(tmp_path, twin)
    assert isinstance(caught.value.__cause__, sqlite3.Error)


@each_twin
def test_a_message_never_shows_a_password(tmp_path: Path, twin: str) -> None:
    with pytest.raises(BackendUnsupported) as caught:
        _unsupported(tmp_path, twin)
    assert "secret" not in str(caught.value)


def test_a_full_store_is_store_full_with_nothing_half_written_and_goes_on_after_an_ack(
    host: Host, clock: ManualClock
) -> None:
    """SQLite keeps the page limit for each connection, so that a transaction of the host's own has it."""
    transport = host.joined("transport", clock=clock)
    [(pages,)] = host.sql("transport", "PRAGMA page_count")
    limit = f"PRAGMA max_page_count = {pages + 4}"

    def on_checkout(connection: Any, *_: object) -> None:
        """SQLAlchemy 2.0's async pool makes a new connection for each transaction."""
        cursor = connection.cursor()
        cursor.execute(limit)
        cursor.close()

    listening.listen(host.engine, "checkout", on_checkout)
    host.bind.execute(text(limit))
    host.bind.commit()
    big = Event(kind="big", data={"x": "x" * 3000})
    published = 0
    with suppress(StoreFull):
        while published < 50:
            transport.publish(f"g{published}", big)
            host.bind.commit()
            published += 1
    host.bind.rollback()
    assert 0 < published < 50
    with unchanged(host, "transport"), pytest.raises(StoreFull):
        transport.publish_many((f"m{n}", big) for n in range(10))
    host.bind.rollback()
    transport.ack(claim(transport))
    host.bind.commit()
    transport.publish("again", big)
    host.bind.commit()
    assert len(contents(host, "transport")["messages"]) == len(contents(host, "transport")["groups"]) == published


def test_a_closed_repository_says_so(backend: Backend) -> None:
    calls: list[tuple[Any, Callable[[Any], Any]]] = [
        (backend.transport(), lambda it: it.publish("g", event("a"))),
        (backend.localkv(), lambda it: it.get("k")),
        (backend.localqueue(), lambda it: it.receive()),
    ]
    for repository, call in calls:
        repository.close()
        repository.close()
        with pytest.raises(QstoreError, match="closed"):
            call(repository)
