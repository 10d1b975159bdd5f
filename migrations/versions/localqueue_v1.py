"""localqueue.v1: the visibility-timeout queue, as its seed defines it."""

from typing import Any

from qstore import revisions
from qstore.formats import LOCALQUEUE_V1

revision = "localqueue.v1"
down_revision = None
branch_labels = ("localqueue",)
depends_on = None


def upgrade(**given: Any) -> None:
    """Make the tables, or adopt those that are there."""
    revisions.create(LOCALQUEUE_V1, **given)


def downgrade(**given: Any) -> None:
    """Drop the tables."""
    revisions.drop(LOCALQUEUE_V1, **given)
