"""Frames as polars has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from qstore.explore.columns import Column, Kind

__all__ = ["frame", "joined"]

TYPES: dict[Kind, Any] = {
    "integer": pl.Int64,
    "number": pl.Float64,
    "truth": pl.Boolean,
    "bytes": pl.Binary,
    "instant": pl.Datetime("us", "UTC"),
    "duration": pl.Duration("us"),
}
"""All others are text: values of different kinds in one column are shown as their JSON."""


def frame(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """A frame of some columns."""
    return pl.DataFrame([_series(column, each) for column, each in zip(columns, values, strict=True)])


def joined(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One frame of several with the same columns."""
    return pl.concat(frames)


def _series(column: Column, values: Sequence[Any]) -> pl.Series:
    if column.kind == "value":
        values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    if column.kind in ("instant", "duration"):
        return pl.Series(column.name, values, pl.Int64).cast(TYPES[column.kind])
    return pl.Series(column.name, values, TYPES.get(column.kind, pl.String))
