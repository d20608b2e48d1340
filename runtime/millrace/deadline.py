"""Deadlines on the monotonic clock: how long something that consists of several steps may take altogether."""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """The moment, counted from now, by which something must be done.

    >>> Deadline(60).passed, Deadline(0).passed
    (False, True)

    Args:
        timeout_s: Seconds from now.
    """

    __slots__ = ("_at_s",)

    def __init__(self, timeout_s: float) -> None:
        self._at_s = time.monotonic() + timeout_s

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._at_s

    def left_s(self, at_least: float = 0.0) -> float:
        """Return how many seconds are left, or `at_least` if that is more: a last attempt needs some time too."""
        return max(at_least, self._at_s - time.monotonic())
