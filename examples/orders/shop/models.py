"""The shop's tables, with qstore's beside them, and the event that an order causes."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from qstore import mount

__all__ = ["Base", "Charge", "Order", "OrderPlaced", "stores"]


class Base(DeclarativeBase):
    """The shop's models."""


class Order(Base):
    """What a customer asked for. Its id is the client's, so that the same request twice is one order."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    charges: Mapped[list[Charge]] = relationship(order_by="Charge.id", lazy="selectin")


class Charge(Base):
    """What a customer was charged. No constraint keeps an order from being charged twice: the worker does."""

    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey(Order.id), index=True)
    cents: Mapped[int]


class OrderPlaced(BaseModel):
    """The event. Its group is the customer, whose orders are charged one after the other."""

    order_id: str
    cents: int


stores = mount(Base)
