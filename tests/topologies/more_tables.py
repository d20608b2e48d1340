"""More tables, as `java/differential/ExtraTables.java`: named operators, groups, foreign keys, versions, suppression."""

from __future__ import annotations

import math
from typing import Any

from tests.topologies.support import L, S, cat, first, kv, longs, pair
from tests.topologies.tables import HashTransformer, foreign_key

from millrace.dsl import (
    BufferConfig,
    Consumed,
    ForeignKeyWithKey,
    Grouped,
    KTable,
    Materialized,
    StreamsBuilder,
    Suppressed,
    TableJoined,
)
from millrace.state import Stores


def versioned(b: StreamsBuilder, topic: str, store: str, history_ms: int) -> KTable[Any, Any]:
    """Read a topic as a versioned table."""
    return b.table(topic, Materialized.as_(Stores.persistent_versioned_key_value_store(store, history_ms)))


def _in_memory(b: StreamsBuilder, topic: str, store: str) -> KTable[Any, Any]:
    return b.table(topic, Materialized.as_(Stores.in_memory_key_value_store(store)))


def _letter(_key: Any, value: str) -> tuple[str, str]:
    return value[:1], value


def table_inmem(b: StreamsBuilder) -> None:
    """A table in memory."""
    _in_memory(b, "in", "im").to_stream().to("out")


def table_nolog(b: StreamsBuilder) -> None:
    """A table without changelog."""
    b.table("in", kv("nl").with_logging_disabled()).to_stream().to("out")


def table_named(b: StreamsBuilder) -> None:
    """A table with names."""
    consumed = Consumed.as_("source").with_key_serde(S).with_value_serde(S)
    b.table("in", kv("tn").with_caching_disabled(), consumed=consumed).to_stream(named="ts").to("out")


def table_versioned(b: StreamsBuilder) -> None:
    """A versioned table."""
    versioned(b, "in", "vt", 200).to_stream().to("out")


def table_plainkv(b: StreamsBuilder) -> None:
    """A table in a store without timestamps."""
    b.table("in", Materialized.as_(Stores.persistent_key_value_store("pk"))).to_stream().to("out")


def to_table_named(b: StreamsBuilder) -> None:
    """A stream as a named table."""
    b.stream("in").to_table(kv("ttm").with_caching_disabled(), named="tt").to_stream().to("out")


def to_table_unmat(b: StreamsBuilder) -> None:
    """A stream as a table, filtered."""
    b.stream("in").to_table().filter(lambda _k, v: len(v) > 2).to_stream().to("out")


def to_table_versioned(b: StreamsBuilder) -> None:
    """A stream as a versioned table."""
    store = Materialized.as_(Stores.persistent_versioned_key_value_store("tv", 200))
    b.stream("in").to_table(store).map_values(lambda v: v + "v").to_stream().to("out")


def to_table_inmem_rekey(b: StreamsBuilder) -> None:
    """A stream whose key has changed as a table in memory."""
    store = Materialized.as_(Stores.in_memory_key_value_store("tm"))
    b.stream("in").select_key(lambda _k, v: first(v)).to_table(store).to_stream().to("out")


def ktable_named_chain(b: StreamsBuilder) -> None:
    """Named operators, one of them materialised."""
    table = (
        b.table("in").filter(lambda _k, v: len(v) > 2, named="long").map_values(str.upper, kv("uppers"), named="upper")
    )
    table.filter_not(lambda _k, v: v.startswith("A"), named="not-a").to_stream(named="changes").to("out")


def ktable_tostream_rekey(b: StreamsBuilder) -> None:
    """A table as a stream with other keys."""
    b.table("in").to_stream(lambda _k, v: first(v)).group_by_key().count().to_stream().to("out", longs())


def ktable_group_aggregate(b: StreamsBuilder) -> None:
    """A group with adder and subtractor."""
    grouped = b.table("in").group_by(_letter, Grouped.as_("gt"))
    table = grouped.aggregate(
        str,
        lambda _k, v, a: cat(a, "+" + v),
        lambda _k, v, a: cat(a, "-" + v),
        kv("ga").with_value_serde(S),
        named="agg",
    )
    table.to_stream().to("out")


def ktable_group_null(b: StreamsBuilder) -> None:
    """A selector that gives no key, or no value."""

    def select(_key: Any, value: str) -> tuple[str | None, str | None]:
        if value.startswith("d"):
            return None, value
        return ("e", None) if value.startswith("e") else (value[:1], value)

    b.table("in").group_by(select).reduce(cat, lambda a, _x: cat(a, "-"), kv("gn")).to_stream().to("out")


def ktable_group_mat(b: StreamsBuilder) -> None:
    """Stores at every step."""
    table = b.table("in", kv("tab")).filter(lambda _k, v: len(v) > 2, kv("filtered"))
    counts = table.group_by(_letter).count(Materialized.as_(Stores.in_memory_key_value_store("gc")))
    counts.to_stream().to("out", longs())


def ktable_group_inttable(b: StreamsBuilder) -> None:
    """Sums of numbers."""
    table = b.table("in").map_values(lambda v: int(math.fmod(int(v), 7)))
    grouped = table.group_by(lambda _k, v: ("big" if v > 3 else "small", v), Grouped.with_(S, L))
    sums = grouped.reduce(lambda a, x: a + x, lambda a, x: a - x, kv("sums").with_value_serde(L))
    sums.to_stream().to("out", longs())


def ktable_transform_chain(b: StreamsBuilder) -> None:
    """A transformation, a filter and a group."""
    table = b.table("in", kv("tab")).transform_values(HashTransformer).filter(lambda _k, v: len(v) > 3)
    table.group_by(_letter).count().to_stream().to("out", longs())


def ktable_group_sources(b: StreamsBuilder) -> None:
    """A group of a table whose source topic is its changelog."""
    grouped = b.table("in", kv("src")).group_by(_letter)
    grouped.reduce(cat, lambda a, x: cat(a, "-" + x)).to_stream().to("out")


def fk_left_named(b: StreamsBuilder) -> None:
    """A named, materialised left join."""
    joined = b.table("in1").left_join(
        b.table("in2"), pair, kv("fkout"), foreign_key=foreign_key, joined=TableJoined.as_("fkj")
    )
    joined.to_stream().to("out")


def fk_inner_mat(b: StreamsBuilder) -> None:
    """A materialised join of materialised tables, filtered."""
    left, right = b.table("in1", kv("left")), b.table("in2", kv("right"))
    joined = left.join(right, pair, kv("fkm"), foreign_key=foreign_key)
    joined.filter(lambda _k, v: len(v) > 5).to_stream().to("out")


def fk_with_key(b: StreamsBuilder) -> None:
    """A foreign key found in key and value."""
    key = ForeignKeyWithKey(lambda k, v: "a" if k == "k1" else foreign_key(v))
    b.table("in1").left_join(b.table("in2"), pair, foreign_key=key).to_stream().to("out")


def fk_all(b: StreamsBuilder) -> None:
    """A join with the optimiser on."""
    b.table("in1").join(b.table("in2"), pair, foreign_key=foreign_key).to_stream().to("out")


def fk_versioned(b: StreamsBuilder) -> None:
    """A left join of versioned tables."""
    left, right = versioned(b, "in1", "vl", 300), versioned(b, "in2", "vr", 300)
    left.left_join(right, pair, foreign_key=foreign_key).to_stream().to("out")


def fk_chain(b: StreamsBuilder) -> None:
    """Operators before and after."""
    left = b.table("in1").filter(lambda _k, v: not v.startswith("e"))
    joined = left.left_join(b.table("in2").map_values(str.upper), pair, foreign_key=foreign_key)
    joined.group_by(_letter).count().to_stream().to("out", longs())


def fk_inmem(b: StreamsBuilder) -> None:
    """All in memory."""
    store = Materialized.as_(Stores.in_memory_key_value_store("io"))
    left, right = _in_memory(b, "in1", "il"), _in_memory(b, "in2", "ir")
    left.join(right, pair, store, foreign_key=foreign_key).to_stream().to("out")


def fk_self(b: StreamsBuilder) -> None:
    """A table joined with itself."""
    table = b.table("in1", kv("me"))
    joined = table.left_join(table, pair, foreign_key=lambda v: "k1" if v.startswith("a") else "k2")
    joined.to_stream().to("out")


def tt_inner_mat(b: StreamsBuilder) -> None:
    """A named, materialised join."""
    b.table("in1").join(b.table("in2"), pair, kv("joined"), named="ij").to_stream().to("out")


def tt_left_inmem(b: StreamsBuilder) -> None:
    """All in memory."""
    store = Materialized.as_(Stores.in_memory_key_value_store("o")).with_caching_disabled()
    _in_memory(b, "in1", "l").left_join(_in_memory(b, "in2", "r"), pair, store).to_stream().to("out")


def tt_null_joiner(b: StreamsBuilder) -> None:
    """A joiner that gives None."""
    joined = b.table("in1").outer_join(
        b.table("in2"), lambda left, right: None if left is None or right is None else pair(left, right), kv("nj")
    )
    joined.to_stream().to("out")


def tt_self(b: StreamsBuilder) -> None:
    """A table joined with itself."""
    table = b.table("in")
    table.join(table, pair).to_stream().to("out")
    table.left_join(table.filter(lambda _k, v: v.startswith("b")), pair).to_stream().to("out2")


def tt_chain(b: StreamsBuilder) -> None:
    """Three joins."""
    one, two = b.table("in1"), b.table("in2")
    joined = one.join(two, pair).left_join(b.table("in3"), pair)
    joined.outer_join(one, cat).to_stream().to("out")


def tt_aggregates(b: StreamsBuilder) -> None:
    """Aggregates joined."""
    counts = b.stream("in1").group_by_key().count()
    counts.outer_join(b.stream("in2").group_by_key().reduce(cat), pair).to_stream().to("out")


def tt_versioned_inner(b: StreamsBuilder) -> None:
    """Versioned tables."""
    versioned(b, "in1", "v1", 200).join(versioned(b, "in2", "v2", 200), pair).to_stream().to("out")


def tt_versioned_left(b: StreamsBuilder) -> None:
    """A versioned table on the left."""
    versioned(b, "in1", "v1", 200).left_join(b.table("in2"), pair, kv("vj")).to_stream().to("out")


def tt_versioned_outer(b: StreamsBuilder) -> None:
    """A versioned table on the right, grouped."""
    joined = b.table("in1").outer_join(versioned(b, "in2", "v2", 200), pair)
    joined.group_by(_letter).count().to_stream().to("out", longs())


def tt_left_sends_old(b: StreamsBuilder) -> None:
    """A join whose old values are needed."""
    grouped = b.table("in1").left_join(b.table("in2"), pair).group_by(_letter)
    grouped.reduce(lambda a, x: cat(a, "+" + x), lambda a, x: cat(a, "-" + x)).to_stream().to("out")


def tt_rekeyed(b: StreamsBuilder) -> None:
    """Tables made of streams whose keys have changed."""
    left = b.stream("in1").select_key(lambda _k, v: first(v)).to_table()
    right = b.stream("in2").group_by(lambda _k, v: first(v)).reduce(cat)
    left.outer_join(right, pair).to_stream().to("out")


def versioned_chain(b: StreamsBuilder) -> None:
    """Operators of a versioned table."""
    table = versioned(b, "in", "vt", 300)
    table.map_values(lambda v: v + "m", kv("vm")).to_stream().to("out")
    store = Materialized.as_(Stores.persistent_versioned_key_value_store("vf", 100))
    table.filter(lambda _k, v: len(v) > 2, store).to_stream().to("out2")
    table.group_by(_letter).reduce(cat, lambda a, _x: cat(a, "-")).to_stream().to("out3")


def suppress_maxbytes(b: StreamsBuilder) -> None:
    """A buffer of so many bytes."""
    b.table("in").suppress(Suppressed.until_time_limit(500, BufferConfig.max_bytes(300))).to_stream().to("out")


def suppress_both_limits(b: StreamsBuilder) -> None:
    """A buffer with both limits, then a stored filter."""
    buffer = BufferConfig.max_records(4).with_max_bytes(400).emit_early_when_full()
    table = b.table("in", kv("tab")).suppress(Suppressed.until_time_limit(200, buffer))
    table.filter(lambda _k, v: len(v) > 2, kv("kept")).to_stream().to("out")


def suppress_zero(b: StreamsBuilder) -> None:
    """No waiting."""
    b.table("in").suppress(Suppressed.until_time_limit(0, BufferConfig.unbounded())).to_stream().to("out")


def suppress_nolog(b: StreamsBuilder) -> None:
    """A buffer without changelog."""
    buffer = BufferConfig.unbounded().with_logging_disabled()
    b.table("in").suppress(Suppressed.until_time_limit(100, buffer)).to_stream().to("out")


def suppress_grouped(b: StreamsBuilder) -> None:
    """A group of what was held back."""
    table = b.table("in").suppress(Suppressed.until_time_limit(60, BufferConfig.max_records(3)))
    table.group_by(_letter).count().to_stream().to("out", longs())


def suppress_joined(b: StreamsBuilder) -> None:
    """A join of what was held back."""
    table = b.table("in1").suppress(Suppressed.until_time_limit(50, BufferConfig.unbounded()))
    table.left_join(b.table("in2"), pair).to_stream().to("out")


def suppress_shutdown(b: StreamsBuilder) -> None:
    """A buffer that must not be full."""
    buffer = BufferConfig.max_records(2).shut_down_when_full()
    table = b.stream("in").group_by_key().reduce(cat).suppress(Suppressed.until_time_limit(300, buffer))
    table.to_stream().to("out")
