"""Counts of dropped records by node and reason, and the warnings about them."""

from __future__ import annotations

import logging

import pytest

from millrace.dropped_records import SUMMARY_INTERVAL_MS, DroppedRecords, DropReason, Drops, described

LATE, NULL_KEY = DropReason.LATE, DropReason.NULL_KEY


@pytest.fixture
def logged(caplog):
    """Return a function that returns the warnings since its last call."""
    caplog.set_level(logging.INFO, "millrace.dropped_records")

    def take() -> list[str]:
        taken = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return taken

    return take


def test_first_drop_of_a_node_is_logged_at_once_and_others_in_a_summary(logged):
    """A summary has what was dropped since the last message, and comes with the first drop after the interval."""
    dropped = DroppedRecords()
    for now_ms in (0, 1, 2):
        dropped.add("a", LATE, now_ms, late_ms=3 * now_ms, allowed_ms=1)
    assert logged() == ["Dropped 1 record at a: too late for a window, by up to 0ms (grace is 1ms)"]
    dropped.add("a", NULL_KEY, SUMMARY_INTERVAL_MS)
    assert logged() == [
        "Dropped 3 records at a: 2 too late for a window, by up to 6ms (grace is 1ms); 1 without a key",
    ]
    assert [(drops.reason, drops.records, drops.last_ms) for drops in dropped.all()] == [
        (LATE, 3, 2),
        (NULL_KEY, 1, SUMMARY_INTERVAL_MS),
    ]


def test_summary_does_not_need_another_drop(logged):
    """`summary_due_ms` says when to ask for it, and it is logged once."""
    dropped = DroppedRecords()
    assert dropped.summary_due_ms == float("inf")
    dropped.add("a", NULL_KEY, 100)
    dropped.add("a", NULL_KEY, 200)
    dropped.add("b", NULL_KEY, 300)
    assert len(logged()) == 2
    due_ms = int(dropped.summary_due_ms)
    assert due_ms == 100 + SUMMARY_INTERVAL_MS
    dropped.summarize(due_ms - 1)
    assert logged() == []
    dropped.summarize(due_ms)
    assert logged() == ["Dropped 1 record at a: without a key"]
    dropped.summarize(due_ms + SUMMARY_INTERVAL_MS)
    assert (logged(), dropped.summary_due_ms) == ([], float("inf"))


def test_what_has_not_been_logged_is_logged_at_the_end(logged):
    """Without a time all nodes are due; the next message is an interval later nevertheless."""
    dropped = DroppedRecords()
    for now_ms in (0, 10):
        dropped.add("a", NULL_KEY, now_ms)
    dropped.summarize()
    assert logged() == ["Dropped 1 record at a: without a key"] * 2
    dropped.add("a", NULL_KEY, 20)
    assert logged() == []


def test_records_that_newer_data_has_replaced_are_counted_in_silence(logged):
    """Java counts them as dropped, but nothing is lost."""
    dropped = DroppedRecords()
    dropped.add("a", DropReason.SUPERSEDED, 0)
    dropped.summarize()
    assert (logged(), [drops.records for drops in dropped.all()]) == ([], [1])


@pytest.mark.parametrize(
    ("late_ms", "shown"), [(9_999, "9s999ms"), (59_001, "1m"), (599_001, "10m"), (600_001, "11m"), (36_000_001, "11h")]
)
def test_lateness_is_rounded_up(late_ms, shown):
    """The larger it is, the coarser, so that the message does not change with every record."""
    assert f"by up to {shown} (grace is 1m)" in described([Drops("a", "", LATE, 1, late_ms, 60_000)])
