"""Rows as only another hand writes them: of other types, no UTF-8, no JSON. They keep no good row back. Semantics 9."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

import pytest

from qstore import UndecodablePayload
from tests.backends import Backend
from tests.contract.events import event

VALUES = (
    *("'text'", "''", "x'00ff'", "CAST(x'61FF' AS TEXT)", "NULL", "1.5", "-5", "0", "1e300", "9e999", "-9e999"),
    *("9223372036854775807", "-9223372036854775808", "'1e3'", "char(123)", "'é'", "char(0)", "zeroblob(100000)"),
)
"""SQL of what a column may hold in SQLite, whatever its type is said to be."""


def _changed(backend: Backend, store: str, column: str, value: str) -> bool:
    """Change the first row by hand, unless the table itself refuses it."""
    table, name = column.split(".")
    sql = f"UPDATE {{{table}}} SET {name} = {value} WHERE rowid = (SELECT min(rowid) FROM {{{table}}})"
    try:
        backend.sql(store, sql)
    except sqlite3.IntegrityError:
        return False
    return True


def _emptied(backend: Backend, store: str, *tables: str) -> None:
    for table in tables:
        backend.sql(store, f"DELETE FROM {{{table}}}")


@pytest.mark.parametrize(
    "column",
    [
        *("messages.group_id", "messages.event", "messages.locked_by", "messages.lock_expiry"),
        *("groups.group_id", "groups.last_claimed_at", "groups.priority"),
    ],
)
def test_a_message_of_any_kind_keeps_no_other_group_back(file_backend: Backend, column: str) -> None:
    transport: Any = file_backend.transport()
    for value in VALUES:
        _emptied(file_backend, "transport", "messages", "groups")
        transport.publish_many([(group, event(group)) for group in "abc"])
        if not _changed(file_backend, "transport", column, value):
            continue
        kinds = []
        while (lease := transport.claim("w", 30)) is not None:
            with suppress(UndecodablePayload):
                kinds.append(lease.event.kind)
            transport.ack(lease)
            assert len(kinds) < 4, value
        assert {"b", "c"} <= set(kinds), value


@pytest.mark.parametrize("column", ["payload_type", "payload_data", "enqueued_at", "visible_at", "receipt_handle"])
def test_a_sent_message_of_any_kind_keeps_no_other_one_back(file_backend: Backend, column: str) -> None:
    queue: Any = file_backend.localqueue()
    for value in VALUES:
        _emptied(file_backend, "localqueue", "messages")
        queue.send_many(["a", "b", "c"])
        if not _changed(file_backend, "localqueue", f"messages.{column}", value):
            continue
        payloads = []
        for message in queue.receive(10):
            with suppress(UndecodablePayload):
                payloads.append(message.payload)
            queue.ack(message.receipt_handle)
        assert payloads[-2:] == ["b", "c"] or payloads[:2] == ["b", "c"], value
        queue.purge()


def test_an_expiry_of_any_kind_keeps_no_key_back(file_backend: Backend) -> None:
    """What is no number comes after every number, as SQLite has it: the key never expires."""
    kv: Any = file_backend.localkv()
    for value in VALUES:
        _emptied(file_backend, "localkv", "kv")
        kv.put_many({"ab": b"1", "a": b"2", "b": b"3"})
        assert _changed(file_backend, "localkv", "kv.expires_at", value)
        live = [("a", b"2"), ("ab", b"1"), ("b", b"3")]
        if value in ("1.5", "-5", "0", "-9e999", "-9223372036854775808", "'1e3'"):
            live.remove(("ab", b"1"))
        assert kv.scan_prefix("").items == list(kv.iter_prefix("")) == live, value
        paged = [kv.scan_prefix("", limit=1, cursor=str(number)).items for number in range(3)]
        assert [item for page in paged for item in page] == live, value
        assert kv.put("ab", b"4", if_not_exists=True) is (len(live) == 2), value
        assert [kv.get(key) for key in ("a", "b")] == [b"2", b"3"]
        _changed(file_backend, "localkv", "kv.expires_at", value)
        assert (kv.get("ab") is not None) is kv.exists("ab") is (len(live) == 3), value


def test_a_key_of_any_kind_keeps_no_other_one_back(file_backend: Backend) -> None:
    """One that is no text, or is not UTF-8, no call can name: it is passed over."""
    kv: Any = file_backend.localkv()
    for value in VALUES:
        _emptied(file_backend, "localkv", "kv")
        kv.put_many({"changed": b"1", "k": b"2", "ö": b"3"})
        sql = f"UPDATE {{kv}} SET key = {value} WHERE key = 'changed'"
        file_backend.sql("localkv", sql)
        items = kv.scan_prefix("").items
        assert [item for item in items if item[1] != b"1"] == [("k", b"2"), ("ö", b"3")], value
        assert list(kv.iter_prefix("")) == items, value
        pages: list[Any] = []
        cursor = None
        while pages == [] or cursor is not None:
            page = kv.scan_prefix("", limit=1, cursor=cursor)
            pages += page.items
            cursor = page.next_cursor
        assert pages == items, value
        assert kv.scan_prefix("k").items == [("k", b"2")]
        assert kv.get("k") == b"2"


def test_many_keys_that_are_not_utf8_keep_no_other_one_back(any_bytes_backend: Backend) -> None:
    """More of them than a walk reads at once, in front, between and at the end."""
    kv: Any = any_bytes_backend.localkv()
    good = {f"k{number:02}": b"good" for number in range(0, 100, 25)}
    kv.put_many(good)
    for number in range(100):
        bad = f"CAST(CAST('k{number:02}' AS BLOB) || x'FF' AS TEXT)"
        any_bytes_backend.sql("localkv", f"INSERT INTO {{kv}} (key, value) VALUES ({bad}, x'00')")
    assert dict(kv.iter_prefix("k")) == dict(kv.scan_prefix("k").items) == good


def test_a_value_of_any_kind_is_read_as_bytes(file_backend: Backend) -> None:
    kv: Any = file_backend.localkv()
    for value in VALUES:
        kv.put("a", b"")
        kv.put("b", b"3")
        if _changed(file_backend, "localkv", "kv.value", value):
            assert isinstance(kv.get("a"), bytes), value
            assert [key for key, _ in kv.scan_prefix("").items] == ["a", "b"]
