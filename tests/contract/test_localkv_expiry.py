"""localkv.v1: time to live and lazy expiry. The seed's "Timestamps" and "Lazy expiry"; semantics 7, 21 and 22."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qstore import LocalKvRepository
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged

LATEST = 2**63 - 1


def test_a_key_without_ttl_never_expires(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    kv.put("k", b"v")
    clock.now = 9e15
    assert kv.get("k") == b"v"


def test_a_ttl_is_whole_milliseconds_rounded_up(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    ttls: list[tuple[float | timedelta, int]] = [
        (1, 1000),
        (0.5, 500),
        (0.001, 1),
        (0.0004, 1),
        (5e-324, 1),
        (0.0014, 2),
        (1.0001, 1001),
        (4.035, 4035),
        (0.07, 70),
        (timedelta(seconds=2), 2000),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=1001), 2),
        (100 * 366 * 86_400, 3_162_240_000_000),
    ]
    for ttl, milliseconds in ttls:
        _put_in_all_ways(kv, ttl)
        assert _expiries(backend) == {(int, round(clock.now * 1000) + milliseconds)}
        assert [kv.exists(key) for key in ("put", "conditional", "many")] == [True] * 3


def _put_in_all_ways(kv: LocalKvRepository, ttl: float | timedelta) -> None:
    kv.put("put", b"v", ttl=ttl)
    kv.delete("conditional")
    kv.put("conditional", b"v", ttl=ttl, if_not_exists=True)
    kv.put_many({"many": b"v"}, ttl=ttl)


def test_a_ttl_of_zero_is_true_and_expired_at_once(backend: Backend) -> None:
    kv = backend.localkv()
    for ttl in (0, 0.0, -0.0, timedelta(0)):
        kv.put("k", b"old")
        assert kv.put("k", b"v", ttl=ttl) is True
        assert kv.get("k") is None
        assert kv.exists("k") is False
        assert kv.scan_prefix("").items == []


def test_a_ttl_beyond_what_can_be_stored_saturates(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    ttls: list[float | timedelta] = [2**63, 10**30, 1e300, 2**63 / 1000, (2**63 - 1) // 1000, timedelta.max]
    for ttl in ttls:
        _put_in_all_ways(kv, ttl)
        total = ttl.total_seconds() * 1000 if isinstance(ttl, timedelta) else ttl * 1000
        if total + clock.now * 1000 > LATEST:
            assert _expiries(backend) == {(int, LATEST)}
        else:
            assert _expiries(backend) == {(int, round(clock.now * 1000) + round(total))}
        assert kv.get("put") == kv.get("conditional") == kv.get("many") == b"v"


def test_expired_means_expires_at_or_after_it_everywhere(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    keys = ("get", "exists", "scan", "iter", "conditional", "purge")
    for expires_in, live in ((0.001, True), (0, False), (-0.001, False)):
        kv.put_many(dict.fromkeys(keys, b"v"))
        backend.sql("localkv", "UPDATE {kv} SET expires_at = ?", round((clock.now + expires_in) * 1000))
        assert (kv.get("get") == b"v") is live
        assert kv.exists("exists") is live
        assert (kv.scan_prefix("scan").items == [("scan", b"v")]) is live
        assert (list(kv.iter_prefix("iter")) == [("iter", b"v")]) is live
        assert kv.put("conditional", b"w", if_not_exists=True) is not live
        assert ("purge" in _keys(backend)) is True
        kv.purge_expired()
        assert ("purge" in _keys(backend)) is live


def test_a_key_lives_to_the_last_millisecond_of_its_ttl(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    kv.put("k", b"v", ttl=1)
    clock.advance(0.999)
    assert kv.get("k") == b"v"
    clock.advance(0.001)
    assert kv.get("k") is None


def test_an_unconditional_put_without_ttl_clears_an_earlier_expiry(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    kv.put("k", b"v", ttl=1)
    kv.put("k", b"w")
    clock.advance(2)
    assert kv.get("k") == b"w"


def test_an_unconditional_put_with_a_ttl_replaces_an_earlier_expiry(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    kv.put("k", b"v", ttl=100)
    kv.put("k", b"v", ttl=1)
    clock.advance(1)
    assert kv.get("k") is None


@pytest.mark.parametrize("read", ["get", "exists"])
def test_get_and_exists_delete_the_expired_row_they_meet_and_no_other(
    backend: Backend, clock: ManualClock, read: str
) -> None:
    kv = backend.localkv(clock=clock)
    kv.put_many({"met": b"v", "other": b"v"}, ttl=1)
    kv.put("live", b"v")
    clock.advance(1)
    assert getattr(kv, read)("met") in (None, False)
    kept = {"met", "other", "live"} if backend.joins else {"other", "live"}
    assert _keys(backend) == kept


@pytest.mark.parametrize("read", ["get", "exists"])
def test_get_and_exists_of_a_live_key_change_nothing(backend: Backend, read: str) -> None:
    kv = backend.localkv()
    kv.put("k", b"v", ttl=60)
    with unchanged(backend, "localkv"):
        assert getattr(kv, read)("k")


def test_scans_leave_expired_rows_out_and_in_place(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    kv.put_many({"a1": b"1", "a3": b"3"})
    kv.put_many({"a0": b"0", "a2": b"2"}, ttl=1)
    clock.advance(1)
    with unchanged(backend, "localkv"):
        assert kv.scan_prefix("a").items == list(kv.iter_prefix("a")) == [("a1", b"1"), ("a3", b"3")]


def test_purge_expired_deletes_what_is_expired_and_counts_it(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    assert kv.purge_expired() == 0
    kv.put("never", b"")
    kv.put("later", b"", ttl=1.001)
    kv.put_many({"a": b"", "b": b""}, ttl=1)
    clock.advance(1)
    assert kv.purge_expired() == 2
    assert _keys(backend) == {"never", "later"}


class PuttingClock(ManualClock):
    """Between the look at an expired row and its deletion, another caller puts the key again.

    The time is read after the look on SQLite; on a server before each of both, as it goes with the statement.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.calls_left: int | None = None

    def arm(self) -> None:
        self.calls_left = 1 if self.backend.one_writer else 2

    def __call__(self) -> float:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                later = round(self.now * 1000) + 60_000
                self.backend.sql("localkv", "UPDATE {kv} SET value = ?, expires_at = ?", b"new", later)
        return self.now


@pytest.mark.parametrize("read", ["get", "exists"])
def test_the_lazy_delete_spares_a_key_that_was_put_again_since(shared_backend: Backend, read: str) -> None:
    """Semantics 22: the delete carries its own guard."""
    clock = PuttingClock(shared_backend)
    kv = shared_backend.localkv(clock=clock)
    kv.put("k", b"old", ttl=1)
    clock.advance(1)
    clock.arm()
    assert getattr(kv, read)("k") in (None, False)
    assert clock.calls_left is not None
    assert clock.calls_left <= 0
    assert kv.get("k") == b"new"


@pytest.mark.parametrize("read", ["get", "exists"])
def test_a_lazy_delete_that_fails_does_not_fail_the_read(
    shared_backend: Backend, clock: ManualClock, read: str
) -> None:
    kv = shared_backend.localkv(clock=clock)
    kv.put("k", b"v", ttl=1)
    shared_backend.refuse("localkv", "BEFORE DELETE ON {kv}")
    clock.advance(1)
    with unchanged(shared_backend, "localkv"):
        for _ in range(7):
            assert getattr(kv, read)("k") in (None, False)
    shared_backend.relent("localkv", "BEFORE DELETE ON {kv}")
    getattr(kv, read)("k")
    assert _keys(shared_backend) == set()


def _expiries(backend: Backend) -> set[tuple[type, int]]:
    """What the keys' expiries are stored as: SQLite's columns hold any type."""
    return {(type(expires_at), expires_at) for (expires_at,) in backend.sql("localkv", "SELECT expires_at FROM {kv}")}


def _keys(backend: Backend) -> set[str]:
    return {key for (key,) in backend.sql("localkv", "SELECT key FROM {kv}")}
