"""Foreign-key joins whose results in Kafka Streams are recorded (`data/foreign_key`)."""

from __future__ import annotations

from typing import Any

from tests.topologies.support import L, S, dsl, pair

from millrace.dsl import ForeignKeyWithKey, KTable, Materialized, Produced, StreamsBuilder, TableJoined
from millrace.state.stores import Stores


def foreign_key(value: str) -> str | None:
    """Return the text before the bar, or None if there is no bar."""
    return value.partition("|")[0] or None


def foreign_key_with_key(key: str, value: str) -> str | None:
    """Return `a` for the key k1, otherwise the text before the bar."""
    found = foreign_key(value)
    return "a" if found and key == "k1" else found


def versioned(name: str) -> Materialized[Any, Any]:
    """Keep a table's history for 100 ms."""
    return Materialized.as_(Stores.persistent_versioned_key_value_store(name, 100))


def out(table: KTable[Any, Any], topic: str = "out") -> None:
    """Write a table to a topic."""
    table.to_stream().to(topic)


def left(b: StreamsBuilder) -> None:
    """Left join."""
    out(b.table("in1").left_join(b.table("in2"), pair, foreign_key=foreign_key))


def left_named(b: StreamsBuilder) -> None:
    """Left join with a name and a store."""
    out(
        b.table("in1").left_join(
            b.table("in2"), pair, "fkstore", foreign_key=foreign_key, joined=TableJoined.as_("fkj")
        )
    )


def inner_named(b: StreamsBuilder) -> None:
    """Inner join with a name."""
    out(b.table("in1").join(b.table("in2"), pair, foreign_key=foreign_key, joined=TableJoined.as_("fkj")))


def left_bi(b: StreamsBuilder) -> None:
    """The foreign key depends on key and value."""
    out(b.table("in1").left_join(b.table("in2"), pair, foreign_key=ForeignKeyWithKey(foreign_key_with_key)))


def ver_inner(b: StreamsBuilder) -> None:
    """Both tables are versioned."""
    out(b.table("in1", versioned("v1")).join(b.table("in2", versioned("v2")), pair, foreign_key=foreign_key))


def ver_left(b: StreamsBuilder) -> None:
    """Both tables and the result are versioned."""
    one, other = b.table("in1", versioned("v1")), b.table("in2", versioned("v2"))
    out(one.left_join(other, pair, versioned("v3"), foreign_key=foreign_key))


def self_join(b: StreamsBuilder) -> None:
    """A table refers to itself."""
    table = b.table("in1")
    out(table.join(table, pair, foreign_key=foreign_key))


def derived(b: StreamsBuilder) -> None:
    """Tables without stores of their own are joined, and the result is filtered."""
    one = b.table("in1").filter(lambda _k, v: not v.endswith("0")).map_values(lambda v: v + "x")
    other = b.table("in2").map_values(lambda v: v.upper() if len(v) > 3 else v)
    out(one.left_join(other, pair, foreign_key=foreign_key).filter(lambda _k, v: len(v) > 5))


def chain(b: StreamsBuilder) -> None:
    """The result is joined again by a foreign key, then grouped and counted."""
    one, two, three = b.table("in1"), b.table("in2"), b.table("in3")
    joined = one.join(two, pair, foreign_key=foreign_key)
    joined = joined.left_join(three, pair, foreign_key=lambda v: v[v.index("/") + 1 :][:1])
    joined.group_by(lambda _k, v: (v[:1], v)).count().to_stream().to("out", Produced.with_(S, L))


def two_joins(b: StreamsBuilder) -> None:
    """The same tables are joined twice."""
    one, other = b.table("in1"), b.table("in2")
    out(one.join(other, pair, foreign_key=foreign_key))
    out(one.left_join(other, pair, foreign_key=foreign_key, joined=TableJoined.as_("second")), "out2")


def agg_right(b: StreamsBuilder) -> None:
    """The right table is an aggregation."""
    table = b.table("in1")
    out(table.left_join(b.stream("in2").group_by_key().count(), pair, foreign_key=foreign_key))


TOPOLOGIES = {
    define.__name__: dsl(define)
    for define in (
        left, left_named, inner_named, left_bi, ver_inner, ver_left, self_join, derived, chain, two_joins, agg_right,
    )
}  # fmt: skip
