"""More windows, as `java/differential/ExtraWindows.java`: unlimited, sliding, their stores, final results."""

from __future__ import annotations

from typing import Any

from tests.topologies.support import CLOSE, L, S, append, cat, kv, longs, session_out, windowed_out

from millrace.dsl import (
    BufferConfig,
    Grouped,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)
from millrace.state import Stores

MAX_LONG = 2**63 - 1
DAY_MS = 24 * 3_600_000


def _grouped(b: StreamsBuilder) -> Any:
    return b.stream("in").group_by_key(Grouped.with_(S, S))


def _unless_dog(_key: Any, value: str, so_far: str) -> str | None:
    return None if value == "dog" else cat(so_far, value)


def _merge(_key: Any, one: str, other: str) -> str:
    return cat(one, other)


def win_unlimited(b: StreamsBuilder) -> None:
    """One window without end."""
    windowed_out(_grouped(b).windowed_by(UnlimitedWindows.of().start_on(50)).count(), MAX_LONG, L)


def win_unlimited_reduce(b: StreamsBuilder) -> None:
    """The same, named."""
    windowed_out(_grouped(b).windowed_by(UnlimitedWindows.of()).reduce(cat, kv("unl"), named="un"), MAX_LONG, S)


def win_gaps(b: StreamsBuilder) -> None:
    """Windows that advance by their size."""
    windows = TimeWindows.of_size_and_grace(70, 10).advance_by(70)
    windowed_out(_grouped(b).windowed_by(windows).count(named="gaps"), 70, L)


def win_hopping_null(b: StreamsBuilder) -> None:
    """An aggregator that deletes."""
    windows = TimeWindows.of_size_and_grace(90, 40).advance_by(40)
    windowed_out(_grouped(b).windowed_by(windows).aggregate(str, _unless_dog, kv("hn").with_value_serde(S)), 90, S)


def win_day_grace(b: StreamsBuilder) -> None:
    """A day of grace."""
    windowed_out(_grouped(b).windowed_by(TimeWindows.of_size_and_grace(100, DAY_MS)).count(), 100, L)


def win_sliding_nograce(b: StreamsBuilder) -> None:
    """Sliding windows without grace."""
    windowed_out(_grouped(b).windowed_by(SlidingWindows.of_time_difference_with_no_grace(30)).count(), 30, L)


def win_sliding_reduce(b: StreamsBuilder) -> None:
    """A reduction."""
    windows = SlidingWindows.of_time_difference_and_grace(80, 1000)
    store = kv("slr").with_caching_disabled()
    windowed_out(_grouped(b).windowed_by(windows).reduce(cat, store, named="slide"), 80, S)


def win_sliding_null(b: StreamsBuilder) -> None:
    """An aggregator that deletes."""
    windows = SlidingWindows.of_time_difference_and_grace(50, 60)
    store = kv("sln").with_value_serde(S).with_caching_disabled()
    windowed_out(_grouped(b).windowed_by(windows).aggregate(str, _unless_dog, store), 50, S)


def win_session_reduce(b: StreamsBuilder) -> None:
    """A reduction of sessions."""
    store = kv("srs").with_retention(1000)
    windows = SessionWindows.of_inactivity_gap_and_grace(25, 100)
    session_out(_grouped(b).windowed_by(windows).reduce(cat, store, named="sr"), S)


def win_session_null(b: StreamsBuilder) -> None:
    """An aggregator that deletes."""
    windows = SessionWindows.of_inactivity_gap_and_grace(40, 40)
    store = kv("sn").with_value_serde(S)
    session_out(_grouped(b).windowed_by(windows).aggregate(str, _unless_dog, _merge, store), S)


def win_then_table(b: StreamsBuilder) -> None:
    """Operators of a windowed table."""
    counts = _grouped(b).windowed_by(TimeWindows.of_size_and_grace(100, 50)).count(Materialized.as_("wc"))
    windowed_out(counts.filter(lambda _w, v: v > 1).map_values(lambda v: v * 10), 100, L)
    grouped = counts.group_by(lambda w, v: (w.key, v), Grouped.with_(S, L))
    grouped.reduce(lambda a, x: a + x, lambda a, x: a - x).to_stream().to("out2", longs())


def win_session_then_table(b: StreamsBuilder) -> None:
    """A group of sessions."""
    windows = SessionWindows.of_inactivity_gap_and_grace(40, 40)
    counts = _grouped(b).windowed_by(windows).count(Materialized.as_("sc"))
    grouped = counts.group_by(lambda w, v: (w.key, v), Grouped.with_(S, L))
    grouped.reduce(lambda a, x: a + x, lambda a, x: a - x).to_stream().to("out", longs())


def win_rekey_named(b: StreamsBuilder) -> None:
    """Sliding windows of a stream whose key has changed."""
    grouped = b.stream("in").group_by(lambda _k, v: v, Grouped.as_("byv"))
    windows = SlidingWindows.of_time_difference_and_grace(60, 20)
    windowed_out(grouped.windowed_by(windows).count(Materialized.as_("slcs"), named="slc"), 60, L)


def win_inmem_supplier(b: StreamsBuilder) -> None:
    """Windows in memory."""
    store = Materialized.as_(Stores.in_memory_window_store("iw", 400, 100))
    windowed_out(_grouped(b).windowed_by(TimeWindows.of_size_and_grace(100, 20)).count(store), 100, L)


def win_plain_supplier(b: StreamsBuilder) -> None:
    """Windows without timestamps."""
    store = Materialized.as_(Stores.persistent_window_store("pw", 400, 100))
    windowed_out(_grouped(b).windowed_by(TimeWindows.of_size_and_grace(100, 20)).reduce(cat, store), 100, S)


def win_session_inmem_supplier(b: StreamsBuilder) -> None:
    """Sessions in memory."""
    store = Materialized.as_(Stores.in_memory_session_store("is", 300))
    session_out(_grouped(b).windowed_by(SessionWindows.of_inactivity_gap_and_grace(30, 20)).count(store), L)


def win_nolog(b: StreamsBuilder) -> None:
    """Windows without changelog."""
    store = kv("wn").with_logging_disabled()
    windowed_out(_grouped(b).windowed_by(TimeWindows.of_size_and_grace(100, 20)).reduce(cat, store), 100, S)


def win_sliding_inmem_supplier(b: StreamsBuilder) -> None:
    """Sliding windows in memory."""
    store = Materialized.as_(Stores.in_memory_window_store("isl", 300, 40))
    windows = SlidingWindows.of_time_difference_and_grace(40, 30)
    windowed_out(_grouped(b).windowed_by(windows).reduce(cat, store), 40, S)


def emit_sliding(b: StreamsBuilder) -> None:
    """Final results of sliding windows."""
    windowed = _grouped(b).windowed_by(SlidingWindows.of_time_difference_and_grace(50, 40)).emit_strategy(CLOSE)
    windowed_out(windowed.aggregate(str, append, Materialized.with_(S, S)), 50, S)


def emit_sliding_interval(b: StreamsBuilder) -> None:
    """The same now and then."""
    windowed = _grouped(b).windowed_by(SlidingWindows.of_time_difference_with_no_grace(50)).emit_strategy(CLOSE)
    windowed_out(windowed.count(), 50, L)


def emit_session_agg(b: StreamsBuilder) -> None:
    """Final results of sessions."""
    windowed = _grouped(b).windowed_by(SessionWindows.of_inactivity_gap_and_grace(30, 50)).emit_strategy(CLOSE)
    session_out(windowed.aggregate(str, append, _merge, kv("esa").with_value_serde(S)), S)


def emit_session_interval(b: StreamsBuilder) -> None:
    """The same now and then."""
    windowed = _grouped(b).windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(30)).emit_strategy(CLOSE)
    session_out(windowed.count(), L)


def emit_tumbling_ret(b: StreamsBuilder) -> None:
    """Final results, kept for longer."""
    windowed = _grouped(b).windowed_by(TimeWindows.of_size_and_grace(60, 30)).emit_strategy(CLOSE)
    windowed_out(windowed.reduce(cat, kv("etr").with_retention(1000).with_caching_disabled()), 60, S)


def emit_then_count(b: StreamsBuilder) -> None:
    """A count of final results."""
    windowed = _grouped(b).windowed_by(TimeWindows.of_size_and_grace(60, 30)).emit_strategy(CLOSE)
    grouped = windowed.count().to_stream().group_by(lambda w, _v: w.key, Grouped.with_(S, L))
    grouped.count().to_stream().to("out", longs())


def suppress_hopping(b: StreamsBuilder) -> None:
    """Only final results of hopping windows."""
    windows = TimeWindows.of_size_and_grace(100, 30).advance_by(50)
    table = _grouped(b).windowed_by(windows).aggregate(str, append, Materialized.with_(S, S))
    windowed_out(table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())), 100, S)


def suppress_sliding(b: StreamsBuilder) -> None:
    """Only final results of sliding windows."""
    table = _grouped(b).windowed_by(SlidingWindows.of_time_difference_and_grace(40, 20)).count()
    final = Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("slsup")
    windowed_out(table.suppress(final), 40, L)


def suppress_windowed_limit(b: StreamsBuilder) -> None:
    """A windowed table held back for some time."""
    table = _grouped(b).windowed_by(TimeWindows.of_size_and_grace(50, 30)).count(Materialized.as_("swl"))
    windowed_out(table.suppress(Suppressed.until_time_limit(40, BufferConfig.max_records(5))), 50, L)


def suppress_window_nolog(b: StreamsBuilder) -> None:
    """Only final results, without changelog."""
    table = _grouped(b).windowed_by(TimeWindows.of_size_and_grace(50, 30)).count()
    buffer = BufferConfig.max_bytes(20_000).shut_down_when_full().with_logging_disabled()
    windowed_out(table.suppress(Suppressed.until_window_closes(buffer)), 50, L)


def suppress_session_null(b: StreamsBuilder) -> None:
    """Only final sessions, some deleted."""
    windows = SessionWindows.of_inactivity_gap_and_grace(40, 40)
    store = kv("ssn").with_value_serde(S)
    table = _grouped(b).windowed_by(windows).aggregate(str, _unless_dog, _merge, store)
    session_out(table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())), S)
