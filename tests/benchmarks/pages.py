"""Whether a page of a scan stays as fast far from the start, in a store that nobody changes (line 8)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from qstore import LocalKvRepository
from tests.benchmarks.filling import filled_kv
from tests.benchmarks.lines import Line, at_most, plain, slower
from tests.benchmarks.measuring import Contender, Contenders, Scale, interleaved, short
from tests.benchmarks.raw import RawKv

__all__ = ["lines"]

PAGE = 20


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """Pages that follow one another from the offset on, against such from the start, and the same page again."""
    keys = scale.of(1_000_000, 200_000)
    offset = keys * 2 // 5
    path = filled_kv(directory / "localkv.sqlite", keys=keys)
    raw = RawKv(path)
    # A repository each: what one remembers of its walk is not pushed out by the others.
    with ExitStack() as stack:
        near, far, again = (stack.enter_context(LocalKvRepository.open(f"sqlite:///{path}")) for _ in range(3))
        began = time.perf_counter()
        for kv in (far, again):
            kv.scan_prefix("k", limit=PAGE, cursor=str(offset))
        jump = (time.perf_counter() - began) * 1000 / 2
        contenders: Contenders = {
            "pages from 0 on": _walk(near, None),
            "following": _walk(far, str(offset)),
            "again": lambda times: [again.scan_prefix("k", limit=PAGE, cursor=str(offset)) for _ in range(times)],
            "raw sqlite3, by offset": Contender(lambda _: raw.scan("k", offset, PAGE), times=1),
        }
        figures = interleaved(contenders, scale, times=10)
    raw.close()
    at = f"at offset {short(offset)} of {short(keys)} keys"
    yield slower(f"pages of {PAGE} {at}", figures, "following", "pages from 0 on", at_most(2, must=False))
    yield slower(f"a page of {PAGE} {at}, again", figures, "again", "pages from 0 on", at_most(2, must=False))
    yield slower(f"pages of {PAGE} {at}", figures, "following", "raw sqlite3, by offset")
    yield plain(f"the first page of {PAGE} {at}", jump, "ms")


def _walk(kv: LocalKvRepository, cursor: str | None) -> Callable[[int], None]:
    """Goes on where it was."""
    at = [cursor]

    def run(times: int) -> None:
        for _ in range(times):
            at[0] = kv.scan_prefix("k", limit=PAGE, cursor=at[0]).next_cursor

    return run
