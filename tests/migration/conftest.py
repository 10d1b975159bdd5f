"""Fixtures of the tests that migrate on a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests import postgres
from tests.migration.postgres_schema import Schema, catalog, engine_on


@pytest.fixture(scope="module")
def whole() -> Schema:
    """What one upgrade makes of an empty database."""
    return catalog(postgres.database())


@pytest.fixture
def url() -> URL:
    """A database without a table."""
    return postgres.empty_database()


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    with engine_on(url) as engine:
        yield engine
