"""What no store takes is refused before a write, with the field named. Semantics 6, 7, 15, 20, 23, 26 and 27."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from qstore import InvalidInput, InvalidType
from tests.backends import STORES, Backend, ManualClock
from tests.contract.contents import unchanged
from tests.contract.events import event
from tests.contract.filled import Filled, fill

Call = tuple[str, str, Callable[[Any, Any, Filled], Any]]
"""The store, the field, and a call with a value for that field."""

IDS: dict[str, Call] = {
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
PREFIXES: dict[str, Call] = {
    "scan_prefix": ("localkv", "prefix", lambda it, v, _: it.scan_prefix(v)),
    "iter_prefix": ("localkv", "prefix", lambda it, v, _: it.iter_prefix(v)),
}
TEXTS: dict[str, Call] = {
    "send": ("localqueue", "payload", lambda it, v, _: it.send(v)),
    "send_many": ("localqueue", "payload", lambda it, v, _: it.send_many(["ok", v])),
}
DURATIONS: dict[str, Call] = {
    "claim": ("transport", "visibility", lambda it, v, _: it.claim("w", v)),
    "extend": ("transport", "visibility", lambda it, v, filled: it.extend(filled.lease, v)),
    "nack": ("transport", "delay", lambda it, v, filled: it.nack(filled.lease, v)),
    "receive": ("localqueue", "visibility_timeout", lambda it, v, _: it.receive(visibility_timeout=v)),
}
TTLS: dict[str, Call] = {
    "put": ("localkv", "ttl", lambda it, v, _: it.put("live", b"w", ttl=v)),
    "conditional put": ("localkv", "ttl", lambda it, v, _: it.put("expired", b"w", ttl=v, if_not_exists=True)),
    "put_many": ("localkv", "ttl", lambda it, v, _: it.put_many({"live": b"w"}, ttl=v)),
}
INTEGERS: dict[str, tuple[Call, list[int]]] = {
    "publish": (("transport", "priority", lambda it, v, _: it.publish("g", event("e"), v)), [-1, 5]),
    "publish_many": (("transport", "priority", lambda it, v, _: it.publish_many([("g", event("e"), v)])), [-1, 5]),
    "claim": (("transport", "min_priority", lambda it, v, _: it.claim("w", 5, v)), [-1, 5]),
    "receive": (("localqueue", "max_messages", lambda it, v, _: it.receive(v)), [-1, 0, 1001]),
    "scan_prefix": (("localkv", "limit", lambda it, v, _: it.scan_prefix("", limit=v)), [-1, 0]),
}
_filled: WeakKeyDictionary[Backend, Filled] = WeakKeyDictionary()

HUGE = 10**5000
"""More digits than Python converts to text."""


def of(*groups: dict[str, Call]) -> pytest.MarkDecorator:
    calls = [(f"{name} {call[1]}", call) for group in groups for name, call in group.items()]
    return pytest.mark.parametrize("call", [call for _, call in calls], ids=[name for name, _ in calls])


@of(IDS, PREFIXES, TEXTS)
def test_text_with_nul_or_a_lone_surrogate_is_refused(backend: Backend, clock: ManualClock, call: Call) -> None:
    for value in ("a\0b", "\0", "a\0", "\ud800", "a\udfffb", "\udc80"):
        _refused(backend, clock, call, value, InvalidInput)


@of(IDS)
def test_an_empty_id_or_key_is_refused(backend: Backend, clock: ManualClock, call: Call) -> None:
    _refused(backend, clock, call, "", InvalidInput)


@of(IDS, PREFIXES)
def test_an_id_key_or_prefix_that_is_not_text_is_of_the_wrong_type(
    backend: Backend, clock: ManualClock, call: Call
) -> None:
    for value in (None, 1, 1.5, True, b"x", ("x",), frozenset("x")):
        _refused(backend, clock, call, value, InvalidType)


@of(IDS)
def test_an_id_of_more_than_1_024_bytes_and_a_key_of_more_than_512_are_refused(
    backend: Backend, clock: ManualClock, call: Call
) -> None:
    limit = 512 if call[1] == "key" else 1024
    for value in ("x" * (limit + 1), "é" * (limit // 2) + "x", "😀" * (limit // 4 + 1)):
        error = _refused(backend, clock, call, value, InvalidInput)
        assert f"{limit:,}" in str(error)
        assert f"{len(value.encode()):,}" in str(error)


def test_an_id_of_1_024_bytes_is_taken(backend: Backend) -> None:
    transport = backend.transport()
    for longest in ("x" * 1024, "é" * 512, "😀" * 256):
        transport.publish(longest, event("e"))
        lease = transport.claim(longest, 5)
        assert lease is not None
        assert (lease.group_id, lease.worker_id) == (longest, longest)


def test_parked_is_not_a_worker_id(backend: Backend, clock: ManualClock) -> None:
    error = _refused(backend, clock, IDS["claim"], "__parked__", InvalidInput)
    assert "__parked__" in str(error)


@pytest.mark.parametrize("key", ["a b", "a/b", "a%", "ä", "a\n", "\n", "a,b", "a+b", "{a}", "\u0661", "k\u0130"])
def test_portable_refuses_other_characters_in_keys_and_prefixes(backend: Backend, key: str) -> None:
    kv = backend.localkv(portable=True)
    backend.localkv().put(key, b"v")
    for call in (*IDS.values(), *PREFIXES.values()):
        if call[0] == "localkv":
            with unchanged(backend, "localkv"), pytest.raises(InvalidInput) as caught:
                call[2](kv, key, None)  # type: ignore[arg-type]
            assert caught.value.field == call[1]


def test_portable_takes_all_of_the_formats_characters(backend: Backend) -> None:
    kv = backend.localkv(portable=True)
    key = "azAZ09-_:."
    kv.put(key, b"v")
    assert kv.get(key) == b"v"
    assert kv.scan_prefix(key[:3]).items == list(kv.iter_prefix(key)) == [(key, b"v")]


@of(DURATIONS, TTLS)
def test_a_duration_that_is_not_finite_or_below_zero_is_refused(
    backend: Backend, clock: ManualClock, call: Call
) -> None:
    for value in (nan, inf, -inf, -1, -5e-324, -(10**30), timedelta(microseconds=-1), timedelta.min):
        _refused(backend, clock, call, value, InvalidInput)


@of(DURATIONS, TTLS)
def test_a_duration_that_is_no_number_of_seconds_is_of_the_wrong_type(
    backend: Backend, clock: ManualClock, call: Call
) -> None:
    values: list[Any] = [True, False, "1", b"1", Decimal(1), 1j, [1]]
    for value in values if call[1] == "ttl" else [*values, None]:
        _refused(backend, clock, call, value, InvalidType)


@of(DURATIONS)
def test_a_duration_of_more_than_100_years_is_refused(backend: Backend, clock: ManualClock, call: Call) -> None:
    for value in (101 * 366 * 86_400, 1e300, 10**30, 2**1100, timedelta(days=101 * 366), timedelta.max):
        error = _refused(backend, clock, call, value, InvalidInput)
        assert "100 years" in str(error)


@of(DURATIONS)
def test_a_duration_of_100_years_is_taken(backend: Backend, clock: ManualClock, call: Call) -> None:
    store, _, do = call
    do(getattr(backend, store)(clock=clock), timedelta(days=36_525), fill(backend, clock))
    times = {"transport": ("lock_expiry", 1), "localqueue": ("visible_at", 1000)}
    column, unit = times[store]
    [(latest,)] = backend.sql(store, f"SELECT max({column}) FROM {{messages}}")
    assert latest == (clock.now + 36_525 * 86_400) * unit


@pytest.mark.parametrize("name", ["claim", "extend"])
def test_a_visibility_of_zero_is_refused(backend: Backend, clock: ManualClock, name: str) -> None:
    for value in (0, 0.0, -0.0, timedelta(0)):
        _refused(backend, clock, DURATIONS[name], value, InvalidInput)


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_out_of_its_limits_is_refused(backend: Backend, clock: ManualClock, name: str) -> None:
    call, values = INTEGERS[name]
    for value in values:
        error = _refused(backend, clock, call, value, InvalidInput)
        assert str(value) in str(error)


@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_no_integer_is_of_the_wrong_type(backend: Backend, clock: ManualClock, name: str) -> None:
    values: list[Any] = [True, False, 1.0, "1", b"1", Decimal(1), [1]]
    for value in values if name == "scan_prefix" else [*values, None]:
        _refused(backend, clock, INTEGERS[name][0], value, InvalidType)


@of(
    DURATIONS,
    {name: call for name, (call, _) in INTEGERS.items() if name != "scan_prefix"},
    {"negative put": ("localkv", "ttl", lambda it, v, _: it.put("k", b"", ttl=-v))},
)
def test_a_number_too_long_to_print_is_refused_as_any_other(backend: Backend, clock: ManualClock, call: Call) -> None:
    _refused(backend, clock, call, HUGE, InvalidInput)


@of(
    {
        "put": ("localkv", "value", lambda it, v, _: it.put("live", v)),
        "conditional put": ("localkv", "value", lambda it, v, _: it.put("expired", v, if_not_exists=True)),
        "put_many": ("localkv", "value", lambda it, v, _: it.put_many({"live": b"w", "new": v})),
    }
)
def test_a_value_that_is_not_bytes_is_of_the_wrong_type(backend: Backend, clock: ManualClock, call: Call) -> None:
    for value in ("text", None, 1, [1, 2], object()):
        _refused(backend, clock, call, value, InvalidType)


@of(
    {
        "put_many": ("localkv", "items", lambda it, v, _: it.put_many(v)),
        "publish_many": ("transport", "messages", lambda it, v, _: it.publish_many(v)),
    }
)
def test_what_is_no_collection_of_items_or_messages_is_of_the_wrong_type(
    backend: Backend, clock: ManualClock, call: Call
) -> None:
    for value in (None, 5, "ab", b"ab", [("live",)], [("live", b"w", 1, 2)], [None], ["ab"]):
        _refused(backend, clock, call, value, InvalidType)


@of(
    {
        "ack": ("transport", "lease", lambda it, v, _: it.ack(v)),
        "nack": ("transport", "lease", lambda it, v, _: it.nack(v)),
        "extend": ("transport", "lease", lambda it, v, _: it.extend(v, 5)),
        "ack receipt": ("localqueue", "receipt_handle", lambda it, v, _: it.ack(v)),
        "nack receipt": ("localqueue", "receipt_handle", lambda it, v, _: it.nack(v)),
    }
)
def test_what_was_never_handed_out_is_of_the_wrong_type(backend: Backend, clock: ManualClock, call: Call) -> None:
    for value in (None, 1, b"1:x", (1, "g"), object()):
        _refused(backend, clock, call, value, InvalidType)


def test_a_cursor_that_is_not_text_is_of_the_wrong_type(backend: Backend, clock: ManualClock) -> None:
    call: Call = ("localkv", "cursor", lambda it, v, _: it.scan_prefix("", cursor=v))
    for value in (1, b"1", True, ["1"]):
        _refused(backend, clock, call, value, InvalidType)


def _refused(backend: Backend, clock: ManualClock, call: Call, value: Any, kind: type[InvalidInput]) -> InvalidInput:
    store, field, do = call
    filled = _filled.get(backend) or _filled.setdefault(backend, fill(backend, clock))
    with unchanged(backend, *STORES), pytest.raises(Exception) as caught:  # noqa: PT011  told apart below
        do(getattr(backend, store)(clock=clock), value, filled)
    error = caught.value
    assert type(error) is kind, f"{value!r:.40} gave {error!r:.200}"
    assert isinstance(error, InvalidInput)
    assert (error.field, error.code) == (field, "INVALID_INPUT")
    assert str(error).startswith(f"{field}: ")
    assert isinstance(error, ValueError)
    assert isinstance(error, TypeError) is (kind is InvalidType)
    return error
