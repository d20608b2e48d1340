"""Golden topologies of windows: tumbling, hopping, sliding, sessions, emit on close, suppression."""

from __future__ import annotations

from typing import Any

from tests.topologies.support import CLOSE, L, S, append, cat, dsl, kv, longs, session_out, windowed_out

from millrace.dsl import (
    BufferConfig,
    Grouped,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)

TUMBLING = TimeWindows.of_size_and_grace(100, 50)


def _grouped(b: StreamsBuilder) -> Any:
    return b.stream("in").group_by_key()


def win_tumbling(b: StreamsBuilder) -> None:
    """Tumbling windows."""
    windowed_out(_grouped(b).windowed_by(TUMBLING).count(), 100, L)


def win_tumbling_ret(b: StreamsBuilder) -> None:
    """Tumbling windows with their own retention."""
    store = Materialized.as_("w").with_retention(300).with_caching_disabled()
    windowed_out(_grouped(b).windowed_by(TimeWindows.of_size_with_no_grace(100)).reduce(cat, store), 100, S)


def win_hopping(b: StreamsBuilder) -> None:
    """Hopping windows."""
    windows = TimeWindows.of_size_and_grace(100, 60).advance_by(30)
    windowed_out(_grouped(b).windowed_by(windows).aggregate(str, append, Materialized.with_(S, S)), 100, S)


def win_sliding(b: StreamsBuilder) -> None:
    """Sliding windows."""
    windows = SlidingWindows.of_time_difference_and_grace(50, 100)
    windowed_out(_grouped(b).windowed_by(windows).aggregate(str, append, kv("sl").with_value_serde(S)), 50, S)


def win_session(b: StreamsBuilder) -> None:
    """Session windows."""
    session_out(_grouped(b).windowed_by(SessionWindows.of_inactivity_gap_and_grace(40, 80)).count(), L)


def win_session_agg(b: StreamsBuilder) -> None:
    """Session windows with a custom aggregate."""
    store = Materialized.as_("sess").with_value_serde(S).with_caching_disabled()
    windows = SessionWindows.of_inactivity_gap_with_no_grace(40)
    session_out(
        _grouped(b).windowed_by(windows).aggregate(str, append, lambda _k, one, other: cat(one, other), store), S
    )


def win_keychange(b: StreamsBuilder) -> None:
    """Windows of a stream whose key has changed."""
    grouped = b.stream("in").group_by(lambda _k, v: v, Grouped.as_("gv"))
    counts = grouped.windowed_by(TimeWindows.of_size_with_no_grace(100)).count(Materialized.as_("wk"))
    counts.to_stream(lambda w, _v: f"{w.key}@{w.window.start}").to("out", longs())


def emit_tumbling(b: StreamsBuilder) -> None:
    """Final results of tumbling windows."""
    windowed_out(_grouped(b).windowed_by(TUMBLING).emit_strategy(CLOSE).count(), 100, L)


def emit_hopping(b: StreamsBuilder) -> None:
    """Final results of hopping windows."""
    windows = TimeWindows.of_size_and_grace(100, 20).advance_by(40)
    emitted = _grouped(b).windowed_by(windows).emit_strategy(CLOSE)
    windowed_out(emitted.aggregate(str, append, Materialized.with_(S, S)), 100, S)


def emit_session(b: StreamsBuilder) -> None:
    """Final results of sessions."""
    windows = SessionWindows.of_inactivity_gap_and_grace(40, 30)
    session_out(_grouped(b).windowed_by(windows).emit_strategy(CLOSE).count(), L)


def _counts(b: StreamsBuilder) -> Any:
    return b.stream("in").group_by_key(Grouped.with_(S, S)).windowed_by(TUMBLING).count()


def suppress_window(b: StreamsBuilder) -> None:
    """Only final results."""
    windowed_out(_counts(b).suppress(Suppressed.until_window_closes(BufferConfig.unbounded())), 100, L)


def suppress_window_defaultserde(b: StreamsBuilder) -> None:
    """The same without serdes, which Kafka Streams cannot do."""
    counts = _grouped(b).windowed_by(TUMBLING).count()
    windowed_out(counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())), 100, L)


def suppress_session(b: StreamsBuilder) -> None:
    """Only final sessions."""
    windows = SessionWindows.of_inactivity_gap_and_grace(40, 20)
    counts = b.stream("in").group_by_key(Grouped.with_(S, S)).windowed_by(windows).count()
    session_out(counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("sup")), L)


def suppress_window_shutdown(b: StreamsBuilder) -> None:
    """A buffer that must not be full."""
    buffer = BufferConfig.max_records(3).shut_down_when_full()
    windowed_out(_counts(b).suppress(Suppressed.until_window_closes(buffer)), 100, L)


def suppress_time(b: StreamsBuilder) -> None:
    """At most one update per key and 80 ms."""
    counts = _grouped(b).count().suppress(Suppressed.until_time_limit(80, BufferConfig.unbounded()))
    counts.to_stream().to("out", longs())


def suppress_maxrecords(b: StreamsBuilder) -> None:
    """A buffer that emits early when full."""
    table = b.table("in").suppress(Suppressed.until_time_limit(1000, BufferConfig.max_records(3)).with_name("s3"))
    table.map_values(str.upper).to_stream().to("out")


WINDOW_TOPOLOGIES = {
    define.__name__: dsl(define)
    for define in (
        win_tumbling,
        win_tumbling_ret,
        win_hopping,
        win_sliding,
        win_session,
        win_session_agg,
        win_keychange,
        emit_tumbling,
        emit_hopping,
        emit_session,
        suppress_window,
        suppress_window_defaultserde,
        suppress_session,
        suppress_window_shutdown,
        suppress_time,
        suppress_maxrecords,
    )
} | {"emit_tumbling_interval": dsl(emit_tumbling)}
