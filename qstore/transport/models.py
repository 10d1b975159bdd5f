"""The transport's tables as mapped classes, for `select()`. The repository does not write through them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BLOB, REAL, BigInteger, Column, Double, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine, UserDefinedType

__all__ = ["TURNS", "TransportBase", "TransportGroup", "TransportMessage"]


class Int(UserDefinedType[int]):
    """`INT`, as the seed declares `priority`. SQLAlchemy itself spells and reflects it as `INTEGER`."""

    cache_ok = True

    def get_col_spec(self, type_expression: object = None, **_: Any) -> str:
        """Return `INT` where a column is declared, and `INTEGER` where Alembic compares with what it has reflected."""
        return "INTEGER" if type_expression is None else "INT"


# SQLite's types are the seed's. Elsewhere an id needs 64 bits, and REAL would round an epoch to 128 seconds.
# No affinity on SQLite, so that what is put there is kept as it is. Elsewhere such a table is of no use.
UNTYPED: TypeEngine[bytes] = BLOB().with_variant(LargeBinary(), "postgresql")
BIG = BigInteger().with_variant(Integer(), "sqlite")
EPOCH: TypeEngine[float] = Double().with_variant(REAL(), "sqlite")
SMALL: TypeEngine[int] = Integer().with_variant(Int(), "sqlite")
# Ids are compared by their bytes, as SQLite compares them.
ID: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")


class TransportBase(DeclarativeBase):
    """The transport's own metadata."""


class TransportMessage(TransportBase):
    """A published message. It is free, leased or parked."""

    __tablename__ = "messages"
    __table_args__ = (Index("idx_messages_group", "group_id").ddl_if(dialect="sqlite"), {"sqlite_autoincrement": True})

    seq: Mapped[int] = mapped_column(BIG, primary_key=True, nullable=True)
    """The order of publishing: FIFO within a group. Never reused."""
    group_id: Mapped[str] = mapped_column(ID)
    """The exclusivity group."""
    event: Mapped[str] = mapped_column(Text)
    """The event as JSON."""
    locked_by: Mapped[str | None] = mapped_column(Text)
    """The worker that holds the lease, `__parked__`, or NULL when free."""
    lock_expiry: Mapped[float | None] = mapped_column(EPOCH)
    """Epoch seconds at which the lease or park ends (held while `>= now`); NULL when free."""


class TransportGroup(TransportBase):
    """A group that has messages."""

    __tablename__ = "groups"

    group_id: Mapped[str] = mapped_column(ID, primary_key=True, nullable=True)
    last_claimed_at: Mapped[float] = mapped_column(EPOCH, server_default=text("0.0"))
    """Epoch seconds of the last claim; 0 = never. The lowest is served first."""
    priority: Mapped[int] = mapped_column(SMALL, server_default=text("0"))
    """0 to 4, set by the publish that creates the group."""


TURNS = Table(
    "turns",
    TransportBase.metadata,
    Column("id", Integer, primary_key=True, nullable=True),
    Column("group_id", Text, unique=True),
    Column("head", Integer),
    Column("slot", Integer),
    Column("at", UNTYPED),
    Column("until", UNTYPED),
    Column("held", Integer),
    Column("lane", Integer),
    Column("stamp", UNTYPED),
    Index("idx_turns", "slot", "at", "head"),
)
"""What transport.v1.1 adds, for the claim alone: triggers write it."""
