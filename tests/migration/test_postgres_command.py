"""The repository's own `alembic` command on a PostgreSQL database."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from qstore import Naming, migrate
from tests import postgres
from tests.migration.alembic_command import alembic, refusal
from tests.migration.postgres_schema import ALL, Schema, catalog, engine_on, execute, tables


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def succeed(url: URL, *arguments: str, cwd: Path) -> str:
    done = alembic("-x", f"url={shown(url)}", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_life_of_the_tables_by_command(tmp_path: Path, url: URL, whole: Schema) -> None:
    execute(url, "CREATE TABLE orders (id INTEGER)")
    succeed(url, "upgrade", "heads", cwd=tmp_path)
    said = succeed(url, "current", cwd=tmp_path)
    for marker in ALL:
        assert f"{marker} (head)" in said
    assert "No new upgrade operations" in succeed(url, "check", cwd=tmp_path)
    execute(url, "DELETE FROM qstore_alembic_version")
    succeed(url, "stamp", "heads", cwd=tmp_path)
    execute(url, "DROP INDEX qstore_transport_idx_groups_ready; INSERT INTO qstore_localkv_kv VALUES ('k', 'v')")
    succeed(url, "upgrade", "heads", cwd=tmp_path)
    with engine_on(url) as engine:
        assert migrate.current(engine, naming=Naming("qstore_")) == ALL
        assert migrate.check(engine, naming=Naming("qstore_")) == ()
    assert "1 rows of kv" in refusal(alembic("-x", f"url={shown(url)}", "downgrade", "base", cwd=tmp_path))
    succeed(url, "-x", "drop_data=yes", "downgrade", "base", cwd=tmp_path)
    assert tables(url) == {"orders", "qstore_alembic_version"}
    assert list(tmp_path.iterdir()) == []


def test_the_printed_script_makes_what_upgrade_makes(tmp_path: Path, url: URL, whole: Schema) -> None:
    script = succeed(url, "upgrade", "heads", "--sql", cwd=tmp_path)
    assert tables(url) == set()
    execute(url, script)
    assert catalog(url) == whole


def test_a_prefix_and_a_schema_are_taken(tmp_path: Path, url: URL) -> None:
    execute(url, 'CREATE SCHEMA "App"')
    names = ("-x", "prefix=Shop_", "-x", "schema=App")
    succeed(url, *names, "upgrade", "heads", cwd=tmp_path)
    assert tables(url) == set()
    with engine_on(url) as engine:
        assert migrate.check(engine, naming=Naming("Shop_", "App")) == ()
    assert "localkv.v1 (head)" in succeed(url, *names, "current", cwd=tmp_path)
    succeed(url, *names, "check", cwd=tmp_path)


@pytest.mark.parametrize(
    ("made", "command", "named"),
    [
        ("DROP INDEX qstore_transport_idx_groups_ready", "check", "qstore_transport_idx_groups_ready"),
        ("ALTER TABLE qstore_transport_groups DROP COLUMN head", "check", "head"),
        ("ALTER TABLE qstore_localkv_kv ADD COLUMN extra TEXT", "check", "extra"),
        ("DELETE FROM qstore_alembic_version; DROP TABLE qstore_localkv_kv", "stamp", "not whole"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_changes(tmp_path: Path, made: str, command: str, named: str) -> None:
    url = postgres.database()
    execute(url, made)
    before = catalog(url)
    done = alembic("-x", f"url={shown(url)}", command, *(["heads"] if command == "stamp" else []), cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert named in done.stdout + done.stderr
    assert catalog(url) == before


@pytest.mark.parametrize(
    ("drivername", "named"),
    [("postgresql+asyncpg", "asyncpg"), ("postgresql+psycopg", "connect")],
)
def test_a_wrong_url_is_answered_in_one_line_without_its_password(tmp_path: Path, drivername: str, named: str) -> None:
    """The last one is of a server that is not there."""
    url = URL.create(drivername, username="me", password="s3cret", host="127.0.0.1", port=1, database="nothing")
    done = alembic("-x", f"url={shown(url)}", "upgrade", "heads", cwd=tmp_path)
    assert "s3cret" not in done.stdout + done.stderr
    assert named in refusal(done)
