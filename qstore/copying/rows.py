"""Rows as they are read from either side: in batches of few bytes, in the order of their keys, and fit for any side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    Row,
    Table,
    Text,
    func,
    select,
    type_coerce,
)
from sqlalchemy.types import NullType

from qstore.capabilities import capabilities
from qstore.errors import FormatError, shown

__all__ = ["batch", "key_of", "portable", "read_as_stored"]

BATCH = 1000
"""Rows a transaction, at most."""

BYTES = 8 << 20
"""Characters and bytes a transaction, at most; a row that has more is one by itself."""


class _NoText(bytes):
    """What SQLite keeps as text, and is none."""


def read_as_stored(connection: Connection) -> None:
    """Let a file's text that is not UTF-8 be read, so that its row can be named."""
    if capabilities(connection.dialect).one_writer:
        driver: Any = connection.connection.driver_connection
        driver.text_factory = _text


def _text(stored: bytes) -> str | _NoText:
    with suppress(UnicodeDecodeError):
        return stored.decode()
    return _NoText(stored)


def key_of(table: Table) -> Column[Any]:
    """The column in whose order a table is copied."""
    [key] = table.primary_key
    return key


def batch(connection: Connection, table: Table, last: Any) -> Sequence[Row[Any]]:
    """The next rows after a key (None: from the beginning), as the driver gives their values."""
    long = [column for column in table.c if isinstance(column.type, (Text, LargeBinary))]
    sizes = select(reduce(add, (func.coalesce(func.length(column), 0) for column in long)))
    taken = total = 0
    for (size,) in connection.execute(_after(sizes, table, last).limit(BATCH)).all():
        total += size
        if taken and total > BYTES:
            break
        taken += 1
    # Without the columns' own types, which fail on what is not theirs.
    values = select(*(type_coerce(column, NullType()).label(column.name) for column in table.c))
    return connection.execute(_after(values, table, last).limit(taken)).all() if taken else ()


def _after(query: Any, table: Table, last: Any) -> Any:
    key = key_of(table)
    query = query.select_from(table).order_by(key)
    return query if last is None else query.where(key > last)


def portable(table: Table, row: Row[Any]) -> dict[str, Any]:
    """A row that every back end can hold. FormatError for one that not every one can."""
    for column in table.c:
        value = row._mapping[column.name]
        if (wanted := _wanted(column, value)) is not None:
            raise FormatError(
                f"the row {shown(row._mapping[key_of(table).name])} of {table.name} cannot be copied, because not every"
                f" back end can hold its {column.name}; remove or mend it",
                found=shown(value),
                supported=wanted,
                target=table.name,
            )
    return dict(row._mapping)


def _wanted(column: Column[Any], value: Any) -> str | None:
    """What a value should be; None if it is."""
    if value is None:
        return None if column.nullable and not column.primary_key else "a value"
    match column.type:
        case Text():
            return None if isinstance(value, str) and "\0" not in value else "UTF-8 without NUL"
        case LargeBinary():
            return None if isinstance(value, bytes) and not isinstance(value, _NoText) else "bytes"
        case Double():
            return None if isinstance(value, (int, float)) else "a number"
        case BigInteger():
            return None if isinstance(value, int) else "a whole number"
        case Integer():
            return None if isinstance(value, int) and abs(value) < 2**31 else "a whole number of 32 bits"
    raise AssertionError(column.type)
