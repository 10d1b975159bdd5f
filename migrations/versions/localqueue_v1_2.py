"""localqueue.v1.2: a view that tells each message's state, in a file of one store."""

from typing import Any

from qstore import revisions
from qstore.formats import LOCALQUEUE_V1_2

revision = "localqueue.v1.2"
down_revision = "localqueue.v1.1"
branch_labels = None
depends_on = None


def upgrade(**given: Any) -> None:
    """Add the views."""
    revisions.add(LOCALQUEUE_V1_2, **given)


def downgrade(**given: Any) -> None:
    """Drop them."""
    revisions.take_away(LOCALQUEUE_V1_2, **given)
