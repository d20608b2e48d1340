"""Suppressed tables."""

from __future__ import annotations

from typing import Any

import pytest
from tests.dsl.processors.support import Pipeline, Running, Sent

from millrace.dsl.options.suppressed import BufferConfig
from millrace.dsl.processors.aggregate import count_aggregator
from millrace.dsl.processors.suppress import TableSuppress
from millrace.dsl.processors.table_operators import TableSourceProcessor
from millrace.dsl.stream_aggregation import windowed_aggregate
from millrace.dsl.windows import EmitStrategy, TimeWindows
from millrace.errors import FailedProcessingError
from millrace.records import Change, Headers, ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.serdes.windowed import TimeWindowedSerde
from millrace.state import Stores
from millrace.state.suppression_buffer import SuppressionBufferBuilder


def table_pipeline(wait_ms: int, buffer: BufferConfig | None = None) -> Pipeline:
    """Return a pipeline from table topic `in` through a suppression by time."""
    table = TableSourceProcessor("t", materialized=True, on_materialize=lambda: None)
    suppress = TableSuppress(
        parent=table,
        store_name="b",
        wait_ms=wait_ms,
        final_results=False,
        buffer=buffer or BufferConfig.unbounded(),
    )
    supplier = Stores.persistent_timestamped_key_value_store("t")
    store = Stores.timestamped_key_value_store_builder(supplier, Serdes.string(), Serdes.string())
    return (
        Pipeline()
        .source("in")
        .node("t", table, "in")
        .node("suppress", suppress, "t")
        .store(store, "t")
        .store(SuppressionBufferBuilder("b", Serdes.string(), Serdes.string()), "suppress")
        .listen_to("suppress")
    )


def window_pipeline(*, grace: int = 50) -> Pipeline:
    """Return a pipeline that counts topic `in` by windows of 100 ms, and suppresses until they close."""
    windows = TimeWindows.of_size_and_grace(100, grace)
    count = windowed_aggregate("w", windows, EmitStrategy.ON_WINDOW_UPDATE, int, count_aggregator)
    suppress = TableSuppress(
        parent=count, store_name="b", wait_ms=grace, final_results=True, buffer=BufferConfig.unbounded()
    )
    supplier = Stores.persistent_timestamped_window_store("w", 1_000, 100)
    keys = TimeWindowedSerde(Serdes.string(), 100)
    return (
        Pipeline()
        .source("in")
        .node("count", count, "in")
        .node("suppress", suppress, "count")
        .store(Stores.timestamped_window_store_builder(supplier, Serdes.string(), Serdes.long()), "count")
        .store(SuppressionBufferBuilder("b", keys, Serdes.long()), "suppress")
        .listen_to("suppress")
    )


def test_an_update_waits_for_its_time_and_only_the_last_one_is_sent() -> None:
    """The time starts with the key's first update; the emitted update has timestamp and headers of the last one."""
    with Running(table_pipeline(100)) as task:
        assert task.pipe("in", "k", "a", 1_000) == []
        assert task.pipe("in", "k", "b", 1_050, [("h", b"1")]) == []
        assert task.pipe("in", "other", "x", 1_099) == []
        sent = task.pipe("in", "other", "y", 1_100)
        assert sent == [Sent("k", Change("b", "a"), 1_050, Headers([("h", b"1")]))]


def test_updates_are_sent_in_the_order_they_are_due() -> None:
    """Updates that are due at the same time are emitted in order of their keys."""
    with Running(table_pipeline(100)) as task:
        for key, time in (("z", 1_000), ("b", 1_001), ("a", 1_000)):
            task.pipe("in", key, "v", time)
        assert [s.key for s in task.pipe("in", "end", "v", 2_000)] == ["a", "z", "b"]


def test_deletions_are_sent_when_suppressing_by_time() -> None:
    """They may delete what has been emitted before."""
    with Running(table_pipeline(100)) as task:
        task.pipe("in", "k", "a", 1_000)
        task.pipe("in", "k", None, 1_010)
        assert task.pipe("in", "other", "x", 1_100) == [Sent("k", Change(None, "a"), 1_010)]


def test_a_record_that_comes_late_is_sent_at_once() -> None:
    """Its time has already passed."""
    with Running(table_pipeline(100)) as task:
        task.pipe("in", "other", "x", 2_000)
        assert task.pipe("in", "k", "a", 1_900) == [Sent("k", Change("a", None), 1_900)]


def test_final_results_are_sent_once_per_window_when_it_closes() -> None:
    """Stream time must reach the window's end plus grace."""
    with Running(window_pipeline()) as task:
        assert task.pipe("in", "k", "a", 10) == []
        assert task.pipe("in", "k", "b", 20) == []
        assert task.pipe("in", "other", "x", 149) == []
        assert task.pipe("in", "other", "y", 150) == [Sent(Windowed("k", Window(0, 100)), Change(2, 1), 20)]
        assert task.pipe("in", "k", "late", 30) == []


def test_a_full_buffer_sends_its_oldest_updates_early() -> None:
    """The number of waiting keys is limited."""
    with Running(table_pipeline(1_000, BufferConfig.max_records(2))) as task:
        task.pipe("in", "a", "1", 100)
        task.pipe("in", "b", "2", 101)
        assert [s.key for s in task.pipe("in", "c", "3", 102)] == ["a"]
        assert task.pipe("in", "b", "4", 103) == []
        assert task.store("b").num_records == 2


def test_a_buffer_that_is_full_by_bytes_sends_early_too() -> None:
    """Bytes are estimated as in Java: key, values, context and eight for the time."""
    with Running(table_pipeline(1_000, BufferConfig.max_bytes(90))) as task:
        task.pipe("in", "a", "1", 100)
        assert task.store("b").buffer_size == 8 + 1 + 1 + 20 + len("in")
        task.pipe("in", "b", "2", 101)
        assert [s.key for s in task.pipe("in", "c", "3", 102)] == ["a"]


def test_a_full_buffer_can_fail_the_task_instead() -> None:
    """Nothing is emitted early; the error names buffer, sizes and limits."""
    buffer = BufferConfig.max_records(1).shut_down_when_full()
    with Running(table_pipeline(1_000, buffer)) as task:
        task.pipe("in", "a", "1", 100)
        with pytest.raises(
            FailedProcessingError, match=r"buffer b of node suppress is full: it holds 2 records of at most 1"
        ):
            task.pipe("in", "b", "2", 101)


def test_looking_up_a_suppressed_table_gives_what_was_sent_on_last() -> None:
    """While an update waits, the buffer returns the previous value; otherwise the table upstream does."""
    table = TableSourceProcessor("t", materialized=True, on_materialize=lambda: None)
    suppress = TableSuppress(
        parent=table, store_name="b", wait_ms=100, final_results=False, buffer=BufferConfig.unbounded()
    )
    found: list[Any] = []

    def look_up(node: Any) -> Any:
        get = suppress.view().open(node).get
        return lambda key, *_: found.append(get(key))

    supplier = Stores.persistent_timestamped_key_value_store("t")
    store = Stores.timestamped_key_value_store_builder(supplier, Serdes.string(), Serdes.string())
    pipeline = (
        Pipeline()
        .source("in")
        .source("ask")
        .node("t", table, "in")
        .node("suppress", suppress, "t")
        .node("look-up", look_up, "ask")
        .store(store, "t", "look-up")
        .store(SuppressionBufferBuilder("b", Serdes.string(), Serdes.string()), "suppress", "look-up")
        .listen_to("suppress")
    )
    assert suppress.view().store_names == ("b", "t")
    with Running(pipeline) as task:
        task.pipe("in", "k", "a", 1_000)
        task.pipe("ask", "k", "?", 1_000)
        task.pipe("in", "end", "x", 1_100)
        task.pipe("ask", "k", "?", 1_100)
        task.pipe("in", "k", "b", 1_110)
        task.pipe("ask", "k", "?", 1_110)
    assert found == [None, ValueAndTimestamp("a", 1_000), ValueAndTimestamp("a", -1)]
