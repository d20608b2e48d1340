"""Golden topologies of stream joins: with streams, tables and global tables."""

from __future__ import annotations

from typing import Any

from tests.topologies.support import dsl, first, kv, longs, pair, text

from millrace.dsl import Joined, JoinWindows, Materialized, StreamsBuilder, ValueJoinerWithKey
from millrace.state import Stores

WINDOWS = JoinWindows.of_time_difference_and_grace(50, 30)


def _keyed(key: Any, left: Any, right: Any) -> str:
    return f"{text(key)}:{pair(left, right)}"


def stream_table_inner(b: StreamsBuilder) -> None:
    """Inner join with a table."""
    b.stream("in1").join(b.table("in2"), pair).to("out")


def stream_table_left_rekey(b: StreamsBuilder) -> None:
    """Left join of a stream whose key has changed."""
    stream = b.stream("in1").select_key(lambda _k, v: first(v, None))
    stream.left_join(b.table("in2"), ValueJoinerWithKey(_keyed), joined=Joined.as_("jn")).to("out")


def stream_table_versioned(b: StreamsBuilder) -> None:
    """Left join with a table as of the record's time."""
    stream = b.stream("in1")
    table = b.table("in2", Materialized.as_(Stores.persistent_versioned_key_value_store("vt", 150)))
    stream.left_join(table, pair).to("out")


def stream_global_inner(b: StreamsBuilder) -> None:
    """Inner join with a global table."""
    stream = b.stream("in1")
    table = b.global_table("g", kv("gs"))
    stream.join(table, pair, key_selector=lambda _k, v: first(v, None)).to("out")


def stream_global_left(b: StreamsBuilder) -> None:
    """Left join with a global table, joiner with key."""
    stream = b.stream("in1")
    joiner = ValueJoinerWithKey(_keyed)
    stream.left_join(b.global_table("g"), joiner, key_selector=lambda _k, v: first(v, None)).to("out")


def ss_inner(b: StreamsBuilder) -> None:
    """Inner join of streams."""
    b.stream("in1").join(b.stream("in2"), pair, WINDOWS).to("out")


def ss_left(b: StreamsBuilder) -> None:
    """Left join of streams."""
    b.stream("in1").left_join(b.stream("in2"), pair, WINDOWS).to("out")


def ss_outer(b: StreamsBuilder) -> None:
    """Outer join of streams."""
    b.stream("in1").outer_join(b.stream("in2"), pair, WINDOWS).to("out")


def ss_self(b: StreamsBuilder) -> None:
    """Join of a stream with itself."""
    stream = b.stream("in1")
    stream.join(stream, pair, WINDOWS).to("out")


def ss_inner_rekey(b: StreamsBuilder) -> None:
    """Join of streams whose keys have changed, then counted."""
    left = b.stream("in1").select_key(lambda _k, v: first(v))
    right = b.stream("in2").map(lambda _k, v: (first(v), v))
    joined = left.join(right, pair, JoinWindows.of_time_difference_with_no_grace(50))
    joined.group_by_key().count().to_stream().to("out", longs())


def opt_reparts_join(b: StreamsBuilder) -> None:
    """A stream whose key has changed, used by an aggregation and two joins."""
    stream = b.stream("in1").select_key(lambda _k, v: "n" if v is None else v).map_values(lambda v: text(v) + "m")
    counts = stream.group_by_key().count(Materialized.as_("c"))
    stream.left_join(counts, pair).to("out")
    stream.join(b.stream("in2"), pair, JoinWindows.of_time_difference_with_no_grace(100)).to("out2")


JOIN_TOPOLOGIES = {
    define.__name__: dsl(define)
    for define in (
        stream_table_inner,
        stream_table_left_rekey,
        stream_table_versioned,
        stream_global_inner,
        stream_global_left,
        ss_inner,
        ss_left,
        ss_outer,
        ss_inner_rekey,
    )
} | {
    "ss_outer_interval": dsl(ss_outer),
    "ss_self_none": dsl(ss_self),
    "ss_self_all": dsl(ss_self),
    "opt_reparts_join_none": dsl(opt_reparts_join),
    "opt_reparts_join_all": dsl(opt_reparts_join),
}
