"""The topic that each serde is told, beside what the serdes of the same program were told in Kafka Streams 4.3.1.

A serde of a schema registry makes its subject from it: a topic that does not exist is a stray subject, or one that is not found.
"""

from __future__ import annotations

import pytest

from millrace import (
    BufferConfig,
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    Serdes,
    SessionWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    TimeWindows,
    Topology,
    TopologyTestDriver,
)
from millrace.records import NO_HEADERS
from millrace.serdes.base import Serde
from millrace.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde

TEXT = Serdes.string()


class Told(Serde[str]):
    """Text; notes its own name with each topic that it is told."""

    def __init__(self, name, told):
        self.name = name
        self.told = told

    def serialize(self, topic, data, headers=NO_HEADERS):
        self.told.add(f"{self.name} {topic}")
        return TEXT.serialize(topic, data, headers)

    def deserialize(self, topic, data, headers=NO_HEADERS):
        self.told.add(f"{self.name} {topic}")
        return TEXT.deserialize(topic, data, headers)


class Put(Processor):
    """Reads and writes its store."""

    def process(self, record):
        store = self.context.get_state_store("st")
        store.get(record.key)
        store.put(record.key, record.value)


def global_table(b, k, v, w):
    """Join a stream with a global table."""
    names = b.global_table("a", consumed=Consumed.with_(k, v))
    joined = b.stream("b", Consumed.with_(k, w)).join(names, lambda x, y: x + y, key_selector=lambda key, _: key)
    joined.to("out", Produced.with_(k, w))


def global_store(b, k, v, _w):
    """Fill a global store with a processor."""
    builder = Stores.key_value_store_builder(Stores.in_memory_key_value_store("st"), k, v).with_logging_disabled()
    b.add_global_store(builder, "a", Consumed.with_(k, v), Put)


def second(_first, value):
    """Return the second argument."""
    return value


def table(b, k, v, w):
    """Keep a table."""
    b.table("a", "st", consumed=Consumed.with_(k, v)).to_stream().to("out", Produced.with_(k, w))


def aggregate(b, k, v, w):
    """Aggregate by key."""
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(v)
    b.stream("a", Consumed.with_(k, v)).group_by_key().reduce(second, kept).to_stream().to("out", Produced.with_(k, w))


def unlogged(b, k, v, w):
    """Aggregate into a store without a changelog."""
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(v).with_logging_disabled()
    b.stream("a", Consumed.with_(k, v)).group_by_key().reduce(second, kept).to_stream().to("out", Produced.with_(k, w))


def regrouped(b, k, v, w):
    """Aggregate by another key."""
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(w)
    grouped = b.stream("a", Consumed.with_(k, v)).group_by(second, Grouped(name="g", key_serde=k, value_serde=v))
    grouped.reduce(second, kept).to_stream().to("out", Produced.with_(k, w))


def to_table(b, k, v, w):
    """Make a table of a stream with another key."""
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(w)
    b.stream("a", Consumed.with_(k, v)).select_key(second).to_table(kept, named="t").to_stream().to(
        "out", Produced.with_(k, w)
    )


def table_group(b, k, v, w):
    """Aggregate a table by another key."""
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(w)
    grouped = b.table("a", "src", consumed=Consumed.with_(k, v)).group_by(
        lambda _, value: (value, value), Grouped(name="g", key_serde=k, value_serde=w)
    )
    grouped.reduce(second, lambda left, _: left, kept).to_stream().to("out", Produced.with_(k, w))


def window(b, k, v, w):
    """Aggregate by tumbling windows."""
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(v)
    windows = b.stream("a", Consumed.with_(k, v)).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10))
    windows.reduce(second, kept).to_stream().to("out", Produced.with_(TimeWindowedSerde(k, 10), w))


def session(b, k, v, w):
    """Aggregate by sessions."""
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(v)
    sessions = SessionWindows.of_inactivity_gap_with_no_grace(10)
    windows = b.stream("a", Consumed.with_(k, v)).group_by_key().windowed_by(sessions)
    windows.reduce(second, kept).to_stream().to("out", Produced.with_(SessionWindowedSerde(k), w))


def versioned(b, k, v, w):
    """Keep a versioned table."""
    kept = Materialized.as_(Stores.persistent_versioned_key_value_store("st", 60_000))
    b.table("a", kept, consumed=Consumed.with_(k, v)).to_stream().to("out", Produced.with_(k, w))


def suppress(b, k, v, w):
    """Hold updates of a table back."""
    kept = b.table("a", "st", consumed=Consumed.with_(k, v))
    held = kept.suppress(Suppressed.until_time_limit(10, BufferConfig.unbounded()).with_name("sup"))
    held.to_stream().to("out", Produced.with_(k, w))


def stream_join(b, k, v, w):
    """Join two streams, each with records that find no match."""
    joined = StreamJoined.with_(k, v, w).with_store_name("j").with_name("j")
    left, right = b.stream("a", Consumed.with_(k, v)), b.stream("b", Consumed.with_(k, w))
    windows = JoinWindows.of_time_difference_with_no_grace(10)
    left.outer_join(right, lambda x, y: f"{x}{y}", windows, joined).to("out", Produced.with_(k, w))


def foreign_key(b, k, v, w):
    """Join two tables by a foreign key."""
    left, right = b.table("a", "l", consumed=Consumed.with_(k, v)), b.table("b", "r", consumed=Consumed.with_(k, w))
    kept = Materialized.as_("st").with_key_serde(k).with_value_serde(w)
    joined = left.join(right, lambda x, y: x + y, kept, foreign_key=lambda x: x, joined=TableJoined.as_("fk"))
    joined.to_stream().to("out", Produced.with_(k, w))


def grace(b, k, v, w):
    """Join a stream with a versioned table, after a grace period."""
    kept = Materialized.as_(Stores.persistent_versioned_key_value_store("st", 60_000))
    table = b.table("b", kept, consumed=Consumed.with_(k, w))
    joined = Joined.with_(k, v, w).with_name("j").with_grace_period(10)
    b.stream("a", Consumed.with_(k, v)).join(table, lambda x, y: x + y, joined).to("out", Produced.with_(k, w))


TOLD_IN_JAVA = {
    global_table: (["k a", "k b", "k out", "v a", "w b", "w out"], []),
    global_store: (["k a", "v a"], []),
    table: (
        ["k a", "k app-st-changelog", "k out", "v a", "v app-st-changelog", "w out"],
        ["k app-st-changelog", "v app-st-changelog"],
    ),
    aggregate: (["k a", "k app-st-changelog", "k out", "v a", "v app-st-changelog", "w out"], []),
    unlogged: (["k a", "k app-st-changelog", "k out", "v a", "v app-st-changelog", "w out"], []),
    regrouped: (
        [
            "k a",
            "k app-g-repartition",
            "k app-st-changelog",
            "k out",
            "v a",
            "v app-g-repartition",
            "w app-st-changelog",
            "w out",
        ],
        [],
    ),
    to_table: (
        [
            "k a",
            "k app-st-changelog",
            "k app-t-repartition",
            "k out",
            "v a",
            "w app-st-changelog",
            "w app-t-repartition",
            "w out",
        ],
        [],
    ),
    table_group: (
        [
            "k a",
            "k app-g-repartition",
            "k app-src-changelog",
            "k app-st-changelog",
            "k out",
            "v a",
            "v app-src-changelog",
            "w app-g-repartition",
            "w app-st-changelog",
            "w out",
        ],
        ["k app-src-changelog", "v app-src-changelog"],
    ),
    window: (["k a", "k app-st-changelog", "k out", "v a", "v app-st-changelog", "w out"], []),
    session: (["k a", "k app-st-changelog", "k out", "v a", "v app-st-changelog", "w out"], []),
    versioned: (
        ["k a", "k app-st-changelog", "k out", "v a", "v app-st-changelog", "w out"],
        ["k app-st-changelog", "v app-st-changelog"],
    ),
    suppress: (
        [
            "k a",
            "k app-st-changelog",
            "k app-sup-store-changelog",
            "k out",
            "v a",
            "v app-st-changelog",
            "v app-sup-store-changelog",
            "w out",
        ],
        ["k app-st-changelog", "v app-st-changelog"],
    ),
    stream_join: (
        [
            "k a",
            "k app-j-outer-other-join-store-changelog",
            "k app-j-outer-shared-join-store-changelog",
            "k app-j-outer-this-join-store-changelog",
            "k b",
            "k out",
            "v a",
            "v app-j-outer-shared-join-store-changelog",
            "v app-j-outer-this-join-store-changelog",
            "w app-j-outer-other-join-store-changelog",
            "w b",
            "w out",
        ],
        [],
    ),
    foreign_key: (
        [
            "k a",
            "k app-fk-subscription-registration-topic",
            "k app-fk-subscription-registration-topic-fk",
            "k app-fk-subscription-registration-topic-pk",
            "k app-fk-subscription-response-topic",
            "k app-l-changelog",
            "k app-r-changelog",
            "k app-st-changelog",
            "k b",
            "k out",
            "v a",
            "v app-fk-subscription-registration-topic-vh",
            "v app-l-changelog",
            "w app-fk-subscription-response-topic",
            "w app-r-changelog",
            "w app-st-changelog",
            "w b",
            "w out",
        ],
        ["k app-l-changelog", "k app-r-changelog", "v app-l-changelog", "w app-r-changelog"],
    ),
    grace: (
        ["k a", "k app-st-changelog", "k b", "k j", "k out", "v a", "v j", "w app-st-changelog", "w b", "w out"],
        ["k app-st-changelog", "w app-st-changelog"],
    ),
}
"""Operator → what its serdes were told, and what of it they were not told with `topology.optimization=all`."""


def told_in(build, optimization):
    """Run a topology, and return what its serdes were told."""
    told = set()
    builder = StreamsBuilder()
    build(builder, *(Told(name, told) for name in "kvw"))
    config = {"application.id": "app", "topology.optimization": optimization, "statestore.cache.max.bytes": 0}
    topology = builder.build(config)
    with TopologyTestDriver(topology, config) as driver:
        sources = " ".join(topology.describe().split("topics: [")[1:])
        for topic in ("a", "b", "a", "b"):
            if f"{topic}]" in sources:
                piped = driver.create_input_topic(topic, TEXT, TEXT)
                for record in (("x", "x", 1), ("x", "x", 2), ("y", "y", 100)):
                    piped.pipe_input(*record)
    return told


@pytest.mark.parametrize("optimization", ["none", "all"])
@pytest.mark.parametrize("build", TOLD_IN_JAVA, ids=lambda build: build.__name__)
def test_serdes_are_told_the_topics_that_java_tells_them(build, optimization):
    """A store that is filled or restored from its source is a copy of that topic; others belong to their changelogs."""
    told, only_without = TOLD_IN_JAVA[build]
    assert told_in(build, optimization) == set(told) - set(only_without if optimization == "all" else ())


def test_the_serdes_of_a_read_only_copy_are_told_its_topic():
    """The store of the Processor API that is restored from a topic of somebody else (KIP-813)."""
    told = set()
    builder = Stores.key_value_store_builder(Stores.in_memory_key_value_store("st"), Told("k", told), Told("v", told))
    topology = Topology().add_read_only_state_store(builder, "in", "a", "put", Put, key_serde=TEXT, value_serde=TEXT)
    with TopologyTestDriver(topology, {"application.id": "app"}) as driver:
        driver.create_input_topic("a", TEXT, TEXT).pipe_input("x", "1")
    assert told == {"k a", "v a"}
