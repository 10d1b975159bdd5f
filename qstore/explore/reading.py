"""How one store is read: where it is, and what time it is there."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sqlalchemy import Connection

from qstore.capabilities import capabilities
from qstore.clock import Clock, milliseconds
from qstore.formats import Found
from qstore.places import Place

__all__ = ["Reader"]


@dataclass(frozen=True, slots=True)
class Reader:
    """A store that is only read."""

    place: Place
    clock: Clock | None = field(default=None, repr=False)

    @property
    def found(self) -> Found:
        """What there is of the store now."""
        return self.place.found()

    def now(self, connection: Connection) -> float:
        """Epoch seconds: a given clock's, else the host's for SQLite and the server's for a server."""
        if self.clock is not None:
            return self.clock()
        if capabilities(connection.dialect).one_writer:
            return time.time()
        return float(connection.exec_driver_sql("SELECT date_part('epoch', clock_timestamp())").scalar_one())

    def counted(self, now: float) -> float:
        """An instant as the store counts it: the transport in seconds, the others in whole milliseconds."""
        return now if self.place.store == "transport" else milliseconds(now)
