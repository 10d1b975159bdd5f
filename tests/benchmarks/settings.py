"""What payloads of 100 B, 4 KiB and 64 KiB cost, and whether other page sizes and checkpoints were better for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from unittest.mock import patch

from qstore import Event, LocalKvRepository, TransportRepository
from qstore.engines import Durability, sqlite
from tests.benchmarks.cycle import GROUPS, cycles
from tests.benchmarks.lines import Line, slower
from tests.benchmarks.measuring import Scale, Work, interleaved
from tests.benchmarks.raw import RawKv, RawTransport

__all__ = ["lines"]

PAYLOADS = {"100 B": 100, "4 KiB": 4096, "64 KiB": 65_536}
PAGES = (1024, 4096, 8192)
CHECKPOINTS = (2, 16)
"""MiB of log."""

LOG = 4 * 1024 * 1024
"""Bytes of log that SQLite writes back as it is, in pages of 4 KiB."""

AS_IT_IS = "the settings as they are"


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """Each payload against raw sqlite3; then, but for a quick run, with other settings against those as they are."""
    for name, size in PAYLOADS.items():
        for durability in scale.durabilities:
            yield from _payload(directory, scale, name, size, durability)
    if not scale.quick:
        for (name, size), durability in product(PAYLOADS.items(), scale.durabilities):
            yield from _variants(directory, scale, name, size, durability)


def _payload(directory: Path, scale: Scale, name: str, size: int, durability: Durability) -> Iterator[Line]:
    stem = f"{size}-{durability}"
    filling = durability == "normal" and not scale.quick
    raw = RawTransport(directory / f"{stem}.raw", durability)
    raw_kv = RawKv(directory / f"{stem}-kv.raw", durability)
    event = _event(size)
    text = event.model_dump_json()

    with (
        TransportRepository.open(directory / f"{stem}.sqlite", durability=durability) as transport,
        LocalKvRepository.open(f"sqlite:///{directory}/{stem}-kv.sqlite", durability=durability) as kv,
    ):
        contenders: dict[str, Work] = {
            "raw sqlite3": lambda times: raw.cycle(times, text, GROUPS),
            "ours": lambda times: cycles(transport, event, times),
        }
        figures = interleaved(contenders, scale, times=LOG // _cycle(size) if filling else 10)
        yield slower(f"publish+claim+ack of {name}, {durability.upper()}", figures, "ours", "raw sqlite3")
        puts = {"raw sqlite3": _puts(raw_kv, size), "ours": _puts(kv, size)}
        figures = interleaved(puts, scale, times=LOG // (4096 + size) if filling else 10)
        yield slower(f"put of {name}, {durability.upper()}", figures, "ours", "raw sqlite3")
    raw.close()
    raw_kv.close()


def _variants(directory: Path, scale: Scale, name: str, size: int, durability: Durability) -> Iterator[Line]:
    event = _event(size)
    with ExitStack() as stack:
        contenders: dict[str, Work] = {}
        for number, (page, checkpoint) in enumerate([(0, 0), *product(PAGES, CHECKPOINTS)]):
            path = directory / f"{size}-{durability}-{number}.sqlite"
            transport = stack.enter_context(_opened(path, durability, page, checkpoint))
            label = f"pages of {page}, checkpoints of {checkpoint} MiB" if number else AS_IT_IS
            contenders[label] = lambda times, transport=transport: cycles(transport, event, times)  # type: ignore[misc]  # its default
        often = CHECKPOINTS[-1] * 1024 * 1024 // _cycle(size) if durability == "normal" else 10
        figures = interleaved(contenders, scale, times=often)
    for label in contenders:
        if label != AS_IT_IS:
            yield slower(f"{name}, {durability.upper()}, {label}", figures, label, AS_IT_IS)


def _opened(path: Path, durability: Durability, page: int, checkpoint: int) -> TransportRepository[Event]:
    """A new store with other settings, if any are given. Its one connection is opened here, and kept."""
    with (
        patch.object(sqlite, "PAGE_SIZE", page or sqlite.PAGE_SIZE),
        patch.object(sqlite, "CHECKPOINT", checkpoint * 1024 * 1024 or sqlite.CHECKPOINT),
    ):
        transport = TransportRepository.open(path, durability=durability)
        cycles(transport, _event(1), 1)
    return transport


def _cycle(size: int) -> int:
    """About the bytes of log of a cycle: so many as fill a log have it written back once a round."""
    return 20 * 1024 + 2 * size


def _event(size: int) -> Event:
    return Event(kind="placed", data={"text": "x" * size})


def _puts(kv: LocalKvRepository | RawKv, size: int) -> Work:
    numbers = count()

    def run(times: int) -> None:
        for number in range(times):
            kv.put(f"k{number:08}", b"%012d" % next(numbers) * (size // 12 + 1))

    return run
