"""What a back end can do, asked for by name instead of by dialect."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.engine import Dialect

from qstore.errors import BackendUnsupported

__all__ = ["Capabilities", "capabilities"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`one_writer`: a writer takes the database's only write lock, with BEGIN IMMEDIATE or with its first write."""

    one_writer: bool


_KNOWN = {"sqlite": Capabilities(one_writer=True)}


def capabilities(dialect: Dialect) -> Capabilities:
    """The capabilities of a SQLAlchemy dialect. BackendUnsupported if qstore has no statements for it."""
    try:
        return _KNOWN[dialect.name]
    except KeyError:
        raise BackendUnsupported(
            f"qstore has no stores on {dialect.name}; this version has them on: {', '.join(sorted(_KNOWN))}"
        ) from None
