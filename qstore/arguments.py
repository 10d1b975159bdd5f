"""Checks of what callers pass in. Each one refuses before a store is touched, and the same on every back end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel

from qstore.errors import InvalidInput, InvalidType, shown

__all__ = ["HIGHEST_INTEGER", "integer", "one_of", "several", "text"]

T = TypeVar("T")

HIGHEST_INTEGER = 2**63 - 1


def text(field: str, value: str, *, at_most: int | None = None, or_empty: bool = False) -> str:
    """Check text: a `str` without NUL or lone surrogates, at most `at_most` bytes of UTF-8. Returns a plain `str`."""
    if type(value) is str and value.isascii() and 0 < len(value) <= (at_most or len(value)) and "\0" not in value:
        return value
    if not isinstance(value, str):
        raise InvalidType.of(field, value, "str")
    if not value and not or_empty:
        raise InvalidInput(field, "expected at least 1 byte, found an empty string")
    if "\0" in value:
        raise InvalidInput(field, f"expected text without NUL, found one at character {value.index(chr(0))}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(
            field, f"expected text that UTF-8 can hold, found a lone surrogate at character {error.start}"
        ) from error
    if at_most is not None and size > at_most:
        raise InvalidInput(field, f"expected at most {at_most:,} bytes of UTF-8, found {size:,}")
    return value if type(value) is str else str.__str__(value)


def one_of(field: str, value: str, choices: Collection[str]) -> str:
    """Check that text is one of a few words."""
    expected = " or ".join(choices)
    if not isinstance(value, str):
        raise InvalidType.of(field, value, expected)
    if value not in choices:
        raise InvalidInput(field, f"expected {expected}, found {shown(value)}")
    return value


def several(field: str, values: Iterable[T], of: str) -> list[T]:
    """Check that something is a number of things, and not one thing that happens to be iterable. Returns them all."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, bytearray, memoryview, Mapping, BaseModel)):
        raise InvalidType.of(field, values, f"a list, or another iterable, of {of}")
    return list(values)


def integer(field: str, value: int, *, at_least: int, at_most: int | None = None) -> int:
    """Check a whole number (not a `bool`). Returns a plain `int`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType.of(field, value, "int")
    if value < at_least or (at_most is not None and value > at_most):
        limits = f"at least {at_least:,}" if at_most is None else f"{at_least:,} to {at_most:,}"
        raise InvalidInput(field, f"expected {limits}, found {shown(value)}")
    return int(value)
