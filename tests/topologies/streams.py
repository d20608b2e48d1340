"""Golden topologies of streams: stateless operators, aggregations, user code, error handling and timestamps."""

from __future__ import annotations

from typing import Any

from tests.topologies.support import L, S, cat, dsl, first, kv, longs, text, windowed_out

from millrace.dsl import Branched, Consumed, Grouped, Materialized, Produced, Repartitioned, StreamsBuilder, TimeWindows
from millrace.processor.api import FixedKeyProcessor, Processor
from millrace.processor.timestamp_extractors import use_partition_time_on_invalid_timestamp
from millrace.records import ConsumedRecord, Record
from millrace.state import Stores


def stateless_chain(b: StreamsBuilder) -> None:
    """Every stateless operator in sequence."""
    (
        b.stream("in")
        .filter(lambda _k, v: v is not None and len(v) > 2)
        .filter_not(lambda _k, v: v.startswith("x"))
        .map_values(str.upper)
        .map(lambda k, v: (v[:1], f"{v}:{text(k)}"))
        .flat_map(lambda k, v: [(k, v), (k + k, v.lower())])
        .peek(lambda _k, _v: None)
        .flat_map_values(lambda v: [v, v + "!"])
        .select_key(lambda k, v: f"{k}{len(v)}")
        .to("out")
    )


def stateless_named(b: StreamsBuilder) -> None:
    """The same, with every operator named."""
    (
        b.stream("in", Consumed.as_("src"))
        .filter(lambda _k, v: v is not None, "keep")
        .map_values(str.upper, "up")
        .select_key(lambda _k, v: v[:1], "rekey")
        .flat_map_values(lambda v: [v, v + v], "split")
        .to("out", Produced.as_("snk"))
    )


def split_branch(b: StreamsBuilder) -> None:
    """Branches with names, a consumer and a default."""
    branches = (
        b.stream("in")
        .split("sp-")
        .branch(lambda _k, v: v is not None and v.startswith("a"), Branched.as_("a"))
        .branch(lambda _k, v: v is not None and len(v) > 3, Branched.with_consumer(lambda s: s.to("out-b")))
        .branch(lambda k, _v: k == "k1", Branched.as_("k1"))
        .default_branch(Branched.as_("rest"))
    )
    branches["sp-a"].to("out-a")
    branches["sp-k1"].map_values(lambda v: text(v) + "1").to("out-k")
    branches["sp-rest"].to("out-rest")


def split_nodefault(b: StreamsBuilder) -> None:
    """Unnamed branches without a default, merged again."""
    branches = (
        b.stream("in")
        .filter(lambda _k, v: v is not None)
        .split()
        .branch(lambda _k, v: v.startswith("a"))
        .branch(lambda _k, v: v.startswith("b"), Branched.with_function(lambda s: s.map_values(str.upper)))
        .no_default_branch()
    )
    merged: Any = None
    for name in sorted(branches):
        merged = branches[name] if merged is None else merged.merge(branches[name])
    merged.to("out")


def merge3(b: StreamsBuilder) -> None:
    """Three streams of four topics merged."""
    streams = b.stream("in1").merge(b.stream("in2")).merge(b.stream(["in3", "in4"]))
    streams.map_values(lambda v: text(v) + ".").to("out")


def dynamic_topic(b: StreamsBuilder) -> None:
    """A topic per record."""
    stream = b.stream("in")
    stream.to(lambda _k, v, _context: "out-" + text(first(v, None)))
    stream.foreach(lambda _k, _v: None)


def repartition_ops(b: StreamsBuilder) -> None:
    """Repartition twice."""
    stream = b.stream("in").repartition().map_values(lambda v: None if v is None else v.upper())
    stream.repartition(Repartitioned.as_("rp").with_number_of_partitions(3)).to("out")


def count_nokeychange(b: StreamsBuilder) -> None:
    """Count without repartitioning."""
    b.stream("in").group_by_key().count(Materialized.as_("counts")).to_stream().to("out", longs())


def count_keychange(b: StreamsBuilder) -> None:
    """Count by value."""
    b.stream("in").group_by(lambda _k, v: v).count().to_stream().to("out", longs())


def count_named(b: StreamsBuilder) -> None:
    """Count by value, everything named."""
    counts = b.stream("in").group_by(lambda _k, v: v, Grouped.as_("by-value")).count(kv("cnt-store"), named="cnt")
    counts.to_stream(named="ts").to("out", Produced.as_("snk").with_value_serde(L))


def wordcount(b: StreamsBuilder) -> None:
    """Count words."""
    words = b.stream("in").flat_map_values(lambda v: [] if v is None else v.split(" "))
    words.group_by(lambda _k, word: word).count().to_stream().to("out", longs())


def reduce(b: StreamsBuilder) -> None:
    """Concatenate values."""
    b.stream("in").group_by_key().reduce(cat, kv("red")).to_stream().to("out")


def delete_on_d(_key: str, value: str, so_far: str) -> str | None:
    """Delete the aggregate on values that start with d."""
    return None if value.startswith("d") else cat(so_far, value)


def aggregate_null(b: StreamsBuilder) -> None:
    """An aggregator that deletes."""
    b.stream("in").group_by_key().aggregate(str, delete_on_d, Materialized.with_(S, S)).to_stream().to("out")


def aggregate_nocache_inmem(b: StreamsBuilder) -> None:
    """The same in memory, with a changelog configuration."""
    store = (
        Materialized.as_(Stores.in_memory_key_value_store("agg"))
        .with_key_serde(S)
        .with_value_serde(S)
        .with_caching_disabled()
        .with_logging_enabled({"retention.ms": "1234"})
    )
    b.stream("in").group_by_key().aggregate(str, delete_on_d, store).to_stream().to("out")


def count_nologging(b: StreamsBuilder) -> None:
    """A count without changelog."""
    store = Materialized.as_("nolog").with_logging_disabled().with_caching_disabled()
    b.stream("in").group_by_key().count(store).to_stream().to("out", longs())


def count_lru(b: StreamsBuilder) -> None:
    """A count of the three most recently used keys."""
    store = Materialized.as_(Stores.lru_map("lru", 3)).with_caching_disabled()
    b.stream("in").group_by_key().count(store).to_stream().to("out", longs())


def count_plainkv(b: StreamsBuilder) -> None:
    """A count in a store without timestamps."""
    store = Materialized.as_(Stores.persistent_key_value_store("plain"))
    b.stream("in").group_by_key().count(store).to_stream().to("out", longs())


def two_groupbys(b: StreamsBuilder) -> None:
    """Two aggregations of one stream whose key has changed."""
    stream = b.stream("in").select_key(lambda _k, v: "none" if v is None else v)
    stream.group_by_key().count().to_stream().to("out1", longs())
    stream.group_by_key().reduce(cat).to_stream().to("out2")


def cogrouped(b: StreamsBuilder) -> Any:
    """Return two streams grouped together."""
    one = b.stream("in1").group_by_key().cogroup(lambda _k, v, a: cat(a, "1" + text(v)))
    return one.cogroup(b.stream("in2").group_by_key(), lambda _k, v, a: cat(a, "2" + text(v)))


def cogroup(b: StreamsBuilder) -> None:
    """Two streams aggregated into one table."""
    cogrouped(b).aggregate(str, Materialized.with_(S, S)).to_stream().to("out")


def cogroup_windowed(b: StreamsBuilder) -> None:
    """The same by windows."""
    windows = TimeWindows.of_size_and_grace(100, 20)
    windowed_out(cogrouped(b).windowed_by(windows).aggregate(str, Materialized.with_(S, S)), 100, S)


class Dedup(Processor[str, str, str, str]):
    """Forwards a value only if it differs from the key's last one."""

    def process(self, record: Record[str, str]) -> None:
        """Compare and remember."""
        if record.key is None:
            return
        store = self.context.get_state_store("seen")
        if store.get(record.key) == record.value:
            return
        store.put(record.key, record.value)
        self.context.forward(record)


class DedupSupplier:
    """Returns `Dedup` and provides its store."""

    def __call__(self) -> Dedup:
        """Return a new processor."""
        return Dedup()

    def stores(self) -> list[Any]:
        """Return the store's builder."""
        return [Stores.key_value_store_builder(Stores.persistent_key_value_store("seen"), S, S)]


def dsl_process_dedup(b: StreamsBuilder) -> None:
    """A processor with its own store; it may change keys."""
    b.stream("in").process(DedupSupplier()).group_by_key().count().to_stream().to("out", longs())


class Numbering(FixedKeyProcessor[str, str, str]):
    """Numbers the records of each key."""

    def process(self, record: Record[str, str]) -> None:
        """Count in store `n`, and put the number into value and headers."""
        store, key = self.context.get_state_store("n"), text(record.key)
        number = (store.get(key) or 0) + 1
        store.put(key, number)
        self.context.forward(
            record.with_value(f"{text(record.value)}#{number}").with_headers(
                record.headers.add("n", str(number).encode())
            )
        )


def dsl_process_values(b: StreamsBuilder) -> None:
    """A fixed-key processor with a store of the builder."""
    b.add_state_store(Stores.key_value_store_builder(Stores.persistent_key_value_store("n"), S, L))
    numbered = b.stream("in").process_values(Numbering, "n").peek(lambda _k, _v: None)
    numbered.group_by_key().count().to_stream().to("out", longs())


def deser_continue_dlq(b: StreamsBuilder) -> None:
    """Malformed longs go to the dead-letter topic."""
    b.stream("in", Consumed.with_(S, L)).filter(lambda _k, v: v is not None and v % 2 == 0).to("out", longs())


def deser_fail(b: StreamsBuilder) -> None:
    """Malformed longs fail the task."""
    b.stream("in", Consumed.with_(S, L)).to("out", longs())


def ts_negative_fail(b: StreamsBuilder) -> None:
    """Negative timestamps fail the task."""
    b.stream("in").to("out")


def ts_negative_skip(b: StreamsBuilder) -> None:
    """Negative timestamps are skipped."""
    b.stream("in").group_by_key().count().to_stream().to("out", longs())


def ts_use_partition_time(b: StreamsBuilder) -> None:
    """Negative timestamps become the partition time."""
    consumed = Consumed.with_(S, S).with_timestamp_extractor(use_partition_time_on_invalid_timestamp)
    windows = TimeWindows.of_size_with_no_grace(100)
    windowed_out(b.stream("in", consumed).group_by_key().windowed_by(windows).count(), 100, L)


def timestamp_of_value(record: ConsumedRecord, partition_time: int) -> int:
    """Read the timestamp from the value."""
    return max(0, partition_time) if record.value is None else 1000 + int(str(record.value)) * 10


def ts_from_value(b: StreamsBuilder) -> None:
    """Timestamps from values."""
    consumed = Consumed.with_(S, S).with_timestamp_extractor(timestamp_of_value)
    windows = TimeWindows.of_size_and_grace(100, 1000)
    windowed_out(b.stream("in", consumed).group_by_key().windowed_by(windows).count(), 100, L)


STREAM_TOPOLOGIES = {
    define.__name__: dsl(define)
    for define in (
        stateless_chain,
        stateless_named,
        split_branch,
        split_nodefault,
        merge3,
        dynamic_topic,
        repartition_ops,
        count_nokeychange,
        count_keychange,
        count_named,
        wordcount,
        reduce,
        aggregate_null,
        aggregate_nocache_inmem,
        count_nologging,
        count_lru,
        count_plainkv,
        cogroup,
        cogroup_windowed,
        dsl_process_dedup,
        dsl_process_values,
        deser_continue_dlq,
        deser_fail,
        ts_negative_fail,
        ts_negative_skip,
        ts_use_partition_time,
        ts_from_value,
    )
} | {
    "count_headers_fmt": dsl(count_nokeychange),
    "two_groupbys_none": dsl(two_groupbys),
    "two_groupbys_all": dsl(two_groupbys),
}
