"""Queues on PostgreSQL that ours is held against: raw SKIP LOCKED, pgqueuer and procrastinate.

Each client has a connection of its own, and takes a message through: enqueue, dequeue, ack. Where several do, one may
find for a moment nothing that is not locked, and tries again.
"""

from __future__ import annotations

import asyncio
import warnings
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import URL

from tests import postgres
from tests.benchmarks.raw import EVENT

__all__ = ["Client", "PgQueuer", "Procrastinate", "Raw", "conninfo"]


def conninfo(url: URL) -> str:
    """What psycopg takes."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


class Client:
    """One of them, in use by one thread at a time."""

    def through(self, times: int) -> None:
        """Take so many messages through."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection."""


class Raw(Client):
    """No groups: any message that nobody has locked, in the order of their ids."""

    DDL = (
        """CREATE TABLE IF NOT EXISTS raw_messages (
          id BIGSERIAL PRIMARY KEY, event TEXT NOT NULL, locked_by TEXT, lock_expiry DOUBLE PRECISION)""",
        "CREATE INDEX IF NOT EXISTS raw_messages_free ON raw_messages (id) WHERE locked_by IS NULL",
    )
    TAKE = """
        UPDATE raw_messages SET locked_by = %s, lock_expiry = date_part('epoch', clock_timestamp()) + %s
         WHERE id = (SELECT id FROM raw_messages WHERE locked_by IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING id, event"""

    def __init__(self, url: URL) -> None:
        self._connection = postgres.connect(url)
        for statement in self.DDL:
            self._connection.execute(statement)

    def through(self, times: int) -> None:
        execute = self._connection.execute
        for _ in range(times):
            execute("INSERT INTO raw_messages (event) VALUES (%s) RETURNING id", (EVENT,)).fetchone()
            while (row := execute(self.TAKE, ("worker", 30)).fetchone()) is None:
                pass
            execute("DELETE FROM raw_messages WHERE id = %s", (row[0],))

    def close(self) -> None:
        self._connection.close()


class _Awaited(Client):
    """A client that is async: one hop into its event loop a round of measuring."""

    def __init__(self, url: URL) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(url))

    def through(self, times: int) -> None:
        self._runner.run(self._through(times))

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _open(self, url: URL) -> None:
        raise NotImplementedError

    async def _through(self, times: int) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError


class PgQueuer(_Awaited):
    """Its queries, without its manager's polling."""

    _connection: psycopg.AsyncConnection

    async def _open(self, url: URL) -> None:
        self._connection = await psycopg.AsyncConnection.connect(conninfo(url), autocommit=True)
        self._queries = import_module("pgqueuer.queries").Queries.from_psycopg_connection(self._connection)
        parameter = import_module("pgqueuer.ports.repository").EntrypointExecutionParameter
        self._entrypoints = {"entry": parameter(concurrency_limit=0)}
        self._manager = uuid4()
        if not await self._queries.schema_is_installed():
            await self._queries.install()

    async def _through(self, times: int) -> None:
        for _ in range(times):
            await self._queries.enqueue("entry", EVENT.encode())
            while not (taken := await self._dequeue()):
                pass
            await self._queries.log_jobs([(taken[0], "successful", None)])

    async def _dequeue(self) -> list[Any]:
        taken: list[Any] = await self._queries.dequeue(1, self._entrypoints, self._manager, None, timedelta(seconds=30))
        return taken

    async def _close(self) -> None:
        await self._connection.close()


class Procrastinate(_Awaited):
    """Its manager, without its worker's polling; what is done is deleted."""

    async def _open(self, url: URL) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports
            module = import_module("procrastinate")
        self._jobs = import_module("procrastinate.jobs")
        connector = module.PsycopgConnector(conninfo=conninfo(url), min_size=1, max_size=1)
        self._app = module.App(connector=connector)
        await self._app.open_async()
        if not await self._app.job_manager.check_connection_async():
            await self._app.schema_manager.apply_schema_async()
        self._worker = await self._app.job_manager.register_worker()

    async def _through(self, times: int) -> None:
        manager = self._app.job_manager
        new = self._jobs.Job(queue="queue", lock=None, queueing_lock=None, task_name="t", task_kwargs={"event": EVENT})
        for _ in range(times):
            await manager.defer_job_async(new)
            while (taken := await manager.fetch_job(["queue"], self._worker)) is None:
                pass
            await manager.finish_job(taken, self._jobs.Status.SUCCEEDED, delete_job=True)

    async def _close(self) -> None:
        await self._app.close_async()
