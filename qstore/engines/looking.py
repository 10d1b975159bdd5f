"""What a database holds of a store."""

from __future__ import annotations

from sqlalchemy import Connection

from qstore.capabilities import capabilities
from qstore.engines.postgresql import check_encoding
from qstore.engines.results import described
from qstore.formats import FORMATS, Found, recognise, recognise_on_server
from qstore.naming import Naming

__all__ = ["found"]


def found(connection: Connection, naming: Naming, store: str) -> Found:
    """What a database holds of a store. FormatError if a table of that name is somebody else's."""
    look = recognise
    if not capabilities(connection.dialect).one_writer:
        check_encoding(connection)
        look = recognise_on_server
    return look(
        lambda query: connection.exec_driver_sql(query).fetchall(),
        FORMATS[store],
        naming,
        described(connection.engine),
    )
