"""Kinds of windows (milliseconds since the epoch; starts are inclusive).

| class | windows of a record | end |
|---|---|---|
| TimeWindows | fixed size, aligned to the epoch, every `advance` | exclusive |
| SlidingWindows | fixed size, one for each set of records within it | inclusive |
| SessionWindows | lasts as long as records follow each other within the gap | inclusive |
| UnlimitedWindows | one, from its start on | none |
| JoinWindows | of the other stream's records, around this one's | inclusive |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from millrace.checks import Suggesting, mistake
from millrace.durations import Duration, to_millis
from millrace.plan.topology_plan import PlannedWindows
from millrace.records import Window

_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimeWindows(Suggesting):
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
        """Return windows of this size, which late records can change until `grace` after their end.

        Raises:
            TopologyError: the size is not positive, or the grace is negative.
        """
        size_ms = to_millis(size, "The size of a window", minimum=1)
        return cls(size_ms, size_ms, to_millis(grace, "The grace period of a window"))

    @classmethod
    def of_size_with_no_grace(cls, size: Duration) -> TimeWindows:
        """Return windows of this size, which are final at their end."""
        return cls.of_size_and_grace(size, 0)

    def advance_by(self, advance: Duration) -> TimeWindows:
        """Start a new window at this interval.

        Raises:
            TopologyError: the advance is not positive, or more than the size.
        """
        advance_ms = to_millis(advance, "The advance of a window", minimum=1)
        if advance_ms > self.size_ms:
            raise mistake(f"Windows of {self.size_ms} ms cannot advance by {advance_ms} ms: records would be lost")
        return replace(self, advance_ms=advance_ms)

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the windows a record belongs to, the earliest first."""
        size, advance = self.size_ms, self.advance_ms
        first = max(0, timestamp - size + advance) // advance * advance
        return [Window(start, start + size) for start in range(first, timestamp + 1, advance)]


@dataclass(frozen=True, slots=True)
class SlidingWindows(Suggesting):
    """Windows of records that are at most a time difference apart; both ends are inclusive."""

    time_difference_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> SlidingWindows:
        """Return windows of this time difference, which late records can change until `grace` after their end.

        Raises:
            TopologyError: one of them is negative.
        """
        return cls(to_millis(difference, "The time difference of a window"), to_millis(grace, "The grace of a window"))

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> SlidingWindows:
        """Return windows of this time difference, which are final at their end."""
        return cls.of_time_difference_and_grace(difference, 0)


@dataclass(frozen=True, slots=True)
class SessionWindows(Suggesting):
    """Windows that last until no record arrives for the inactivity gap."""

    inactivity_gap_ms: int
    grace_ms: int

    @classmethod
    def of_inactivity_gap_and_grace(cls, gap: Duration, grace: Duration) -> SessionWindows:
        """Return sessions with this gap, which late records can change until `grace` after their end.

        Raises:
            TopologyError: the gap is not positive, or the grace is negative.
        """
        gap_ms = to_millis(gap, "The inactivity gap of a session", minimum=1)
        return cls(gap_ms, to_millis(grace, "The grace period of a session"))

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, gap: Duration) -> SessionWindows:
        """Return sessions with this gap, which are final when the gap has passed."""
        return cls.of_inactivity_gap_and_grace(gap, 0)


@dataclass(frozen=True, slots=True)
class UnlimitedWindows(Suggesting):
    """One window per key, without an end."""

    start_ms: int = 0

    @classmethod
    def of(cls) -> UnlimitedWindows:
        """Return windows that start at the epoch."""
        return cls()

    def start_on(self, start: Duration) -> UnlimitedWindows:
        """Return windows that start at this time since the epoch; earlier records are in no window.

        Raises:
            TopologyError: it is negative.
        """
        return replace(self, start_ms=to_millis(start, "The start of unlimited windows, since the epoch,"))

    @property
    def size_ms(self) -> int:
        """Practically forever."""
        return _LONG_MAX

    @property
    def grace_ms(self) -> int:
        """None: the window never ends."""
        return 0

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the window, unless the record is older."""
        return [Window(self.start_ms, _LONG_MAX)] if timestamp >= self.start_ms else []


@dataclass(frozen=True, slots=True)
class JoinWindows(Suggesting):
    """Which records of the other stream a record is joined with: those from `before_ms` before it to `after_ms` after."""

    before_ms: int
    after_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_and_grace(cls, difference: Duration, grace: Duration) -> JoinWindows:
        """Return windows for records at most this far apart, in either direction.

        Raises:
            TopologyError: one of them is negative.
        """
        millis = to_millis(difference, "The time difference of a join")
        return cls(millis, millis, to_millis(grace, "The grace period of a join"))

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: Duration) -> JoinWindows:
        """Return windows for records at most this far apart, without a grace period for late records."""
        return cls.of_time_difference_and_grace(difference, 0)

    def before(self, difference: Duration) -> JoinWindows:
        """Join with records of the other stream that are at most this much earlier.

        Raises:
            TopologyError: the window would end before it begins.
        """
        return self._checked(replace(self, before_ms=_signed(difference)))

    def after(self, difference: Duration) -> JoinWindows:
        """Join with records of the other stream that are at most this much later.

        Raises:
            TopologyError: the window would end before it begins.
        """
        return self._checked(replace(self, after_ms=_signed(difference)))

    @property
    def size_ms(self) -> int:
        """The length from start to end."""
        return self.before_ms + self.after_ms

    @staticmethod
    def _checked(windows: JoinWindows) -> JoinWindows:
        if windows.size_ms < 0:
            raise mistake(
                f"A join window from {windows.before_ms} ms before to {windows.after_ms} ms after ends before it begins"
            )
        return windows


def planned_windows(
    windows: TimeWindows | SlidingWindows | SessionWindows | UnlimitedWindows | JoinWindows,
    *,
    in_order_of_time: bool = False,
) -> PlannedWindows:
    """Return windows as a plan describes them.

    >>> planned_windows(TimeWindows.of_size_with_no_grace("5m")).size_ms
    300000
    """
    order = {"in_order_of_time": in_order_of_time}
    match windows:
        case TimeWindows(size_ms, advance_ms, grace_ms):
            return PlannedWindows(kind="time", size_ms=size_ms, advance_ms=advance_ms, grace_ms=grace_ms, **order)
        case SlidingWindows(difference_ms, grace_ms):
            return PlannedWindows(kind="sliding", size_ms=difference_ms, grace_ms=grace_ms, **order)
        case SessionWindows(gap_ms, grace_ms):
            return PlannedWindows(kind="session", size_ms=gap_ms, grace_ms=grace_ms, **order)
        case JoinWindows(before_ms, after_ms, grace_ms):
            return PlannedWindows(kind="join", before_ms=before_ms, after_ms=after_ms, grace_ms=grace_ms)
    return PlannedWindows(kind="unlimited")


class EmitStrategy(Enum):
    """When windowed aggregations emit results: with every update of a window, or once when it is final (KIP-825)."""

    ON_WINDOW_UPDATE = "on-window-update"
    ON_WINDOW_CLOSE = "on-window-close"

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """Emit every update."""
        return cls.ON_WINDOW_UPDATE

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Emit one final result, when window end and grace have passed."""
        return cls.ON_WINDOW_CLOSE


def _signed(difference: Duration) -> int:
    return to_millis(difference, "The bound of a join window", minimum=None)
