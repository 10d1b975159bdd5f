"""The short form of the stress test on a server; the long one is a command. Issue 5, "Done when"."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import URL

from tests.concurrency.postgres_stress import stressed


def test_eight_processes_that_are_killed_with_their_sessions_never_share_a_group_and_lose_nothing(url: URL) -> None:
    outcome = stressed(url, 6)
    assert outcome.faults == Counter()
    assert min(outcome.counts[what] for what in ("published", "held", "acked")) > 100
    assert outcome.counts["processes killed"]
    assert outcome.counts["sessions ended"]


def test_it_catches_the_claim_that_one_would_write_first(url: URL) -> None:
    assert stressed(url, 4, groups=4, publishing=0.5, naive=True).faults["two in flight"]
