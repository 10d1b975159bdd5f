"""The three ways in which a host's project has the stores: the runner, the branch, its own autogenerate. H16."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import alembic
import pytest
from sqlalchemy import create_engine

from qstore import Naming, migrate
from qstore.autogenerate import names_of
from qstore.formats import ADDITIONS
from tests.migration.host_project import NAMING, HostProject

VERSION = "qstore_alembic_version"
OURS = names_of(NAMING) - {VERSION}
SIDE_TABLES = {NAMING.name(store, table) for store, addition in ADDITIONS.items() for table in addition.tables}
ALEMBIC = tuple(map(int, alembic.__version__.split(".")[:2]))
SEPARATOR = "path_separator" if ALEMBIC >= (1, 16) else "version_path_separator"
PLUGINS = ALEMBIC >= (1, 18)
"""Whether this Alembic finds the guard by itself; before, the host's env.py names it in one line."""


def branched(directory: Path, *, mounted: bool, separator: str = "os", **options: str) -> HostProject:
    between = {"os": ":", "newline": "\n    ", "space": " "}[separator]
    locations = f"%(here)s/alembic/versions{between}{migrate.version_location()}"
    return HostProject(
        directory, mounted=mounted, options={SEPARATOR: separator, "version_locations": locations, **options}
    )


@pytest.mark.parametrize("mounted", [False, True])
@pytest.mark.parametrize("first", ["host", "qstore"])
def test_the_runner_and_the_hosts_own_revisions_leave_each_other_alone(
    tmp_path: Path, mounted: bool, first: str
) -> None:
    host = HostProject(tmp_path / "host", mounted=False, guarded=not PLUGINS)
    if first == "qstore":
        host.upgrade_by_runner()
    assert host.autogenerate() == {"orders"}
    host.alembic("upgrade", "head")
    host.upgrade_by_runner()
    assert host.tables() == {"orders", "alembic_version", VERSION, *OURS}
    if mounted:
        (host.directory / "models.py").write_text(
            (host.directory / "models.py").read_text() + "\nimport qstore\nstores = qstore.mount(Base)\n"
        )
    host.alembic("check")
    assert host.wrong() == ()
    if first == "qstore":
        host.downgrade_by_runner()
        host.alembic("downgrade", "base")
    else:
        host.alembic("downgrade", "base")
        host.downgrade_by_runner()
    assert host.tables() == {"alembic_version", VERSION}


@pytest.mark.parametrize(("separator", "mounted"), [("os", False), ("os", True), ("newline", False), ("space", True)])
def test_the_branch_is_run_by_the_hosts_own_command(tmp_path: Path, mounted: bool, separator: str) -> None:
    host = branched(tmp_path / "host", mounted=mounted, separator=separator)
    host.alembic("upgrade", "heads")
    assert host.tables() == {"alembic_version", *OURS}
    versions = str(host.directory / "alembic" / "versions")
    if PLUGINS:
        found = host.autogenerate("--head", "base", "--branch-label", "host", "--version-path", versions)
        assert found == {"orders"}
        host.alembic("upgrade", "heads")
        host.alembic("check")
        assert host.tables() == {"alembic_version", "orders", *OURS}
    assert host.wrong() == ()
    for store in ("localkv", "localqueue", "transport"):
        host.alembic("downgrade", f"{store}@base")
    assert host.tables() & OURS == set()


def test_the_branch_takes_its_prefix_from_the_hosts_configuration(tmp_path: Path) -> None:
    host = branched(tmp_path / "host", mounted=False, qstore_prefix="shop_")
    host.alembic("upgrade", "heads")
    assert "shop_transport_messages" in host.tables()
    if PLUGINS:
        versions = str(host.directory / "alembic" / "versions")
        assert host.autogenerate("--head", "base", "--version-path", versions) == {"orders"}


@pytest.mark.skipif(not PLUGINS, reason="the host's env.py guards itself there, as in the other tests")
@pytest.mark.parametrize("template", ["async", "pyproject"])
def test_the_branch_runs_in_a_project_of_another_form(tmp_path: Path, template: str) -> None:
    """An async env.py, a configuration in pyproject.toml, and `render_as_batch`."""
    versions, ours = "%(here)s/alembic/versions", migrate.version_location()
    locations = f'["{versions}", "{ours}"]' if template == "pyproject" else f"{versions}:{ours}"
    prefix = '"shop_"' if template == "pyproject" else "shop_"
    options = {"version_locations": locations, "qstore_prefix": prefix}
    if template == "async":
        options |= {SEPARATOR: "os"}
    host = HostProject(tmp_path / "host", mounted=False, template=template, batch=True, options=options)
    host.alembic("upgrade", "heads")
    found = host.autogenerate("--head", "base", "--version-path", str(host.directory / "alembic" / "versions"))
    assert found == {"orders"}
    host.alembic("upgrade", "heads")
    host.alembic("check")
    assert "shop_transport_messages" in host.tables()
    for store in ("localkv", "localqueue", "transport"):
        host.alembic("downgrade", f"{store}@base")
    assert host.tables() == {"alembic_version", "orders"}


def test_the_branch_refuses_to_drop_rows_unless_told(tmp_path: Path) -> None:
    host = branched(tmp_path / "host", mounted=False)
    host.alembic("upgrade", "heads")
    with closing(sqlite3.connect(host.directory / "host.db")) as connection, connection:
        connection.execute("INSERT INTO qstore_localkv_kv VALUES ('k', x'00', NULL)")
    assert "would drop 1 rows of kv" in host.alembic("downgrade", "localkv@base", fails=True)
    assert "qstore_localkv_kv" in host.tables()
    host.alembic("-x", "drop_data=yes", "downgrade", "localkv@base")
    assert "qstore_localkv_kv" not in host.tables()


def test_the_branch_prints_its_sql(tmp_path: Path) -> None:
    host = branched(tmp_path / "host", mounted=False)
    script = host.alembic("upgrade", "localkv@head", "--sql")
    assert 'CREATE TABLE IF NOT EXISTS "qstore_localkv_kv"' in script
    assert not (host.directory / "host.db").exists()


@pytest.mark.skipif(not PLUGINS, reason="before 1.18 Alembic cannot be given the markers")
def test_the_hosts_own_autogenerate_creates_the_tables_exactly(tmp_path: Path) -> None:
    host = HostProject(tmp_path / "host", mounted=True)
    assert host.autogenerate() == {"orders", *OURS}
    host.alembic("upgrade", "head")
    host.alembic("check")
    assert host.tables() == {"orders", "alembic_version", *OURS}
    assert host.wrong() == ()
    host.alembic("downgrade", "base")
    assert host.tables() == {"alembic_version"}


@pytest.mark.skipif(not PLUGINS, reason="before 1.18 Alembic cannot be given the triggers")
def test_the_hosts_own_autogenerate_brings_a_store_of_its_from_v1_to_the_newest_revision(tmp_path: Path) -> None:
    host = HostProject(tmp_path / "host", mounted=True)
    host.autogenerate()
    host.alembic("upgrade", "head")
    take_to_v1(host)
    with closing(sqlite3.connect(host.directory / "host.db")) as connection, connection:
        connection.execute("INSERT INTO qstore_transport_messages (group_id, event) VALUES ('g', '\"e\"')")
        connection.execute("INSERT INTO qstore_transport_groups (group_id) VALUES ('g')")
    assert host.wrong() == ()
    assert host.autogenerate() == SIDE_TABLES
    host.alembic("upgrade", "head")
    host.alembic("check")
    assert host.wrong() == ()
    host.alembic("downgrade", "-1")
    assert host.tables() & SIDE_TABLES == set()
    assert host.wrong() == ()


@pytest.mark.skipif(not PLUGINS, reason="the guard is the host's one line there")
def test_the_hosts_own_autogenerate_does_not_run_ahead_of_the_runner(tmp_path: Path) -> None:
    host = HostProject(tmp_path / "host", mounted=True)
    host.upgrade_by_runner()
    take_to_v1(host)
    with closing(sqlite3.connect(host.directory / "host.db")) as connection, connection:
        for store in ("transport", "localqueue"):
            change = f"SET version_num = '{store}.v1' WHERE version_num = '{store}.v1.1'"
            connection.execute(f"UPDATE {VERSION} {change}")
    assert host.autogenerate() == {"orders"}
    [revision] = (host.directory / "alembic" / "versions").glob("*.py")
    assert "qstore" not in revision.read_text()


def take_to_v1(host: HostProject) -> None:
    with closing(sqlite3.connect(host.directory / "host.db")) as connection, connection:
        for store, addition in ADDITIONS.items():
            for statement in addition.drop(NAMING.of(store)):
                connection.execute(statement)


@pytest.mark.skipif(not PLUGINS, reason="the guard is the host's one line there")
def test_a_mount_under_another_prefix_that_the_host_does_not_know_of_is_left_alone(tmp_path: Path) -> None:
    host = HostProject(tmp_path / "host", mounted=False)
    engine = create_engine(f"sqlite:///{host.directory / 'host.db'}")
    migrate.upgrade(engine, naming=Naming("theirs_"))
    engine.dispose()
    assert host.autogenerate() == {"orders"}


@pytest.mark.skipif(not PLUGINS, reason="the trap is the same")
def test_the_trap_is_real_without_the_guard_the_hosts_revision_drops_the_tables(tmp_path: Path) -> None:
    host = HostProject(tmp_path / "host", mounted=False)
    environment = host.directory / "alembic" / "env.py"
    without = 'autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.qstore"]'
    environment.write_text(
        environment.read_text().replace(
            "target_metadata=target_metadata", f"target_metadata=target_metadata, {without}"
        )
    )
    host.upgrade_by_runner()
    assert host.autogenerate() == {"orders", VERSION, *OURS}
