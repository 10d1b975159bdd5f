"""Alembic's environment for the shop's own tables: `alembic revision --autogenerate`, `alembic check` and the rest."""

from __future__ import annotations

from typing import Any

from alembic import context

from shop.database import engine
from shop.models import Base, stores


def _is_ours(_object: Any, name: str | None, kind: str, *_: Any) -> bool:
    """Whether a table is the shop's. qstore's, and its version table, have revisions of their own."""
    return kind != "table" or not str(name).startswith(str(stores.naming.prefix))


with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, include_object=_is_ours)
    with context.begin_transaction():
        context.run_migrations()
