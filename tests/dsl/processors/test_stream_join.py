"""Inner joins of two streams, and of a stream with itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dsl.processors.support import Pipeline, Running, Sent

from millrace.dsl.processors.stateless import pass_through
from millrace.dsl.processors.stream_join import stream_join
from millrace.dsl.windows import JoinWindows
from millrace.errors import FailedProcessingError
from millrace.processor.handlers import LogAndContinueProcessingExceptionHandler
from millrace.records import Headers
from millrace.serdes import Serdes
from millrace.state import Stores

ASYMMETRIC = JoinWindows.of_time_difference_and_grace(10, 1_000).before(5)
"""Records of the right stream from 5 ms before to 10 ms after one of the left."""


def slash(key: str, left: str, right: str) -> str:
    """Join two values."""
    if "bad" in (left, right):
        raise ValueError("no good")
    return f"{left}/{right}"


def window_store(name: str, windows: JoinWindows) -> Any:
    """Return the builder of one side's store."""
    supplier = Stores.persistent_window_store(
        name, windows.size_ms + windows.grace_ms, windows.size_ms, retain_duplicates=True
    )
    return Stores.window_store_builder(supplier, Serdes.string(), Serdes.string())


def inner(windows: JoinWindows = ASYMMETRIC, *, right: str = "right") -> Pipeline:
    """Return an inner join of topics `left` and `right`, which may be the same."""
    join = stream_join(windows=windows, joiner=slash, left_store_name="l", right_store_name="r")
    pipeline = Pipeline().source("left")
    if right != "left":
        pipeline.source(right)
    return (
        pipeline.node("keep-left", join.left_window, "left")
        .node("keep-right", join.right_window, right)
        .node("join-left", join.left, "keep-left")
        .node("join-right", join.right, "keep-right")
        .node("merge", pass_through(), "join-left", "join-right")
        .store(window_store("l", windows), "keep-left", "join-right")
        .store(window_store("r", windows), "keep-right", "join-left")
        .listen_to("merge")
    )


def self_join(windows: JoinWindows) -> Pipeline:
    """Return a join of topic `left` with itself, through one store."""
    join = stream_join(windows=windows, joiner=slash, left_store_name="l", right_store_name="r")
    return (
        Pipeline()
        .source("left")
        .node("keep", join.left_window, "left")
        .node("join", join.self_join, "keep")
        .store(window_store("l", windows), "keep", "join")
        .listen_to("join")
    )


def test_records_are_joined_within_the_window_whichever_comes_first() -> None:
    """Windows are relative to the left stream, whose value is the left one in every result."""
    with Running(inner()) as task:
        assert task.pipe("left", "k", "a", 100) == []
        assert task.pipe("right", "k", "x", 110) == [Sent("k", "a/x", 110)]
        assert task.pipe("right", "k", "too late", 111) == []
        assert task.pipe("right", "k", "y", 95) == [Sent("k", "a/y", 100)]
        assert task.pipe("right", "k", "too early", 94) == []
        assert [s.value for s in task.pipe("left", "k", "b", 100)] == ["b/y", "b/x"]


def test_every_record_of_a_time_is_joined() -> None:
    """The stores retain duplicates."""
    with Running(inner()) as task:
        task.pipe("left", "k", "a", 100)
        task.pipe("left", "k", "a", 100)
        assert [s.value for s in task.pipe("right", "k", "x", 100)] == ["a/x", "a/x"]


def test_results_carry_the_headers_of_the_record_that_completed_them() -> None:
    """Records in the window store have no headers any more."""
    with Running(inner()) as task:
        task.pipe("left", "k", "a", 100, [("h", b"left")])
        assert task.pipe("right", "k", "x", 100, [("h", b"right")])[0].headers == Headers([("h", b"right")])


def test_records_without_key_or_value_are_dropped() -> None:
    """Neither can be joined."""
    with Running(inner()) as task:
        assert task.pipe("left", None, "a", 1) == []
        assert task.pipe("right", "k", None, 1) == []
        assert task.dropped == 2


def test_a_failing_joiner_skips_the_record_if_the_handler_says_so() -> None:
    """The skipped record is in the window store nevertheless: it was read without an error."""
    with Running(inner()) as task:
        task.pipe("left", "k", "a", 1)
        with pytest.raises(FailedProcessingError, match="node join-right failed"):
            task.pipe("right", "k", "bad", 1)
    handler: dict[str, Any] = {"processing.exception.handler": LogAndContinueProcessingExceptionHandler}
    with Running(inner(), **handler) as task:
        task.pipe("left", "k", "a", 1)
        assert task.pipe("right", "k", "bad", 1) == []
        assert task.pipe("right", "k", "x", 1) == [Sent("k", "a/x", 1)]


RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("km"), st.integers(min_value=0, max_value=60)),
    max_size=15,
)


@given(RECORDS)
@settings(max_examples=100)
def test_the_results_are_all_pairs_within_the_window(records: list[tuple[str, str, int]]) -> None:
    """Each pair has one result with the later timestamp, whatever the order of records."""
    numbered = [(topic, key, str(index), time) for index, (topic, key, time) in enumerate(records)]
    expected = Counter(
        Sent(key, f"{left}/{right}", max(left_time, right_time))
        for one, key, left, left_time in numbered
        for other, other_key, right, right_time in numbered
        if one == "left" and other == "right" and key == other_key and left_time - 5 <= right_time <= left_time + 10
    )
    with Running(inner()) as task:
        found = Counter(sent for topic, key, value, time in numbered for sent in task.pipe(topic, key, value, time))
    assert found == expected


@given(st.lists(st.tuples(st.sampled_from("km"), st.integers(min_value=0, max_value=60)), max_size=12))
@settings(max_examples=100)
def test_a_self_join_gives_what_a_join_of_two_equal_streams_gives(records: list[tuple[str, int]]) -> None:
    """One store and one node instead of two stores and three nodes give the same results, in the same order per record."""
    with Running(inner(right="left")) as two, Running(self_join(ASYMMETRIC)) as one:
        for index, (key, time) in enumerate(records):
            assert one.pipe("left", key, str(index), time) == two.pipe("left", key, str(index), time)


def test_a_self_join_drops_records_without_key_or_value() -> None:
    """Like every inner join, but counted only once."""
    with Running(self_join(ASYMMETRIC)) as task:
        assert task.pipe("left", None, "a", 1) == []
        assert task.pipe("left", "k", None, 1) == []
        assert task.dropped == 2


def test_an_expired_record_is_not_joined_with_itself() -> None:
    """Nor would a join of two streams find it in the expired window."""
    windows = JoinWindows.of_time_difference_and_grace(10, 5)
    with Running(self_join(windows)) as task:
        task.pipe("left", "k", "a", 1_000)
        assert task.pipe("left", "k", "late", 976) == []
        assert task.pipe("left", "m", "in time", 977) == [Sent("m", "in time/in time", 977)]
