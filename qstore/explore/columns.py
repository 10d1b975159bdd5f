"""Rows turned into columns, and payloads into columns of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

__all__ = ["Column", "Kind", "Rows", "expanded", "plain", "transposed"]

Rows = Sequence[Sequence[Any]]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Kind = Literal["integer", "text", "word", "bytes", "payload", "number", "truth", "value", "instant", "duration"]
"""What a column holds. word: one of a few texts; value: anything that JSON has; instant: UTC.
Times are read as microseconds."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a frame, and the SQL that it is made of."""

    name: str
    kind: Kind
    sql: str = ""


def transposed(columns: Sequence[Column], rows: Rows) -> list[Sequence[Any]]:
    """The values of each column, payloads as text."""
    values: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [() for _ in columns]
    for place, column in enumerate(columns):
        if column.kind == "payload":
            values[place] = [_text(each) for each in values[place]]
    return values


def expanded(columns: Sequence[Column], rows: Rows) -> tuple[list[Column], list[Sequence[Any]]]:
    """The same, with a column for each thing that the payloads' JSON objects have: `event.kind`, `event.data.total`.

    The stored text stays, for payloads that are no objects, or no JSON.
    """
    values = transposed(columns, rows)
    all_columns, all_values = list(columns), list(values)
    for place, column in enumerate(columns):
        if column.kind == "payload":
            found: dict[str, list[Any]] = {}
            for row, stored in enumerate(values[place]):
                for name, value in _leaves(column.name, _decoded(stored)):
                    if name not in found:
                        found[name] = [None] * len(rows)
                    found[name][row] = value
            all_columns += [Column(name, _kind_of(each)) for name, each in found.items()]
            all_values += found.values()
    return all_columns, all_values


def plain(kind: Kind, value: Any) -> Any:
    """A value as Python has it."""
    if value is None or kind not in ("instant", "duration"):
        return value
    span = timedelta(microseconds=int(value))
    return EPOCH + span if kind == "instant" else span


def _text(stored: Any) -> Any:
    return bytes(stored).decode(errors="replace") if isinstance(stored, (bytes, memoryview)) else stored


def _decoded(stored: Any) -> Any:
    try:
        return json.loads(stored)
    except (ValueError, TypeError, RecursionError):
        return None


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            inner = f"{name}.{key}"
            if isinstance(child, dict) and child:
                yield from _leaves(inner, child)
            else:
                yield inner, child


def _kind_of(values: Sequence[Any]) -> Kind:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "truth"
    if kinds == {int}:
        return "integer" if all(value is None or -(2**63) <= value < 2**63 for value in values) else "value"
    if kinds and kinds <= {int, float}:
        return "number"
    return "text" if kinds == {str} else "value"
