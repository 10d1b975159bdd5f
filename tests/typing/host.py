"""A host with models, events and the stores mounted."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from qstore import mount


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"

    name: Mapped[str] = mapped_column(primary_key=True)


class Order(BaseModel):
    number: int


class Cancelled(BaseModel):
    reason: str


STORES = mount(Base)
