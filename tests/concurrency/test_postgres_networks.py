"""Workers on two hosts with addresses of their own, and one server, while the link of one host is cut. Issue 5.

Each host is a network namespace of this one, with a cable to it. A wire at its end goes on to the server.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import URL

from tests.concurrency.postgres_account import Note, deadlocks, drained, faults, wrong_states
from tests.concurrency.postgres_storm import Plan
from tests.concurrency.postgres_stress import DRIVERS, read, work
from tests.concurrency.processes import Ready, children
from tests.plans.wire import listened_to

pytestmark = pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0 or shutil.which("ip") is None,
    reason="network namespaces are made by root, with the command ip",
)

CUT = 2.0
"""Seconds for which the link is cut: longer than most leases last."""


class Host(NamedTuple):
    """A host of its own. `address` is this one's at its end of the cable."""

    name: str
    address: str

    def link(self, state: str) -> None:
        ip("link", "set", self.name, state)


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, timeout=20, check=False)
    if allowed.returncode != 0:
        pytest.skip(f"no network namespaces here: {allowed.stderr.strip()}")
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            host = Host(f"qs{os.getpid() % 100_000}n{number}", f"10.213.{number}.1")
            ip("netns", "add", host.name)
            stack.callback(ip, "netns", "del", host.name)  # and the cable with it
            ip("link", "add", host.name, "type", "veth", "peer", "name", "server", "netns", host.name)
            ip("address", "add", f"{host.address}/24", "dev", host.name)
            host.link("up")
            ip("-n", host.name, "address", "add", f"10.213.{number}.2/24", "dev", "server")
            ip("-n", host.name, "link", "set", "server", "up")
            made.append(host)
        yield made


def work_on(ready: Ready, host: str, url: str, driver: str, path: str, plan: Plan) -> None:
    """Move this process to a host, and work there."""
    namespace = os.open(f"/run/netns/{host}", os.O_RDONLY)
    assert ctypes.CDLL(None, use_errno=True).setns(namespace, 0x40000000) == 0, os.strerror(ctypes.get_errno())
    os.close(namespace)
    work(ready, url, driver, path, plan, naive=False)


def test_workers_on_two_hosts_keep_all_guarantees_when_the_link_of_one_is_cut_and_restored(
    url: URL, hosts: list[Host], tmp_path: Path
) -> None:
    plan = Plan(claims=10**9, seconds=6, groups=20, publishing=0.3, killed=True)
    calls = []
    with ExitStack() as stack:
        for host in hosts:
            wire = stack.enter_context(listened_to(url, host.address))
            target = wire.url.render_as_string(hide_password=False)
            calls += [
                (work_on, host.name, target, driver, str(tmp_path / f"{host.name} {driver}"), plan)
                for driver in DRIVERS
            ]
        running = stack.enter_context(children(*calls))
        for child in running:
            child.wait_until_ready()
        for child in running:
            child.go()
        time.sleep(1.5)
        hosts[0].link("down")
        cut = time.time()
        time.sleep(CUT)
        restored = time.time()
        hosts[0].link("up")
        for child in running:
            child.result(60)
    notes = {host.name: [n for path in tmp_path.glob(f"{host.name} *") for n in read(path)] for host in hosts}
    done = [note for each in notes.values() for note in each] + drained(url)
    assert faults(done) == Counter()
    assert wrong_states(url) == []
    assert deadlocks(url) == 0
    there, elsewhere = notes[hosts[0].name], notes[hosts[1].name]
    assert held(there, 0, cut)
    assert not held(there, cut + 0.2, restored), "the link was not cut"
    assert held(there, restored, restored + 60), "it does not go on with the link"
    assert held(elsewhere, cut + 0.2, restored), "the other host did not go on"


def held(notes: list[Note], since: float, until: float) -> int:
    return sum(note.what == "held" and since < note.at < until for note in notes)
