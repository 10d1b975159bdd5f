"""The formats: frozen DDL and marker of each, and how a database is recognised as one of them."""

from qstore.formats.format import Format
from qstore.formats.localkv_v1 import LOCALKV_V1
from qstore.formats.localqueue_v1 import LOCALQUEUE_V1
from qstore.formats.recognition import Found, recognise
from qstore.formats.recognition_postgresql import additions, recognise_on_server
from qstore.formats.transport_v1 import TRANSPORT_V1

__all__ = [
    "FORMATS",
    "LOCALKV_V1",
    "LOCALQUEUE_V1",
    "TRANSPORT_V1",
    "Format",
    "Found",
    "additions",
    "recognise",
    "recognise_on_server",
]

FORMATS = {each.store: each for each in (TRANSPORT_V1, LOCALKV_V1, LOCALQUEUE_V1)}
"""The current format of each store."""
