"""The wire between a driver and a server, listened to: how many round trips a call takes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from sqlalchemy import URL

READY = b"Z"
"""What a server says once for each round trip, when it has answered all of it."""

NO_TLS = b"N"
"""Its answer to whether it speaks TLS, and the only one that is no whole message."""


class Wire:
    """Passes on what both sides say."""

    def __init__(self, server: URL, listening: socket.socket, url: URL) -> None:
        self.url = url
        self.trips = 0
        self._server = server
        self._sockets: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._listening = listening
        self._start(self._accept)

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: object, *arguments: object) -> None:
        thread = Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]  # socket functions of several shapes
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = self._connected()
                self._sockets += (client, server)
                self._start(self._to_server, client, server)
                self._start(self._to_client, server, client)

    def _connected(self) -> socket.socket:
        host, port = self._server.query.get("host", self._server.host), self._server.port or 5432
        if not str(host).startswith("/"):
            return socket.create_connection((str(host), port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(Path(str(host), f".s.PGSQL.{port}")))
        return server

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while said := client.recv(65536):
                server.sendall(said)
            server.shutdown(socket.SHUT_WR)

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        """A message is a letter, its length with the length's own four bytes, and the rest."""
        said = b""
        with suppress(OSError):
            while more := server.recv(65536):
                said += more
                if said == NO_TLS:
                    client.sendall(said)
                    said = b""
                while len(said) >= 5 and len(said) > (length := int.from_bytes(said[1:5])):
                    self.trips += said[:1] == READY
                    client.sendall(said[: length + 1])
                    said = said[length + 1 :]
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def listened_to(server: URL, address: str | None = None) -> Iterator[Wire]:
    """A wire to a server, at a URL of its own: of a socket in a directory, or of a port at an address of this host."""
    with TemporaryDirectory() as directory:
        if address is None:
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(Path(directory, ".s.PGSQL.5432")))
            url = server.set(host=None, port=5432, query={"host": directory})
        else:
            listening = socket.create_server((address, 0))
            url = server.set(host=address, port=listening.getsockname()[1], query={})
        listening.listen()
        wire = Wire(server, listening, url)
        try:
            yield wire
        finally:
            wire.close()
