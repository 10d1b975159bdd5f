"""localqueue.v1.1: what is due again, so that a receive need not sort all that is due."""

from typing import Any

from qstore import revisions
from qstore.formats import LOCALQUEUE_V1_1

revision = "localqueue.v1.1"
down_revision = "localqueue.v1"
branch_labels = None
depends_on = None


def upgrade(**given: Any) -> None:
    """Add to the format's tables, and fill what was added."""
    revisions.add(LOCALQUEUE_V1_1, **given)


def downgrade(**given: Any) -> None:
    """Drop what was added."""
    revisions.take_away(LOCALQUEUE_V1_1, **given)
