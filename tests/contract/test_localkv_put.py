"""localkv.v1: put and delete. The seed's "Unconditional put" and "Conditional put"; semantics 20 and 21."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import MappingProxyType
from typing import Any

import pytest

from qstore import PayloadTooLarge
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged


def test_put_stores_the_value_without_an_expiry_and_is_true(backend: Backend) -> None:
    assert backend.localkv().put("k", b"v") is True
    assert backend.sql("localkv", "SELECT key, value, expires_at FROM {kv}") == [("k", b"v", None)]


def test_a_key_that_was_never_put_is_absent(backend: Backend) -> None:
    kv = backend.localkv()
    assert kv.get("k") is None
    assert kv.exists("k") is False


def test_put_overwrites_and_is_true_every_time(backend: Backend) -> None:
    kv = backend.localkv()
    assert [kv.put("k", value) for value in (b"1", b"2", b"2")] == [True, True, True]
    assert kv.get("k") == b"2"
    assert kv.exists("k") is True


@pytest.mark.parametrize(
    "value",
    [
        b"v\x00w",
        bytearray(b"v\x00w"),
        memoryview(b"v\x00w"),
        memoryview(b"vx\x00xwx")[::2],
        type("B", (bytes,), {})(b"v\0w"),
    ],
    ids=["bytes", "bytearray", "memoryview", "strided", "subclass"],
)
def test_a_value_of_any_bytes_type_comes_back_as_bytes(backend: Backend, value: bytes) -> None:
    kv = backend.localkv()
    kv.put("k", value)
    assert kv.put("k2", value, if_not_exists=True) is True
    kv.put_many({"k3": value})
    found = [kv.get("k"), kv.get("k2"), kv.get("k3"), *(each for _, each in kv.scan_prefix("").items)]
    assert found == [b"v\x00w"] * 6
    assert {type(each) for each in found} == {bytes}
    assert {type(stored) for (stored,) in backend.sql("localkv", "SELECT value FROM {kv}")} == {bytes}


def test_a_value_is_kept_byte_for_byte(backend: Backend) -> None:
    kv = backend.localkv()
    for value in (b"\x00", b"", b"\xff\xfe", bytes(range(256))):
        kv.put("k", value)
        assert kv.get("k") == value
        assert kv.exists("k") is True


def test_any_text_of_at_most_512_bytes_is_a_key_of_its_own(backend: Backend) -> None:
    kv = backend.localkv()
    kv.put_many({"k": b"other", "01": b"other"})
    for key in (" ", "\n", "%", "_", "'", '"', "k" * 512, "é" * 256, "😀" * 128, "K", "1", "1.0"):
        kv.put(key, b"mine")
        assert kv.get(key) == b"mine"
        assert kv.get("k") == kv.get("01") == b"other"
        kv.delete(key)
        assert kv.exists(key) is False
        assert len(kv.scan_prefix("").items) == 2


def test_a_value_of_16_mib_is_stored_and_one_byte_more_is_too_large(checking_backend: Backend) -> None:
    kv = checking_backend.localkv()
    largest = bytes(16 * 1024 * 1024)
    kv.put("k", largest)
    assert kv.get("k") == largest
    for put in (lambda: kv.put("k", largest + b"x"), lambda: kv.put_many({"k2": b"", "k": largest + b"x"})):
        with pytest.raises(PayloadTooLarge) as caught:
            put()
        assert (caught.value.size, caught.value.limit) == (16_777_217, 16_777_216)
    assert checking_backend.sql("localkv", "SELECT key, length(value) FROM {kv}") == [("k", 16_777_216)]


def test_the_size_of_a_memoryview_is_counted_in_bytes(checking_backend: Backend) -> None:
    kv = checking_backend.localkv(portable=True)
    wide: Any = memoryview(bytes(24_584)).cast("Q")
    with pytest.raises(PayloadTooLarge) as caught:
        kv.put("k", wide)
    assert caught.value.size == 24_584


def test_portable_takes_values_of_up_to_24_576_bytes(checking_backend: Backend) -> None:
    kv = checking_backend.localkv(portable=True)
    kv.put("k", bytes(24_576))
    with unchanged(checking_backend, "localkv"), pytest.raises(PayloadTooLarge) as caught:
        kv.put("k", bytes(24_577))
    assert (caught.value.size, caught.value.limit) == (24_577, 24_576)
    checking_backend.localkv().put("k", bytes(24_577))
    assert kv.get("k") == bytes(24_577)


def test_a_conditional_put_wins_on_an_absent_key(backend: Backend) -> None:
    kv = backend.localkv()
    assert kv.put("k", b"v", if_not_exists=True) is True
    assert kv.get("k") == b"v"


@pytest.mark.parametrize("ttl", [None, 60])
def test_a_conditional_put_loses_on_a_live_key_and_changes_nothing(backend: Backend, ttl: float | None) -> None:
    kv = backend.localkv()
    kv.put("k", b"first", ttl=ttl)
    with unchanged(backend, "localkv"):
        assert kv.put("k", b"second", if_not_exists=True) is False
        assert kv.put("k", b"second", ttl=5, if_not_exists=True) is False
        assert kv.put("k", b"first", ttl=ttl, if_not_exists=True) is False


@pytest.mark.parametrize("ttl", [None, 7])
def test_a_conditional_put_takes_over_an_expired_key_with_its_own_expiry(
    backend: Backend, clock: ManualClock, ttl: float | None
) -> None:
    kv = backend.localkv(clock=clock)
    kv.put("k", b"first", ttl=1)
    clock.advance(2)
    assert kv.put("k", b"second", ttl=ttl, if_not_exists=True) is True
    expires_at = None if ttl is None else round(clock.now * 1000) + 7000
    assert backend.sql("localkv", "SELECT key, value, expires_at FROM {kv}") == [("k", b"second", expires_at)]


def test_a_conditional_put_wins_on_an_expired_key_at_exactly_its_expiry(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    assert kv.put("k", b"first", ttl=1, if_not_exists=True) is True
    clock.advance(0.999)
    assert kv.put("k", b"second", if_not_exists=True) is False
    clock.advance(0.001)
    assert kv.put("k", b"third", if_not_exists=True) is True
    assert kv.get("k") == b"third"


def test_a_conditional_put_that_is_expired_at_once_wins_and_lets_the_next_one_win(backend: Backend) -> None:
    kv = backend.localkv()
    assert [kv.put("k", value, ttl=0, if_not_exists=True) for value in (b"1", b"2")] == [True, True]
    assert kv.exists("k") is False


def test_a_conditional_put_wins_again_after_a_delete(backend: Backend) -> None:
    kv = backend.localkv()
    kv.put("k", b"1")
    kv.delete("k")
    assert kv.put("k", b"2", if_not_exists=True) is True


@pytest.mark.parametrize("expired", [False, True], ids=["absent", "expired"])
def test_of_callers_that_race_for_a_key_exactly_one_wins(
    shared_backend: Backend, clock: ManualClock, expired: bool
) -> None:
    kvs = [shared_backend.localkv(clock=clock), shared_backend.localkv(clock=clock)]
    barrier = Barrier(8)

    def race(n: int) -> list[bool]:
        wins = []
        for key in range(10):
            barrier.wait(60)
            wins.append(kvs[n % 2].put(f"k{key}", str(n).encode(), if_not_exists=True))
        return wins

    if expired:
        kvs[0].put_many({f"k{key}": b"old" for key in range(10)}, ttl=1)
        clock.advance(1)
    with ThreadPoolExecutor(8) as pool:
        rounds = list(zip(*pool.map(race, range(8)), strict=True))
    assert [sum(wins) for wins in rounds] == [1] * 10
    assert [kvs[0].get(f"k{key}") for key in range(10)] == [str(wins.index(True)).encode() for wins in rounds]


@pytest.mark.parametrize("make", [dict, MappingProxyType])
def test_put_many_sets_every_key_with_one_expiry(
    backend: Backend, clock: ManualClock, make: type[Mapping[str, bytes]]
) -> None:
    kv = backend.localkv(clock=clock)
    kv.put("b", b"old")
    kv.put_many(make({"a": b"1", "b": b"2"}), ttl=1.5)  # type: ignore[call-arg]  # every class here takes a dict
    expires_at = round(clock.now * 1000) + 1500
    assert backend.sql("localkv", "SELECT * FROM {kv} ORDER BY key") == [
        ("a", b"1", expires_at),
        ("b", b"2", expires_at),
    ]
    kv.put_many({"a": b"3"})
    assert backend.sql("localkv", "SELECT * FROM {kv} WHERE key = 'a'") == [("a", b"3", None)]


def test_put_many_of_a_mapping_that_has_a_key_twice_keeps_its_last_value(backend: Backend) -> None:
    """As that of an HTTP form may have, whose `items()` are all of its pairs."""

    class Pairs(dict[str, bytes]):
        def items(self) -> Any:
            return [("k", b"1"), ("other", b"x"), ("k", b"2")]

    kv = backend.localkv()
    kv.put_many(Pairs(k=b"", other=b""))
    assert kv.scan_prefix("").items == [("k", b"2"), ("other", b"x")]


def test_put_many_of_nothing_changes_nothing(backend: Backend) -> None:
    kv = backend.localkv()
    with unchanged(backend, "localkv"):
        kv.put_many({})


def test_delete_removes_one_key_and_leaves_an_absent_one_at_that(backend: Backend) -> None:
    kv = backend.localkv()
    kv.put_many({"a": b"1", "ab": b"2"})
    for _ in range(2):
        kv.delete("a")
        assert backend.sql("localkv", "SELECT key FROM {kv}") == [("ab",)]


def test_the_marker_is_the_formats_and_no_operation_touches_it(backend: Backend) -> None:
    kv = backend.localkv()
    kv.put("format", b"x")
    kv.delete("format")
    kv.purge_expired()
    assert backend.sql("localkv", "SELECT * FROM {meta}") == [("format", "localkv.v1")]
