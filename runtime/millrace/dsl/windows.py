"""Kinds of windows (milliseconds since the epoch; starts are inclusive).

| class | windows of a record | end |
|---|---|---|
| TimeWindows | fixed size, aligned to the epoch, every `advance` | exclusive |
| SlidingWindows | fixed size, one for each set of records within it | inclusive |
| SessionWindows | as long as records follow each other within the gap | inclusive |
| UnlimitedWindows | one, from its start on | none |
| JoinWindows | of the other stream's records, around this one's | inclusive |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from millrace.dsl.durations import Duration, to_millis
from millrace.errors import TopologyError
from millrace.records import Window

_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of a fixed size: tumbling, or hopping if they advance by less than their size.

    >>> hopping = TimeWindows.of_size_with_no_grace(10).advance_by(5)
    >>> hopping.windows_for(12)
    [Window(start=5, end=15), Window(start=10, end=20)]
    """

    size_ms: int
    advance_ms: int
    grace_ms: int

    @classmethod
    def of_size_and_grace(cls, size: Duration, grace: Duration) -> TimeWindows:
        """Windows of that size that late records can change until `grace` after their end.

        Raises:
            TopologyError: the size is not positive, or the grace is negative.
        """
        size_ms = to_millis(size, "The size of a window", minimum=1)
        return cls(size_ms, size_ms, to_millis(grace, "The grace period of a window"))

    @classmethod
    def of_size_with_no_grace(cls, size: Duration) -> TimeWindows:
        """Windows of that size that are final at their end."""
        return cls.of_size_and_grace(size, 0)

    def advance_by(self, advance: Duration) -> TimeWindows:
        """Begin a window every so often.

        Raises:
            TopologyError: the advance is not positive, or more than the size.
        """
        advance_ms = to_millis(advance, "The advance of a window", minimum=1)
        if advance_ms > self.size_ms:
            raise TopologyError(
                f"Windows of {self.size_ms} ms cannot advance by {advance_ms} ms: records would be lost"
            )
        return replace(self, advance_ms=advance_ms)

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the windows a record belongs to, the earliest first."""
        size, advance = self.size_ms, self.advance_ms
        first = max(0, timestamp - size + advance) // advance * advance
        return [Window(start, start + size) for start in range(first, timestamp + 1, advance)]


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows over the records at most a time difference apart; both ends are inclusive."""

    time_difference_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> SlidingWindows:
        """Windows of that time difference that late records can change until `grace` after their end.

        Raises:
            TopologyError: one of them is negative.
        """
        return cls(to_millis(difference, "The time difference of a window"), to_millis(grace, "The grace of a window"))

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> SlidingWindows:
        """Windows of that time difference that are final at their end."""
        return cls.of_time_difference_and_grace(difference, 0)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows that last as long as records keep coming within a gap of inactivity."""

    inactivity_gap_ms: int
    grace_ms: int

    @classmethod
    def of_inactivity_gap_and_grace(cls, gap: Duration, grace: Duration) -> SessionWindows:
        """Sessions of that gap that late records can change until `grace` after their end.

        Raises:
            TopologyError: the gap is not positive, or the grace is negative.
        """
        gap_ms = to_millis(gap, "The inactivity gap of a session", minimum=1)
        return cls(gap_ms, to_millis(grace, "The grace period of a session"))

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, gap: Duration) -> SessionWindows:
        """Sessions of that gap that are final when the gap has passed."""
        return cls.of_inactivity_gap_and_grace(gap, 0)


@dataclass(frozen=True, slots=True)
class UnlimitedWindows:
    """One window per key, without an end."""

    start_ms: int = 0

    @classmethod
    def of(cls) -> UnlimitedWindows:
        """Begin at the epoch."""
        return cls()

    def start_on(self, start_ms: int) -> UnlimitedWindows:
        """Begin at that time (ms since the epoch); earlier records are in no window.

        Raises:
            TopologyError: it is negative.
        """
        if start_ms < 0:
            raise TopologyError(f"Unlimited windows cannot start at {start_ms}, before the epoch")
        return replace(self, start_ms=start_ms)

    @property
    def size_ms(self) -> int:
        """As good as forever."""
        return _LONG_MAX

    @property
    def grace_ms(self) -> int:
        """None: the window never ends."""
        return 0

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the window, if the record is not before it."""
        return [Window(self.start_ms, _LONG_MAX)] if timestamp >= self.start_ms else []


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """Which records of the other stream a record is joined with: those from `before_ms` before it to `after_ms` after."""

    before_ms: int
    after_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> JoinWindows:
        """Records at most so far apart, in either direction.

        Raises:
            TopologyError: one of them is negative.
        """
        millis = to_millis(difference, "The time difference of a join")
        return cls(millis, millis, to_millis(grace, "The grace period of a join"))

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> JoinWindows:
        """Records at most so far apart, none of them late."""
        return cls.of_time_difference_and_grace(difference, 0)

    def before(self, difference: Duration) -> JoinWindows:
        """Join records of the other stream up to so long before.

        Raises:
            TopologyError: the window would end before it begins.
        """
        return self._checked(replace(self, before_ms=_signed(difference)))

    def after(self, difference: Duration) -> JoinWindows:
        """Join records of the other stream up to so long after.

        Raises:
            TopologyError: the window would end before it begins.
        """
        return self._checked(replace(self, after_ms=_signed(difference)))

    @property
    def size_ms(self) -> int:
        """From its beginning to its end."""
        return self.before_ms + self.after_ms

    @staticmethod
    def _checked(windows: JoinWindows) -> JoinWindows:
        if windows.size_ms < 0:
            raise TopologyError(
                f"A join window from {windows.before_ms} ms before to {windows.after_ms} ms after ends before it begins"
            )
        return windows


class EmitStrategy(Enum):
    """When windowed aggregations send results on: with every update of a window, or once when it is final (KIP-825)."""

    ON_WINDOW_UPDATE = "on-window-update"
    ON_WINDOW_CLOSE = "on-window-close"

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """Send every update."""
        return cls.ON_WINDOW_UPDATE

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Send one final result, when window end + grace has passed."""
        return cls.ON_WINDOW_CLOSE


def _signed(difference: Duration) -> int:
    return to_millis(difference, "The bound of a join window", minimum=-_LONG_MAX)
