"""The queue's tables as mapped classes, for `select()`. The repository does not write through them."""

from __future__ import annotations

from sqlalchemy import BLOB, BigInteger, Column, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

__all__ = ["REDELIVERIES", "REDELIVERY_MARK", "QueueBase", "QueueMessage", "QueueMeta"]

# No affinity on SQLite, so that what is put there is kept as it is. Elsewhere such a table is of no use.
UNTYPED: TypeEngine[bytes] = BLOB().with_variant(LargeBinary(), "postgresql")
BIG = BigInteger().with_variant(Integer(), "sqlite")


KEY: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")


class QueueBase(DeclarativeBase):
    """The queue's own metadata."""


class QueueMeta(QueueBase):
    """The format marker: the row `('format', 'localqueue.v1')`."""

    __tablename__ = "meta"

    key: Mapped[str] = mapped_column(KEY, primary_key=True, nullable=True)
    value: Mapped[str] = mapped_column(Text)


class QueueMessage(QueueBase):
    """A sent message: due, or invisible until `visible_at`."""

    __tablename__ = "messages"
    __table_args__ = (
        Index("idx_messages_visible", "visible_at", "enqueued_at", "id").ddl_if(dialect="sqlite"),
        Index("idx_messages_fresh", "enqueued_at", "id", sqlite_where=text("visible_at = enqueued_at")).ddl_if(
            dialect="sqlite"
        ),
        Index("idx_messages_again", "visible_at", "enqueued_at", sqlite_where=text("visible_at <> enqueued_at")).ddl_if(
            dialect="sqlite"
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BIG, primary_key=True, nullable=True)
    """Never reused."""
    payload_type: Mapped[str] = mapped_column(Text)
    """`json` or `text`."""
    payload_data: Mapped[str] = mapped_column(Text)
    """Serialized JSON, or the text itself."""
    enqueued_at: Mapped[int] = mapped_column(BIG)
    """Epoch milliseconds."""
    visible_at: Mapped[int] = mapped_column(BIG)
    """Epoch milliseconds; due when `<= now`."""
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Deliveries so far."""
    receipt_handle: Mapped[str | None] = mapped_column(Text)
    """UUID of the current delivery; NULL before the first."""


REDELIVERIES = Table(
    "redeliveries",
    QueueBase.metadata,
    Column("id", Integer, primary_key=True, nullable=True),
    Column("enqueued_at", UNTYPED),
    Index("idx_redeliveries", "enqueued_at", "id"),
)
"""What localqueue.v1.1 adds, for the receive alone: triggers write it."""

REDELIVERY_MARK = Table(
    "redelivery_mark",
    QueueBase.metadata,
    Column("id", Integer, primary_key=True, nullable=True),
    Column("visible_at", UNTYPED),
)
"""One row: as far as `redeliveries` goes."""
