"""A host's project with an Alembic of its own, whose database is on a PostgreSQL server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL
from typing_extensions import override

from qstore import Naming, migrate
from tests import postgres
from tests.migration.host_project import NAMING, HostProject
from tests.migration.postgres_schema import engine_on, tables

__all__ = ["PostgresHostProject"]


class PostgresHostProject(HostProject):
    """Its directory, its database, and its commands as real processes."""

    def __init__(self, directory: Path, *, options: Mapping[str, str] | None = None, **arguments: Any) -> None:
        self.url: URL = postgres.empty_database()
        driver = "asyncpg" if arguments.get("template") == "async" else "psycopg"
        url = self.url.set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False)
        # What stands in an ini file has each % twice.
        super().__init__(directory, options={"sqlalchemy.url": url.replace("%", "%%"), **(options or {})}, **arguments)

    @override
    def upgrade_by_runner(self, naming: Naming = NAMING) -> None:
        with engine_on(self.url) as engine:
            migrate.upgrade(engine, naming=naming)

    @override
    def downgrade_by_runner(self) -> None:
        with engine_on(self.url) as engine:
            migrate.downgrade(engine, naming=NAMING)

    @override
    def tables(self) -> set[str]:
        return tables(self.url)

    @override
    def wrong(self, naming: Naming = NAMING) -> tuple[str, ...]:
        with engine_on(self.url) as engine:
            return migrate.check(engine, naming=naming)

    def edit_environment(self, old: str, new: str) -> None:
        """Change the project's env.py wherever it says `old`."""
        path = self.directory / "alembic" / "env.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def proposed(self, *arguments: str) -> list[str]:
        """The operations of the revision that the host's autogenerate writes: `create_table orders` and the like."""
        versions = self.directory / "alembic" / "versions"
        before = set(versions.glob("*.py"))
        self.alembic("revision", "--autogenerate", "-m", "found", *arguments)
        [new] = set(versions.glob("*.py")) - before
        upgrade = new.read_text().partition("def upgrade")[2].partition("def downgrade")[0]
        return [" ".join(found) for found in re.findall(r"op\.(\w+)\((?:op\.f\()?'?(\w*)", upgrade)]
