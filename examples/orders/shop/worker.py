"""The worker that charges placed orders, each exactly once: `python -m shop.worker`. Any number may run."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from qstore import Lease, StaleLease, StoreBusy
from shop.database import Session
from shop.models import Charge, OrderPlaced, stores

__all__ = ["charge_next"]

T = TypeVar("T")

IDLE = 0.1
"""Seconds between two looks for work while there is none."""

logger = logging.getLogger("shop.worker")


def charge_next(worker: str, visibility: float) -> bool:
    """Charge the next order, if there is one. A worker that dies here leaves it to the next, after `visibility`."""
    lease = _repeated(lambda: claim(worker, visibility))
    if lease is None:
        return False
    try:
        _repeated(lambda: charge(lease))
    except StaleLease as error:  # the transaction was rolled back, so nothing was charged here
        logger.warning("left to another worker: %s", error)
    return True


def claim(worker: str, visibility: float) -> Lease[OrderPlaced] | None:
    """Take the next event, in a short transaction: the write lock is not held while the payment is made."""
    with Session.begin() as session:
        return stores.transport(session, event_type=OrderPlaced).claim(worker, visibility)


def charge(lease: Lease[OrderPlaced]) -> None:
    """Charge an order and settle its event, in one transaction: all of it happens, and once, or nothing does."""
    event = lease.event
    with Session.begin() as session:
        if stores.localkv(session).put(f"charge:{event.order_id}", b"%d" % lease.seq, if_not_exists=True):
            session.add(Charge(order_id=event.order_id, cents=event.cents))
        stores.transport(session, event_type=OrderPlaced).ack(lease)
    logger.info("charged order %s: %d cents", event.order_id, event.cents)


def _repeated(transaction: Callable[[], T]) -> T:
    while True:
        with suppress(StoreBusy):  # it has waited for the write lock already, and changed nothing
            return transaction()


def main() -> None:
    """Charge orders until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m shop.worker", description="Charge placed orders.")
    parser.add_argument("--visibility", type=float, default=30, help="seconds until a dead worker's order is taken up")
    visibility: float = parser.parse_args().visibility
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    worker = f"{socket.gethostname()}-{os.getpid()}"
    with suppress(KeyboardInterrupt):
        while True:
            if not charge_next(worker, visibility):
                time.sleep(IDLE)


if __name__ == "__main__":
    main()
