"""H35 and H36: prefixes and pages, and the instant at which a key expires."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from qstore import InvalidInput, LocalKvRepository
from tests.backends import Backend, ManualClock
from tests.integration.situations import new_store, plain

KEYS = ["USER_1", "user%1", "userX1", "user_1", "user_2"]
HIGHEST = "\U0010ffff"


def test_the_traps_are_real_like_knows_wildcards_and_no_case_and_offsets_skip(tmp_path: Path) -> None:
    """H35."""
    with plain(new_store(tmp_path, "localkv")) as bare:
        bare.executemany("INSERT INTO kv VALUES (?, x'', NULL)", [(key,) for key in KEYS])
        assert len(bare.execute("SELECT key FROM kv WHERE key LIKE 'user_%'").fetchall()) == 5
        bare.execute("DELETE FROM kv")
        bare.executemany("INSERT INTO kv VALUES (?, x'', NULL)", [(f"k{number}",) for number in range(6)])
        seen: list[str] = []
        page = "SELECT key FROM kv ORDER BY key LIMIT 2 OFFSET ?"
        for offset in (0, 2, 4):
            found = [key for (key,) in bare.execute(page, (offset,)).fetchall()]
            bare.executemany("DELETE FROM kv WHERE key = ?", [(key,) for key in found])
            seen += found
        assert seen == ["k0", "k1", "k4", "k5"]


def _scanned(kv: LocalKvRepository, prefix: str) -> list[str]:
    """The keys, which all ways to read them must agree on."""
    whole = [key for key, _ in kv.scan_prefix(prefix).items]
    assert [key for key, _ in kv.iter_prefix(prefix)] == whole
    paged: list[str] = []
    cursor = None
    while True:
        page = kv.scan_prefix(prefix, limit=2, cursor=cursor)
        paged += [key for key, _ in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert paged == whole
    return whole


def test_a_prefix_is_literal_and_case_sensitive(backend: Backend) -> None:
    """H35."""
    kv = backend.localkv()
    kv.put_many(dict.fromkeys(KEYS, b""))
    assert _scanned(kv, "user_") == ["user_1", "user_2"]
    assert _scanned(kv, "user%") == ["user%1"]
    assert _scanned(kv, "USER") == ["USER_1"]
    assert _scanned(kv, "user_1") == ["user_1"]
    assert _scanned(kv, "user_1x") == []
    assert _scanned(kv, "") == KEYS


def test_prefixes_at_the_end_of_all_text_and_around_the_surrogates_are_exact(backend: Backend) -> None:
    """H35. The order is that of the bytes, also where UTF-16 would have another one."""
    kv = backend.localkv()
    keys = ["a", f"a{HIGHEST}", f"a{HIGHEST}b", f"a{HIGHEST}{HIGHEST}", "b", "\ud7ff", "\ue000", "\uffff", "\U00010000"]
    keys += [HIGHEST, f"{HIGHEST}a", HIGHEST * 2]
    kv.put_many(dict.fromkeys(keys, b""))
    assert _scanned(kv, "") == sorted(keys, key=str.encode)
    for prefix in [*keys, "\ud7ff\ud7ff", f"b{HIGHEST}"]:
        assert _scanned(kv, prefix) == sorted((key for key in keys if key.startswith(prefix)), key=str.encode)


def test_a_walk_that_deletes_what_it_has_read_skips_nothing(backend: Backend) -> None:
    """H35."""
    kv = backend.localkv()
    keys = [f"k{number:03}" for number in range(30)]
    kv.put_many(dict.fromkeys(keys, b""))
    seen = []
    for key, _ in kv.iter_prefix("k"):
        seen.append(key)
        kv.delete(key)
    assert seen == keys
    assert _scanned(kv, "") == []


def test_a_key_that_lives_through_the_whole_walk_is_seen_once_whatever_comes_and_goes(
    shared_backend: Backend, clock: ManualClock
) -> None:
    """H35. Before it, around it, and by the clock."""
    kv = shared_backend.localkv(clock=clock)
    stay = [f"k{number:03}-stays" for number in range(60)]
    kv.put_many(dict.fromkeys(stay, b""))
    kv.put_many({f"k{number:03}": b"" for number in range(60)}, ttl=10)
    walk: Iterator[tuple[str, bytes]] = kv.iter_prefix("k")
    seen = []
    for turn, (key, _) in enumerate(walk):
        seen.append(key)
        kv.put(f"a{turn}", b"")
        kv.put(f"k{turn % 7:03}-comes", b"")
        kv.delete(f"k{turn * 3 % 60:03}")
        if turn == 20:
            clock.advance(10)
    assert [key for key in seen if key.endswith("stays")] == stay
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


def test_a_page_of_the_formats_offset_skips_what_a_deletion_moved(backend: Backend) -> None:
    """H35. Documented beside `scan_prefix`, which points to the walk that does not."""
    kv = backend.localkv()
    kv.put_many({f"k{number}": b"" for number in range(6)})
    seen: list[str] = []
    cursor = None
    while True:
        page = kv.scan_prefix("k", limit=2, cursor=cursor)
        seen += [key for key, _ in page.items]
        for key, _ in page.items:
            kv.delete(key)
        if (cursor := page.next_cursor) is None:
            break
    assert seen == ["k0", "k1", "k4", "k5"]
    assert "offset" in (LocalKvRepository.scan_prefix.__doc__ or "")
    assert "iter_prefix" in (LocalKvRepository.scan_prefix.__doc__ or "")


def _live(kv: LocalKvRepository, key: str = "a") -> bool:
    """Whether a key is there, which all ways to ask must agree on. The ones that delete come last."""
    answers = {
        "scan": [found for found, _ in kv.scan_prefix(key).items] == [key],
        "walk": [found for found, _ in kv.iter_prefix(key)] == [key],
        "page": [found for found, _ in kv.scan_prefix(key, limit=1).items] == [key],
        "exists": kv.exists(key),
        "get": kv.get(key) is not None,
    }
    assert len(set(answers.values())) == 1, answers
    return answers["get"]


@pytest.mark.parametrize(
    ("ttl", "lives"),
    [(0.0004, 1), (0.001, 1), (0.0011, 2), (1, 1000), (timedelta(microseconds=1), 1), (timedelta(seconds=2), 2000)],
    ids=str,
)
def test_a_key_is_live_until_the_millisecond_of_its_expiry_and_then_everywhere_gone(
    ttl: float | timedelta, lives: int, backend: Backend, clock: ManualClock
) -> None:
    """H36. Rounded up to milliseconds: less than one is one."""
    kv = backend.localkv(clock=clock)
    start = clock.now
    kv.put("a", b"1", ttl=ttl)
    clock.now = start + (lives - 1) / 1000
    assert _live(kv)
    assert not kv.put("a", b"2", if_not_exists=True)
    assert kv.purge_expired() == 0
    for late in (lives, lives + 1):
        clock.now = start
        kv.put("a", b"1", ttl=ttl)
        clock.now = start + late / 1000
        assert not _live(kv)


CONSEQUENCES: dict[str, Callable[[LocalKvRepository], bool]] = {
    "a conditional put wins": lambda kv: kv.put("a", b"2", if_not_exists=True) and kv.get("a") == b"2",
    "a purge counts it": lambda kv: kv.purge_expired() == 1,
    "a scan leaves it out": lambda kv: kv.scan_prefix("").items == [],
}


@pytest.mark.parametrize("consequence", CONSEQUENCES)
def test_at_exactly_its_expiry_a_key_is_expired(consequence: str, backend: Backend, clock: ManualClock) -> None:
    """H36."""
    kv = backend.localkv(clock=clock)
    kv.put("a", b"1", ttl=1)
    clock.advance(1)
    assert CONSEQUENCES[consequence](kv)


def test_no_ttl_is_for_ever_and_clears_an_earlier_one(backend: Backend, clock: ManualClock) -> None:
    """H36."""
    kv = backend.localkv(clock=clock)
    kv.put("a", b"1", ttl=1)
    kv.put("a", b"2")
    kv.put("b", b"1", if_not_exists=True)
    kv.put_many({"c": b"1"})
    clock.advance(3e9)
    assert _scanned(kv, "") == ["a", "b", "c"]
    assert kv.purge_expired() == 0


@pytest.mark.parametrize("ttl", [0, 0.0, timedelta(0)], ids=str)
def test_a_ttl_of_zero_is_expired_at_once_and_never_for_ever(
    ttl: float | timedelta, backend: Backend, clock: ManualClock
) -> None:
    """H36. What `ttl or None` would have kept. The put itself was done, and says so."""
    kv = backend.localkv(clock=clock)
    kv.put("a", b"old")
    assert kv.put("a", b"1", ttl=ttl)
    assert not _live(kv)
    assert kv.put("a", b"2", ttl=ttl, if_not_exists=True)
    kv.put_many({"a": b"3", "b": b"3"}, ttl=ttl)
    assert not _live(kv)
    assert not _live(kv, "b")


@pytest.mark.parametrize("ttl", [-1, -0.0001, timedelta(seconds=-1), float("nan"), float("inf"), True], ids=str)
def test_a_ttl_that_is_negative_or_no_number_is_refused_and_nothing_changes(
    ttl: float | timedelta, backend: Backend
) -> None:
    """H36."""
    kv = backend.localkv()
    kv.put("a", b"1")
    calls: list[Callable[[], object]] = [
        lambda: kv.put("a", b"2", ttl=ttl),
        lambda: kv.put("b", b"2", ttl=ttl, if_not_exists=True),
        lambda: kv.put_many({"a": b"2"}, ttl=ttl),
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as refused:
            call()
        assert refused.value.field == "ttl"
    assert kv.scan_prefix("").items == [("a", b"1")]
