"""Importing qstore, and opening a store that is up to date, loads and changes no more than it must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.migration.seed_files import STORES
from tests.migration.ways_in import REPOSITORIES, open_store

FORBIDDEN = {
    *("alembic", "mako", "asyncio", "aiosqlite", "psycopg", "psycopg2", "asyncpg", "turso", "pyturso"),
    "sqlalchemy.dialects.postgresql",
    *("pandas", "polars", "pyarrow", "numpy", "matplotlib", "typer", "click", "rich", "pytest", "hypothesis"),
}

LOADED = f"import sys; print(*sorted({FORBIDDEN!r} & set(sys.modules)))"


def printed(script: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_import_qstore_loads_no_migrations_no_driver_and_nothing_of_an_extra(tmp_path: Path) -> None:
    found = printed(f"import qstore, qstore.models; {LOADED}", tmp_path).split()
    by_sqlalchemy = printed(f"import sqlalchemy.orm, pydantic; {LOADED}", tmp_path).split()
    assert set(found) <= set(by_sqlalchemy)
    assert not set(found) - {"asyncio"}


def test_the_command_line_loads_no_migrations_before_it_is_asked_for_them(tmp_path: Path) -> None:
    assert "alembic" not in printed(f"import qstore.cli; {LOADED}", tmp_path).split()


def test_the_look_at_loaded_modules_can_fail(tmp_path: Path) -> None:
    assert "alembic" in printed(f"import qstore.migrate; {LOADED}", tmp_path).split()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("store", STORES)
def test_opening_and_using_a_store_that_is_up_to_date_does_not_load_alembic(
    tmp_path: Path, store: str, create: bool
) -> None:
    path = tmp_path / f"{store}.sqlite"
    open_store(path, store).close()
    use = {"transport": "claim('w', 1)", "localkv": "put('k', b'v')", "localqueue": "send('m')"}[store]
    script = f"""
import qstore
with qstore.{REPOSITORIES[store].__name__}.open("sqlite:///{path}", create={create}) as repository:
    repository.{use}
{LOADED}"""
    assert set(printed(script, tmp_path).split()) <= {"asyncio"}


WATCH = """
import atexit, logging, signal, sys, threading, warnings
import pydantic, sqlite3, sqlalchemy.orm, typing_extensions
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import Pool

def listeners(target):
    slots = [getattr(target.dispatch, name) for name in target.dispatch._event_names]
    return [sum(map(len, slot._clslevel.values())) for slot in slots]

def handlers(logger):
    return [each for each in logger.handlers if not isinstance(each, logging.NullHandler)]  # Alembic has one

def state():
    engine_of_host = hosts()  # the first engine of a process sets SQLAlchemy's logger
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return {
        "engine": listeners(Engine),
        "pool": listeners(Pool),
        "session": listeners(sqlalchemy.orm.Session),
        "threads": threading.enumerate(),
        "root": (list(logging.root.handlers), logging.root.level),
        "loggers": [each.name for each in loggers if handlers(each) or each.level or each.disabled],
        "atexit": atexit._ncallbacks(),
        "hooks": (sys.excepthook, threading.excepthook, logging.getLoggerClass()),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "filters": list(warnings.filters),
        "sqlite3": (len(sqlite3.adapters), len(sqlite3.converters)),
        "a host's engine": engine_of_host,
    }

def hosts():
    engine = create_engine("sqlite:///host.db")
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    with engine.connect() as connection:
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]
        found = (values, connection.get_isolation_level(), type(engine.pool), engine._has_events)
    engine.dispose()
    return found

before = state()
"""
CHANGED = """
after = state()
print(*[name for name in before if before[name] != after[name]])
"""


def test_import_qstore_registers_no_listener_handler_thread_or_hook(tmp_path: Path) -> None:
    assert printed(f"{WATCH}\nimport qstore, qstore.models, qstore.migrate\n{CHANGED}", tmp_path) == ""


def test_an_open_engine_of_qstores_changes_nothing_for_the_hosts_engines(tmp_path: Path) -> None:
    script = """
import qstore
with qstore.LocalKvRepository.open("data") as kv:
    kv.put("k", b"v")
    after = state()
    print(*[name for name in before if before[name] != after[name]])
"""
    assert printed(WATCH + script, tmp_path) == ""


@pytest.mark.parametrize(
    ("effect", "seen"),
    [
        ("event.listen(Engine, 'begin', lambda *_: None)", "engine a host's engine"),
        ("event.listen(Pool, 'checkout', lambda *_: None)", "pool"),
        ("logging.basicConfig()", "root"),
        ("logging.getLogger('x').disabled = True", "loggers"),
        ("threading.Thread(target=threading.Event().wait, args=(1,)).start()", "threads"),
        ("event.listen(Engine, 'connect', lambda c, _: c.execute('PRAGMA foreign_keys = ON'))", "pool a host's engine"),
    ],
)
def test_the_watch_sees_side_effects(tmp_path: Path, effect: str, seen: str) -> None:
    assert printed(f"{WATCH}\n{effect}\n{CHANGED}", tmp_path) == seen


def test_import_qstore_opens_and_writes_no_file(tmp_path: Path) -> None:
    script = """
import sys, sqlalchemy.orm, pydantic, sqlite3
opened = []
def hook(name, arguments):
    if name in ("sqlite3.connect", "socket.connect", "os.mkdir", "os.remove", "os.rename", "subprocess.Popen"):
        opened.append((name, arguments))
    elif name == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        opened.append((name, arguments))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
import qstore, qstore.models
print(opened or "")
"""
    assert printed(script, tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
