"""Kinds of windows and their limits."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.dsl import (
    BufferConfig,
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)
from millrace.dsl.windows import EmitStrategy
from millrace.errors import TopologyError


@given(st.integers(1, 500), st.data(), st.integers(0, 100_000))
def test_a_record_is_in_every_window_that_spans_it(size, data, timestamp):
    """Windows start at multiples of the advance, and the record is in [start, end)."""
    advance = data.draw(st.integers(1, size))
    windows = TimeWindows.of_size_with_no_grace(size).advance_by(advance).windows_for(timestamp)
    starts = [start for start in range(0, timestamp + 1, advance) if start <= timestamp < start + size]
    assert [window.start for window in windows] == starts
    assert all(window.end == window.start + size for window in windows)


def test_lengths_may_be_timedeltas():
    """A timedelta is equivalent to milliseconds."""
    assert TimeWindows.of_size_and_grace(timedelta(seconds=1), 5) == TimeWindows(1000, 1000, 5)
    assert SlidingWindows.of_time_difference_with_no_grace(timedelta(milliseconds=3)).time_difference_ms == 3


def test_unlimited_windows_begin_at_their_start():
    """Earlier records are in no window."""
    windows = UnlimitedWindows.of().start_on(10)
    assert windows.windows_for(9) == []
    assert windows.windows_for(10)[0].start == 10


def test_join_windows_may_lie_to_one_side():
    """The bounds can be negative as long as the window does not end before it starts."""
    windows = JoinWindows.of_time_difference_with_no_grace(10).after(-5)
    assert (windows.before_ms, windows.after_ms, windows.size_ms) == (10, -5, 5)
    with pytest.raises(TopologyError, match="ends before it begins"):
        windows.before(4)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: TimeWindows.of_size_with_no_grace(0),
        lambda: TimeWindows.of_size_and_grace(1, -1),
        lambda: TimeWindows.of_size_with_no_grace(5).advance_by(6),
        lambda: TimeWindows.of_size_with_no_grace(5).advance_by(0),
        lambda: SessionWindows.of_inactivity_gap_with_no_grace(0),
        lambda: SlidingWindows.of_time_difference_with_no_grace(-1),
        lambda: UnlimitedWindows.of().start_on(-1),
        lambda: BufferConfig.max_records(-1),
        lambda: Suppressed.until_window_closes(BufferConfig.max_records(3)),
        lambda: Suppressed.until_time_limit(-1, BufferConfig.unbounded()),
        lambda: Materialized.as_("not a name"),
        lambda: Materialized().with_retention(-1),
    ],
)
def test_impossible_lengths_and_names_are_refused(mistake):
    """Impossible values are refused where they are written."""
    with pytest.raises(TopologyError):
        mistake()


def test_retention_must_cover_windows_and_grace():
    """A store that drops windows too early would lead to wrong results."""
    grouped = StreamsBuilder().stream("in").group_by_key()
    with pytest.raises(TopologyError, match="at least 150 ms"):
        grouped.windowed_by(TimeWindows.of_size_and_grace(100, 50)).count(Materialized.as_("w").with_retention(149))
    windows = SessionWindows.of_inactivity_gap_and_grace(100, 50)
    with pytest.raises(TopologyError, match="at least 150 ms"):
        grouped.windowed_by(windows).count(Materialized.as_("s").with_retention(149))


def test_unlimited_windows_never_close():
    """Final results of a window without an end would never be emitted."""
    windowed = StreamsBuilder().stream("in").group_by_key().windowed_by(UnlimitedWindows.of())
    with pytest.raises(TopologyError, match="never close"):
        windowed.emit_strategy(EmitStrategy.on_window_close())
