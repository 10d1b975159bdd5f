"""Whatever a file holds: it is opened, or refused by name and left as it is. Semantics 11.

A longer run, and another: QSTORE_TEST_HISTORIES=20000 QSTORE_TEST_HISTORY=7 python -m pytest … --timeout 0
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pytest

from qstore import QstoreError
from tests.backends import STORES
from tests.concurrency import histories
from tests.contract.events import event
from tests.contract.test_arguments_of_any_kind import KINDS
from tests.made_files import made, made_v1

FILLINGS: dict[str, Callable[[Any], object]] = {
    "transport": lambda it: it.publish_many([(f"g{number % 7}", event("x" * number)) for number in range(60)]),
    "localkv": lambda it: it.put_many({f"k{number}": b"x" * number * 9 for number in range(60)}),
    "localqueue": lambda it: it.send_many(["x" * number * 9 for number in range(60)]),
}

READINGS: dict[str, Callable[[Any], object]] = {
    "transport": lambda it: [it.ack(lease) for lease in iter(lambda: it.claim("w", 5), None)],
    "localkv": lambda it: (it.scan_prefix(""), it.get("k5"), it.put("k5", b""), it.purge_expired()),
    "localqueue": lambda it: ([it.ack(each.receipt_handle) for each in it.receive(100)], it.purge()),
}


def _torn(whole: bytes, random: Random) -> bytes:
    return whole[: random.randrange(len(whole))]


def _torn_at_a_page(whole: bytes, random: Random) -> bytes:
    return whole[: random.randrange(len(whole) // 1024) * 1024]


def _flipped(whole: bytes, random: Random) -> bytes:
    torn = bytearray(whole)
    for _ in range(random.choice((1, 1, 3, 50))):
        torn[random.randrange(random.choice((100, 1024, len(torn))))] = random.randrange(256)
    return bytes(torn)


def _overwritten(whole: bytes, random: Random) -> bytes:
    at, length = random.randrange(len(whole)), random.choice((16, 1024, 4096))
    return whole[:at] + random.randbytes(length) + whole[at + length :]


def _emptied(whole: bytes, random: Random) -> bytes:
    at = random.randrange(len(whole) // 1024) * 1024
    return whole[:at] + bytes(1024) + whole[at + 1024 :]


def _exchanged(whole: bytes, random: Random) -> bytes:
    pages = [whole[at : at + 1024] for at in range(0, len(whole), 1024)]
    one, other = random.randrange(len(pages)), random.randrange(len(pages))
    pages[one], pages[other] = pages[other], pages[one]
    return b"".join(pages)


def _of_anything(_: bytes, random: Random) -> bytes:
    return random.choice((b"", b"SQLite format 3\0")) + random.randbytes(random.randrange(5000))


HARMS = (_torn, _torn_at_a_page, _flipped, _overwritten, _emptied, _exchanged, _of_anything)


@pytest.mark.parametrize("revision", [made, made_v1])
@pytest.mark.parametrize("store", STORES)
def test_a_file_that_came_to_harm_is_opened_or_refused_and_left_as_it_is(
    store: str, revision: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = _filled(store, revision, tmp_path / "filled")
    opened = 0
    for seed in histories.chosen(60):
        with histories.replayable(seed, []) as random:
            directory = tmp_path / "harmed"
            directory.mkdir()
            path = directory / f"{store}.sqlite"
            harmed = random.choice(HARMS)(whole, random)
            path.write_bytes(harmed)
            try:
                repository = KINDS[store].open(directory, create=random.random() < 0.5)
            except QstoreError:
                assert path.read_bytes() == harmed
                assert list(directory.iterdir()) == [path]
            else:
                opened += 1
                with repository, suppress(QstoreError):
                    READINGS[store](repository)
            rmtree(directory)
    assert opened > 0


def _filled(store: str, revision: Callable[[str], Path], directory: Path) -> bytes:
    directory.mkdir()
    path = directory / f"{store}.sqlite"
    path.write_bytes(revision(store).read_bytes())
    with KINDS[store].open(directory) as repository:
        FILLINGS[store](repository)
    assert list(directory.iterdir()) == [path]
    return path.read_bytes()
