"""Golden topologies of tables: sources, stateless operators, grouping, joins of tables, foreign keys, versions."""

from __future__ import annotations

from typing import Any

from tests.topologies.support import L, S, dsl, first, kv, longs, pair

from millrace.dsl import Materialized, StreamsBuilder
from millrace.state import Stores


def table_source(b: StreamsBuilder) -> None:
    """A materialised table."""
    b.table("in", kv("tab")).to_stream().to("out")


def table_source_unmat(b: StreamsBuilder) -> None:
    """A table without a store."""
    b.table("in").to_stream().to("out")


def ktable_filter_mapvalues(b: StreamsBuilder) -> None:
    """Filters and mappings without stores."""
    table = b.table("in")
    table.filter(lambda _k, v: len(v) > 3).map_values(str.upper).to_stream().to("out")
    table.filter_not(lambda _k, v: v.startswith("a")).to_stream().to("out2")


def ktable_filter_mapvalues_mat(b: StreamsBuilder) -> None:
    """Filters and mappings with stores."""
    table = b.table("in", kv("tab")).filter(lambda _k, v: len(v) > 3, kv("f"))
    table.map_values_with_key(lambda k, v: k + v, kv("m")).to_stream().to("out")


class CountingTransformer:
    """Appends how often the key was transformed."""

    def init(self, context: Any) -> None:
        """Fetch the store."""
        self.store = context.get_state_store("ts")

    def transform(self, key: str, value: str | None) -> str | None:
        """Count the call, and append the count."""
        number = (self.store.get(key) or 0) + 1
        self.store.put(key, number)
        return None if value is None else f"{value}{number}"

    def close(self) -> None:
        """Do nothing."""


class HashTransformer:
    """Appends a hash sign."""

    def init(self, context: Any) -> None:
        """Do nothing."""

    def transform(self, _key: str, value: str | None) -> str | None:
        """Append."""
        return None if value is None else value + "#"

    def close(self) -> None:
        """Do nothing."""


def ktable_transform_values(b: StreamsBuilder) -> None:
    """Stateful and materialised transformations."""
    b.add_state_store(Stores.key_value_store_builder(Stores.in_memory_key_value_store("ts"), S, L))
    table = b.table("in", kv("tab"))
    table.transform_values(CountingTransformer, "ts").to_stream().to("out")
    table.transform_values(HashTransformer, materialized=kv("mat")).to_stream().to("out2")


def ktable_group_count(b: StreamsBuilder) -> None:
    """Count rows by their first letter."""
    b.table("in").group_by(lambda _k, v: (v[:1], v)).count().to_stream().to("out", longs())


def ktable_group_reduce(b: StreamsBuilder) -> None:
    """Sum rows by their value modulo three."""
    grouped = b.table("in").group_by(lambda _k, v: (str(abs(int(v)) % 3), v))
    sums = grouped.reduce(lambda a, x: str(int(a) + int(x)), lambda a, x: str(int(a) - int(x)))
    sums.to_stream().to("out")


def to_table(b: StreamsBuilder) -> None:
    """A stream read as a table."""
    stream = b.stream("in").filter(lambda _k, v: v is None or not v.startswith("x"))
    stream.to_table(kv("tt")).map_values(lambda v: str(len(v))).to_stream().to("out")


def to_table_rekey(b: StreamsBuilder) -> None:
    """A stream whose key has changed, read as a table and joined."""
    table = b.stream("in").select_key(lambda _k, v: first(v)).to_table()
    table.join(b.table("in2"), pair).to_stream().to("out")


def tt_inner(b: StreamsBuilder) -> None:
    """Inner join of tables."""
    b.table("in1").join(b.table("in2"), pair).to_stream().to("out")


def tt_left(b: StreamsBuilder) -> None:
    """Left join of tables."""
    b.table("in1").left_join(b.table("in2"), pair).to_stream().to("out")


def tt_outer(b: StreamsBuilder) -> None:
    """Outer join of tables."""
    b.table("in1").outer_join(b.table("in2"), pair).to_stream().to("out")


def tt_outer_mat(b: StreamsBuilder) -> None:
    """Outer join of filtered tables, named and materialised."""
    left = b.table("in1").filter(lambda _k, v: len(v) > 3)
    right = b.table("in2").filter_not(lambda _k, v: v.startswith("c"))
    left.outer_join(right, pair, kv("joined"), named="oj").to_stream().to("out")


def foreign_key(value: str) -> str | None:
    """Return the text before the bar, or None if there is no bar or no text."""
    key, bar, _ = value.partition("|")
    return key if bar and key else None


def fk_inner(b: StreamsBuilder) -> None:
    """Inner join by a foreign key."""
    b.table("in1").join(b.table("in2"), pair, foreign_key=foreign_key).to_stream().to("out")


def fk_left(b: StreamsBuilder) -> None:
    """Left join by a foreign key."""
    b.table("in1").left_join(b.table("in2"), pair, foreign_key=foreign_key).to_stream().to("out")


def versioned_table_ops(b: StreamsBuilder) -> None:
    """A versioned table drops late updates downstream."""
    table = b.table("in", Materialized.as_(Stores.persistent_versioned_key_value_store("vt", 500)))
    table.filter(lambda _k, v: len(v) > 3).to_stream().to("out")
    table.group_by(lambda _k, v: (v[:1], v)).count().to_stream().to("out2", longs())


TABLE_TOPOLOGIES = {
    define.__name__: dsl(define)
    for define in (
        table_source_unmat,
        ktable_filter_mapvalues,
        ktable_filter_mapvalues_mat,
        ktable_transform_values,
        ktable_group_count,
        ktable_group_reduce,
        to_table,
        to_table_rekey,
        tt_inner,
        tt_left,
        tt_outer,
        tt_outer_mat,
        fk_inner,
        fk_left,
        versioned_table_ops,
    )
} | {"table_source_none": dsl(table_source), "table_source_all": dsl(table_source)}
