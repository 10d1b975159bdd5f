"""A host's own Alembic and qstore's share a database, in either order, and nothing else. H16 and H17."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from qstore import migrate
from tests.backends import MOUNTED
from tests.migration.alembic_command import ROOT, alembic
from tests.migration.file_state import opened, table_names
from tests.migration.ways_in import host_engine

ENV = """
from alembic import context
from sqlalchemy import create_engine
engine = create_engine("sqlite:///host.db")
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
REVISION = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = {revision!r}, {down!r}
def upgrade():
    op.create_table({table!r}, sa.Column("id", sa.Integer, primary_key=True))
{more}
def downgrade():
    op.drop_table({table!r})
"""
UPGRADES_QSTORE = """
    from qstore import Naming, migrate
    migrate.upgrade(op.get_bind(), naming=Naming("qstore_"))
    op.create_table("after_qstore", sa.Column("id", sa.Integer, primary_key=True))
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with an Alembic of its own: two revisions, `orders` and `customers`."""
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = %(here)s/revisions\n")
    (tmp_path / "revisions" / "versions").mkdir(parents=True)
    (tmp_path / "revisions" / "env.py").write_text(ENV)
    for revision, down, table in (("one", None, "orders"), ("two", "one", "customers")):
        file = tmp_path / "revisions" / "versions" / f"{revision}.py"
        file.write_text(REVISION.format(revision=revision, down=down, table=table, more=""))
    return tmp_path


def host_alembic(host: Path, *arguments: str) -> str:
    done = alembic(*arguments, cwd=host, ini=host / "alembic.ini")
    assert done.returncode == 0, done.stderr
    return done.stdout


def version(host: Path, table: str) -> list[str]:
    with opened(host / "host.db") as connection:
        return sorted(row[0] for row in connection.execute(f"SELECT version_num FROM {table}").fetchall())


QSTORES = ["localkv.v1", "localqueue.v1.1", "transport.v1.1"]


@pytest.mark.parametrize("first", ["host", "qstore"])
def test_both_chains_upgrade_and_downgrade_in_either_order(host: Path, first: str) -> None:
    with host_engine(host / "host.db") as engine:
        if first == "host":
            host_alembic(host, "upgrade", "one")
        migrate.upgrade(engine, naming=MOUNTED)
        host_alembic(host, "upgrade", "one")
        assert version(host, "alembic_version") == ["one"]
        assert version(host, "qstore_alembic_version") == QSTORES
        migrate.upgrade(engine, naming=MOUNTED)
        host_alembic(host, "upgrade", "head")
        migrate.downgrade(engine, naming=MOUNTED)
        assert version(host, "alembic_version") == ["two"]
        assert {"orders", "customers"} <= table_names(host / "host.db")
        migrate.upgrade(engine, naming=MOUNTED)
        host_alembic(host, "downgrade", "base")
        assert version(host, "alembic_version") == []
        assert version(host, "qstore_alembic_version") == QSTORES
        assert migrate.check(engine, naming=MOUNTED) == ()


def test_both_commands_work_on_one_database(host: Path) -> None:
    host_alembic(host, "upgrade", "head")
    done = alembic("-x", "url=host.db", "-x", "prefix=qstore_", "upgrade", "heads", cwd=host)
    assert done.returncode == 0, done.stderr
    host_alembic(host, "downgrade", "-1")
    assert version(host, "alembic_version") == ["one"]
    assert version(host, "qstore_alembic_version") == QSTORES
    done = alembic("-x", "url=host.db", "-x", "prefix=qstore_", "downgrade", "base", cwd=host)
    assert done.returncode == 0, done.stderr
    assert table_names(host / "host.db") == {"alembic_version", "qstore_alembic_version", "orders"}


def test_the_command_leaves_a_hosts_journal_mode_alone(host: Path) -> None:
    """The host's other readers may be on a network drive, or copy the file."""
    host_alembic(host, "upgrade", "head")
    done = alembic("-x", "url=host.db", "-x", "prefix=qstore_", "upgrade", "heads", cwd=host)
    assert done.returncode == 0, done.stderr
    with opened(host / "host.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("delete",)]


def test_a_shared_version_table_would_break_both(host: Path) -> None:
    """The trap is real: two chains in one table do not find each other's revisions."""
    host_alembic(host, "upgrade", "head")
    with opened(host / "host.db") as connection:
        connection.execute("INSERT INTO alembic_version VALUES ('localkv.v1')")
    done = alembic("upgrade", "head", cwd=host, ini=host / "alembic.ini")
    assert "Can't locate revision" in done.stdout + done.stderr


def test_a_hosts_revision_may_upgrade_qstore_on_its_own_connection(host: Path) -> None:
    """`alembic.op` is the host's before, and still the host's after."""
    file = host / "revisions" / "versions" / "three.py"
    file.write_text(REVISION.format(revision="three", down="two", table="invoices", more=UPGRADES_QSTORE))
    host_alembic(host, "upgrade", "head")
    assert version(host, "alembic_version") == ["three"]
    assert version(host, "qstore_alembic_version") == QSTORES
    assert {"invoices", "after_qstore", "qstore_localkv_kv"} <= table_names(host / "host.db")


def test_the_hosts_tables_and_rows_of_odd_names_are_left_alone(tmp_path: Path) -> None:
    with host_engine(tmp_path / "host.db") as engine:
        with engine.begin() as connection:
            for name in ("messages", "groups", "meta", "kv", "Alembic_Version", "qstore_", "ord\"ers'%"):
                quoted = engine.dialect.identifier_preparer.quote(name)
                connection.execute(text(f"CREATE TABLE {quoted.replace(':', '')} (x)"))
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()
        migrate.downgrade(engine, naming=MOUNTED)
        assert migrate.current(engine, naming=MOUNTED) == ()
    assert {"messages", "groups", "meta", "kv", "qstore_", "ord\"ers'%"} <= table_names(tmp_path / "host.db")


def test_upgrading_leaves_logging_and_threads_as_they_were(tmp_path: Path) -> None:
    logger = logging.getLogger("host.of.its.own")

    def state() -> tuple[object, ...]:
        root = logging.getLogger()
        alembics = logging.getLogger("alembic")
        return (
            (root.level, list(root.handlers), list(root.filters)),
            (logger.level, logger.disabled, list(logger.handlers)),
            (alembics.level, list(alembics.handlers), alembics.propagate),
            threading.active_count(),
        )

    before = state()
    with host_engine(tmp_path / "host.db") as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        migrate.downgrade(engine, naming=MOUNTED)
    assert state() == before


def test_the_ini_file_configures_no_logging() -> None:
    assert "logger" not in (ROOT / "alembic.ini").read_text().lower().replace("logging is left to the caller", "")
