"""What was added to each format."""

from qstore.formats.localqueue_v1_1 import LOCALQUEUE_V1_1
from qstore.formats.transport_v1_1 import TRANSPORT_V1_1

__all__ = ["ADDITIONS"]

ADDITIONS = {each.format.store: each for each in (TRANSPORT_V1_1, LOCALQUEUE_V1_1)}
