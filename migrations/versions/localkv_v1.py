"""localkv.v1: the key-value store, as its seed defines it."""

from typing import Any

from qstore import revisions
from qstore.formats import LOCALKV_V1

revision = "localkv.v1"
down_revision = None
branch_labels = ("localkv",)
depends_on = None


def upgrade(**given: Any) -> None:
    """Make the tables, or adopt those that are there."""
    revisions.create(LOCALKV_V1, **given)


def downgrade(**given: Any) -> None:
    """Drop the tables."""
    revisions.drop(LOCALKV_V1, **given)
