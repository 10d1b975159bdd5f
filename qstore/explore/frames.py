"""Rows as frames of pandas or polars, or as plain dicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice, repeat
from typing import Any, Literal, Protocol

from qstore.arguments import integer
from qstore.errors import BackendUnsupported, InvalidInput, shown
from qstore.explore.columns import Column, expanded, plain, transposed
from qstore.explore.pages import PAGE, Payload, columns_of, pages_of
from qstore.explore.reading import Reader

__all__ = ["Library", "Payload", "check", "frame", "frames", "records", "values_of"]

Library = Literal["pandas", "polars"]

LIBRARIES = ("pandas", "polars")
"""In the order in which they are taken where none is asked for."""


class Writer(Protocol):
    """One library's way to make frames."""

    def frame(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Any:
        """A frame of some columns."""
        ...

    def joined(self, frames: Sequence[Any]) -> Any:
        """One frame of several with the same columns."""
        ...


def frame(kind: str, reader: Reader, *, library: Library | None, payload: Payload | None, prefix: str = "") -> Any:
    """All rows as one frame."""
    writer = _writer(library)
    columns, pages = columns_of(kind, payload), pages_of(kind, reader, payload, prefix, PAGE)
    if payload == "json":
        rows = [row for page in pages for row in page]
        return writer.frame(*expanded(columns, rows))
    return writer.joined([writer.frame(columns, transposed(columns, rows)) for rows in pages])


def frames(
    kind: str, reader: Reader, *, library: Library | None, payload: Payload | None, chunk: int, prefix: str = ""
) -> Iterator[Any]:
    """Frames of at most `chunk` rows each; at least one, which may be empty."""
    writer = _writer(library)
    columns = columns_of(kind, payload)
    for rows in pages_of(kind, reader, payload, prefix, chunk):
        parts = expanded(columns, rows) if payload == "json" else (columns, transposed(columns, rows))
        yield writer.frame(*parts)


def values_of(kind: str, reader: Reader, *names: str) -> dict[str, list[Any]]:
    """Some columns alone, without a library; times as microseconds."""
    columns = columns_of(kind, None)
    found: dict[str, list[Any]] = {name: [] for name in names}
    for rows in pages_of(kind, reader, None, "", PAGE):
        for column, values in zip(columns, transposed(columns, rows), strict=True):
            if column.name in found:
                found[column.name] += values
    return found


def records(kind: str, reader: Reader, most: int, prefix: str) -> list[dict[str, Any]]:
    """The first rows as dicts: UTC datetimes, timedeltas, payloads as text."""
    columns = columns_of(kind, "text")
    pages = pages_of(kind, reader, "text", prefix, min(most, PAGE))
    rows = list(islice(chain.from_iterable(pages), most))
    values = [
        list(map(plain, repeat(column.kind), each))
        for column, each in zip(columns, transposed(columns, rows), strict=True)
    ]
    return [dict(zip((column.name for column in columns), row, strict=True)) for row in zip(*values, strict=True)]


def check(payload: Payload | None, chunk: int | None, *, of_bytes: bool = False) -> None:
    """Refuse arguments that no frame has."""
    known = ("bytes", "text", "json") if of_bytes else ("text", "json")
    if payload is not None and payload not in known:
        raise InvalidInput("payload", f"expected None, {' or '.join(map(repr, known))}, found {shown(payload)}")
    if chunk is not None:
        integer("chunk", chunk, at_least=1)


def _writer(library: Library | None) -> Writer:
    if library not in (None, *LIBRARIES):
        raise InvalidInput("library", f"expected {' or '.join(map(repr, LIBRARIES))}, found {shown(library)}")
    for name in LIBRARIES if library is None else (library,):
        if find_spec(name) is not None:
            writer: Writer = import_module(f"qstore.explore.with_{name}")
            return writer
    raise BackendUnsupported(
        f"expected the package {library or ' or '.join(LIBRARIES)}, found none: pip install 'qstore[notebook]'"
    )
