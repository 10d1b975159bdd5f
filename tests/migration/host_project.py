"""A host's project with an Alembic of its own, in the form that `alembic init` gives it."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import create_engine, inspect

from qstore import Naming, migrate

NAMING = Naming("qstore_")

MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
{imports}

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)

{mounts}
"""

TARGET = """
import sys
sys.path.insert(0, ".")
from models import Base
from qstore.autogenerate import include_name, include_object
target_metadata = Base.metadata
"""


class HostProject:
    """Its directory, its database `host.db`, and its commands as real processes."""

    def __init__(
        self,
        directory: Path,
        *,
        mounted: bool,
        guarded: bool = False,
        batch: bool = False,
        template: str = "generic",
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        directory.mkdir()
        imports, mounts = ("import qstore", "stores = qstore.mount(Base)") if mounted else ("", "")
        (directory / "models.py").write_text(MODELS.format(imports=imports, mounts=mounts))
        self.alembic("init", "-t", template, "alembic")
        environment = directory / "alembic" / "env.py"
        text = environment.read_text().replace("target_metadata = None", TARGET)
        if guarded:
            assert "target_metadata=target_metadata" in text
            text = text.replace(
                "target_metadata=target_metadata",
                "target_metadata=target_metadata, include_name=include_name(target_metadata)",
            )
        if batch:
            text = text.replace(
                "target_metadata=target_metadata", "target_metadata=target_metadata, render_as_batch=True"
            )
        environment.write_text(text)
        ini = configparser.RawConfigParser()
        ini.read(directory / "alembic.ini")
        driver = "sqlite+aiosqlite" if template == "async" else "sqlite"
        url = {"sqlalchemy.url": f"{driver}:///host.db"}
        if template == "pyproject":
            project = directory / "pyproject.toml"
            lines = "".join(f"{name} = {value}\n" for name, value in (options or {}).items())
            project.write_text(project.read_text().replace("[tool.alembic]\n", f"[tool.alembic]\n{lines}", 1))
            options = None
        ini["alembic"].update({**url, **(options or {})})
        with (directory / "alembic.ini").open("w") as file:
            ini.write(file)

    def alembic(self, *arguments: str, fails: bool = False) -> str:
        """Run the host's command; everything that it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert bool(done.returncode) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def autogenerate(self, *arguments: str) -> set[str]:
        """Let the host write a revision. The tables that it creates or drops."""
        before = set((self.directory / "alembic" / "versions").glob("*.py"))
        self.alembic("revision", "--autogenerate", "-m", "found", *arguments)
        [new] = set((self.directory / "alembic" / "versions").glob("*.py")) - before
        return set(re.findall(r"op\.(?:create|drop)_table\('(\w+)'", new.read_text()))

    def upgrade_by_runner(self) -> None:
        """Way (a)."""
        engine = create_engine(f"sqlite:///{self.directory / 'host.db'}")
        migrate.upgrade(engine, naming=NAMING)
        engine.dispose()

    def downgrade_by_runner(self) -> None:
        """Way (a), back."""
        engine = create_engine(f"sqlite:///{self.directory / 'host.db'}")
        migrate.downgrade(engine, naming=NAMING)
        engine.dispose()

    def tables(self) -> set[str]:
        """The tables of the host's database."""
        engine = create_engine(f"sqlite:///{self.directory / 'host.db'}")
        try:
            return set(inspect(engine).get_table_names())
        finally:
            engine.dispose()

    def wrong(self) -> tuple[str, ...]:
        """What qstore's own check finds."""
        engine = create_engine(f"sqlite:///{self.directory / 'host.db'}")
        try:
            return migrate.check(engine, naming=NAMING)
        finally:
            engine.dispose()
