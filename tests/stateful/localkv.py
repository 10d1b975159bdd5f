"""The key-value store's model: a dict with expiries. Semantics 20 to 24."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from string import ascii_letters, digits
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.stateful.machine import Call, OddInt, OddStr, StoreMachine, whole_milliseconds
from tests.stateful.transport import FAR

LATEST = 2**63 - 1
PORTABLE = set(ascii_letters + digits + "-_:.")


@dataclass
class KvModel:
    """What is stored, by key: a value and when it expires. Expired ones are there until somebody takes them away."""

    entries: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)

    def live(self, now: int) -> dict[str, bytes]:
        """What can be read, in the order of the keys' bytes."""
        found = {
            key: value for key, (value, expires_at) in self.entries.items() if expires_at is None or expires_at > now
        }
        return dict(sorted(found.items(), key=lambda entry: entry[0].encode()))

    def put(self, key: str, value: bytes, ttl: Any, now: int) -> None:
        self.entries[key] = bytes(value), None if ttl is None else min(now + whole_milliseconds(ttl), LATEST)


@dataclass
class Walk:
    """An `iter_prefix` under way, the keys seen by it, and those that have lived since it began."""

    items: Iterator[tuple[str, bytes]]
    seen: list[str]
    throughout: set[str]


NAMES = [
    "a",
    "a%",
    "a_",
    "aX",
    "A",
    "ab",
    "é",
    "a\U0010ffff",
    "\U0010ffff",
    "\ue000",
    "\ud7ff",
    " ",
    "0",
    OddStr("k" * 512),
]
KEYS = st.sampled_from(["a", "ab"]) | st.sampled_from([*NAMES, OddStr("a")])
PREFIXES = st.sampled_from(
    ["", "", "a", "a%", "A", "a\U0010ffff", "\U0010ffff", "\ud7ff", OddStr("k" * 511), OddStr("k" * 513), "no"]
)
VALUES = st.sampled_from([b"", b"\0\xff", bytearray(b"v"), memoryview(b"abcdef")[::2]]) | st.binary(max_size=8)
TTLS = st.sampled_from(
    [None, None, 0, 0, 0.0004, 0.001, 1, 1, 4.035, 30, timedelta(milliseconds=500), OddInt(1), 10**300, 1e300]
)
LIMITS = st.sampled_from([None, 1, 2, 3, 100, 2**63 - 1, 2**63, OddInt(2)])
CURSORS = st.sampled_from([None, None, None, "0", "1", "2", "002", "9" * 30])

ODD_KEYS: tuple[Any, ...] = ("a\0", "\ud800", None, 1, b"a", True)
ODD_TTLS: tuple[Any, ...] = (-1, -(10**400), -5e-324, float("nan"), float("inf"), True, "1", [], timedelta(-1))
REFUSED: list[Call] = [
    *(Call("get", v) for v in (*ODD_KEYS, "", "k" * 513)),
    *(Call("exists", v) for v in (*ODD_KEYS, "")),
    *(Call("delete", v) for v in (*ODD_KEYS, "")),
    *(Call("put", v, b"") for v in (*ODD_KEYS, "", "é" * 257)),
    *(Call("put_many", {"a": b"", v: b""}) for v in (*ODD_KEYS, "")),
    *(Call("put", "a", v, if_not_exists=True) for v in ("text", None, 1, [1])),
    *(Call("put", "a", b"", ttl=v) for v in ODD_TTLS),
    *(Call("put_many", {"a": b""}, ttl=v) for v in ODD_TTLS),
    *(Call("put_many", v) for v in (None, 1, "ab", [("a", b"")], {"a": None})),
    *(Call("scan_prefix", v) for v in ODD_KEYS),
    *(Call("iter_prefix", v) for v in ODD_KEYS),
    *(Call("scan_prefix", "", limit=v) for v in (0, -1, True, 1.0, "1", -(10**5000))),
    *(Call("scan_prefix", "", cursor=v) for v in ("", "-1", "1.0", " 1", "١", "1\n", "x", 1, b"1", "\ud800")),  # noqa: RUF001  digits that are not ASCII's
]


class LocalKvMachine(StoreMachine):
    """The key-value store and its model."""

    store = "localkv"

    def __init__(self) -> None:
        super().__init__()
        self.model = KvModel()

    def open_all(self) -> None:
        super().open_all()
        self.portable = self.open(portable=True)
        self.walks: list[Walk] = []

    def compare(self) -> None:
        rows = self.backend.sql("localkv", "SELECT key, value, expires_at FROM {kv}")
        assert {key: (bytes(value), expires_at) for key, value, expires_at in rows} == self.model.entries
        for walk in self.walks:
            walk.throughout &= set(self._live())

    def instants(self) -> Iterable[int]:
        return [expires_at for _, expires_at in self.model.entries.values() if expires_at and expires_at < FAR * 1000]

    def _live(self) -> dict[str, bytes]:
        return self.model.live(self.milliseconds)

    @rule(by=st.integers(0, 1), key=KEYS, value=VALUES, ttl=TTLS, if_not_exists=st.booleans())
    def put(self, by: int, key: str, value: Any, ttl: Any, if_not_exists: bool) -> None:
        wins = not if_not_exists or key not in self._live()
        assert self.repositories[by].put(key, value, ttl=ttl, if_not_exists=if_not_exists) is wins
        if wins:
            self.model.put(key, value, ttl, self.milliseconds)

    @rule(by=st.integers(0, 1), items=st.dictionaries(KEYS, VALUES, max_size=5), ttl=TTLS)
    def put_many(self, by: int, items: dict[str, Any], ttl: Any) -> None:
        self.repositories[by].put_many(items, ttl=ttl)
        for key, value in items.items():
            self.model.put(key, value, ttl, self.milliseconds)

    @rule(key=st.sampled_from(["a", "A:b", "-_.", "a b", "é", "٣"]), size=st.sampled_from([0, 24_576, 24_577]))
    def put_portable(self, key: str, size: int) -> None:
        if set(key) <= PORTABLE and size <= 24_576:
            assert self.portable.put(key, bytes(size))
            self.model.put(key, bytes(size), None, self.milliseconds)
        else:
            self.refused(lambda: self.portable.put(key, bytes(size)))
        self.refused(lambda: self.portable.scan_prefix(""))

    @rule(by=st.integers(0, 1), key=KEYS)
    def get(self, by: int, key: str) -> None:
        value = self.repositories[by].get(key)
        assert value == self._live().get(key)
        assert value is None or type(value) is bytes
        self._looked_at(key)

    @rule(by=st.integers(0, 1), key=KEYS)
    def exists(self, by: int, key: str) -> None:
        assert self.repositories[by].exists(key) is (key in self._live())
        self._looked_at(key)

    def _looked_at(self, key: str) -> None:
        """An expired key is deleted on the way, in a transaction of the repository's own."""
        if key not in self._live() and not self.backend.joins:
            self.model.entries.pop(key, None)

    @rule(by=st.integers(0, 1), key=KEYS)
    def delete(self, by: int, key: str) -> None:
        self.repositories[by].delete(key)
        self.model.entries.pop(key, None)

    @rule(by=st.integers(0, 1), prefix=PREFIXES, limit=LIMITS, cursor=CURSORS)
    def scan(self, by: int, prefix: str, limit: Any, cursor: str | None) -> None:
        items = self._matching(prefix)
        offset = int(cursor or 0)
        end = len(items) if limit is None else offset + limit
        page = self.repositories[by].scan_prefix(prefix, limit=limit, cursor=cursor)
        assert page.items == items[offset:end]
        assert page.next_cursor == (str(end) if end < len(items) else None)

    @rule(by=st.integers(0, 1), prefix=PREFIXES, limit=st.integers(1, 3))
    def scan_all_pages(self, by: int, prefix: str, limit: int) -> None:
        found, cursor = [], None
        while True:
            page = self.repositories[by].scan_prefix(prefix, limit=limit, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
            assert len(page.items) == limit
        assert found == self._matching(prefix)

    @rule(by=st.integers(0, 1), prefix=PREFIXES)
    def begin_to_walk(self, by: int, prefix: str) -> None:
        self.walks.append(
            Walk(self.repositories[by].iter_prefix(prefix), [], {key for key, _ in self._matching(prefix)})
        )

    @precondition(lambda self: self.walks)
    @rule(steps=st.sampled_from([1, 1, 2, 100]))
    def walk_on(self, steps: int) -> None:
        walk = self.walks[0]
        for _ in range(steps):
            item = next(walk.items, None)
            if item is None:
                self.walks.remove(walk)
                assert walk.seen == sorted(set(walk.seen), key=str.encode), "in order, and none of them twice"
                assert walk.throughout <= set(walk.seen)
                return
            walk.seen.append(item[0])

    @rule(by=st.integers(0, 1))
    def purge_expired(self, by: int) -> None:
        live = self._live()
        assert self.repositories[by].purge_expired() == len(self.model.entries) - len(live)
        self.model.entries = {key: self.model.entries[key] for key in live}

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.walks.clear()  # their repository may be the one that is closed
        super().restart(which)

    @rule(by=st.integers(0, 1), call=st.sampled_from(REFUSED))
    def odd_arguments(self, by: int, call: Call) -> None:
        self.refused(lambda: call(self.repositories[by]))

    def _matching(self, prefix: str) -> list[tuple[str, bytes]]:
        return [(key, value) for key, value in self._live().items() if key.startswith(prefix)]
