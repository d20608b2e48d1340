"""More streams, as `java/differential/ExtraStreams.java`: repartitioning, partitioners, cogroups, failing user code."""

from __future__ import annotations

import re
from typing import Any

from tests.topologies.processors import KvCounter
from tests.topologies.streams import Dedup, cogrouped
from tests.topologies.support import L, S, cat, first, kv, longs, pair, session_out, text, windowed_out

from millrace.dsl import (
    Branched,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Printed,
    Produced,
    Repartitioned,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
)
from millrace.state import Stores


def multicast(b: StreamsBuilder) -> None:
    """A partitioner that chooses, leaves it to the default, or drops."""

    def partition(_topic: str, _key: Any, value: str | None, _count: int) -> Any:
        if value is None:
            return []
        return [0] if value.startswith("a") else None

    b.stream("in").to("out", Produced.stream_partitioner(partition))


def print_named(b: StreamsBuilder) -> None:
    """Printing."""
    stream = b.stream("in")
    stream.print(Printed.to_sys_out())
    stream.print(Printed.to_sys_out().with_label("l").with_name("printer"))
    stream.foreach(lambda _k, _v: None, "each")


def pattern_source(b: StreamsBuilder) -> None:
    """Topics that match a pattern."""
    b.stream(re.compile("in[0-9]")).map_values(lambda v: text(v) + "+").to("out")


def same_source_twice(b: StreamsBuilder) -> None:
    """One topic read twice."""
    b.stream("in").filter(lambda _k, v: v is not None).to("out")
    b.stream("in").map_values(lambda v: text(v) + "2").to("out2")


def loop_through_topic(b: StreamsBuilder) -> None:
    """A topic that is written and read."""
    b.stream("in").filter(lambda _k, v: v is not None).map_values(lambda v: v + "!").to("middle")
    b.stream("middle").group_by_key().count().to_stream().to("out", longs())


def branches_nested(b: StreamsBuilder) -> None:
    """Branches with and without names."""
    outer = (
        b.stream("in")
        .split()
        .branch(lambda k, _v: k is None, Branched.with_consumer(lambda s: s.to("out-null")))
        .branch(lambda _k, v: v is None)
        .default_branch()
    )
    outer[max(outer)].to("out-gone")
    named = b.stream("in2").split("in-").branch(lambda _k, _v: True, Branched.as_("first")).no_default_branch()
    named["in-first"].flat_map(lambda k, v: [] if v is None else [(v, k)]).to("out-swapped")


def merge_self(b: StreamsBuilder) -> None:
    """A stream merged with what was made of it."""
    stream = b.stream("in")
    stream.merge(stream.map_values(lambda v: text(v) + "m"), "both").to("out")


def reparts_many(b: StreamsBuilder) -> None:
    """Four uses of a stream whose key has changed."""
    stream = b.stream("in1").select_key(lambda _k, v: first(v), "rekey")
    stream.group_by_key(Grouped.as_("g1")).count(Materialized.as_("c1")).to_stream().to("out1", longs())
    windowed = stream.map_values(lambda v: text(v) + "w").group_by_key(Grouped.as_("g2"))
    windowed_out(windowed.windowed_by(TimeWindows.of_size_with_no_grace(100)).reduce(cat), 100, S)
    some = stream.filter(lambda _k, v: v is not None)
    some.join(b.stream("in2"), lambda left, right: left + right, JoinWindows.of_time_difference_with_no_grace(30)).to(
        "out3"
    )
    stream.to_table(kv("rt")).to_stream().to("out4")


def reparts_merge(b: StreamsBuilder) -> None:
    """Two uses of a merge of streams whose keys have changed."""
    one = b.stream("in1").select_key(lambda _k, v: first(v))
    merged = one.merge(b.stream("in2").map(lambda _k, v: (first(v, "m"), v)))
    merged.group_by_key().count().to_stream().to("out1", longs())
    merged.map_values(lambda v: text(v) + "x").group_by_key().reduce(cat).to_stream().to("out2")


def repartition_explicit(b: StreamsBuilder) -> None:
    """A repartition that makes that of the group superfluous."""
    stream = b.stream("in").select_key(lambda _k, v: first(v, None))
    again = stream.repartition(Repartitioned.with_(S, S).with_name("rp").with_number_of_partitions(2))
    again.group_by_key().count().to_stream().to("out", longs())


def repartition_then_join(b: StreamsBuilder) -> None:
    """A join of repartitioned streams."""
    left = b.stream("in1").repartition(Repartitioned.as_("left"))
    right = b.stream("in2").select_key(lambda k, _v: k).repartition()
    left.join(right, pair, JoinWindows.of_time_difference_with_no_grace(40)).to("out")
    left.group_by(lambda _k, v: v).count().to_stream().to("out2", longs())


def grouped_twice_same_name(b: StreamsBuilder) -> None:
    """One group, aggregated twice through one topic."""
    grouped = b.stream("in").group_by(lambda _k, v: v, Grouped.as_("same"))
    grouped.count().to_stream().to("out", longs())
    grouped.reduce(cat).to_stream().to("out2")


def aggregate_chain(b: StreamsBuilder) -> None:
    """An aggregation of an aggregation."""
    counts = b.stream("in").group_by(lambda _k, v: v).count(Materialized.as_("first")).to_stream()
    again = counts.group_by(lambda k, _v: k[:1], Grouped.with_(S, L)).count(Materialized.as_("second"))
    again.to_stream().to("out", longs())


def count_inmem_nocache(b: StreamsBuilder) -> None:
    """A count in memory without cache."""
    store = Materialized.as_(Stores.in_memory_key_value_store("im")).with_caching_disabled()
    b.stream("in").group_by_key().count(store).to_stream().to("out", longs())


def reduce_named(b: StreamsBuilder) -> None:
    """A named reduction that deletes."""
    grouped = b.stream("in").group_by_key(Grouped.with_(S, S).with_name("unused"))
    reduced = grouped.reduce(
        lambda a, x: None if x.startswith("d") else cat(a, x), Materialized.as_("reds"), named="red"
    )
    reduced.to_stream(named="stream").to("out")


def count_versioned(b: StreamsBuilder) -> None:
    """A count in a versioned store."""
    store = Materialized.as_(Stores.persistent_versioned_key_value_store("vc", 300))
    b.stream("in").group_by_key().count(store).to_stream().to("out", longs())


def cogroup_session(b: StreamsBuilder) -> None:
    """A cogroup by sessions."""
    windows = SessionWindows.of_inactivity_gap_and_grace(40, 20)
    store = kv("cgs").with_key_serde(S).with_value_serde(S)
    session_out(cogrouped(b).windowed_by(windows).aggregate(str, lambda _k, x, y: cat(x, y), store), S)


def cogroup_sliding(b: StreamsBuilder) -> None:
    """A cogroup by sliding windows."""
    windows = SlidingWindows.of_time_difference_and_grace(50, 30)
    store = kv("cgl").with_key_serde(S).with_value_serde(S)
    windowed_out(cogrouped(b).windowed_by(windows).aggregate(str, store), 50, S)


def cogroup_named(b: StreamsBuilder) -> None:
    """A named cogroup."""
    store = kv("cgm").with_key_serde(S).with_value_serde(S)
    cogrouped(b).aggregate(str, store, named="cg").to_stream().to("out")


def cogroup_rekey(b: StreamsBuilder) -> None:
    """A cogroup of three streams, two with changed keys."""
    one = b.stream("in1").select_key(lambda _k, v: first(v)).group_by_key()
    two = b.stream("in2").group_by(lambda _k, v: first(v), Grouped.as_("two"))
    both = one.cogroup(lambda _k, v, a: cat(a, "1" + text(v))).cogroup(two, lambda _k, v, a: cat(a, "2" + text(v)))
    three = both.cogroup(b.stream("in3").group_by_key(), lambda _k, v, a: None if v == "bob" else cat(a, "3" + text(v)))
    three.aggregate(str, Materialized.with_(S, S)).to_stream().to("out")


def process_named(b: StreamsBuilder) -> None:
    """A named processor with a store of the builder."""
    b.add_state_store(Stores.key_value_store_builder(Stores.persistent_key_value_store("seen"), S, S))
    b.stream("in").process(Dedup, "seen", named="dedup").map_values(text).to("out")


def process_counter(b: StreamsBuilder) -> None:
    """A processor that punctuates, with a cached store."""
    supplier = Stores.in_memory_key_value_store("cnt")
    b.add_state_store(Stores.key_value_store_builder(supplier, S, L).with_caching_enabled())
    b.stream("in").process(KvCounter, "cnt").group_by_key().count().to_stream().to("out", longs())


def _unless_missing_or_bob(value: str | None) -> str:
    if value is None or value == "bob":
        raise ValueError(f"no {value}")
    return value


def _append_no_cats(_key: str, value: str, so_far: str) -> str:
    if value == "cat":
        raise ValueError("no cats")
    return cat(so_far, value)


def failing(b: StreamsBuilder) -> None:
    """User code that fails."""
    grouped = b.stream("in").map_values(_unless_missing_or_bob).group_by_key()
    grouped.aggregate(str, _append_no_cats, Materialized.with_(S, S)).to_stream().to("out")


def table_deser_continue(b: StreamsBuilder) -> None:
    """A table of longs, some malformed."""
    b.table("in", consumed=Consumed.with_(S, L)).to_stream().to("out", longs())


def ts_skip_join(b: StreamsBuilder) -> None:
    """A join."""
    b.stream("in1").join(b.table("in2"), lambda left, right: text(left) + text(right)).to("out")
