"""A program that is stopped at one statement and waits there to be killed: `python -m tests.integration.killed`.

Arguments: store, path, what to do, and the beginning of the statement. Statements before it have run, it has not.
With `-` for the statement it stops after all is done.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from typing import Any

from qstore import Event, LocalQueueRepository, TransportRepository, open_engine
from tests.integration.situations import on_each_connection


def main(store: str, path: str, act: str, statement: str) -> None:
    """Do it, and stop."""

    def stop(*_: object) -> None:
        print("ready", flush=True)
        time.sleep(60)

    def trace(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(lambda sql: stop() if sql.startswith(statement) else None)

    engine = open_engine(path)
    repository: Any = (TransportRepository if store == "transport" else LocalQueueRepository)(engine)
    on_each_connection(engine, trace)
    if act == "publish":
        repository.publish("g", Event(kind="late"))
    elif act == "claim":
        repository.claim("killed", 30)
    elif act == "receive":
        repository.receive(10, visibility_timeout=30)
    elif act == "send_many":
        repository.send_many(["a", "b"])
    elif act == "ack":
        repository.ack(repository.claim("killed", 30))
    stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
