"""More joins, as `java/differential/ExtraJoins.java`: asymmetric windows, stores, names, grace periods, chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.topologies.joins import WINDOWS
from tests.topologies.more_tables import versioned
from tests.topologies.more_windows import DAY_MS
from tests.topologies.processors import GlobGet, GlobProc
from tests.topologies.support import S, cat, first, kv, longs, pair, text

from millrace.dsl import Consumed, Joined, JoinWindows, Materialized, StreamJoined, StreamsBuilder, ValueJoinerWithKey
from millrace.state import Stores

Define = Callable[[StreamsBuilder], None]


def _windows(before: int, after: int, grace: int) -> JoinWindows:
    return JoinWindows.of_time_difference_and_grace(50, grace).before(before).after(after)


def _streams(kind: str, windows: JoinWindows, joined: Any = None) -> Define:
    def define(b: StreamsBuilder) -> None:
        getattr(b.stream("in1"), kind)(b.stream("in2"), pair, windows, joined).to("out")

    return define


_NO_GRACE = JoinWindows.of_time_difference_with_no_grace
_IN_MEMORY = (
    Stores.in_memory_window_store("this", 130, 100, retain_duplicates=True),
    Stores.in_memory_window_store("that", 130, 100, retain_duplicates=True),
)
_ON_DISK = Stores.persistent_window_store("that", 130, 100, retain_duplicates=True)
_BOTH_SUPPLIED: StreamJoined[Any, Any, Any] = (
    StreamJoined().with_this_store_supplier(_IN_MEMORY[0]).with_other_store_supplier(_IN_MEMORY[1])
)
STREAM_JOINS: dict[str, Define] = {
    "ss_inner_asym": _streams("join", _windows(10, 80, 20)),
    "ss_inner_future": _streams("join", _windows(-10, 60, 0)),
    "ss_left_before": _streams("left_join", _windows(60, 0, 20)),
    "ss_left_after": _streams("left_join", _windows(0, 60, 20)),
    "ss_outer_asym": _streams("outer_join", _windows(20, 70, 10)),
    "ss_outer_past": _streams("outer_join", _windows(70, -20, 10)),
    "ss_outer_nograce": _streams("outer_join", _NO_GRACE(40)),
    "ss_left_zero": _streams("left_join", _NO_GRACE(0)),
    "ss_left_day": _streams("left_join", JoinWindows.of_time_difference_and_grace(30, DAY_MS)),
    "ss_left_interval": _streams("left_join", WINDOWS),
    "ss_named": _streams("left_join", WINDOWS, StreamJoined.with_(S, S, S).with_name("sj").with_store_name("sjs")),
    "ss_outer_named": _streams("outer_join", WINDOWS, StreamJoined.as_("ojs").with_name("oj")),
    "ss_suppliers": _streams(
        "join", WINDOWS, StreamJoined().with_this_store_supplier(_IN_MEMORY[0]).with_other_store_supplier(_ON_DISK)
    ),
    "ss_left_suppliers": _streams("left_join", WINDOWS, _BOTH_SUPPLIED),
    "ss_suppliers_nolog": _streams("join", WINDOWS, _BOTH_SUPPLIED.with_logging_disabled()),
    "ss_suppliers_logged": _streams("join", WINDOWS, _BOTH_SUPPLIED.with_logging_enabled({"segment.ms": "77"})),
    "ss_logged": _streams(
        "outer_join",
        WINDOWS,
        StreamJoined.with_(S, S, S).with_logging_enabled({"segment.ms": "77", "cleanup.policy": "compact"}),
    ),
    "ss_outer_nolog": _streams("outer_join", WINDOWS, StreamJoined.with_(S, S, S).with_logging_disabled()),
}


def ss_key_joiner(b: StreamsBuilder) -> None:
    """A joiner that takes the key."""
    joiner = ValueJoinerWithKey(lambda k, left, right: f"{text(k)}:{pair(left, right)}")
    b.stream("in1").outer_join(b.stream("in2"), joiner, WINDOWS).to("out")


def ss_left_self(b: StreamsBuilder) -> None:
    """Left join of a stream with itself."""
    stream = b.stream("in1")
    stream.left_join(stream, pair, WINDOWS).to("out")


def ss_outer_self(b: StreamsBuilder) -> None:
    """Outer join of a stream with what was made of it."""
    stream = b.stream("in1")
    stream.outer_join(stream.filter(lambda _k, v: v is not None and v.startswith("b")), pair, WINDOWS).to("out")


def ss_self_rekey(b: StreamsBuilder) -> None:
    """Join with itself of a stream whose key has changed."""
    stream = b.stream("in1").select_key(lambda _k, v: first(v))
    stream.join(stream, pair, JoinWindows.of_time_difference_and_grace(30, 10)).to("out")


def ss_self_asym(b: StreamsBuilder) -> None:
    """Join with itself in asymmetric windows."""
    stream = b.stream("in1")
    joiner = ValueJoinerWithKey(lambda k, left, right: text(k) + pair(left, right))
    stream.join(stream, joiner, _windows(20, 5, 15)).to("out")


def ss_three(b: StreamsBuilder) -> None:
    """A join of a join."""
    b.stream("in1").join(b.stream("in2"), pair, WINDOWS).left_join(b.stream("in3"), pair, WINDOWS).to("out")


def ss_outer_rekey(b: StreamsBuilder) -> None:
    """Outer join of streams whose keys have changed."""
    left, right = (b.stream(topic).select_key(lambda _k, v: first(v, None)) for topic in ("in1", "in2"))
    joined = left.outer_join(right, pair, JoinWindows.of_time_difference_and_grace(20, 20), StreamJoined.as_("rk"))
    joined.group_by_key().count().to_stream().to("out", longs())


def ss_from_tables(b: StreamsBuilder) -> None:
    """A join of tables' changes."""
    b.table("in1").to_stream().join(b.table("in2").to_stream(), pair, WINDOWS).to("out")


def ss_window_count(b: StreamsBuilder) -> None:
    """Operators before and after."""
    one = b.stream("in1").map_values(lambda v: None if v is None else v.upper())
    joined = one.outer_join(b.stream("in2").filter(lambda _k, v: v is not None), pair, WINDOWS)
    joined.group_by_key().reduce(cat).to_stream().to("out")


def st_left(b: StreamsBuilder) -> None:
    """Left join with a table."""
    b.stream("in1").left_join(b.table("in2"), pair).to("out")


def st_named(b: StreamsBuilder) -> None:
    """A named join."""
    joiner = ValueJoinerWithKey(lambda k, left, right: text(k) + pair(left, right))
    b.stream("in1").join(b.table("in2"), joiner, joined=Joined.with_(S, S, S, name="stj")).to("out")


def st_own_aggregate(b: StreamsBuilder) -> None:
    """A stream joined with its own aggregate."""
    stream = b.stream("in")
    stream.left_join(stream.group_by_key().count(), pair).to("out")


def st_unmat_chain(b: StreamsBuilder) -> None:
    """A join with what was made of a table."""
    stream = b.stream("in1")
    stream.join(b.table("in2").filter(lambda _k, v: len(v) > 2).map_values(str.upper), pair).to("out")


def st_grace(b: StreamsBuilder) -> None:
    """A join that waits for the table."""
    joined = Joined.as_("gj").with_grace_period(60)
    b.stream("in1").join(versioned(b, "in2", "vt", 300), pair, joined=joined).to("out")


def st_grace_left(b: StreamsBuilder) -> None:
    """A left join that waits for the table."""
    joined = Joined.with_(S, S, S).with_grace_period(100)
    b.stream("in1").left_join(versioned(b, "in2", "vt", 300), pair, joined=joined).to("out")


def st_grace_zero(b: StreamsBuilder) -> None:
    """A join that could wait but does not."""
    joined = Joined.as_("z").with_grace_period(0)
    b.stream("in1").left_join(versioned(b, "in2", "vt", 300), pair, joined=joined).to("out")


def st_grace_rekey(b: StreamsBuilder) -> None:
    """A join that waits, of a stream whose key has changed."""
    stream = b.stream("in1").select_key(lambda _k, v: first(v, None))
    joined = Joined.as_("gr").with_grace_period(40)
    stream.left_join(versioned(b, "in2", "vt", 200), pair, joined=joined).to("out")


def st_versioned_inner(b: StreamsBuilder) -> None:
    """A join with a table as of the record's time."""
    b.stream("in1").join(versioned(b, "in2", "vt", 100), pair).to("out")


def st_same_topic(b: StreamsBuilder) -> None:
    """A join with a materialised table."""
    b.stream("in1").left_join(b.table("in2", kv("t")), pair).to("out")


def global_named(b: StreamsBuilder) -> None:
    """A named join with a global table."""
    stream = b.stream("in1")
    table = b.global_table("g", kv("gt"))
    stream.left_join(table, pair, key_selector=lambda _k, v: first(v), named="glj").to("out")


def global_inmem(b: StreamsBuilder) -> None:
    """A join with a global table in memory."""
    stream = b.stream("in1")
    table = b.global_table("g", Materialized.as_(Stores.in_memory_key_value_store("gi")))
    joiner = ValueJoinerWithKey(lambda k, left, right: text(k) + pair(left, right))
    stream.join(table, joiner, key_selector=lambda k, _v: k).to("out")


def global_two(b: StreamsBuilder) -> None:
    """Joins with two global tables."""
    stream = b.stream("in1")
    one = stream.join(b.global_table("g"), pair, key_selector=lambda _k, v: first(v, None))
    one.left_join(b.global_table("g2"), pair, key_selector=lambda k, _v: k).to("out")


def global_from_table(b: StreamsBuilder) -> None:
    """A table's changes joined with a global table, counted."""
    stream = b.table("in1").to_stream()
    joined = stream.join(b.global_table("g"), pair, key_selector=lambda _k, v: first(v, None))
    joined.group_by_key().count().to_stream().to("out", longs())


def global_store_dsl(b: StreamsBuilder) -> None:
    """A global store filled by a processor."""
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("gs"), S, S).with_logging_disabled()
    b.add_global_store(store, "g", GlobProc, Consumed.with_(S, S))
    b.stream("in").process(GlobGet).to("out")


def joins_mixed(b: StreamsBuilder) -> None:
    """Joins with a table and a global table, reduced."""
    stream = b.stream("in1").map(lambda _k, v: (first(v, None), v)).join(b.table("in2"), pair)
    joined = stream.left_join(b.global_table("g"), pair, key_selector=lambda k, _v: k)
    joined.group_by_key().reduce(cat).to_stream().to("out")
