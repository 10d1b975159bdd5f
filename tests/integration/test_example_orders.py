"""The host in `examples/orders`, as it is deployed: a server and a worker, each a process of its own that may die."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from itertools import count, cycle
from pathlib import Path
from threading import Event
from typing import Any, Self

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, MetaData, create_engine, select, text

from qstore import Lease
from qstore.mounting import mount
from qstore.session import write_session
from tests.integration.situations import ROOT

EXAMPLE = Path(ROOT) / "examples" / "orders"
SERVERS = ("shop.api:app", "shop.async_api:app")
KILLS = 20
CLIENTS = 3
ORDERS = 20
"""At least, between two kills of the server."""
DEADLINE = 60


class OrderPlaced(BaseModel):
    order_id: str
    cents: int


class Shop:
    """The shop's database and processes. The socket is the test's own, so that it outlives every server."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "shop.sqlite"
        self.log = directory / "log"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.closed = Event()
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.run("shop.migrate")
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        for process in self.processes:
            self.kill(process)
        self.listener.close()

    def run(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            subprocess.run(**self._process(arguments), stderr=log, check=True, timeout=DEADLINE)

    def start_server(self, app: str) -> subprocess.Popen[bytes]:
        return self._start("uvicorn", app, "--fd", str(self.listener.fileno()), "--log-level", "warning")

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self._start("shop.worker", "--visibility", "0.5")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(DEADLINE)

    def rows(self, query: str, wait: float = 5) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=wait)) as connection:
            return connection.execute(query).fetchall()

    def count(self, table: str, wait: float = 5) -> int:
        [(counted,)] = self.rows(f"SELECT count(*) FROM {table}", wait)
        return int(counted)

    def drained(self) -> bool:
        return self.count("qstore_transport_messages") == 0

    def client(self) -> HTTPConnection:
        host, port = self.listener.getsockname()
        return HTTPConnection(host, port, timeout=DEADLINE)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(**self._process(arguments), stderr=log, pass_fds=[self.listener.fileno()])
        self.processes.append(process)
        return process

    def _process(self, arguments: tuple[str, ...]) -> dict[str, Any]:
        environment = os.environ | {"SHOP_DATABASE": str(self.path)}
        return {"args": [sys.executable, "-m", *arguments], "cwd": EXAMPLE, "env": environment}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Shop(tmp_path) as shop:
        yield shop


@pytest.fixture
def engine(shop: Shop) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{shop.path}")
    yield engine
    engine.dispose()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _ask(client: HTTPConnection, method: str, path: str, body: object = None, key: str = "") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    client.request(method, path, json.dumps(body), headers)
    with client.getresponse() as response:
        return response.status, json.load(response)


class Customer:
    """A client that places one order after the other, and repeats a request until it is answered."""

    def __init__(self, shop: Shop, name: str) -> None:
        self.shop = shop
        self.name = name
        self.placed: list[str] = []
        self.cut = 0
        self.waits = False

    def shops(self, enough: Event) -> None:
        with closing(self.shop.client()) as client:
            for n in count():
                if enough.is_set():
                    return
                order_id = f"{self.name}-{n}"
                order = {"customer": f"{self.name}-{n % 2}", "cents": n + 1}
                assert self.answer(client, "POST", "/orders", order, order_id)["id"] == order_id
                self.placed.append(order_id)
                if n % 5 == 4:
                    assert self.answer(client, "POST", "/orders", order, order_id)["id"] == order_id
                while n % 30 == 29 and not self.answer(client, "GET", f"/orders/{order_id}")["charged"]:
                    time.sleep(0.01)

    def answer(self, client: HTTPConnection, method: str, path: str, body: object = None, key: str = "") -> Any:
        while not self.shop.closed.is_set():
            self.waits = method == "POST"
            try:
                status, answer = _ask(client, method, path, body, key)
            except (OSError, HTTPException):
                client.close()
                self.cut += 1
                continue
            finally:
                self.waits = False
            if status != 503:
                assert status == (201 if method == "POST" else 200), answer
                return answer
        raise AssertionError("the shop closed before it answered")


def _kill_in_mid_work(shop: Shop, process: subprocess.Popen[bytes], at_work: Callable[[], bool]) -> None:
    """Stop the process, look whether it is at work, and kill it then, or else let it go on until it is."""

    def killed() -> bool:
        assert process.poll() is None, shop.log.read_text()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        with suppress(sqlite3.OperationalError):  # it was stopped while it held a lock that readers need
            if at_work():
                shop.kill(process)
                return True
        process.send_signal(signal.SIGCONT)
        return False

    _until(killed)


def _kill_server(shop: Shop, server: subprocess.Popen[bytes], customers: dict[Customer, Future[None]]) -> None:
    """Kill the server after it has taken some orders, and while it has one that it has not answered."""
    goal = shop.count("orders") + ORDERS

    def at_work() -> bool:
        for shopping in customers.values():
            if shopping.done():
                shopping.result()  # it failed, and this raises why
        time.sleep(0.003)  # an answer that was sent before the stop arrives
        return shop.count("orders", wait=0) >= goal and any(customer.waits for customer in customers)

    _kill_in_mid_work(shop, server, at_work)


def _kill_worker(shop: Shop, worker: subprocess.Popen[bytes]) -> None:
    """Kill the worker while it holds a message."""
    held = f"SELECT seq FROM qstore_transport_messages WHERE locked_by LIKE '%-{worker.pid}'"
    _kill_in_mid_work(shop, worker, lambda: bool(shop.rows(held, wait=0)))


def test_orders_are_charged_exactly_once_however_often_the_server_and_the_worker_are_killed(tmp_path: Path) -> None:
    enough, servers = Event(), cycle(SERVERS)
    with ThreadPoolExecutor(CLIENTS) as threads, Shop(tmp_path) as shop:
        server, worker = shop.start_server(next(servers)), shop.start_worker()
        new = [Customer(shop, f"customer-{n}") for n in range(CLIENTS)]
        customers = {each: threads.submit(each.shops, enough) for each in new}
        for _ in range(KILLS // 2):
            _kill_server(shop, server, customers)
            server = shop.start_server(next(servers))
            _kill_worker(shop, worker)
            worker = shop.start_worker()
        enough.set()
        for shopping in customers.values():
            shopping.result(DEADLINE)
        _until(shop.drained)

    assert sum(customer.cut for customer in customers) >= KILLS // 2
    orders = shop.rows("SELECT id, cents FROM orders ORDER BY id")
    assert [order_id for order_id, _ in orders] == sorted(each for customer in customers for each in customer.placed)
    assert shop.rows("SELECT order_id, cents FROM charges ORDER BY order_id") == orders
    assert shop.rows("SELECT key FROM qstore_localkv_kv ORDER BY key") == [(f"charge:{each}",) for each, _ in orders]
    assert shop.rows("SELECT seq FROM sqlite_sequence WHERE name = 'qstore_transport_messages'") == [(len(orders),)]
    assert shop.count("qstore_transport_groups") == 0
    assert shop.rows("PRAGMA integrity_check") == [("ok",)]
    assert shop.rows("PRAGMA foreign_key_check") == []
    in_order = "SELECT customer, orders.rowid FROM charges JOIN orders ON orders.id = order_id ORDER BY customer, "
    assert shop.rows(in_order + "charges.id") == shop.rows(in_order + "orders.rowid")


def test_a_worker_that_has_lost_its_lease_charges_nothing(shop: Shop, engine: Engine) -> None:
    stores = mount(MetaData())
    placed = count()
    taken: list[tuple[Lease[OrderPlaced], str]] = []

    def took_one() -> bool:
        """Take a message from the worker that has claimed it and not charged it yet. Give it more while it has none."""
        with write_session(engine) as session:
            transport = stores.transport(session, event_type=OrderPlaced, clock=lambda: time.time() + 3600)
            held = select(stores.TransportMessage.seq).where(stores.TransportMessage.locked_by.is_not(None))
            if session.scalar(held) is not None:
                lease = transport.claim("another", 1)
                assert lease is not None
                taken.append((lease, lease.event.order_id))
                return True
            for order_id, _ in zip(map("order-{}".format, placed), range(20), strict=False):
                session.execute(text("INSERT INTO orders VALUES (:id, 'ada', 1)"), {"id": order_id})
                transport.publish("ada", OrderPlaced(order_id=order_id, cents=1))
        return False

    shop.start_worker()
    _until(took_one)
    [(lease, order_id)] = taken
    _until(lambda: "left to another worker" in shop.log.read_text())
    assert shop.rows(f"SELECT * FROM charges WHERE order_id = '{order_id}'") == []
    assert shop.rows(f"SELECT * FROM qstore_localkv_kv WHERE key = 'charge:{order_id}'") == []
    stores.transport(engine, event_type=OrderPlaced).nack(lease)
    _until(shop.drained)
    assert shop.rows("SELECT order_id FROM charges ORDER BY 1") == shop.rows("SELECT id FROM orders ORDER BY 1")


@pytest.mark.parametrize("server", SERVERS)
def test_an_order_is_placed_with_its_event_or_not_at_all(shop: Shop, server: str) -> None:
    shop.start_server(server)
    ada = {"customer": "ada", "cents": 4000}
    with closing(shop.client()) as client:
        first = _ask(client, "POST", "/orders", ada, "order-17")
        assert first == (201, {"id": "order-17", **ada, "charged": False})
        assert _ask(client, "POST", "/orders", ada, "order-17") == first
        assert _ask(client, "POST", "/orders", {**ada, "cents": 1}, "order-17")[0] == 409
        assert _ask(client, "POST", "/orders", {**ada, "customer": "a\0da"}, "order-18")[0] == 422
        assert _ask(client, "POST", "/orders", ada, "no key:")[0] == 422
        status, second = _ask(client, "POST", "/orders", ada)
        assert status == 201
        assert _ask(client, "GET", f"/orders/{second['id']}") == (200, second)
        assert _ask(client, "GET", "/orders/order-18")[0] == 404
    assert shop.rows("SELECT id FROM orders ORDER BY rowid") == [("order-17",), (second["id"],)]
    published = "SELECT group_id, json_extract(event, '$.order_id') FROM qstore_transport_messages ORDER BY seq"
    assert shop.rows(published) == [("ada", "order-17"), ("ada", second["id"])]


def test_two_chains_of_migrations_leave_each_other_alone(shop: Shop) -> None:
    there = shop.rows("SELECT name, sql FROM sqlite_master ORDER BY name")
    shop.run("alembic", "check")
    shop.run("shop.migrate")
    shop.run("alembic", "downgrade", "base")
    remaining = "SELECT name FROM sqlite_master WHERE name NOT LIKE 'qstore%' AND name NOT LIKE 'sqlite%'"
    assert shop.rows(remaining) == [("alembic_version",)]
    assert shop.rows("SELECT version_num FROM alembic_version") == []
    assert len(shop.rows("SELECT version_num FROM qstore_alembic_version")) == 3
    shop.run("alembic", "upgrade", "head")  # after qstore's
    assert shop.rows("SELECT name, sql FROM sqlite_master ORDER BY name") == there
