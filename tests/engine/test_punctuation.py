"""Schedules fire as those in Kafka Streams' punctuation queue do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.punctuation import NEVER, PunctuationQueue
from millrace.errors import TopologyError


def fire(queue, now):
    """Punctuate, and return (node, time) for each call."""
    calls = []

    def call(schedule, at):
        calls.append((schedule.node, at))
        schedule.punctuator(at)

    queue.punctuate(now, call)
    return calls


def nothing(_ts):
    """Do nothing."""


def test_due_schedule_fires_with_the_time_that_made_it_due():
    """A punctuator gets the current time, not the time it was scheduled for."""
    queue = PunctuationQueue()
    queue.schedule("n", 0, 100, nothing)
    assert fire(queue, 42) == [("n", 42)]
    assert queue.next_ms == 100


def test_missed_intervals_are_skipped_and_the_grid_is_kept():
    """After a gap a schedule fires once, and then at the next point of its own grid."""
    queue = PunctuationQueue()
    queue.schedule("n", 0, 100, nothing)
    fire(queue, 0)
    assert fire(queue, 350) == [("n", 350)]
    assert queue.next_ms == 400
    assert fire(queue, 399) == []
    assert fire(queue, 400) == [("n", 400)]
    assert queue.next_ms == 500


def test_cancelled_schedule_never_fires_again():
    """A schedule can be cancelled before it is due and from within its punctuator."""
    queue = PunctuationQueue()
    before = queue.schedule("before", 10, 10, nothing)
    before.cancel()
    within = queue.schedule("within", 10, 10, lambda _ts: within.cancel())
    assert fire(queue, 10) == [("within", 10)]
    assert fire(queue, 1000) == []
    assert queue.next_ms == NEVER


def test_schedule_made_by_a_punctuator_fires_in_the_same_round_when_due():
    """A schedule made by a punctuator fires at once if it is already due."""
    queue = PunctuationQueue()
    first = queue.schedule("first", 0, 100, lambda ts: (first.cancel(), queue.schedule("second", ts, 100, nothing)))
    assert fire(queue, 5) == [("first", 5), ("second", 5)]


def test_interval_must_be_positive():
    """An interval of zero is refused, and the error names the node."""
    with pytest.raises(TopologyError, match="Node n "):
        PunctuationQueue().schedule("n", 0, 0, nothing)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=8),
    st.lists(st.integers(0, 30), min_size=1, max_size=30),
)
def test_every_schedule_fires_at_most_once_per_round_and_never_early(schedules, steps):
    """Whatever the clock does, a round fires exactly the schedules with a grid point since they last fired."""
    queue = PunctuationQueue()
    entries = [queue.schedule(str(i), first, every, nothing) for i, (first, every) in enumerate(schedules)]
    due = {str(i): first for i, (first, _) in enumerate(schedules)}
    now = 0
    for step in steps:
        now += step
        expected = {name for name, at in due.items() if at <= now}
        calls = fire(queue, now)
        assert sorted(name for name, _ in calls) == sorted(expected)
        for name in expected:
            first, every = schedules[int(name)]
            due[name] = first + ((now - first) // every + 1) * every
        assert {entry.node: entry.next_ms for entry in entries} == due
        assert queue.next_ms == min(due.values())
