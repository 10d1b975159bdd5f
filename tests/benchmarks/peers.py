"""Other durable queues and key-value stores on SQLite, at the same durability and in the same run (line 9).

None of the queues keeps order by group, so each is held against both of ours: the transport, which does, and the
localqueue, which promises what most of them do, or more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import NamedTuple

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository
from qstore.engines import Durability
from tests.benchmarks import opened_peers
from tests.benchmarks.cycle import cycles, event_of
from tests.benchmarks.lines import Limit, Line, at_least, faster, missing, plain
from tests.benchmarks.measuring import Contender, Scale, interleaved
from tests.benchmarks.opened_peers import Opened
from tests.benchmarks.raw import EVENT

__all__ = ["KEY_VALUE", "QUEUES", "Peer", "lines", "named"]


class Peer(NamedTuple):
    """A package, what it does of what a transport does, and how it is used."""

    package: str
    module: str
    opened: Opened
    lacks: str
    acknowledges: bool = True
    by_group: bool = False

    @property
    def equal(self) -> bool:
        """Whether it promises what we do, so that we have to be ahead of it."""
        return self.acknowledges and self.by_group


QUEUES = (
    Peer("litequeue", "litequeue", opened_peers.litequeue, "no leases that lapse, no order by group"),
    Peer("persist-queue", "persistqueue", opened_peers.persistqueue, "one process, no leases, no order by group"),
    Peer(
        "huey",
        "huey.storage",
        opened_peers.huey,
        "does not acknowledge: taken is gone. No order by group",
        acknowledges=False,
    ),
    Peer("dramatiq-sqlite", "dramatiq_sqlite", opened_peers.dramatiq, "no leases, no order at all"),
    Peer(
        "kombu",
        "kombu",
        opened_peers.kombu,
        "an ack is not in the database: taken is gone. No order by group",
        acknowledges=False,
    ),
    Peer(
        "diskcache",
        "diskcache",
        opened_peers.diskcache_queue,
        "does not acknowledge: taken is gone. No order by group",
        acknowledges=False,
    ),
)

KEY_VALUE = (
    Peer("diskcache", "diskcache", opened_peers.diskcache, "evicts when it is full"),
    Peer("sqlitedict", "sqlitedict", opened_peers.sqlitedict, "no expiry, one process writes"),
)

KOMBU = at_least(15, must=False)
"""How far the localqueue is to be ahead of a queue on SQLAlchemy's ORM."""


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """A message through each queue, and a put and a get in each key-value store."""
    equal = sum(peer.equal for peer in QUEUES)
    yield plain("peers that acknowledge and keep order by group", equal, f"of {len(QUEUES)}, to be ahead of each")
    for durability in scale.durabilities:
        yield from _queues(directory, durability, scale)
        yield from _key_values(directory, durability, scale)


def named(package: str) -> str | None:
    """A package and its version, if it is installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


def _queues(directory: Path, durability: Durability, scale: Scale) -> Iterator[Line]:
    what = f"a message through, {durability.upper()}"
    with ExitStack() as stack:
        entered = _entered(QUEUES, directory / f"queues-{durability}", durability, stack)
        transport = stack.enter_context(
            TransportRepository.open(directory / f"{durability}.sqlite", durability=durability)
        )
        event = event_of(EVENT)
        entered["transport"] = Contender(lambda times: cycles(transport, event, times))
        queue = stack.enter_context(
            LocalQueueRepository.open(f"sqlite:///{directory}/{durability}-queue.sqlite", durability=durability)
        )
        entered["localqueue"] = Contender(lambda times: _queue_cycles(queue, times))
        figures = interleaved(entered, scale, times=scale.of(50, 10) if durability == "normal" else 3)
    for peer in QUEUES:
        name = named(peer.package)
        if name is None:
            yield missing(
                what, peer.package, f"not installed: pip install 'qstore[bench]'. {peer.package}: {peer.lacks}"
            )
            continue
        note = f"{peer.package}: {peer.lacks}" if durability == "normal" else ""
        ahead: Limit | None = at_least(1, must=False) if peer.equal else None
        yield faster(f"{what}, transport", figures, "transport", name, ahead)
        limit = KOMBU if peer.package == "kombu" and durability == "normal" else None
        yield faster(f"{what}, localqueue", figures, "localqueue", name, limit, note)


def _key_values(directory: Path, durability: Durability, scale: Scale) -> Iterator[Line]:
    with ExitStack() as stack:
        kv = stack.enter_context(
            LocalKvRepository.open(f"sqlite:///{directory}/{durability}-kv.sqlite", durability=durability)
        )
        puts = _entered(KEY_VALUE, directory / f"kv-{durability}", durability, stack)
        puts["ours"] = Contender(_puts(kv.put))
        figures = interleaved(puts, scale, times=scale.of(200, 20) if durability == "normal" else 3)
    for peer in KEY_VALUE:
        name = named(peer.package)
        what = f"put, {durability.upper()}"
        if name is None:
            yield missing(what, peer.package, "not installed: pip install 'qstore[bench]'")
        else:
            note = f"{peer.package}: {peer.lacks}" if durability == "normal" else ""
            yield faster(what, figures, "ours", name, note=note)


def _entered(
    peers: tuple[Peer, ...], directory: Path, durability: Durability, stack: ExitStack
) -> dict[str, Contender]:
    """The peers that are installed, each in a directory of its own, ready to be measured."""
    entered = {}
    for peer in peers:
        name = named(peer.package)
        if name is None:
            continue
        own = directory / peer.package
        own.mkdir(parents=True)
        call, clean, close = peer.opened(import_module(peer.module), own, durability)
        stack.callback(close)
        entered[name] = Contender(_repeated(call), before=lambda _, clean=clean: clean())  # type: ignore[misc]  # its default
    return entered


def _repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def run(times: int) -> None:
        for _ in range(times):
            call()

    return run


def _queue_cycles(queue: LocalQueueRepository, times: int) -> None:
    for _ in range(times):
        queue.send(EVENT)
        [message] = queue.receive()
        queue.ack(message.receipt_handle)


def _puts(put: Callable[[str, bytes], object]) -> Callable[[int], None]:
    numbers = count()

    def run(times: int) -> None:
        for number in range(times):
            put(f"k{number:08}", b"%012d" % next(numbers))

    return run
