"""The formats: frozen DDL and marker of each, what was added to it, and how a database is recognised as one of them."""

from qstore.formats.addition import Addition
from qstore.formats.additions import ADDITIONS
from qstore.formats.format import Format
from qstore.formats.localkv_v1 import LOCALKV_V1
from qstore.formats.localqueue_v1 import LOCALQUEUE_V1
from qstore.formats.localqueue_v1_1 import LOCALQUEUE_V1_1
from qstore.formats.recognition import Found, recognise
from qstore.formats.recognition_postgresql import recognise_on_server, server_additions
from qstore.formats.transport_v1 import TRANSPORT_V1
from qstore.formats.transport_v1_1 import TRANSPORT_V1_1

__all__ = [
    "ADDITIONS",
    "FORMATS",
    "LOCALKV_V1",
    "LOCALQUEUE_V1",
    "LOCALQUEUE_V1_1",
    "TRANSPORT_V1",
    "TRANSPORT_V1_1",
    "Addition",
    "Format",
    "Found",
    "newest",
    "recognise",
    "recognise_on_server",
    "server_additions",
    "tables_of",
]

FORMATS = {each.store: each for each in (TRANSPORT_V1, LOCALKV_V1, LOCALQUEUE_V1)}
"""The current format of each store."""


def newest(store: str) -> str:
    """The newest revision of a store."""
    return ADDITIONS[store].revision if store in ADDITIONS else FORMATS[store].marker


def tables_of(store: str) -> tuple[str, ...]:
    """All tables of a store, those that were added included."""
    return (*FORMATS[store].tables, *(ADDITIONS[store].tables if store in ADDITIONS else ()))
