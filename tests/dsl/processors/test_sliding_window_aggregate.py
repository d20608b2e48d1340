"""Aggregations over sliding windows, compared with KIP-450's definition of which windows exist."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dsl.processors.support import Pipeline, Running, new_values

from millrace.dsl.stream_aggregation import windowed_aggregate
from millrace.dsl.windows import EmitStrategy, SlidingWindows
from millrace.errors import FailedProcessingError
from millrace.records import Change, ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores

ON_UPDATE, ON_CLOSE = EmitStrategy.ON_WINDOW_UPDATE, EmitStrategy.ON_WINDOW_CLOSE
DIFFERENCE = 10


def sorted_letters(_key: str, value: str, so_far: str) -> str:
    """Aggregate letters regardless of their order."""
    return "".join(sorted(so_far + value))


def unless_delete(key: str, value: str, so_far: str) -> str | None:
    """Aggregate letters; the value `delete` deletes the window."""
    return None if value == "delete" else sorted_letters(key, value, so_far)


def pipeline(
    *,
    grace: int = 1_000,
    emit: EmitStrategy = ON_UPDATE,
    aggregator: Any = sorted_letters,
    send_old_values: bool = False,
    caching: bool = False,
) -> Pipeline:
    """Return a pipeline from topic `in` through one aggregation with store `w`."""
    windows = SlidingWindows.of_time_difference_and_grace(DIFFERENCE, grace)
    aggregation = windowed_aggregate("w", windows, emit, str, aggregator)
    if send_old_values:
        aggregation.send_old_values()
    retention = 2 * DIFFERENCE + grace
    if emit is ON_CLOSE:
        supplier = Stores.persistent_time_ordered_window_store("w", retention, DIFFERENCE, has_index=True)
    else:
        supplier = Stores.persistent_timestamped_window_store("w", retention, DIFFERENCE)
    store = Stores.timestamped_window_store_builder(supplier, Serdes.string(), Serdes.string())
    if caching:
        store.with_caching_enabled()
    return Pipeline().source("in").node("agg", aggregation, "in").store(store, "agg").listen_to("agg")


def stored(task: Running) -> dict[int, tuple[str, int]]:
    """Return the windows of key `k`: start → (aggregate, timestamp)."""
    return {start: tuple(found) for start, found in task.store("w").fetch("k", 0, 10_000)}


def expected(records: list[tuple[str, int]]) -> dict[int, tuple[str, int]]:
    """Return the windows of a set of records: those that end at a record, and those that start after one with later ones."""

    def content(start: int) -> list[tuple[str, int]]:
        return [(letter, time) for letter, time in records if start <= time <= start + DIFFERENCE]

    windows = {}
    for _, time in records:
        windows[max(0, time - DIFFERENCE)] = content(max(0, time - DIFFERENCE))
        if content(time + 1):
            windows[time + 1] = content(time + 1)
    return {
        start: ("".join(sorted(letter for letter, _ in inside)), max(time for _, time in inside))
        for start, inside in windows.items()
    }


def test_two_near_records_make_three_windows() -> None:
    """One window ends at each record; the one after the first record contains only the second."""
    with Running(pipeline()) as task:
        assert new_values(task.pipe("in", "k", "a", 20)) == [(Windowed("k", Window(10, 20)), "a", 20)]
        assert new_values(task.pipe("in", "k", "b", 25)) == [
            (Windowed("k", Window(21, 31)), "b", 25),
            (Windowed("k", Window(15, 25)), "ab", 25),
        ]


@given(
    st.lists(st.integers(min_value=DIFFERENCE, max_value=70), max_size=12),
)
@settings(max_examples=150)
def test_windows_do_not_depend_on_the_order_of_records(times: list[int]) -> None:
    """Out-of-order records create and update exactly the windows that KIP-450 defines."""
    records = [(chr(ord("a") + index), time) for index, time in enumerate(times)]
    with Running(pipeline()) as task:
        for letter, time in records:
            task.pipe("in", "k", letter, time)
        assert stored(task) == expected(records)


def test_records_before_the_first_full_window_share_one() -> None:
    """No window starts before the epoch: [0, difference] contains all early records, and each has its right window."""
    with Running(pipeline()) as task:
        task.pipe("in", "k", "a", 3)
        task.pipe("in", "k", "b", 8)
        task.pipe("in", "k", "c", 5)
        assert stored(task) == {0: ("abc", 8), 4: ("bc", 8), 6: ("b", 8)}


def test_a_record_without_key_or_value_is_dropped() -> None:
    """Sliding windows aggregate only values."""
    with Running(pipeline()) as task:
        assert task.pipe("in", None, "a", 1) == []
        assert task.pipe("in", "k", None, 1) == []
        assert task.dropped == 2


def test_a_record_is_late_when_the_window_behind_it_has_closed() -> None:
    """None of its windows can change any more, so it is dropped and counted."""
    with Running(pipeline(grace=5)) as task:
        task.pipe("in", "other", "x", 45)
        assert task.pipe("in", "k", "late", 29) == []
        assert task.dropped == 1


def test_a_late_record_still_changes_the_windows_that_are_open() -> None:
    """Each closed window counts as a drop; open windows, including the one after the record, are updated."""
    with Running(pipeline(grace=5)) as task:
        task.pipe("in", "other", "x", 45)
        task.pipe("in", "k", "b", 41)
        assert new_values(task.pipe("in", "k", "a", 33)) == [
            (Windowed("k", Window(31, 41)), "ab", 41),
            (Windowed("k", Window(34, 44)), "b", 41),
        ]
        assert task.dropped == 1


def test_old_values_are_sent_if_asked_for() -> None:
    """An update has the value it replaces; a right window that is split off replaces nothing."""
    with Running(pipeline(send_old_values=True)) as task:
        task.pipe("in", "k", "b", 25)
        assert [s.value for s in task.pipe("in", "k", "a", 25)] == [Change("ab", "b")]
        assert Change("ab", None) in [s.value for s in task.pipe("in", "k", "c", 20)]


def test_a_failing_aggregator_is_reported_with_its_node() -> None:
    """Exceptions of user code go to the processing exception handler."""

    def aggregator(_key: str, _value: str, _so_far: str) -> str:
        raise ValueError("no good")

    with (
        Running(pipeline(aggregator=aggregator)) as task,
        pytest.raises(FailedProcessingError, match="node agg failed"),
    ):
        task.pipe("in", "k", "a", 20)


def test_an_aggregate_of_none_deletes_the_window() -> None:
    """A deleted window starts again with the next record."""
    with Running(pipeline(aggregator=unless_delete)) as task:
        task.pipe("in", "k", "a", 20)
        task.pipe("in", "k", "delete", 20)
        assert stored(task) == {}
        task.pipe("in", "k", "b", 20)
        assert task.store("w").fetch("k", 10) == ValueAndTimestamp("b", 20)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "delete", "flush"]), st.integers(0, 70)), max_size=20))
@settings(max_examples=100)
def test_windows_deleted_in_the_cache_are_deleted(steps: list[tuple[str, int]]) -> None:
    """With caching the windows are the same as without, also while the cache holds back their deletion."""
    with (
        Running(pipeline(aggregator=unless_delete)) as plain,
        Running(pipeline(aggregator=unless_delete, caching=True), cache_bytes=1_000_000) as cached,
    ):
        for value, time in steps:
            if value == "flush":
                cached.store("w").flush()
            else:
                plain.pipe("in", "k", value, time)
                cached.pipe("in", "k", value, time)
                assert stored(cached) == stored(plain)


def test_final_results_are_sent_when_the_inclusive_end_has_passed_by_the_grace_period() -> None:
    """A sliding window includes its end, so it closes one millisecond later than a tumbling window."""
    interval = {"__emit.interval.ms.kstreams.windowed.aggregation__": 0}
    with Running(pipeline(grace=5, emit=ON_CLOSE), **interval) as task:
        assert task.pipe("in", "k", "a", 20) == []
        assert task.pipe("in", "other", "x", 25) == []
        assert new_values(task.pipe("in", "other", "y", 26)) == [(Windowed("k", Window(10, 20)), "a", 20)]
        assert task.pipe("in", "other", "z", 27) == []
