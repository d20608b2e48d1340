"""How fast a counter grows."""

from __future__ import annotations

from collections import deque

__all__ = ["RateMeter"]


class RateMeter:
    """Units per second over the last seconds, from a counter's readings.

    Args:
        window_s: how far back it looks.

    >>> meter = RateMeter(60.0)
    >>> meter.add(10.0, 0), meter.add(12.0, 50)
    (None, 25.0)
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._readings: deque[tuple[float, float]] = deque()
        self.per_second: float | None = None
        """The rate at the last reading; None while there is only one."""

    def add(self, at_s: float, count: float) -> float | None:
        """Take a reading and return the rate, or None while there is only one.

        Args:
            at_s: when it was taken, in seconds.
            count: the counter, which only grows; if it is smaller than before, measuring starts over.
        """
        readings = self._readings
        if readings and count < readings[-1][1]:
            readings.clear()
        if not readings or at_s > readings[-1][0]:
            readings.append((at_s, count))
        while len(readings) > 2 and at_s - readings[0][0] > self._window_s:
            readings.popleft()
        (first_at, first), (last_at, last) = readings[0], readings[-1]
        self.per_second = (last - first) / (last_at - first_at) if last_at > first_at else None
        return self.per_second
