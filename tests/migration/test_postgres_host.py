"""The three ways in which a host's project has the tables on PostgreSQL: the runner, the branch, its autogenerate."""

from __future__ import annotations

from pathlib import Path

import alembic
import pytest
from sqlalchemy import MetaData

from qstore import Event, Naming, migrate, mount
from tests import postgres
from tests.migration.host_project import NAMING
from tests.migration.postgres_host_project import PostgresHostProject
from tests.migration.postgres_schema import TABLES, Schema, catalog, engine_on, execute

VERSION = "qstore_alembic_version"
ALEMBIC = tuple(map(int, alembic.__version__.split(".")[:2]))
SEPARATOR = "path_separator" if ALEMBIC >= (1, 16) else "version_path_separator"
needs_plugins = pytest.mark.skipif(ALEMBIC < (1, 18), reason="before 1.18 Alembic does not find the guard by itself")


def branched(directory: Path, *, mounted: bool, **more: str) -> PostgresHostProject:
    template = more.pop("template", "generic")
    locations = f"%(here)s/alembic/versions:{migrate.version_location()}"
    options = {SEPARATOR: "os", "version_locations": locations, **more}
    return PostgresHostProject(directory, mounted=mounted, template=template, options=options)


@pytest.fixture(scope="module")
def whole() -> Schema:
    """The stores' tables as an upgrade makes them, without the version table."""
    return stores_alone(catalog(postgres.database()))


def stores_alone(schema: Schema) -> Schema:
    return {
        about: [row for row in rows if (row[1] if about == "sequences" else row[0]) in TABLES]
        for about, rows in schema.items()
    }


def mount_in(host: PostgresHostProject, arguments: str = "") -> None:
    """Let the host's models have the stores from now on."""
    models = host.directory / "models.py"
    models.write_text(f"{models.read_text()}\nimport qstore\nstores = qstore.mount(Base{arguments})\n")


def works(host: PostgresHostProject, naming: Naming = NAMING) -> None:
    """A message comes out again: the state of its group is there."""
    with engine_on(host.url) as engine:
        stores = mount(MetaData(), prefix=naming.prefix or "", schema=naming.schema)
        stores.transport(engine).publish("g", Event(kind="k"))
        lease = stores.transport(engine).claim("w", 60)
        assert lease is not None
        stores.transport(engine).ack(lease)
        stores.localkv(engine).put("k", b"v")
        stores.localkv(engine).delete("k")
        stores.localqueue(engine).send("m")
        [message] = stores.localqueue(engine).receive()
        stores.localqueue(engine).ack(message.receipt_handle)


@needs_plugins
def test_after_the_runner_the_hosts_autogenerate_proposes_nothing_for_the_stores(tmp_path: Path, whole: Schema) -> None:
    """Neither while its models do not have them nor when they do."""
    host = PostgresHostProject(tmp_path / "host", mounted=False)
    host.upgrade_by_runner()
    assert host.proposed() == ["create_table orders"]
    host.alembic("upgrade", "head")
    mount_in(host)
    host.alembic("check")
    assert host.tables() == {"orders", "alembic_version", VERSION, *TABLES}
    assert host.wrong() == ()
    assert stores_alone(catalog(host.url)) == whole
    works(host)
    host.downgrade_by_runner()
    assert host.tables() == {"orders", "alembic_version", VERSION}
    host.upgrade_by_runner()
    host.alembic("downgrade", "base")
    assert host.tables() == {"alembic_version", VERSION, *TABLES}
    assert host.wrong() == ()


@needs_plugins
def test_without_the_guard_the_host_would_drop_what_it_does_not_know_and_with_two_arguments_it_does_not(
    tmp_path: Path,
) -> None:
    """The trap is real; the arguments are for an Alembic that finds no plugins."""
    host = PostgresHostProject(tmp_path / "host", mounted=True)
    unguarded = 'autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.qstore"]'
    host.edit_environment("target_metadata=target_metadata", f"target_metadata=target_metadata, {unguarded}")
    host.upgrade_by_runner()
    found = host.alembic("check", fails=True)
    for lost in (f"'remove_table', Table('{VERSION}'", "'remove_column'", "qstore_transport_idx_groups_ready"):
        assert lost in found
    guarded = "include_name=include_name(target_metadata), include_object=include_object()"
    host.edit_environment(unguarded, f"{unguarded}, {guarded}")
    assert host.proposed() == ["create_table orders"]


@needs_plugins
def test_the_branch_is_run_by_the_hosts_own_command(tmp_path: Path, whole: Schema) -> None:
    host = branched(tmp_path / "host", mounted=False)
    host.alembic("upgrade", "heads")
    assert host.tables() == {"alembic_version", *TABLES}
    assert stores_alone(catalog(host.url)) == whole
    versions = str(host.directory / "alembic" / "versions")
    proposed = host.proposed("--head", "base", "--branch-label", "host", "--version-path", versions)
    assert proposed == ["create_table orders"]
    host.alembic("upgrade", "heads")
    mount_in(host)
    host.alembic("check")
    assert host.wrong() == ()
    works(host)
    host.upgrade_by_runner()
    assert stores_alone(catalog(host.url)) == whole
    execute(host.url, "INSERT INTO qstore_localkv_kv VALUES ('k', 'v', NULL)")
    assert "would drop 1 rows of kv" in host.alembic("downgrade", "localkv@base", fails=True)
    assert stores_alone(catalog(host.url)) == whole
    host.alembic("-x", "drop_data=yes", "downgrade", "localkv@base")
    assert host.tables() & TABLES == TABLES - {"qstore_localkv_kv", "qstore_localkv_meta"}


@needs_plugins
def test_the_branch_runs_under_a_prefix_in_an_async_environment(tmp_path: Path) -> None:
    host = branched(tmp_path / "host", mounted=False, template="async", qstore_prefix="Shop_")
    host.alembic("upgrade", "heads")
    shop = Naming("Shop_")
    assert host.tables() == {"alembic_version", *(name.replace("qstore_", "Shop_") for name in TABLES)}
    versions = str(host.directory / "alembic" / "versions")
    assert host.proposed("--head", "base", "--version-path", versions) == ["create_table orders"]
    works(host, shop)


def test_the_branch_makes_the_tables_in_the_schema_that_the_host_names_and_prints_the_script_of_it(
    tmp_path: Path,
) -> None:
    host = branched(tmp_path / "host", mounted=False, qstore_schema="app")
    app = Naming("qstore_", "app")
    by_script = postgres.empty_database()
    for url in (host.url, by_script):
        execute(url, "CREATE SCHEMA app")
    script = host.alembic("upgrade", "heads", "--sql")
    assert (catalog(host.url)["options"], catalog(host.url, "app")["options"]) == ([], [])
    host.alembic("upgrade", "heads")
    assert host.tables() == {"alembic_version"}
    assert host.wrong(app) == ()
    works(host, app)
    execute(by_script, "".join(line for line in script.splitlines(True) if not line.startswith(("INFO", "Generat"))))
    assert catalog(by_script, "app") == catalog(host.url, "app")


@needs_plugins
def test_tables_in_a_schema_that_the_hosts_autogenerate_looks_at_are_left_alone(tmp_path: Path) -> None:
    host = PostgresHostProject(tmp_path / "host", mounted=False)
    execute(host.url, "CREATE SCHEMA app")
    host.edit_environment("target_metadata=target_metadata", "target_metadata=target_metadata, include_schemas=True")
    app = Naming("qstore_", "app")
    host.upgrade_by_runner(app)
    assert host.proposed() == ["create_table orders"]
    host.alembic("upgrade", "head")
    mount_in(host, ', schema="app"')
    host.alembic("check")
    assert host.wrong(app) == ()
    works(host, app)


@needs_plugins
def test_the_hosts_own_autogenerate_creates_the_tables_exactly(tmp_path: Path, whole: Schema) -> None:
    """State columns, settings, partial indexes and markers included."""
    host = PostgresHostProject(tmp_path / "host", mounted=True)
    assert host.autogenerate() == {"orders", *TABLES}
    host.alembic("upgrade", "head")
    host.alembic("check")
    assert host.tables() == {"orders", "alembic_version", *TABLES}
    assert host.wrong() == ()
    assert stores_alone(catalog(host.url)) == whole
    works(host)
    host.alembic("downgrade", "base")
    assert host.tables() == {"alembic_version"}
