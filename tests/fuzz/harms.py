"""Ways in which bytes come to harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

__all__ = ["harmed"]

PAGE = 1024

WORDS = (
    *(
        b"",
        b"\0",
        b"\xff",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b"SQLite format 3\0",
        b"-1",
        b"0",
        b"9223372036854775808",
        b"1e999",
    ),
    *(
        b"NaN",
        b"null",
        b"{}",
        b"[[",
        b'"',
        b"\\u0000",
        b"\\ud800",
        b":",
        b"//",
        b"?",
        b"#",
        b"%00",
        b"..",
        b"CREATE TABLE",
    ),
    *(
        b" TEXT",
        b" INTEGER",
        b" NOT NULL",
        b"PRIMARY KEY",
        b" COLLATE NOCASE",
        b" DEFAULT 1",
        b",",
        b"(",
        b")",
        b"x'00'",
    ),
    *(b" WITHOUT ROWID", b" GENERATED ALWAYS AS (1)", b"messages", b"groups", b"kv", b"meta", b"localkv.v1", b"v1.1"),
)
"""What parsers stumble over."""


def _torn(whole: bytearray, random: Random) -> None:
    del whole[random.randrange(len(whole) + 1) :]


def _torn_at_a_page(whole: bytearray, random: Random) -> None:
    del whole[random.randrange(len(whole) // PAGE + 1) * PAGE :]


def _flipped(whole: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 1, 3, 50))):
        if whole:
            whole[random.randrange(min(len(whole), random.choice((100, PAGE, len(whole)))))] = random.randrange(256)


def _overwritten(whole: bytearray, random: Random) -> None:
    at, length = random.randrange(len(whole) + 1), random.choice((1, 16, PAGE, 4 * PAGE))
    whole[at : at + length] = random.randbytes(length)


def _emptied(whole: bytearray, random: Random) -> None:
    at = random.randrange(len(whole) // PAGE + 1) * PAGE
    whole[at : at + PAGE] = bytes(len(whole[at : at + PAGE]))


def _exchanged(whole: bytearray, random: Random) -> None:
    pages = len(whole) // PAGE
    if pages > 1:
        one, other = (random.randrange(pages) * PAGE for _ in range(2))
        whole[one : one + PAGE], whole[other : other + PAGE] = whole[other : other + PAGE], whole[one : one + PAGE]


def _said(whole: bytearray, random: Random) -> None:
    at = random.randrange(len(whole) + 1)
    whole[at : at + random.choice((0, 0, 1, 4))] = random.choice(WORDS)


def _doubled(whole: bytearray, random: Random) -> None:
    at, length = random.randrange(len(whole) + 1), random.choice((1, 8, 64, PAGE))
    whole[at:at] = whole[at : at + length] * random.choice((1, 1, 100))


def _cut(whole: bytearray, random: Random) -> None:
    at = random.randrange(len(whole) + 1)
    del whole[at : at + random.choice((1, 8, 64, PAGE))]


HARMS: Sequence[Callable[[bytearray, Random], None]] = (
    *(_torn, _torn_at_a_page, _flipped, _flipped, _overwritten, _emptied, _exchanged, _said, _said, _doubled, _cut),
)


def harmed(whole: bytes, other: bytes, random: Random) -> bytes:
    """Something like it, with a part of another one now and then."""
    if random.random() < 0.01:
        return random.choice(WORDS) + random.randbytes(random.randrange(5000))
    found = bytearray(whole)
    if random.random() < 0.1:
        at = random.randrange(len(found) + 1)
        found[at:] = other[at:]
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice(HARMS)(found, random)
    return bytes(found[: 1 << 20])
