"""Aggregations over tumbling, hopping and unlimited windows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.dsl.processors.support import Pipeline, Running, new_values

from millrace.dsl.processors.aggregate import count_aggregator
from millrace.dsl.stream_aggregation import windowed_aggregate
from millrace.dsl.windows import EmitStrategy, TimeWindows, UnlimitedWindows
from millrace.errors import FailedProcessingError, TopologyError
from millrace.processor.handlers import LogAndContinueProcessingExceptionHandler
from millrace.records import Change, Headers, ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores

ON_UPDATE, ON_CLOSE = EmitStrategy.ON_WINDOW_UPDATE, EmitStrategy.ON_WINDOW_CLOSE
INTERVAL = "__emit.interval.ms.kstreams.windowed.aggregation__"


def joined(_key: str, value: str | None, so_far: str) -> str:
    """Aggregate values in order of arrival."""
    return so_far + str(value)


def pipeline(
    windows: Any,
    *,
    emit: EmitStrategy = ON_UPDATE,
    initializer: Any = str,
    aggregator: Any = joined,
    caching: bool = False,
    send_old_values: bool = False,
    retention_ms: int = 1_000,
    size_ms: int = 100,
) -> Pipeline:
    """Return a pipeline from topic `in` through one aggregation with store `w`."""
    aggregation = windowed_aggregate("w", windows, emit, initializer, aggregator)
    if send_old_values:
        aggregation.send_old_values()
    serde = Serdes.long() if initializer is int else Serdes.string()
    if emit is ON_CLOSE:
        supplier = Stores.persistent_time_ordered_window_store("w", retention_ms, size_ms)
    else:
        supplier = Stores.persistent_timestamped_window_store("w", retention_ms, size_ms)
    store = Stores.timestamped_window_store_builder(supplier, Serdes.string(), serde)
    if caching:
        store.with_caching_enabled()
    return Pipeline().source("in").node("agg", aggregation, "in").store(store, "agg").listen_to("agg")


def tumbling(grace: int = 50) -> TimeWindows:
    """Windows of 100 ms."""
    return TimeWindows.of_size_and_grace(100, grace)


def k(start: int, end: int, key: str = "k") -> Windowed[str]:
    """Return a windowed key."""
    return Windowed(key, Window(start, end))


def test_a_record_counts_in_the_one_tumbling_window_it_falls_in() -> None:
    """Windows are aligned to the epoch, with inclusive start and exclusive end."""
    with Running(pipeline(tumbling(), initializer=int, aggregator=count_aggregator)) as task:
        assert new_values(task.pipe("in", "k", "a", 0)) == [(k(0, 100), 1, 0)]
        assert new_values(task.pipe("in", "k", "b", 99)) == [(k(0, 100), 2, 99)]
        assert new_values(task.pipe("in", "k", "c", 100)) == [(k(100, 200), 1, 100)]
        assert new_values(task.pipe("in", "other", "d", 5)) == [(k(0, 100, "other"), 1, 5)]


def test_hopping_windows_are_updated_from_the_earliest_on() -> None:
    """A record belongs to every hopping window around it; no window starts before the epoch."""
    windows = TimeWindows.of_size_with_no_grace(100).advance_by(30)
    with Running(pipeline(windows)) as task:
        assert [key.window.start for key, _, _ in new_values(task.pipe("in", "k", "a", 50))] == [0, 30]
        starts = [key.window.start for key, _, _ in new_values(task.pipe("in", "k", "b", 150))]
        assert starts == [60, 90, 120, 150]


def test_a_window_takes_late_records_until_its_grace_period_has_passed() -> None:
    """A record whose window ended `grace` or more before the operator's stream time is dropped and counted."""
    with Running(pipeline(tumbling(grace=50))) as task:
        task.pipe("in", "other", "a", 149)
        assert new_values(task.pipe("in", "k", "in time", 20)) == [(k(0, 100), "in time", 20)]
        task.pipe("in", "other", "b", 150)
        assert task.pipe("in", "k", "late", 20) == []
        assert task.dropped == 1


def test_a_record_late_for_some_hopping_windows_still_counts_in_the_others() -> None:
    """Windows close independently; each closed one counts as a drop."""
    windows = TimeWindows.of_size_with_no_grace(100).advance_by(50)
    with Running(pipeline(windows)) as task:
        task.pipe("in", "k", "a", 130)
        assert new_values(task.pipe("in", "k", "b", 70)) == [(k(50, 150), "ab", 130)]
        assert task.dropped == 1


def test_an_aggregate_has_the_largest_timestamp_of_its_records() -> None:
    """An out-of-order record does not lower the timestamp of a window."""
    with Running(pipeline(tumbling())) as task:
        task.pipe("in", "k", "a", 60)
        assert new_values(task.pipe("in", "k", "b", 30)) == [(k(0, 100), "ab", 60)]
        assert task.store("w").fetch("k", 0) == ValueAndTimestamp("ab", 60)


def test_records_without_a_key_are_dropped_but_null_values_are_aggregated() -> None:
    """A windowed key needs a key; null values are up to the aggregator."""
    with Running(pipeline(tumbling())) as task:
        assert task.pipe("in", None, "a", 1) == []
        assert task.dropped == 1
        assert new_values(task.pipe("in", "k", None, 1)) == [(k(0, 100), "None", 1)]


@pytest.mark.parametrize("windows", [tumbling(), TimeWindows.of_size_with_no_grace(100).advance_by(60)])
def test_an_aggregate_of_none_deletes_the_window(windows: TimeWindows) -> None:
    """After a deletion, the next record starts again with the initial aggregate."""

    def aggregator(key: str, value: str, so_far: str) -> str | None:
        return None if value == "delete" else joined(key, value, so_far)

    with Running(pipeline(windows, aggregator=aggregator)) as task:
        task.pipe("in", "k", "a", 10)
        assert new_values(task.pipe("in", "k", "delete", 20)) == [(k(0, 100), None, 20)]
        assert task.store("w").fetch("k", 0) is None
        assert new_values(task.pipe("in", "k", "b", 15)) == [(k(0, 100), "b", 15)]


def test_old_values_are_sent_only_if_asked_for_and_begin_with_the_initial_one() -> None:
    """As in Kafka Streams, the first update of a window replaces the initial aggregate, not None."""
    with Running(pipeline(tumbling(), send_old_values=True)) as task:
        assert task.pipe("in", "k", "a", 1)[0].value == Change("a", "")
        assert task.pipe("in", "k", "b", 2)[0].value == Change("ab", "a")
    with Running(pipeline(tumbling())) as task:
        task.pipe("in", "k", "a", 1)
        assert task.pipe("in", "k", "b", 2)[0].value == Change("ab", None)


def test_an_update_carries_the_headers_of_its_record() -> None:
    """Headers pass through an aggregation."""
    with Running(pipeline(tumbling())) as task:
        assert task.pipe("in", "k", "a", 1, [("h", b"1")])[0].headers == Headers([("h", b"1")])


def test_a_failing_aggregator_fails_the_task_or_skips_the_record() -> None:
    """The processing exception handler decides; a skipped record changes nothing and counts as dropped."""

    def aggregator(key: str, value: str, so_far: str) -> str:
        if value == "bad":
            raise ValueError("no good")
        return joined(key, value, so_far)

    with (
        Running(pipeline(tumbling(), aggregator=aggregator)) as task,
        pytest.raises(FailedProcessingError, match="node agg failed"),
    ):
        task.pipe("in", "k", "bad", 1)
    handler = {"processing.exception.handler": LogAndContinueProcessingExceptionHandler}
    with Running(pipeline(tumbling(), aggregator=aggregator), **handler) as task:
        task.pipe("in", "k", "a", 1)
        assert task.pipe("in", "k", "bad", 2) == []
        assert task.dropped == 1
        assert new_values(task.pipe("in", "k", "b", 3)) == [(k(0, 100), "ab", 3)]


def test_with_a_record_cache_only_the_last_update_of_a_commit_is_sent() -> None:
    """Per window, the cache forwards the values at this commit and at the one before."""
    with Running(pipeline(tumbling(), caching=True, send_old_values=True), cache_bytes=100_000) as task:
        assert task.pipe("in", "k", "a", 1) == []
        task.pipe("in", "k", "b", 2)
        task.commit()
        assert [(s.key, s.value, s.timestamp) for s in task.sent()] == [(k(0, 100), Change("ab", None), 2)]
        task.pipe("in", "k", "c", 3)
        task.commit()
        assert [s.value for s in task.sent()] == [Change("abc", "ab")]


def test_unlimited_windows_begin_at_the_given_time_and_never_end() -> None:
    """Records before the start are in no window; all others are in the same one."""
    with Running(pipeline(UnlimitedWindows.of().start_on(100), size_ms=2**63 - 1, retention_ms=2**63 - 1)) as task:
        assert task.pipe("in", "k", "early", 99) == []
        task.pipe("in", "k", "a", 100)
        assert new_values(task.pipe("in", "k", "b", 10_000)) == [(k(100, 2**63 - 1), "ab", 10_000)]


def test_windows_that_never_end_cannot_be_emitted_on_close() -> None:
    """The definition is refused before anything runs."""
    with pytest.raises(TopologyError, match="cannot be emitted on close"):
        windowed_aggregate("w", UnlimitedWindows.of(), ON_CLOSE, str, joined)


def test_final_results_are_sent_once_when_their_grace_period_has_passed() -> None:
    """Nothing is emitted before windows close; then all of them are, with the headers of the record that advanced stream time."""
    with Running(pipeline(tumbling(grace=50), emit=ON_CLOSE), **{INTERVAL: 0}) as task:
        assert task.pipe("in", "a", "1", 10) == []
        assert task.pipe("in", "b", "2", 20) == []
        assert task.pipe("in", "a", "3", 149) == []
        sent = task.pipe("in", "c", "4", 150, [("h", None)])
        assert new_values(sent) == [(k(0, 100, "a"), "1", 10), (k(0, 100, "b"), "2", 20)]
        assert {record.headers for record in sent} == {Headers([("h", None)])}
        assert task.pipe("in", "c", "5", 160) == []
        assert task.pipe("in", "a", "late", 20) == []
        assert new_values(task.pipe("in", "c", "6", 250)) == [
            (k(100, 200, "a"), "3", 149),
            (k(100, 200, "c"), "45", 160),
        ]


def test_final_results_are_looked_for_once_per_interval_of_wall_clock() -> None:
    """Between two checks results wait, however far stream time advances."""
    with Running(pipeline(tumbling(grace=0), emit=ON_CLOSE), now_ms=1, **{INTERVAL: 500}) as task:
        assert task.pipe("in", "k", "a", 10) == []
        assert task.pipe("in", "k", "b", 110) == []
        task.now_ms = 500
        assert task.pipe("in", "k", "c", 111) == []
        task.now_ms = 501
        assert new_values(task.pipe("in", "k", "d", 112)) == [(k(0, 100), "a", 10)]


def test_up_to_where_final_results_were_sent_is_committed_and_remembered() -> None:
    """A restarted task does not emit again what was emitted before the commit (formats §9)."""
    with Running(pipeline(tumbling(grace=0), emit=ON_CLOSE), **{INTERVAL: 0}) as task:
        task.pipe("in", "k", "a", 10)
        assert len(task.pipe("in", "k", "b", 100)) == 1
        committed = task.commit()
    with Running(pipeline(tumbling(grace=0), emit=ON_CLOSE), committed=committed, **{INTERVAL: 0}) as task:
        assert task.pipe("in", "k", "again", 10) == []
        assert task.pipe("in", "k", "c", 100) == []
        assert new_values(task.pipe("in", "k", "d", 200)) == [(k(100, 200), "c", 100)]
