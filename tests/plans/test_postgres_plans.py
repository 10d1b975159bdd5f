"""On a server no hot statement reads more than it needs at 100,000 rows, whenever its plan was made. Issue 5."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from qstore.localkv import postgresql as kv
from qstore.localqueue import postgresql as queue
from qstore.localqueue.statements import ACK as QUEUE_ACK
from qstore.statement import Statement
from qstore.transport import statements_postgresql as transport
from tests import postgres
from tests.backends import MOUNTED

ROWS = 100_000
BATCH = 1000
"""The most rows that any part of a statement may take: what a claim or a receive looks through of what has lapsed."""
JIT_ABOVE = 100_000
"""The server's default for jit_above_cost: a plan above it is compiled, which takes longer than all else."""

FILL = {
    "transport": """
INSERT INTO {groups} (group_id, last_claimed_at, priority, head, tail, ready)
  SELECT 'ready ' || i, 0, i % 5, i, i, true FROM generate_series(ROWS + 1, 2 * ROWS) AS i;
INSERT INTO {groups} (group_id, last_claimed_at, priority, head, tail, holder, until, ready)
  SELECT 'parked ' || i, 0, i % 5, i, i, '__parked__', 1e11 + i, false FROM generate_series(1, ROWS) AS i;
INSERT INTO {messages} (seq, group_id, event, locked_by, lock_expiry)
  SELECT head, group_id, '{{}}', holder, until FROM {groups};
UPDATE {groups} SET ready = false, holder = 'w', until = 1e11 WHERE group_id = 'ready ' || ROWS + 7;
UPDATE {messages} SET locked_by = 'w', lock_expiry = 1e11 WHERE group_id = 'ready ' || ROWS + 7;
SELECT setval(pg_get_serial_sequence('{messages}', 'seq'), 2 * ROWS)""",
    "localqueue": """
INSERT INTO {messages} (payload_type, payload_data, enqueued_at, visible_at, attempt, receipt_handle, ready)
  SELECT 'text', 'p', i, 99999999999999, 1, 'r' || i, false FROM generate_series(1, ROWS) AS i;
INSERT INTO {messages} (payload_type, payload_data, enqueued_at, visible_at)
  SELECT 'text', 'p', i, i FROM generate_series(ROWS + 1, 2 * ROWS) AS i""",
    "localkv": """
INSERT INTO {kv} SELECT 'key ' || lpad(i::text, 7, '0'), 'v', CASE WHEN i % 10 = 0 THEN 9999999999999 END
  FROM generate_series(1, ROWS) AS i""",
}

LEASE = {"group_id": f"ready {ROWS + 7}", "seq": ROWS + 7, "worker_id": "w", "lock_expiry": 1e11}
CLAIM = {"worker_id": "w", "visibility": 30.0}
HOT: dict[str, tuple[str, Statement, dict[str, Any]]] = {
    "claim": ("transport", transport.CLAIM, CLAIM),
    "claim with a floor": ("transport", transport.CLAIM_FLOOR, CLAIM | {"min_priority": 3, "anyway": False}),
    "claim what has lapsed": ("transport", transport.CLAIM_FLOOR, CLAIM | {"min_priority": 0, "anyway": True}),
    "tidy": ("transport", transport.TIDY, {}),
    "tidy one group": ("transport", transport.TIDY, {}),
    "tidy one stamp": ("transport", transport.TIDY, {}),
    "settle one stamp": ("transport", transport.SETTLE_STAMPS, {}),
    "lock two groups": ("transport", transport.LOCK_GROUPS, {"group_ids": ["new", "parked 9"], "priorities": [0, 0]}),
    "publish to two": ("transport", transport.PUBLISH_ALL, {"group_ids": ["parked 8", "parked 9"], "events": ["", ""]}),
    "publish to a new group": ("transport", transport.PUBLISH, {"group_id": "new", "event": "{}", "priority": 0}),
    "publish to a group": ("transport", transport.PUBLISH, {"group_id": "parked 9", "event": "{}", "priority": 0}),
    "ack": ("transport", transport.ACK, LEASE),
    "nack": ("transport", transport.RELOCK, LEASE | {"new_holder": None, "hold": None}),
    "extend": ("transport", transport.RELOCK, LEASE | {"new_holder": "w", "hold": 30.0}),
    "holder": ("transport", transport.HOLDER, {"seq": 7}),
    "receive 1": ("localqueue", queue.RECEIVE, {"max_messages": 1, "visibility_timeout": 30_000}),
    "receive 10": ("localqueue", queue.RECEIVE, {"max_messages": 10, "visibility_timeout": 30_000}),
    "tidy the queue": ("localqueue", queue.TIDY, {}),
    "tidy one message": ("localqueue", queue.TIDY, {}),
    "receive what has lapsed": ("localqueue", queue.RECEIVE_LAPSED, {"max_messages": 1, "visibility_timeout": 30_000}),
    "lock a message": ("localqueue", queue.LOCK, {"id": 7}),
    "send two": ("localqueue", queue.SEND_MANY, {"payload_types": ["text", "text"], "payload_datas": ["p", "q"]}),
    "ack of the queue": ("localqueue", QUEUE_ACK, {"id": 7, "receipt": "r7"}),
    "nack of the queue": ("localqueue", queue.NACK, {"id": 7, "receipt": "r7"}),
    "send": ("localqueue", queue.SEND, {"payload_type": "text", "payload_data": "p"}),
    "get": ("localkv", kv.GET, {"key": "key 0050000"}),
    "put": ("localkv", kv.PUT, {"key": "key 0050000", "value": b"v", "ttl": 5}),
    "put if absent": ("localkv", kv.PUT_IF_ABSENT, {"key": "key 0050010", "value": b"v", "ttl": None}),
    "put two": ("localkv", kv.PUT_MANY, {"keys": ["key 0050000", "new"], "values": [b"v", b"w"], "ttl": 5}),
    "delete expired": ("localkv", kv.DELETE_EXPIRED, {"key": "key 0050000"}),
    "scan a page": ("localkv", kv.SCAN, {"prefix": "key 00", "end": "key 01", "offset": 0, "limit": 20}),
    "scan a rare prefix": ("localkv", kv.SCAN, {"prefix": "key 00500", "end": "key 00501", "offset": 0, "limit": 500}),
    "scan everything": ("localkv", kv.SCAN, {"prefix": "", "end": kv.NO_END, "offset": 0, "limit": 20}),
    "scan by key": ("localkv", kv.SCAN_AFTER, {"after": "key 0050000", "end": "l", "limit": 20}),
}


STAMP_AHEAD = f"UPDATE {{groups}} SET last_claimed_at = 1e11 WHERE group_id = 'ready {ROWS + 9}'"
LAPSED = {
    "tidy one group": "UPDATE {groups} SET until = 1 WHERE group_id = 'parked 5'",
    "tidy one stamp": STAMP_AHEAD,
    "settle one stamp": STAMP_AHEAD,
    "tidy one message": "UPDATE {messages} SET visible_at = 1 WHERE id = 5",
}
"""What happens before some of them."""


@pytest.fixture(scope="module", params=["kept since the tables were empty", "kept since they had 50 rows", "made now"])
def filled(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """All stores with 100,000 rows that may be had, and 100,000 in front of them that may not.

    Each statement is prepared as the drivers do it, and has the plan that the server keeps after a dozen executions.
    """
    url = postgres.database()
    with postgres.connect(url) as connection:
        connection.execute("SET synchronous_commit = off")
        for store, tables in {
            "transport": ("messages", "groups"),
            "localqueue": ("messages",),
            "localkv": ("kv",),
        }.items():
            for table in tables:
                name = MOUNTED.of(store)[table]
                connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)".encode())
        if request.param == "made now":
            fill(connection, ROWS)
            connection.execute("ANALYZE")
        elif request.param == "kept since they had 50 rows":
            fill(connection, 25)
        for number, (store, statement, binds) in enumerate(HOT.values()):
            prepare(connection, f"statement_{number}", store, statement, binds)
        if request.param != "made now":
            for table in ("{groups}", "{messages}"):
                connection.execute(MOUNTED.of("transport").render(f"DELETE FROM {table}").encode())
            connection.execute(MOUNTED.of("localqueue").render("DELETE FROM {messages}").encode())
            connection.execute(MOUNTED.of("localkv").render("DELETE FROM {kv}").encode())
            fill(connection, ROWS)
        yield connection


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    for store, statements in FILL.items():
        for statement in MOUNTED.of(store).render(statements).replace("ROWS", str(rows)).split(";"):
            connection.execute(statement.encode())


def prepare(connection: psycopg.Connection[Any], name: str, store: str, statement: Statement, binds: Any) -> None:
    text = re.sub(r"(?<!:):([a-z_]+)", lambda found: f"${_order(statement).index(found[1]) + 1}", statement._text)
    connection.execute(f"PREPARE {name} AS {MOUNTED.of(store).render(text)}".encode())
    for _ in range(12):
        with connection.transaction(force_rollback=True):
            connection.execute(_execution(name, statement, binds))


def explained(
    connection: psycopg.Connection[Any], name: str, statement: Statement, binds: Any, before: str = ""
) -> Any:
    """The plan of a statement that is prepared, run and undone."""
    with connection.transaction(force_rollback=True):
        connection.execute(before.encode())
        row = connection.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + _execution(name, statement, binds)).fetchone()
    assert row is not None
    return row[0][0]["Plan"]


def explained_hot(connection: psycopg.Connection[Any], name: str) -> Any:
    store, statement, binds = HOT[name]
    before = MOUNTED.of(store).render(LAPSED.get(name, ""))
    return explained(connection, f"statement_{[*HOT].index(name)}", statement, binds, before)


def _execution(name: str, statement: Statement, binds: dict[str, Any]) -> bytes:
    values = ", ".join(_literal(binds.get(each)) for each in _order(statement))
    return (f"EXECUTE {name} ({values})" if values else f"EXECUTE {name}").encode()


def _order(statement: Statement) -> list[str]:
    return list(dict.fromkeys(re.findall(r"(?<!:):([a-z_]+)", statement._text)))


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    if isinstance(value, list):
        parts = (rf"\\x{each.hex()}" if isinstance(each, bytes) else str(each) for each in value)
        return "'{" + ", ".join(f'"{each}"' for each in parts) + "}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def described(node: dict[str, Any]) -> str:
    where = node.get("Index Name") or node.get("Relation Name") or node.get("CTE Name") or ""
    return f"{node['Node Type']} {where} took {node['Actual Rows']} rows {node['Actual Loops']} times"


def too_much(plan: dict[str, Any]) -> list[str]:
    """The parts of a plan that took, or took and threw away, more rows than a batch."""
    return [
        described(node)
        for node in nodes(plan)
        if (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] > BATCH
    ]


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_reads_and_sorts_no_more_than_a_batch_of_the_rows(
    filled: psycopg.Connection[Any], name: str
) -> None:
    assert too_much(explained_hot(filled, name)) == []


@pytest.mark.parametrize("name", ["claim", "claim with a floor", "publish to a group", "ack", "receive 10", "get"])
def test_a_hot_statements_plan_is_too_cheap_to_be_compiled(filled: psycopg.Connection[Any], name: str) -> None:
    assert explained_hot(filled, name)["Total Cost"] < JIT_ABOVE


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("claim", "ORDER BY g.last_claimed_at, g.head", "ORDER BY g.head"),
        ("receive 10", "m.ready AND", "m.attempt = 0 AND"),
        ("get", "WHERE key =", "WHERE upper(key) ="),
    ],
)
def test_a_statement_that_reads_everything_is_caught(
    filled: psycopg.Connection[Any], name: str, right: str, wrong: str
) -> None:
    store, statement, binds = HOT[name]
    assert right in statement._text
    broken = Statement(statement._text.replace(right, wrong))
    prepare(filled, "broken", store, broken, binds)
    found = too_much(explained(filled, "broken", broken, binds))
    filled.execute("DEALLOCATE broken")
    assert found != []
