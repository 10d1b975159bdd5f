"""Rows that do not decode block nobody, and nothing but JSON is ever deserialised. Semantics 9 and 10."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from qstore import NATIVE, FormatError, Naming, UndecodablePayload, migrate
from tests.backends import MOUNTED, STORES, Backend
from tests.contract.events import claim, drained, event

BROKEN = ["", "{", "null", '"text"', "[]", '{"kind": NaN}', '{"kind": 1}', "\u2028", "{} {}"]


@pytest.mark.parametrize("settle", ["ack", "nack", "park", "extend"])
def test_an_event_that_does_not_decode_blocks_nobody_and_can_be_settled(backend: Backend, settle: str) -> None:
    transport = backend.transport()
    for raw in BROKEN:
        _blocks_nobody(backend, transport, raw, settle)
        backend.sql("transport", "DELETE FROM {messages}")
        backend.sql("transport", "DELETE FROM {groups}")


def _blocks_nobody(backend: Backend, transport: Any, raw: str, settle: str) -> None:
    bad = transport.publish("g", event("bad"))
    transport.publish_many([("g", event("behind")), ("h", event("other"))])
    backend.sql("transport", "UPDATE {messages} SET event = ? WHERE seq = ?", raw, bad)
    lease = claim(transport)
    assert (lease.seq, lease.group_id) == (bad, "g")
    for _ in range(2):
        with pytest.raises(UndecodablePayload) as caught:
            _ = lease.event
        assert (caught.value.id, caught.value.raw) == (bad, raw)
    assert raw == "" or "event" not in repr(lease)
    match settle:
        case "ack":
            transport.ack(lease)
            assert drained(transport) == ["other", "behind"]
        case "nack":
            transport.nack(lease)
            assert drained_but(transport, bad) == ["other"]
        case "park":
            transport.nack(lease, delay=60)
            assert drained(transport) == ["other"]
        case _:
            assert transport.extend(lease, 60).seq == bad
            assert drained(transport) == ["other"]


def drained_but(transport: Any, bad: int) -> list[str]:
    """Drain until the bad message comes again."""
    kinds = []
    while (lease := claim(transport)).seq != bad:
        kinds.append(lease.event.kind)
        transport.ack(lease)
    return kinds


def test_an_event_that_is_not_utf_8_is_told_as_bytes_when_it_is_asked_for(any_bytes_backend: Backend) -> None:
    transport = any_bytes_backend.transport()
    seq = transport.publish("g", event("a"))
    any_bytes_backend.sql("transport", "UPDATE {messages} SET event = CAST(x'7BFF7D' AS TEXT)")
    lease = claim(transport)
    with pytest.raises(UndecodablePayload) as caught:
        _ = lease.event
    assert (caught.value.id, caught.value.raw) == (seq, b"{\xff}")
    transport.ack(lease)


BAD_ROWS: dict[str, tuple[str, str]] = {
    "broken JSON": ("json", "{"),
    "NaN": ("json", "[NaN]"),
    "Infinity": ("json", "-Infinity"),
    "empty JSON": ("json", ""),
    "deep JSON": ("json", "[" * 100_000),
    "another type": ("pickle", "x"),
}
"""Type and data."""


def test_a_payload_that_does_not_decode_blocks_nobody_and_can_be_settled(backend: Backend) -> None:
    queue = backend.localqueue()
    for payload_type, payload_data in BAD_ROWS.values():
        _delivered_all_the_same(backend, queue, payload_type, payload_data.encode())


@pytest.mark.parametrize(("payload_type", "raw"), [("text", b"\xff"), ("json", b'"\xff"')])
def test_a_payload_that_is_not_utf_8_blocks_nobody_and_can_be_settled(
    any_bytes_backend: Backend, payload_type: str, raw: bytes
) -> None:
    """PostgreSQL's texts are UTF-8, and so are turso's."""
    _delivered_all_the_same(any_bytes_backend, any_bytes_backend.localqueue(), payload_type, raw, "CAST(? AS TEXT)")


def _delivered_all_the_same(backend: Backend, queue: Any, payload_type: str, raw: bytes, value: str = "?") -> None:
    ids = queue.send_many(["bad", "good"])
    sql = f"UPDATE {{messages}} SET payload_type = ?, payload_data = {value} WHERE id = ?"
    backend.sql("localqueue", sql, payload_type, raw.decode() if value == "?" else raw, ids[0])
    bad, good = queue.receive(2)
    assert (bad.id, good.payload) == (ids[0], "good")
    for _ in range(2):
        with pytest.raises(UndecodablePayload) as caught:
            _ = bad.payload
        assert caught.value.id == bad.id
        found = caught.value.raw
        assert (found.encode() if isinstance(found, str) else found) == raw
    queue.nack(bad.receipt_handle)
    [again] = queue.receive(5)
    assert (again.id, again.attempt) == (bad.id, 2)
    queue.ack(again.receipt_handle)
    queue.ack(good.receipt_handle)
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == []


def test_a_pickle_is_never_loaded(backend: Backend) -> None:
    loaded = pickle.dumps(_Bomb(), 0).decode("ascii")
    queue, transport, kv = backend.localqueue(), backend.transport(), backend.localkv()
    queue.send_many(["a", "b"])
    sql = "UPDATE {messages} SET payload_type = ?, payload_data = ? WHERE id = ?"
    backend.sql("localqueue", sql, "json", loaded, 1)
    backend.sql("localqueue", sql, "pickle", loaded, 2)
    transport.publish("g", event("a"))
    backend.sql("transport", "UPDATE {messages} SET event = ?", loaded)
    kv.put("k", loaded.encode())
    for message in queue.receive(2):
        with pytest.raises(UndecodablePayload):
            _ = message.payload
    with pytest.raises(UndecodablePayload):
        _ = claim(transport).event
    assert kv.get("k") == loaded.encode()


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('a pickle was loaded')",)


@pytest.mark.parametrize("store", STORES)
def test_a_database_of_utf_16_is_refused(file_backend: Backend, store: str) -> None:
    """Its texts have other bytes and another order than the formats are made for."""
    _make_utf_16(file_backend.path(store))
    calls: dict[str, Callable[[Any], object]] = {
        "transport": lambda it: it.publish("g", event("a")),
        "localkv": lambda it: it.put("k", b"v"),
        "localqueue": lambda it: it.send("a"),
    }
    with pytest.raises(FormatError) as refused:
        calls[store](getattr(file_backend, store)())
    assert refused.value.found == "UTF-16le"


@pytest.mark.parametrize("naming", [NATIVE, MOUNTED], ids=["native", "mounted"])
def test_a_database_of_utf_16_is_not_upgraded(tmp_path: Path, naming: Naming) -> None:
    path = tmp_path / "localkv.sqlite"
    _make_utf_16(path)
    before = path.read_bytes()
    engine = create_engine(f"sqlite:///{path}")
    with pytest.raises(FormatError) as refused:
        migrate.upgrade(engine, naming=naming)
    engine.dispose()
    assert refused.value.found == "UTF-16le"
    assert path.read_bytes() == before


def _make_utf_16(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (c); DROP TABLE t;")
