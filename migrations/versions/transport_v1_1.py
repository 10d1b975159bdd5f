"""transport.v1.1: whose turn it is, a row a group, so that a claim need not look at the messages."""

from typing import Any

from qstore import revisions
from qstore.formats import TRANSPORT_V1_1

revision = "transport.v1.1"
down_revision = "transport.v1"
branch_labels = None
depends_on = None


def upgrade(**given: Any) -> None:
    """Add to the format's tables, and fill what was added."""
    revisions.add(TRANSPORT_V1_1, **given)


def downgrade(**given: Any) -> None:
    """Drop what was added."""
    revisions.take_away(TRANSPORT_V1_1, **given)
