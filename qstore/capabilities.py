"""What a back end can do, asked for by name instead of by dialect."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.engine import Dialect

from qstore.errors import BackendUnsupported

__all__ = ["Capabilities", "capabilities"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What operations must know of a back end.

    `one_writer`: a writer takes the database's only write lock, with BEGIN IMMEDIATE or with its first write, and time
    is the host's. Otherwise writers lock rows, conflicts are found by the server, and time is the server's.
    """

    one_writer: bool


_KNOWN = {"sqlite": Capabilities(one_writer=True), "postgresql": Capabilities(one_writer=False)}


def capabilities(dialect: Dialect) -> Capabilities:
    """The capabilities of a SQLAlchemy dialect. BackendUnsupported if qstore has no statements for it."""
    try:
        return _KNOWN[dialect.name]
    except KeyError:
        raise BackendUnsupported(
            f"qstore has no stores on {dialect.name}; this version has them on: {', '.join(sorted(_KNOWN))}"
        ) from None
