"""What state a row is in, in SQL that both dialects take. `:now` is in the store's own unit."""

__all__ = ["KEY", "MESSAGE", "QUEUED", "between", "microseconds"]

MESSAGE = """CASE WHEN locked_by IS NULL THEN 'ready'
      WHEN lock_expiry IS NULL THEN 'stuck'
      WHEN locked_by = '__parked__' THEN CASE WHEN lock_expiry >= :now THEN 'parked' ELSE 'ready' END
      WHEN lock_expiry >= :now THEN 'in flight' ELSE 'lapsed' END"""
"""Of a transport's message. stuck: locked without an end, so that no claim ever takes it; lapsed: its lease is over."""

QUEUED = """CASE WHEN visible_at > :now THEN CASE WHEN receipt_handle IS NULL THEN 'parked' ELSE 'in flight' END
      WHEN attempt > 0 THEN 'lapsed' ELSE 'ready' END"""
"""Of a queue's message. lapsed: received before and due again, whether its time was over or it was nacked."""

KEY = "CASE WHEN expires_at <= :now THEN 'expired' ELSE 'live' END"
"""Of a key."""

LAST = 253_402_300_799
"""Epoch seconds: the end of the year 9999. Frames show what lies beyond it as this, which every library can."""


def microseconds(column: str, per_second: int) -> str:
    """A stored time as whole microseconds since the epoch."""
    last = LAST * per_second
    factor = 1_000_000 // per_second
    return (
        f"CASE WHEN {column} > {last} THEN {LAST * 1_000_000} WHEN {column} < 0 THEN 0"
        f" ELSE CAST({column} * {factor} AS BIGINT) END"
    )


def between(earlier: str, later: str) -> str:
    """The time between two in microseconds, cut to milliseconds."""
    return f"({later} - {earlier}) / 1000 * 1000"
