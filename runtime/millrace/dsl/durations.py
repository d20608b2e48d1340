"""Durations as users write them: milliseconds, or a `timedelta`."""

from __future__ import annotations

from datetime import timedelta

from millrace.errors import TopologyError

Duration = timedelta | int
"""A timedelta, or milliseconds."""


def to_millis(duration: Duration, what: str, *, minimum: int = 0) -> int:
    """Return whole milliseconds.

    Raises:
        TopologyError: the duration is less than `minimum` milliseconds; `what` names it in the message.
    """
    millis = duration // timedelta(milliseconds=1) if isinstance(duration, timedelta) else int(duration)
    if millis < minimum:
        raise TopologyError(f"{what} must be at least {minimum} ms, not {millis} ms")
    return millis
