"""transport.v1.2: views that tell each message's and each group's state, in a file of one store."""

from typing import Any

from qstore import revisions
from qstore.formats import TRANSPORT_V1_2

revision = "transport.v1.2"
down_revision = "transport.v1.1"
branch_labels = None
depends_on = None


def upgrade(**given: Any) -> None:
    """Add the views."""
    revisions.add(TRANSPORT_V1_2, **given)


def downgrade(**given: Any) -> None:
    """Drop them."""
    revisions.take_away(TRANSPORT_V1_2, **given)
