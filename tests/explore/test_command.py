"""`qstore`: each command on a data directory, as a session in a shell has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from qstore import Event, LocalKvRepository, LocalQueueRepository, Naming, TransportRepository, migrate
from tests import postgres
from tests.backends import Backend, ManualClock
from tests.command import lines, qstore, refused
from tests.explore.looking import fill


def test_messages_are_sent_received_and_acked(tmp_path: Path) -> None:
    assert lines("send", "data/", "first", "--create", cwd=tmp_path) == [{"id": 1}]
    assert lines("send", "data", '{"n": 2}', "--as-json", cwd=tmp_path) == [{"id": 2}]
    assert qstore("send", "data", "-", cwd=tmp_path, given="from stdin").stdout == "3\n"
    first, second = lines("receive", "data", "-n", 2, "--visibility", 60, cwd=tmp_path)
    assert (first["payload"], first["attempt"], second["payload"]) == ("first", 1, {"n": 2})
    lines("ack", "data", first["receipt_handle"], second["receipt_handle"], cwd=tmp_path)
    assert qstore("receive", "data", "--ack", cwd=tmp_path).stdout.endswith("\tfrom stdin\n")
    assert lines("receive", "data", cwd=tmp_path, code=1) == []
    assert lines("stats", "data", cwd=tmp_path)[0][0]["rows"] == 0


def test_a_message_is_published_with_its_event_and_shown_by_peek_and_explain(tmp_path: Path) -> None:
    file = "transport.sqlite"
    event = '{"kind": "placed", "data": {"total": 40}}'
    assert lines("publish", file, "order-17", event, "--priority", 2, "--create", cwd=tmp_path) == [{"seq": 1}]
    [row] = lines("peek", file, cwd=tmp_path)
    assert (row["group_id"], row["state"], json.loads(row["event"])["data"]) == ("order-17", "ready", {"total": 40})
    [group] = lines("peek", file, "groups", cwd=tmp_path)
    assert (group["priority"], group["messages"]) == (2, 1)
    assert "is next in rotation" in qstore("explain", file, "order-17", cwd=tmp_path).stdout
    [found] = lines("explain", file, "--seq", 1, "--min-priority", 3, cwd=tmp_path)
    assert found["state"] == "below the floor"
    assert lines("explain", file, "nobody", cwd=tmp_path, code=1)[0]["state"] == "absent"
    with TransportRepository.open(tmp_path / file) as transport:
        lease = transport.claim("w", 60)
        assert lease is not None
        assert lease.event.kind == "placed"


def test_keys_are_put_read_scanned_and_deleted(tmp_path: Path) -> None:
    kv = ("kv",)
    assert qstore(*kv, "put", "data/", "user:1", "Ada", "--create", "--ttl", 1000, cwd=tmp_path).returncode == 0
    assert qstore(*kv, "put", "data", "user:2", "-", cwd=tmp_path, given="Bo\n").returncode == 0
    assert qstore(*kv, "get", "data", "user:2", cwd=tmp_path).stdout == "Bo\n"
    assert lines(*kv, "get", "data", "user:1", cwd=tmp_path) == [{"key": "user:1", "present": True, "value": "Ada"}]
    assert "no key 'x'" in refused(*kv, "get", "data", "x", cwd=tmp_path, code=1)
    assert "exists" in refused(*kv, "put", "data", "user:1", "Eve", "--if-not-exists", cwd=tmp_path, code=1)
    with LocalKvRepository.open(tmp_path / "data") as store:
        store.put("user:3", b"\xff")
    assert qstore(*kv, "scan", "data", "user:", cwd=tmp_path).stdout.split() == ["user:1", "user:2", "user:3"]
    assert lines(*kv, "scan", "data", "user:3", "--values", cwd=tmp_path) == [{"key": "user:3", "base64": "/w=="}]
    assert "expires at" in qstore("explain", "data", "--key", "user:1", cwd=tmp_path).stdout
    assert qstore(*kv, "delete", "data", "user:1", cwd=tmp_path).returncode == 0
    assert lines(*kv, "get", "data", "user:1", cwd=tmp_path, code=1) == [{"key": "user:1", "present": False}]


def test_a_purge_asks_first(tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path) as queue, LocalKvRepository.open(tmp_path) as kv:
        queue.send_many(["a", "b"])
        kv.put("gone", b"", ttl=0)
    denied = qstore("purge", tmp_path, cwd=tmp_path, given="n\n")
    assert denied.returncode == 1
    assert "Remove all messages of the queue" in denied.stderr
    assert lines("stats", tmp_path, cwd=tmp_path)[0][1]["rows"] == 2
    assert qstore("purge", tmp_path, cwd=tmp_path, given="y\n").stdout == "2 removed\n"
    assert lines("purge", tmp_path, "--yes", cwd=tmp_path) == [{"removed": 0}]
    assert lines("purge", tmp_path, "--expired", cwd=tmp_path) == [{"removed": 1}]


def test_stats_and_watch_show_a_table_and_json_for_programs(tmp_path: Path, clock: ManualClock) -> None:
    backend = Backend(tmp_path)
    fill(backend, clock)
    backend.close()
    shown = qstore("stats", tmp_path, cwd=tmp_path)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["store", "transport", "localkv", "localqueue"]
    assert "\x1b" not in shown.stdout
    transport, kv, queue = lines("stats", tmp_path, cwd=tmp_path)[0]
    assert (transport["rows"], kv["rows"], queue["rows"]) == (8, 3, 4)
    narrow = qstore("stats", tmp_path, cwd=tmp_path, COLUMNS="80").stdout.splitlines()
    assert len(narrow) == 4
    assert narrow[0].split() == ["store", "rows", "ready", "in", "flight", "parked", "lapsed", "oldest"]
    looks = lines("watch", tmp_path, "--count", 2, "--every", 0.1, cwd=tmp_path)
    assert [each["stores"][0]["store"] for each in looks] == ["transport", "transport"]
    assert "rows/s" in qstore("watch", tmp_path, "--count", 1, cwd=tmp_path).stdout


def test_the_revisions_are_run_and_told(tmp_path: Path) -> None:
    newest = ["localkv.v1", "localqueue.v1.1", "transport.v1.1"]
    assert lines("migrate", "upgrade", "data/", cwd=tmp_path) == [newest]
    assert lines("migrate", "current", "data", cwd=tmp_path) == [newest]
    assert lines("migrate", "stamp", "data", "--store", "localkv", cwd=tmp_path) == [["localkv.v1"]]
    assert qstore("migrate", "check", "data", cwd=tmp_path).stdout == "Nothing is wrong.\n"
    engine = create_engine(f"sqlite:///{tmp_path / 'data' / 'localqueue.sqlite'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER redeliveries_insert")
    engine.dispose()
    assert "redeliveries_insert missing" in lines("migrate", "check", "data", cwd=tmp_path, code=1)[0][0]
    assert "redeliveries_insert missing" in qstore("doctor", "data", cwd=tmp_path).stdout
    script = qstore("migrate", "sql", "--store", "localkv", cwd=tmp_path).stdout
    assert "CREATE TABLE IF NOT EXISTS kv" in script
    assert "migrate sql: stores: expected one of" in refused("migrate", "sql", cwd=tmp_path)
    assert (
        '"shop_transport_messages"' in qstore("migrate", "sql", "postgresql", "--prefix", "shop_", cwd=tmp_path).stdout
    )


def test_a_hosts_database_is_used_under_its_prefix(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}")
    migrate.upgrade(engine, naming=Naming("shop_"))
    engine.dispose()
    assert [each["rows"] for each in lines("stats", "shop.sqlite", cwd=tmp_path)[0]] == [0, 0, 0]
    assert lines("send", "shop.sqlite", "here", "--prefix", "shop_", cwd=tmp_path) == [{"id": 1}]
    assert lines("peek", "shop.sqlite", "queue", cwd=tmp_path)[0]["payload"] == "here"
    assert lines("migrate", "current", "shop.sqlite", "--prefix", "shop_", cwd=tmp_path)[0][0] == "localkv.v1"


def test_a_server_is_used_by_its_url_and_its_password_is_never_shown(tmp_path: Path) -> None:
    url = postgres.database()
    secret = url.set(username=url.username or "postgres", password="s3cret").render_as_string(hide_password=False)
    said = [
        qstore("send", secret, "there", cwd=tmp_path),
        qstore("stats", secret, cwd=tmp_path),
        qstore("stats", secret, "--json", cwd=tmp_path),
        qstore("doctor", secret, cwd=tmp_path),
        qstore("migrate", "check", secret, cwd=tmp_path),
        qstore("explain", secret, "--id", 1, cwd=tmp_path),
    ]
    assert all("s3cret" not in each.stdout + each.stderr for each in said)
    assert [each.returncode for each in said] == [0, 0, 0, 1, 0, 0], said
    assert "fsync is off" in said[3].stdout  # as the tests' server has it
    postgres.drop(url)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stats", "absent"), "nothing to look at"),
        (("stats", "absent.sqlite"), "nothing to look at"),
        (("peek", "foreign.sqlite"), "messages"),
        (("stats", "text"), "not a SQLite database"),
        (("stats", "mysql://me:s3cret@host/x"), "not on mysql"),
        (("stats", "postgresql://me:s3cret@127.0.0.1:1/x"), "127.0.0.1"),
        (("watch", "postgresql://me:s3cret@host:port/x"), "does not parse"),
        (("doctor", "store", "--prefix", "no good"), "prefix"),
        (("explain", "store"), "expected a group"),
        (("explain", "store", "--key", "k"), "no localkv in this view"),
        (("send", "absent/", "x"), "--create makes it"),
        (("receive", "absent"), "the store is not there (found"),
        (("receive", "store", "-n", "0"), "max_messages"),
        (("publish", "store", "g", "no json"), "the store is not there"),
        (("ack", "store", "1:other"), "receipt handle"),
        (("kv", "get", "foreign.sqlite", "k"), "foreign.sqlite"),
        (("kv", "put", "text", "k", "v", "--create"), "text"),
        (("purge", "absent", "--yes"), "the store is not there"),
        (("export", "absent", "out"), "found none in"),
        (("export", "store", "absent/out"), "absent/out"),
        (("import", "absent", "new/"), "absent"),
        (("import", "text", "new/"), "expected JSON in line 1"),
        (("copy", "absent", "new/"), "absent"),
        (("migrate", "check", "absent.sqlite"), "no database"),
        (("migrate", "upgrade", "foreign.sqlite"), "foreign.sqlite"),
    ],
)
def test_bad_input_ends_in_one_clear_line(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path / "store") as queue:
        queue.send("x")
        queue.receive(1)
    (tmp_path / "text").write_text("this is not a store")
    foreign = create_engine(f"sqlite:///{tmp_path / 'foreign.sqlite'}")
    with foreign.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)")
    foreign.dispose()
    before = sorted(os.listdir(tmp_path))
    line = refused(*arguments, cwd=tmp_path)
    assert said in line
    assert "s3cret" not in line
    assert sorted(os.listdir(tmp_path)) == before


NO_RIGHTS = """
import os, sys
from qstore.__main__ import main
import difflib, qstore.cli
if os.geteuid() == 0:
    os.setuid(65534)
main()
"""


@pytest.mark.parametrize("arguments", [("stats", "."), ("send", ".", "x"), ("doctor", ".")])
def test_a_place_without_rights_is_refused_by_name(arguments: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        LocalQueueRepository.open(directory).close()
        Path(directory, "localqueue.sqlite").chmod(0o444)
        Path(directory).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", NO_RIGHTS, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=directory,
            check=False,
        )
        Path(directory).chmod(0o755)
        assert done.returncode == (1 if arguments[0] == "doctor" else 2), done
        assert "Traceback" not in done.stderr
        assert "writable for the -wal and -shm files" in done.stderr + done.stdout


@pytest.mark.parametrize("command", [(), ("stats",), ("publish",), ("kv", "put"), ("migrate", "upgrade"), ("export",)])
def test_help_teaches(command: tuple[str, ...], tmp_path: Path) -> None:
    done = qstore(*command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout
    assert "PLACE" in done.stdout
    assert len(done.stdout) > 300


def test_every_command_prints_json_if_asked(tmp_path: Path) -> None:
    from qstore.cli import app

    def options(commands: object) -> dict[str, set[str]]:
        return {
            name: {option for parameter in each.params for option in getattr(parameter, "opts", ())}
            for name, each in commands.items()  # type: ignore[attr-defined]  # a dict of them
        }

    import typer

    program = typer.main.get_command(app)
    found = options(program.commands)  # type: ignore[attr-defined]  # a group has them
    for group in ("kv", "migrate"):
        found |= {f"{group} {name}": it for name, it in options(program.commands[group].commands).items()}  # type: ignore[attr-defined]  # as above
        del found[group]
    assert len(found) >= 24
    assert [name for name, has in found.items() if "--json" not in has] == ["demo", "migrate sql"]
    assert Event.__name__
