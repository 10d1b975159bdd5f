"""Frames as pandas has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from qstore.explore.columns import Column, Kind

__all__ = ["frame", "joined"]

NOT_A_TIME = np.iinfo(np.int64).min


def frame(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """A frame of some columns: nullable integers and texts, UTC times."""
    series = {column.name: _series(column.kind, each) for column, each in zip(columns, values, strict=True)}
    return pd.DataFrame(series)


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One frame of several with the same columns."""
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def _series(kind: Kind, values: Sequence[Any]) -> Any:
    match kind:
        case "instant":
            return pd.Series(_microseconds(values).view("datetime64[us]")).dt.tz_localize("UTC")
        case "duration":
            return pd.Series(_microseconds(values).view("timedelta64[us]"))
        case "integer":
            return pd.array(list(values), dtype="Int64")
        case "number":
            return pd.array(list(values), dtype="Float64")
        case "truth":
            return pd.array(list(values), dtype="boolean")
        case "bytes" | "value":
            return pd.Series(list(values), dtype=object)
        case _:
            return pd.array(list(values), dtype="string")


def _microseconds(values: Sequence[Any]) -> Any:
    return np.array([NOT_A_TIME if value is None else value for value in values], dtype=np.int64)
