"""Bring the database up to date: `python -m shop.migrate`. Two chains of revisions, each with its version table."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from qstore import migrate
from shop.database import engine
from shop.models import stores

__all__ = ["main"]


def main() -> None:
    """Upgrade the shop's tables, then qstore's; the order does not matter."""
    command.upgrade(Config(Path(__file__).parents[1] / "alembic.ini"), "head")
    migrate.upgrade(engine, naming=stores.naming)


if __name__ == "__main__":
    main()
