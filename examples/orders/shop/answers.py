"""What clients of the shop send, and what they are answered."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import FastAPI, Header, Request, status
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from qstore import InvalidInput, StoreBusy
from shop.models import Order

__all__ = ["ClientsId", "NewOrder", "OrderShown", "new_app"]

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


def new_app() -> FastAPI:
    """An application that answers what the stores refuse."""
    app = FastAPI(title="Shop")
    app.add_exception_handler(StoreBusy, _busy)
    app.add_exception_handler(InvalidInput, _invalid)
    return app


async def _busy(_request: Request, _error: Exception) -> JSONResponse:
    """Nothing was changed: the client may repeat the request."""
    return JSONResponse({"detail": "busy"}, status.HTTP_503_SERVICE_UNAVAILABLE, {"Retry-After": "1"})


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """What no store takes (a NUL in a customer's name) is the client's to correct."""
    return JSONResponse({"detail": str(error)}, 422)
