"""What was added to each format, in the order of the revisions."""

from collections.abc import Collection

from qstore.formats.addition import Addition
from qstore.formats.localkv_v1_1 import LOCALKV_V1_1
from qstore.formats.localqueue_v1_1 import LOCALQUEUE_V1_1
from qstore.formats.localqueue_v1_2 import LOCALQUEUE_V1_2
from qstore.formats.transport_v1_1 import TRANSPORT_V1_1
from qstore.formats.transport_v1_2 import TRANSPORT_V1_2

__all__ = ["ADDITIONS", "VIEWS", "additions_of", "noted"]

ADDITIONS = {each.format.store: each for each in (TRANSPORT_V1_1, LOCALQUEUE_V1_1)}
"""By store: what makes a claim and a receive stay flat."""

VIEWS = {each.format.store: each for each in (TRANSPORT_V1_2, LOCALKV_V1_1, LOCALQUEUE_V1_2)}
"""By store: what tells its rows' states."""


def additions_of(store: str) -> tuple[Addition, ...]:
    """All of a store."""
    return tuple(each[store] for each in (ADDITIONS, VIEWS) if store in each)


def noted(addition: Addition, revisions: Collection[str]) -> bool:
    """Whether one of the revisions is the addition's, or one after it."""
    chain = additions_of(addition.format.store)
    return any(later.revision in revisions for later in chain[chain.index(addition) :])
