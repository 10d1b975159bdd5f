"""${message}"""

from typing import Any

from qstore import revisions

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade(**given: Any) -> None:
    """${upgrades if upgrades else "Say what changes."}"""


def downgrade(**given: Any) -> None:
    """${downgrades if downgrades else "Say what is taken back."}"""
