"""Stores that hold something of every state, and views of them, on each kind of place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from qstore import Event, View, open_view
from tests.backends import BACKENDS, CHOSEN, Backend, ManualClock, backend_of

PLACES = tuple(kind for kind in CHOSEN if kind in ("opened", "opened, v1", "host", "session", "postgres"))
"""A data directory at the newest revision and at the first, a host's Engine and Session, and a server's URL."""

NOW = ManualClock().now


@contextmanager
def view_of(kind: str, backend: Backend, clock: ManualClock | None = None) -> Iterator[View]:
    """A view as somebody would open it who has this."""
    closing: list[Callable[[], None]] = []
    target: Any = backend.directory
    if kind in ("host", "session"):
        engine = create_engine(f"sqlite:///{backend.path('transport')}")
        closing.append(engine.dispose)
        target = engine
        if kind == "session":
            target = Session(engine)
            closing.append(target.close)
    elif kind == "postgres":
        target = backend.url  # type: ignore[attr-defined]  # a server's has one
    try:
        with open_view(target, clock=clock) as view:
            yield view
    finally:
        for close in reversed(closing):
            close()


@contextmanager
def filled(kind: str, directory: Path, clock: ManualClock) -> Iterator[Backend]:
    """A transport, a queue and a key-value store with a row in every state that the stores themselves can make."""
    with backend_of(kind, directory) as backend:
        fill(backend, clock)
        yield backend


def fill(backend: Backend, clock: ManualClock) -> None:
    transport = backend.transport(clock=clock)
    for group, priority in (("held", 0), ("parked", 0), ("lapsed", 0), ("ready", 3)):
        transport.publish(group, Event(kind="first", data={"total": 40}), priority)
        transport.publish(group, Event(kind="second", data={"to": {"city": "Ulm"}}))
    transport.claim("worker-1", 60)
    parked = transport.claim("worker-2", 60)
    assert parked is not None
    transport.nack(parked, delay=600)
    transport.claim("worker-3", 1)
    queue = backend.localqueue(clock=clock)
    queue.send_many([{"n": 1}, {"n": 2}, "a text", {"n": 4, "deep": {"yes": True}}])
    queue.receive(1, visibility_timeout=60)
    queue.receive(1, visibility_timeout=1)
    kv = backend.localkv(clock=clock)
    kv.put("user:1", b'{"name": "Ada"}')
    kv.put("user:2", b"\xff", ttl=100)
    kv.put("zone", b"x", ttl=1)
    clock.advance(10)


assert set(PLACES) <= set(BACKENDS)
