"""transport.v1: the group-exclusive FIFO queue, as its seed defines it."""

from typing import Any

from qstore import revisions
from qstore.formats import TRANSPORT_V1

revision = "transport.v1"
down_revision = None
branch_labels = ("transport",)
depends_on = None


def upgrade(**given: Any) -> None:
    """Make the tables, or adopt those that are there."""
    revisions.create(TRANSPORT_V1, **given)


def downgrade(**given: Any) -> None:
    """Drop the tables."""
    revisions.drop(TRANSPORT_V1, **given)
