"""What no store takes is refused before a write, with the field named. Semantics 6, 7, 15, 20, 23, 26 and 27."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest

from qstore import InvalidInput, InvalidType
from tests.backends import STORES, Backend, ManualClock
from tests.contract.contents import unchanged
from tests.contract.events import event
from tests.contract.filled import Filled, fill

Calls = dict[str, tuple[str, str, Callable[[Any, Any, Filled], Any]]]
"""The store, the field, and a call with a value for that field."""

IDS: Calls = {
    "publish": ("transport", "group_id", lambda it, v, _: it.publish(v, event("e"))),
    "publish_many": ("transport", "group_id", lambda it, v, _: it.publish_many([("ok", event("e")), (v, event("e"))])),
    "claim": ("transport", "worker_id", lambda it, v, _: it.claim(v, 5)),
    "get": ("localkv", "key", lambda it, v, _: it.get(v)),
    "exists": ("localkv", "key", lambda it, v, _: it.exists(v)),
    "put": ("localkv", "key", lambda it, v, _: it.put(v, b"w")),
    "conditional put": ("localkv", "key", lambda it, v, _: it.put(v, b"w", if_not_exists=True)),
    "put_many": ("localkv", "key", lambda it, v, _: it.put_many({"ok": b"w", v: b"w"})),
    "delete": ("localkv", "key", lambda it, v, _: it.delete(v)),
}
PREFIXES: Calls = {
    "scan_prefix": ("localkv", "prefix", lambda it, v, _: it.scan_prefix(v)),
    "iter_prefix": ("localkv", "prefix", lambda it, v, _: it.iter_prefix(v)),
}
TEXTS: Calls = {
    "send": ("localqueue", "payload", lambda it, v, _: it.send(v)),
    "send_many": ("localqueue", "payload", lambda it, v, _: it.send_many(["ok", v])),
}
DURATIONS: Calls = {
    "claim": ("transport", "visibility", lambda it, v, _: it.claim("w", v)),
    "extend": ("transport", "visibility", lambda it, v, filled: it.extend(filled.lease, v)),
    "nack": ("transport", "delay", lambda it, v, filled: it.nack(filled.lease, v)),
    "receive": ("localqueue", "visibility_timeout", lambda it, v, _: it.receive(visibility_timeout=v)),
}
TTLS: Calls = {
    "put": ("localkv", "ttl", lambda it, v, _: it.put("live", b"w", ttl=v)),
    "conditional put": ("localkv", "ttl", lambda it, v, _: it.put("expired", b"w", ttl=v, if_not_exists=True)),
    "put_many": ("localkv", "ttl", lambda it, v, _: it.put_many({"live": b"w"}, ttl=v)),
}
PRIORITIES: Calls = {
    "publish": ("transport", "priority", lambda it, v, _: it.publish("g", event("e"), v)),
    "publish_many": ("transport", "priority", lambda it, v, _: it.publish_many([("g", event("e"), v)])),
    "claim": ("transport", "min_priority", lambda it, v, _: it.claim("w", 5, v)),
}
COUNTS: Calls = {"receive": ("localqueue", "max_messages", lambda it, v, _: it.receive(v))}
LIMITS: Calls = {"scan_prefix": ("localkv", "limit", lambda it, v, _: it.scan_prefix("", limit=v))}

HUGE = 10**5000
"""More digits than Python converts to text."""


class Refusing:
    """Filled stores that are called with what they must not take."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.backend = backend
        self._filled = fill(backend, clock)
        self._repositories = {store: getattr(backend, store)(clock=clock) for store in STORES}

    def __call__(self, calls: Calls, value: Any, kind: type[InvalidInput]) -> list[str]:
        """Make each call with the value, which is refused as this kind with nothing changed. Returns what was said."""
        return [self._refused(name, calls[name], value, kind) for name in calls]

    def _refused(self, name: str, call: Any, value: Any, kind: type[InvalidInput]) -> str:
        store, field, do = call
        error: Exception | None = None
        with unchanged(self.backend, *STORES):
            try:
                do(self._repositories[store], value, self._filled)
            except Exception as caught:  # noqa: BLE001  told apart below
                error = caught
        assert type(error) is kind, f"{name} with {field} {value!r:.40} gave {error!r:.200}"
        assert (error.field, error.code) == (field, "INVALID_INPUT")
        assert str(error).startswith(f"{field}: ")
        assert isinstance(error, ValueError)
        assert isinstance(error, TypeError) is (kind is InvalidType)
        return str(error)


@pytest.fixture
def refused(checking_backend: Backend, clock: ManualClock) -> Refusing:
    """Stores to be called with what they must not take."""
    return Refusing(checking_backend, clock)


def test_text_with_nul_or_a_lone_surrogate_is_refused(refused: Refusing) -> None:
    for value in ("a\0b", "\0", "a\0", "\ud800", "a\udfffb", "\udc80"):
        refused(IDS | PREFIXES | TEXTS, value, InvalidInput)


def test_an_empty_id_or_key_is_refused(refused: Refusing) -> None:
    refused(IDS, "", InvalidInput)


def test_an_id_key_or_prefix_that_is_not_text_is_of_the_wrong_type(refused: Refusing) -> None:
    for value in (None, 1, 1.5, True, b"x", ("x",), frozenset("x")):
        refused(IDS | PREFIXES, value, InvalidType)


@pytest.mark.parametrize(("store", "limit"), [("transport", 1024), ("localkv", 512)])
def test_an_id_of_more_than_1_024_bytes_and_a_key_of_more_than_512_are_refused(
    refused: Refusing, store: str, limit: int
) -> None:
    calls = {name: call for name, call in IDS.items() if call[0] == store}
    for value in ("x" * (limit + 1), "é" * (limit // 2) + "x", "😀" * (limit // 4 + 1)):
        for said in refused(calls, value, InvalidInput):
            assert f"{limit:,}" in said
            assert f"{len(value.encode()):,}" in said


def test_an_id_of_1_024_bytes_is_taken(backend: Backend) -> None:
    transport = backend.transport()
    for longest in ("x" * 1024, "é" * 512, "😀" * 256):
        transport.publish(longest, event("e"))
        lease = transport.claim(longest, 5)
        assert lease is not None
        assert (lease.group_id, lease.worker_id) == (longest, longest)


def test_parked_is_not_a_worker_id(refused: Refusing) -> None:
    [said] = refused({"claim": IDS["claim"]}, "__parked__", InvalidInput)
    assert "__parked__" in said


def test_portable_refuses_other_characters_in_keys_and_prefixes(checking_backend: Backend) -> None:
    kv, portable = checking_backend.localkv(), checking_backend.localkv(portable=True)
    for key in ("a b", "a/b", "a%", "ä", "a\n", "\n", "a,b", "a+b", "{a}", "\u0661", "k\u0130"):
        kv.put(key, b"v")
        for store, field, call in (*IDS.values(), *PREFIXES.values()):
            if store == "localkv":
                with unchanged(checking_backend, "localkv"), pytest.raises(InvalidInput) as caught:
                    call(portable, key, None)  # type: ignore[arg-type]  # each call takes what it needs
                assert caught.value.field == field


def test_portable_takes_all_of_the_formats_characters(checking_backend: Backend) -> None:
    kv = checking_backend.localkv(portable=True)
    key = "azAZ09-_:."
    kv.put(key, b"v")
    assert kv.get(key) == b"v"
    assert kv.scan_prefix(key[:3]).items == list(kv.iter_prefix(key)) == [(key, b"v")]


def test_a_duration_that_is_not_finite_or_below_zero_is_refused(refused: Refusing) -> None:
    for value in (nan, inf, -inf, -1, -5e-324, -(10**30), timedelta(microseconds=-1), timedelta.min):
        refused(DURATIONS | TTLS, value, InvalidInput)


def test_a_duration_that_is_no_number_of_seconds_is_of_the_wrong_type(refused: Refusing) -> None:
    for value in (True, False, "1", b"1", Decimal(1), 1j, [1]):
        refused(DURATIONS | TTLS, value, InvalidType)
    refused(DURATIONS, None, InvalidType)


def test_a_duration_of_more_than_100_years_is_refused(refused: Refusing) -> None:
    for value in (101 * 366 * 86_400, 1e300, 10**30, 2**1100, timedelta(days=101 * 366), timedelta.max):
        for said in refused(DURATIONS, value, InvalidInput):
            assert "100 years" in said


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_of_100_years_is_taken(backend: Backend, clock: ManualClock, name: str) -> None:
    store, _, call = DURATIONS[name]
    call(getattr(backend, store)(clock=clock), timedelta(days=36_525), fill(backend, clock))
    times = {"transport": ("lock_expiry", 1), "localqueue": ("visible_at", 1000)}
    column, unit = times[store]
    [(latest,)] = backend.sql(store, f"SELECT max({column}) FROM {{messages}}")
    assert latest == (clock.now + 36_525 * 86_400) * unit


def test_a_visibility_of_zero_is_refused(refused: Refusing) -> None:
    for value in (0, 0.0, -0.0, timedelta(0)):
        refused({name: DURATIONS[name] for name in ("claim", "extend")}, value, InvalidInput)


def test_an_integer_out_of_its_limits_is_refused(refused: Refusing) -> None:
    for calls, values in ((PRIORITIES, (-1, 5)), (COUNTS, (-1, 0, 1001)), (LIMITS, (-1, 0))):
        for value in values:
            for said in refused(calls, value, InvalidInput):
                assert str(value) in said


def test_what_is_no_integer_is_of_the_wrong_type(refused: Refusing) -> None:
    for value in (True, False, 1.0, "1", b"1", Decimal(1), [1]):
        refused(PRIORITIES | COUNTS | LIMITS, value, InvalidType)
    refused(PRIORITIES | COUNTS, None, InvalidType)


def test_a_number_too_long_to_print_is_refused_as_any_other(refused: Refusing) -> None:
    for calls in (DURATIONS, PRIORITIES, COUNTS):
        refused(calls, HUGE, InvalidInput)
    refused(TTLS, -HUGE, InvalidInput)


def test_a_value_that_is_not_bytes_is_of_the_wrong_type(refused: Refusing) -> None:
    calls: Calls = {
        "put": ("localkv", "value", lambda it, v, _: it.put("live", v)),
        "conditional put": ("localkv", "value", lambda it, v, _: it.put("expired", v, if_not_exists=True)),
        "put_many": ("localkv", "value", lambda it, v, _: it.put_many({"live": b"w", "new": v})),
    }
    for value in ("text", None, 1, [1, 2], object()):
        refused(calls, value, InvalidType)


def test_what_is_no_collection_of_items_or_messages_is_of_the_wrong_type(refused: Refusing) -> None:
    calls: Calls = {
        "put_many": ("localkv", "items", lambda it, v, _: it.put_many(v)),
        "publish_many": ("transport", "messages", lambda it, v, _: it.publish_many(v)),
    }
    for value in (None, 5, "ab", b"ab", [("live",)], [("live", b"w", 1, 2)], [None], ["ab"]):
        refused(calls, value, InvalidType)


def test_what_was_never_handed_out_is_of_the_wrong_type(refused: Refusing) -> None:
    calls: Calls = {
        "ack": ("transport", "lease", lambda it, v, _: it.ack(v)),
        "nack": ("transport", "lease", lambda it, v, _: it.nack(v)),
        "extend": ("transport", "lease", lambda it, v, _: it.extend(v, 5)),
        "ack receipt": ("localqueue", "receipt_handle", lambda it, v, _: it.ack(v)),
        "nack receipt": ("localqueue", "receipt_handle", lambda it, v, _: it.nack(v)),
    }
    for value in (None, 1, b"1:x", (1, "g"), object()):
        refused(calls, value, InvalidType)


def test_a_cursor_that_is_not_text_is_of_the_wrong_type(refused: Refusing) -> None:
    calls: Calls = {"scan_prefix": ("localkv", "cursor", lambda it, v, _: it.scan_prefix("", cursor=v))}
    for value in (1, b"1", True, ["1"]):
        refused(calls, value, InvalidType)


@pytest.mark.parametrize("instant", [nan, inf, -inf, 1e30, -1e30, 10**40, "now", None])
def test_a_clock_that_tells_no_instant_is_told_and_nothing_is_written(checking_backend: Backend, instant: Any) -> None:
    repository = checking_backend.localkv(clock=lambda: instant)
    with pytest.raises(InvalidInput, match="clock"):
        repository.put("k", b"v", ttl=1)
    assert checking_backend.sql("localkv", "SELECT count(*) FROM {kv}") == [(0,)]
