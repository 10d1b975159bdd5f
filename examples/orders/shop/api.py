"""The shop's HTTP side: `uvicorn shop.api:app`."""

from __future__ import annotations

from typing import Annotated, Self
from uuid import uuid4

from fastapi import FastAPI, Header, HTTPException, Request, status
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from qstore import InvalidInput, StoreBusy, write_session
from shop.database import Session
from shop.models import Order, OrderPlaced, stores

__all__ = ["app"]

app = FastAPI(title="Shop")

ClientsId = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class NewOrder(BaseModel):
    """What a client posts."""

    customer: str = Field(min_length=1, max_length=100)
    cents: int = Field(gt=0, le=100_000_000)


class OrderShown(NewOrder):
    """What a client gets."""

    id: str
    charged: bool

    @classmethod
    def of(cls, order: Order) -> Self:
        """Show an order."""
        return cls(id=order.id, customer=order.customer, cents=order.cents, charged=bool(order.charges))


@app.post("/orders", status_code=status.HTTP_201_CREATED)
def place_order(new: NewOrder, clients_id: ClientsId = None) -> OrderShown:
    """Write an order and publish that it was placed: both or neither. Repeated with the same key, it is one order."""
    order_id = clients_id or uuid4().hex
    with write_session(Session) as session:  # it reads before it writes, so it takes the write lock first
        order = session.get(Order, order_id)
        if order is None:
            order = Order(id=order_id, customer=new.customer, cents=new.cents)
            session.add(order)
            transport = stores.transport(session, event_type=OrderPlaced)
            transport.publish(order.customer, OrderPlaced(order_id=order.id, cents=order.cents))
        elif (order.customer, order.cents) != (new.customer, new.cents):
            raise HTTPException(status.HTTP_409_CONFLICT, f"order {order_id} was placed with another content")
        return OrderShown.of(order)


@app.get("/orders/{order_id}")
def show_order(order_id: str) -> OrderShown:
    """Show an order, and whether it was charged."""
    with Session() as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no order {order_id}")
        return OrderShown.of(order)


@app.exception_handler(StoreBusy)
def answer_busy(_request: Request, _error: Exception) -> JSONResponse:
    """Nothing was changed: the client may repeat the request."""
    return JSONResponse({"detail": "busy"}, status.HTTP_503_SERVICE_UNAVAILABLE, {"Retry-After": "1"})


@app.exception_handler(InvalidInput)
def answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    """What no store takes (a NUL in a customer's name) is the client's to correct."""
    return JSONResponse({"detail": str(error)}, 422)
