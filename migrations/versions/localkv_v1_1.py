"""localkv.v1.1: a view that tells which keys are live, in a file of one store."""

from typing import Any

from qstore import revisions
from qstore.formats import LOCALKV_V1_1

revision = "localkv.v1.1"
down_revision = "localkv.v1"
branch_labels = None
depends_on = None


def upgrade(**given: Any) -> None:
    """Add the views."""
    revisions.add(LOCALKV_V1_1, **given)


def downgrade(**given: Any) -> None:
    """Drop them."""
    revisions.take_away(LOCALKV_V1_1, **given)
