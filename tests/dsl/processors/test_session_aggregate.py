"""Aggregations over session windows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dsl.processors.support import Pipeline, Running, new_values

from millrace.dsl.processors.session_aggregate import SessionAggregate
from millrace.dsl.windows import EmitStrategy, SessionWindows
from millrace.errors import FailedProcessingError
from millrace.processor.handlers import LogAndContinueProcessingExceptionHandler
from millrace.records import NO_HEADERS, Change, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores

ON_UPDATE, ON_CLOSE = EmitStrategy.ON_WINDOW_UPDATE, EmitStrategy.ON_WINDOW_CLOSE
GAP = 10


def merged(_key: str, one: str, other: str) -> str:
    """Merge letters regardless of their order."""
    return "".join(sorted(one + other))


def aggregated(key: str, value: str, so_far: str) -> str:
    """Add a letter."""
    if value == "bad":
        raise ValueError("no good")
    return merged(key, so_far, value)


def pipeline(
    *, grace: int = 1_000, emit: EmitStrategy = ON_UPDATE, caching: bool = False, send_old_values: bool = False
) -> Pipeline:
    """Return a pipeline from topic `in` through one aggregation with store `s`."""
    windows = SessionWindows.of_inactivity_gap_and_grace(GAP, grace)
    aggregation = SessionAggregate("s", windows, emit, str, aggregated, merged)
    if send_old_values:
        aggregation.send_old_values()
    of_supplier = Stores.persistent_time_ordered_session_store if emit is ON_CLOSE else Stores.persistent_session_store
    store = Stores.session_store_builder(of_supplier("s", GAP + grace), Serdes.string(), Serdes.string())
    if caching:
        store.with_caching_enabled()
    return Pipeline().source("in").node("agg", aggregation, "in").store(store, "agg").listen_to("agg")


def k(start: int, end: int, key: str = "k") -> Windowed[str]:
    """Return a session key."""
    return Windowed(key, Window(start, end))


def test_records_within_the_gap_extend_a_session() -> None:
    """The old session is deleted before the longer one is forwarded; both updates have their session's end as timestamp."""
    with Running(pipeline()) as task:
        assert new_values(task.pipe("in", "k", "a", 100)) == [(k(100, 100), "a", 100)]
        assert new_values(task.pipe("in", "k", "b", 110)) == [(k(100, 100), None, 100), (k(100, 110), "ab", 110)]
        assert new_values(task.pipe("in", "k", "c", 121)) == [(k(121, 121), "c", 121)]


def test_a_record_between_two_sessions_merges_them() -> None:
    """All sessions within the gap of the record become part of the merged one."""
    with Running(pipeline()) as task:
        task.pipe("in", "k", "a", 100)
        task.pipe("in", "k", "b", 115)
        assert new_values(task.pipe("in", "k", "c", 107)) == [
            (k(100, 100), None, 100),
            (k(115, 115), None, 115),
            (k(100, 115), "abc", 115),
        ]


def test_a_second_record_of_the_same_time_overwrites_its_session() -> None:
    """A session that does not grow is not deleted first."""
    with Running(pipeline(send_old_values=True)) as task:
        task.pipe("in", "k", "a", 100)
        assert [s.value for s in task.pipe("in", "k", "b", 100)] == [Change("ab", None)]


@given(st.lists(st.integers(min_value=0, max_value=150), max_size=15))
@settings(max_examples=100)
def test_sessions_do_not_depend_on_the_order_of_records(times: list[int]) -> None:
    """Whatever the order of records, sessions are the groups in which no gap between neighbours exceeds the inactivity gap."""
    records = [(time, chr(ord("a") + index)) for index, time in enumerate(times)]
    expected: list[tuple[int, int, str]] = []
    for time, letter in sorted(records):
        if expected and time - expected[-1][1] <= GAP:
            start, _, letters = expected.pop()
            expected.append((start, time, "".join(sorted(letters + letter))))
        else:
            expected.append((time, time, letter))
    with Running(pipeline()) as task:
        for time, letter in records:
            task.pipe("in", "k", letter, time)
        found = [(*session.window, value) for session, value in task.store("s").fetch("k")]
    assert sorted(found) == expected


def test_a_session_takes_records_until_gap_and_grace_have_passed() -> None:
    """A record whose session would have ended before stream time - grace - gap is dropped and counted."""
    with Running(pipeline(grace=5)) as task:
        task.pipe("in", "other", "x", 100)
        assert new_values(task.pipe("in", "k", "a", 86)) == [(k(86, 86), "a", 86)]
        assert task.pipe("in", "k", "b", 74) == []
        assert task.dropped == 1
        assert len(task.pipe("in", "k", "c", 80)) == 2, "merging makes it live again"


def test_records_without_a_key_are_dropped() -> None:
    """A session needs a key."""
    with Running(pipeline()) as task:
        assert task.pipe("in", None, "a", 1) == []
        assert task.dropped == 1


def test_deletions_say_what_they_delete_if_asked() -> None:
    """The old value is part of the deletion of a merged session, not of the new session."""
    with Running(pipeline(send_old_values=True)) as task:
        task.pipe("in", "k", "a", 100)
        assert [s.value for s in task.pipe("in", "k", "b", 105)] == [Change(None, "a"), Change("ab", None)]


def test_updates_carry_no_headers() -> None:
    """As in Kafka Streams, since a session is made of many records."""
    with Running(pipeline()) as task:
        assert task.pipe("in", "k", "a", 1, [("h", b"1")])[0].headers == NO_HEADERS


def test_a_failing_aggregator_is_skipped_if_the_handler_says_so() -> None:
    """Exceptions of user code go to the processing exception handler."""
    with Running(pipeline()) as task, pytest.raises(FailedProcessingError, match="node agg failed"):
        task.pipe("in", "k", "bad", 1)
    handler: dict[str, Any] = {"processing.exception.handler": LogAndContinueProcessingExceptionHandler}
    with Running(pipeline(), **handler) as task:
        assert task.pipe("in", "k", "bad", 1) == []
        assert len(task.pipe("in", "k", "a", 1)) == 1


def test_with_a_record_cache_merged_sessions_are_sent_at_the_commit() -> None:
    """Sessions that exist only between commits are never forwarded; the timestamp of an update is the session's end."""
    with Running(pipeline(caching=True), cache_bytes=100_000) as task:
        assert task.pipe("in", "k", "a", 100) == []
        task.pipe("in", "k", "b", 105)
        task.commit()
        assert new_values(task.sent()) == [(k(100, 105), "ab", 105)]
        task.pipe("in", "k", "c", 95)
        task.commit()
        assert new_values(task.sent()) == [(k(100, 105), None, 105), (k(95, 105), "abc", 105)]


def test_final_results_come_once_when_gap_and_grace_have_passed() -> None:
    """Emit on close needs no deletions: only final sessions are emitted, in order of end, with the trigger's headers."""
    interval = {"__emit.interval.ms.kstreams.windowed.aggregation__": 0}
    with Running(pipeline(grace=5, emit=ON_CLOSE), **interval) as task:
        assert task.pipe("in", "k", "a", 100) == []
        assert task.pipe("in", "k", "b", 105) == []
        assert task.pipe("in", "other", "x", 120) == []
        assert new_values(task.pipe("in", "other", "y", 121)) == [(k(100, 105), "ab", 105)]
        assert task.pipe("in", "other", "z", 122) == []
