"""The shop's HTTP side, awaited: `uvicorn shop.async_api:app`, instead of `shop.api` or at the same time."""

from __future__ import annotations

from uuid import uuid4

from fastapi import HTTPException, status

from qstore import async_write_session
from shop.answers import ClientsId, NewOrder, OrderShown, new_app
from shop.database import AsyncSession
from shop.models import Order, OrderPlaced, stores

__all__ = ["app"]

app = new_app()


@app.post("/orders", status_code=status.HTTP_201_CREATED)
async def place_order(new: NewOrder, clients_id: ClientsId = None) -> OrderShown:
    """Write an order and publish that it was placed: both or neither. Repeated with the same key, it is one order."""
    order_id = clients_id or uuid4().hex
    async with async_write_session(AsyncSession) as session:  # it reads before it writes: the write lock comes first
        order = await session.get(Order, order_id)
        if order is None:
            order = Order(id=order_id, customer=new.customer, cents=new.cents)
            session.add(order)
            transport = stores.transport(session, event_type=OrderPlaced)
            await transport.publish(order.customer, OrderPlaced(order_id=order.id, cents=order.cents))
        elif (order.customer, order.cents) != (new.customer, new.cents):
            raise HTTPException(status.HTTP_409_CONFLICT, f"order {order_id} was placed with another content")
        return OrderShown.of(order)


@app.get("/orders/{order_id}")
async def show_order(order_id: str) -> OrderShown:
    """Show an order, and whether it was charged."""
    async with AsyncSession() as session:
        order = await session.get(Order, order_id)
        if order is None:
            raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no order {order_id}")
        return OrderShown.of(order)
