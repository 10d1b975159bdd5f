"""localkv.v1: scans by prefix. The seed's "Scan"; semantics 23 and 24."""

from __future__ import annotations

import pytest

from qstore import InvalidInput
from tests.backends import Backend, ManualClock

HIGHEST = "\U0010ffff"


def _put(backend: Backend, *keys: str) -> None:
    backend.localkv().put_many({key: key.encode() for key in keys})


def _scan(backend: Backend, prefix: str) -> list[str]:
    """The keys under a prefix, which both ways to scan must agree on, whole and in pages."""
    kv = backend.localkv()
    page = kv.scan_prefix(prefix)
    assert page.next_cursor is None
    assert list(kv.iter_prefix(prefix)) == page.items
    assert all(value == key.encode() for key, value in page.items)
    part = kv.scan_prefix(prefix, limit=2)
    items = part.items
    while part.next_cursor is not None:
        part = kv.scan_prefix(prefix, limit=2, cursor=part.next_cursor)
        items = items + part.items
    assert items == page.items
    return [key for key, _ in page.items]


def test_a_prefix_is_literal_and_case_sensitive(backend: Backend) -> None:
    _put(backend, "user_1", "userX1", "USER_1", "user%1", "user_2")
    under = {
        "user_": ["user_1", "user_2"],
        "user%": ["user%1"],
        "user": ["user%1", "userX1", "user_1", "user_2"],
        "USER": ["USER_1"],
        "user_1": ["user_1"],
        "user_10": [],
        "v": [],
        "": ["USER_1", "user%1", "userX1", "user_1", "user_2"],
    }
    assert {prefix: _scan(backend, prefix) for prefix in under} == under


def test_keys_come_in_the_order_of_their_bytes(backend: Backend) -> None:
    keys = [
        "a",
        "B",
        "ä",
        "é",
        "e\u0301",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U00010000",
        HIGHEST,
        "10",
        "9",
        " ",
        "~",
        "\x7f",
        "\x80",
    ]
    _put(backend, *keys)
    assert _scan(backend, "") == sorted(keys, key=str.encode)


def test_a_scan_holds_exactly_the_keys_that_start_with_the_prefix(backend: Backend) -> None:
    stems = [
        "a",
        "b",
        "A",
        "\x7f",
        "\x80",
        "\xff",
        "\u0100",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U00010000",
        HIGHEST,
        "é",
        "e\u0301",
        "\n",
    ]
    keys = {stem + tail for stem in stems for tail in ("", "\x01", "z", "\uffff", HIGHEST, HIGHEST * 2)}
    _put(backend, *keys)
    for prefix in ("a", "\x7f", "\xff", "\ud7ff", "\uffff", HIGHEST, HIGHEST * 2, f"a{HIGHEST}", "é", "\n"):
        expected = sorted((key for key in keys if key.startswith(prefix)), key=str.encode)
        assert prefix in expected
        assert _scan(backend, prefix) == expected


def test_a_scan_of_an_empty_store_is_an_empty_page(backend: Backend) -> None:
    assert _scan(backend, "") == []


def test_limit_none_is_everything(backend: Backend) -> None:
    _put(backend, *(f"k{n:04}" for n in range(2500)))
    assert len(_scan(backend, "k")) == 2500


def test_pages_have_the_limits_size_and_the_last_one_has_no_cursor(backend: Backend) -> None:
    _put(backend, *(f"k{n}" for n in range(6)))
    kv = backend.localkv()
    sizes = {1: [1, 1, 1, 1, 1, 1], 2: [2, 2, 2], 4: [4, 2], 5: [5, 1], 6: [6], 7: [6], 2**63 - 1: [6]}
    for limit, expected in sizes.items():
        found, seen, cursor = [], [], None
        while True:
            page = kv.scan_prefix("k", limit=limit, cursor=cursor)
            found.append(len(page.items))
            seen += [key for key, _ in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert (found, seen) == (expected, [f"k{n}" for n in range(6)])


def test_a_limit_beyond_what_any_store_holds_is_everything(backend: Backend) -> None:
    """Semantics 23: `limit` is 1 or more."""
    _put(backend, "a", "b")
    kv = backend.localkv()
    for limit in (2**63, 10**30):
        page = kv.scan_prefix("", limit=limit)
        assert (len(page.items), page.next_cursor) == (2, None)


def test_the_cursor_is_a_decimal_offset_from_0(backend: Backend) -> None:
    _put(backend, *(f"k{n}" for n in range(6)))
    kv = backend.localkv()
    assert kv.scan_prefix("k", limit=2).next_cursor == "2"
    assert kv.scan_prefix("k", limit=2, cursor="2").next_cursor == "4"
    assert kv.scan_prefix("k", cursor="0") == kv.scan_prefix("k") == kv.scan_prefix("k", cursor="000")
    assert [key for key, _ in kv.scan_prefix("k", cursor="5").items] == ["k5"]
    assert [key for key, _ in kv.scan_prefix("k", limit=1, cursor="03").items] == ["k3"]


def test_the_cursor_counts_live_keys(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    kv.put_many({"k0": b"", "k2": b""}, ttl=1)
    kv.put_many({"k1": b"", "k3": b"", "k4": b""})
    clock.advance(1)
    page = kv.scan_prefix("k", limit=2)
    assert ([key for key, _ in page.items], page.next_cursor) == (["k1", "k3"], "2")
    page = kv.scan_prefix("k", limit=2, cursor="2")
    assert ([key for key, _ in page.items], page.next_cursor) == (["k4"], None)


def test_a_last_page_has_no_cursor_though_expired_keys_follow(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    kv.put_many({"k1": b"", "k2": b""})
    kv.put("k3", b"", ttl=1)
    clock.advance(1)
    page = kv.scan_prefix("k", limit=2)
    assert (len(page.items), page.next_cursor) == (2, None)


def test_past_the_end_is_an_empty_page_without_a_cursor(backend: Backend) -> None:
    _put(backend, "k0", "k1")
    kv = backend.localkv()
    for cursor in ("2", "3", "1" + "0" * 18, str(2**63 - 1), str(2**63), "9" * 1000):
        for limit in (None, 1, 2**63 - 1):
            page = kv.scan_prefix("k", limit=limit, cursor=cursor)
            assert (page.items, page.next_cursor) == ([], None)


NO_CURSORS = ["", " ", "-1", "+1", "1.0", "1e3", "0x10", "1_000", " 1", "1 ", "1\n", "k1"]
NO_CURSORS += ["\u00b2", "\u0661", "\uff11", "\0", "\ud800"]


def test_a_cursor_that_is_not_ascii_digits_is_refused(checking_backend: Backend) -> None:
    kv = checking_backend.localkv()
    for cursor in NO_CURSORS:
        with pytest.raises(InvalidInput) as caught:
            kv.scan_prefix("", limit=1, cursor=cursor)
        assert (caught.value.field, caught.value.code) == ("cursor", "INVALID_INPUT")


def test_portable_refuses_the_empty_prefix(checking_backend: Backend) -> None:
    _put(checking_backend, "a")
    kv = checking_backend.localkv(portable=True)
    for scan in (lambda: kv.scan_prefix(""), lambda: kv.iter_prefix("")):
        with pytest.raises(InvalidInput) as caught:
            scan()
        assert caught.value.field == "prefix"
    assert kv.scan_prefix("a").items == [("a", b"a")]


def test_an_offset_cursor_can_pass_over_a_key_and_iter_prefix_does_not(shared_backend: Backend) -> None:
    """The trap is real: that is the format's own cursor. Semantics 24."""
    kv = shared_backend.localkv()

    def refill() -> None:
        kv.put_many({f"k{n}": b"" for n in range(6)})

    refill()
    seen, cursor = [], None
    while True:
        page = kv.scan_prefix("k", limit=2, cursor=cursor)
        for key, _ in page.items:
            seen.append(key)
            kv.delete(key)
        if (cursor := page.next_cursor) is None:
            break
    assert seen == ["k0", "k1", "k4", "k5"]

    refill()
    seen = []
    for key, _ in kv.iter_prefix("k"):
        seen.append(key)
        kv.delete(key)
    assert seen == [f"k{n}" for n in range(6)]


def test_iter_prefix_sees_every_key_that_lives_through_the_walk_exactly_once(
    shared_backend: Backend, clock: ManualClock
) -> None:
    kv = shared_backend.localkv(clock=clock)
    lasting = [f"k{n:03}" for n in range(0, 300, 3)]
    kv.put_many(dict.fromkeys(lasting, b""))
    kv.put_many({f"k{n:03}": b"" for n in range(1, 300, 3)}, ttl=5)
    seen = []
    for n, (key, _) in enumerate(kv.iter_prefix("k")):
        seen.append(key)
        kv.put(f"j{n}", b"")
        kv.put(f"k{299 - n:03}x", b"")
        kv.put(f"k000{n}", b"")
        kv.delete(f"k{n:03}x")
        kv.put(key, b"again")
        clock.advance(0.1)
    assert [key for key in seen if key in lasting] == lasting
    assert len(set(seen)) == len(seen)


def test_iter_prefix_leaves_out_what_has_expired_by_the_time_it_comes_to_it(
    shared_backend: Backend, clock: ManualClock
) -> None:
    kv = shared_backend.localkv(clock=clock)
    kv.put("a", b"")
    kv.put_many({f"b{n:04}": b"" for n in range(50)}, ttl=1)
    walk = iter(kv.iter_prefix(""))
    assert next(walk) == ("a", b"")
    clock.advance(1)
    assert list(walk) == []


def test_iter_prefix_checks_its_prefix_when_it_is_called(checking_backend: Backend) -> None:
    with pytest.raises(InvalidInput):
        checking_backend.localkv().iter_prefix("a\0b")


def test_iter_prefix_holds_no_transaction_open_between_two_items(shared_backend: Backend) -> None:
    kv = shared_backend.localkv()
    kv.put_many({f"k{n}": bytes(1000) for n in range(100)})
    walk = kv.iter_prefix("k")
    next(walk)
    kv.put("k0", b"")
    if shared_backend.one_writer:
        [(busy, *_)] = shared_backend.sql("localkv", "PRAGMA wal_checkpoint(TRUNCATE)")
        assert busy == 0
        shared_backend.sql("localkv", "BEGIN EXCLUSIVE")
    else:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        assert shared_backend.sql("localkv", f"SELECT state, xact_start {others} AND xact_start IS NOT NULL") == []
    assert len(list(walk)) == 99
