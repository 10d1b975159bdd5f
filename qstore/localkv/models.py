"""The key-value store's tables as mapped classes, for `select()`. The repository does not write through them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, LargeBinary, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

__all__ = ["KvBase", "KvEntry", "KvMeta"]


# Keys are compared by their bytes, as SQLite compares them.
KEY: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")


class KvBase(DeclarativeBase):
    """The key-value store's own metadata."""


class KvMeta(KvBase):
    """The format marker: the row `('format', 'localkv.v1')`."""

    __tablename__ = "meta"

    key: Mapped[str] = mapped_column(KEY, primary_key=True, nullable=True)
    value: Mapped[str] = mapped_column(Text)


class KvEntry(KvBase):
    """A key with its value, live or expired and not yet deleted."""

    __tablename__ = "kv"

    key: Mapped[str] = mapped_column(KEY, primary_key=True, nullable=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)
    expires_at: Mapped[int | None] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"))
    """Epoch milliseconds; expired when `<= now`; NULL = never."""
