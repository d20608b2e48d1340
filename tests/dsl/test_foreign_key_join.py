"""Foreign-key joins: what Java writes for them, several partitions, and everything that can go wrong."""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dsl.partitioned_tasks import PartitionedTasks
from tests.golden.cases import load
from tests.golden.describe import compare_text
from tests.golden.replay import build, replay
from tests.topologies.foreign_keys import TOPOLOGIES, foreign_key
from tests.topologies.support import pair

from millrace.config import StreamsConfig
from millrace.dsl import Consumed, ForeignKeyWithKey, Materialized, StreamsBuilder, TableJoined
from millrace.errors import ConfigError, FailedProcessingError, TopologyError
from millrace.records import NO_HEADERS, Headers, Record
from millrace.serdes import Serdes
from millrace.serdes.foreign_key import Instruction, SubscriptionWrapper, SubscriptionWrapperSerde, value_hash
from millrace.serdes.primitives import StringSerde
from millrace.state.stores import Stores
from millrace.testing import TopologyTestDriver

DATA = Path(__file__).parent / "data" / "foreign_key"
STRINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
REGISTRATIONS = "app-fk-subscription-registration-topic"
RESPONSES = "app-fk-subscription-response-topic"
NAMED = TableJoined.as_("fk")


def define(operator="join", *, tables=StreamsBuilder.table, **options):
    """Return a builder in which `left` is joined with `right` to `out`."""
    builder = StreamsBuilder()
    left, right = tables(builder, "left"), tables(builder, "right")
    options = {"foreign_key": foreign_key, "joined": NAMED, **options}
    getattr(left, operator)(right, pair, **options).to_stream().to("out")
    return builder


@contextlib.contextmanager
def driver(builder, **config):
    """Run a topology, by default with strings; underscores in settings become dots."""
    given_settings = {key.replace("_", "."): value for key, value in config.items()}
    with TopologyTestDriver(builder.build(), {**STRINGS, **given_settings}) as running:
        yield running


def out(running):
    """Return keys and values that arrived."""
    return [tuple(pair) for pair in running.create_output_topic("out").read_key_values_to_list()]


# What Java makes of the same definitions.


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_records_equal_those_that_java_wrote(name):
    """Subscriptions, responses, changelogs and results have Java's bytes, timestamps, headers and partitions."""
    problems = replay(load(DATA / "cases" / name), TOPOLOGIES)
    assert not problems, "\n".join(problems[:5])


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_description_is_that_of_kafka_streams(name):
    """Names, sub-topologies and connections are Java's."""
    problems = compare_text(DATA / "describe", name, build(TOPOLOGIES[name], {}))
    assert not problems, "\n".join(problems)


# Several partitions.

KEYS = st.sampled_from(["k1", "k3", "k5"])
FOREIGN_KEYS = st.sampled_from(["a", "d", "f"])
"""Neither these nor those are all in one of two partitions, and of three all are in different ones."""
LEFT = st.tuples(
    st.just("left"),
    KEYS,
    st.none() | st.tuples(FOREIGN_KEYS | st.just(""), st.integers(0, 1)).map("{0[0]}|{0[1]}".format),
)
RIGHT = st.tuples(st.just("right"), FOREIGN_KEYS, st.none() | st.sampled_from(["x", "y"]))


def joined(left, right, *, left_join):
    """Return what the result must be, given both tables."""
    result = {}
    for key, value in left.items():
        found = right.get(foreign_key(value))
        if found is not None or left_join:
            result[key] = pair(value, found)
    return result


@contextlib.contextmanager
def partitioned(builder, **partitions):
    """Run a topology over several partitions."""
    with tempfile.TemporaryDirectory() as directory:
        tasks = PartitionedTasks(builder.build(), partitions, Path(directory))
        yield tasks
        tasks.close()


@pytest.mark.parametrize("seed", range(60))
def test_left_join_comes_out_right_in_whatever_order_tasks_run(seed):
    """However long subscriptions and responses take, the final result is that of the final tables."""
    chance = random.Random(seed)
    with partitioned(define("left_join"), left=chance.randint(1, 3), right=chance.randint(2, 3)) as tasks:
        for _ in range(30):
            if chance.random() < 0.3:
                tasks.write("right", chance.choice("adf"), chance.choice([None, "x", "y"]))
            else:
                value = chance.choice([None, "|1", "a|1", "d|1", "f|1", "a|2", "d|2", "f|2"])
                tasks.write("left", chance.choice(["k1", "k3"]), value)
        tasks.settle(chance.choice)
        assert tasks.table("out") == joined(tasks.table("left"), tasks.table("right"), left_join=True)


@settings(max_examples=80)
@given(st.lists(LEFT | RIGHT, min_size=4, max_size=30), st.integers(1, 3), st.integers(1, 3))
def test_inner_join_is_that_of_both_tables_after_every_update(updates, left_partitions, right_partitions):
    """Once an update has been processed, the result is the join of both tables."""
    with partitioned(define(), left=left_partitions, right=right_partitions) as tasks:
        for topic, key, value in updates:
            tasks.write(topic, key, value)
            tasks.settle()
            assert tasks.table("out") == joined(tasks.table("left"), tasks.table("right"), left_join=False)


@settings(max_examples=50)
@given(st.lists(LEFT | RIGHT, min_size=4, max_size=20))
def test_table_may_be_partitioned_otherwise(updates):
    """Responses return to the partition of the left entry, and the right table's partitioner is respected."""

    def last_byte(_topic, key, _value, count):
        return 0 if key is None else ord(key[-1]) % count

    builder = define("left_join", joined=TableJoined.with_(None, last_byte).with_name("fk"))
    with partitioned(builder, left=3, right=2) as tasks:
        for topic, key, value in updates:
            tasks.write(topic, key, value, partition=last_byte(topic, key, value, tasks.partitions[topic]))
        tasks.settle()
        assert tasks.table("out") == joined(tasks.table("left"), tasks.table("right"), left_join=True)


def test_internal_topics_are_partitioned_like_the_tables_they_lead_to():
    """The registration topic like the right table's, the response topic like the left table's."""
    with partitioned(define(), left=3, right=5) as tasks:
        assert tasks.partitions[REGISTRATIONS] == 5
        assert tasks.partitions[RESPONSES] == 3
        assert len(tasks.tasks) == 8


def test_late_answer_is_dropped():
    """An answer to a value that has been replaced in the meantime is counted as dropped, and changes nothing."""
    with driver(define()) as running:
        running.pipe_raw("left", b"k", b"a|1", 0)
        answer = b"\x00" + value_hash(b"a|0") + b"old"
        running.pipe_raw(RESPONSES, b"k", answer, 1)
        assert running.dropped_records == 1
        running.pipe_raw(RESPONSES, b"k", b"\x00" + value_hash(b"a|1") + b"new", 2)
        assert out(running) == [("k", "a|1/new")]


def test_answer_to_a_subscription_without_partition_follows_the_key():
    """Subscriptions of instances older than 3.4 do not have the partition; their answers are partitioned by key."""
    with driver(define()) as running:
        produced = running.record_produced()
        running.pipe_raw("right", b"a", b"x", 0)
        running.pipe_raw(REGISTRATIONS, b"a", bytes([0, 3]) + value_hash(b"a|1") + b"k", 1)
        (answer,) = (record for record in produced if record.topic == RESPONSES)
        assert answer.partition is None


# What is sent.


def test_version_0_is_written_during_an_upgrade_from_3_3():
    """Instances of 3.3 and older could not read the partition."""
    with driver(define(), upgrade_from="3.3") as running:
        produced = running.record_produced()
        running.pipe_raw("left", b"k", b"a|1", 0)
        (subscription,) = (record.value for record in produced if record.topic == REGISTRATIONS)
        assert subscription == bytes([0, 3]) + value_hash(b"a|1") + b"k"


@pytest.mark.parametrize("version", ["3.4", "4.0", None])
def test_version_1_is_written_otherwise(version):
    """The partition of the left entry is the last part."""
    with driver(define(), **({} if version is None else {"upgrade.from": version})) as running:
        produced = running.record_produced()
        running.pipe_raw("left", b"k", b"a|1", 0)
        (subscription,) = (record.value for record in produced if record.topic == REGISTRATIONS)
        assert subscription == bytes([1, 3]) + value_hash(b"a|1") + b"k" + bytes(4)


def test_headers_travel_with_subscriptions_and_updates():
    """The result and the subscriptions' changelog have the headers of the update that caused them."""
    with driver(define("left_join")) as running:
        produced = running.record_produced()
        running.pipe_raw("left", b"k", b"a|1", 5, [("from", b"left")])
        running.pipe_raw("right", b"a", b"x", 3, [("from", b"right")])
        changelog = [record for record in produced if record.topic == "app-fk-subscription-store-changelog"]
        assert [record.headers for record in changelog] == [Headers([("from", b"left")])]
        assert running.create_output_topic("out").read_records_to_list() == [
            Record("k", "a|1/null", 5, Headers([("from", b"left")])),
            Record("k", "a|1/x", 3, Headers([("from", b"right")])),
        ]


def test_result_of_a_subscription_has_the_later_timestamp():
    """That of the left update or of the right value, whichever is later."""
    with driver(define()) as running:
        running.pipe_raw("right", b"a", b"x", 50)
        running.pipe_raw("left", b"k", b"a|1", 20)
        running.pipe_raw("left", b"k", b"a|2", 70)
        times = [record.timestamp for record in running.create_output_topic("out").read_records_to_list()]
        assert times == [50, 70]


def test_serdes_are_given_the_names_that_java_gives_them():
    """Keys and hashed values are serialised under `…-topic-fk`, `-pk` and `-vh`, the subjects in schema registries."""
    topics = {}

    class Noting(StringSerde):
        def __init__(self, name):
            self.name = name

        def serialize(self, topic, data, headers=NO_HEADERS):
            topics.setdefault(self.name, set()).add(topic)
            return super().serialize(topic, data, headers)

    def tables(builder, topic):
        return builder.table(topic, consumed=Consumed.with_(Noting(f"{topic} key"), Noting(f"{topic} value")))

    with driver(define(tables=tables)) as running:
        running.pipe_raw("right", b"a", b"x", 0)
        running.pipe_raw("left", b"k", b"a|1", 0)
        running.pipe_raw("left", b"k", b"b|1", 0)
    assert topics["left key"] >= {f"{REGISTRATIONS}-pk", RESPONSES}
    assert topics["right key"] >= {f"{REGISTRATIONS}-fk", REGISTRATIONS}
    assert topics["left value"] >= {f"{REGISTRATIONS}-vh"}
    assert topics["right value"] >= {RESPONSES}


def test_keys_of_both_tables_may_be_of_other_types():
    """The serdes of the tables are used, not the defaults."""
    builder = StreamsBuilder()
    people = builder.table("people", consumed=Consumed.with_(Serdes.long(), Serdes.json()))
    towns = builder.table("towns", consumed=Consumed.with_(Serdes.integer(), Serdes.string()))
    people.left_join(towns, lambda person, town: [person["name"], town], foreign_key=lambda person: person["town"]).to_stream(
    ).to("out")  # fmt: skip
    with TopologyTestDriver(builder.build(), {"application.id": "app", "default.value.serde": "json"}) as running:
        running.create_input_topic("towns", Serdes.integer(), Serdes.string()).pipe_input(7, "Ulm")
        running.create_input_topic("people", Serdes.long(), Serdes.json()).pipe_input(1, {"name": "Ann", "town": 7})
        got = running.create_output_topic("out", Serdes.long(), Serdes.json()).read_key_values_to_list()
    assert got == [(1, ["Ann", "Ulm"])]


# The store of subscriptions.


def test_subscriptions_are_kept_as_java_keeps_them():
    """Under the combined key, with the left update's timestamp; deleted if the left entry refers to another key."""
    with driver(define()) as running:
        running.pipe_raw("left", b"k", b"a|1", 5)
        running.pipe_raw("left", b"k", b"b|1", 6)
        ((key, value),) = running.get_key_value_store("fk-subscription-store").all()
        assert key == b"\0\0\0\1bk"
        instruction = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
        assert value[0] == SubscriptionWrapper(value_hash(b"b|1"), instruction, "k", 0)
        assert value[1] == 6


def test_a_foreign_key_that_is_the_start_of_another_finds_its_own_subscriptions_only():
    """The store's key starts with the length of the foreign key."""
    with driver(define()) as running:
        for key, value in ((b"1", b"a|1"), (b"2", b"aa|1"), (b"3", b"a|2")):
            running.pipe_raw("left", key, value, 0)
        running.pipe_raw("right", b"a", b"x", 0)
        assert out(running) == [("1", "a|1/x"), ("3", "a|2/x")]


@pytest.mark.parametrize(("config", "persistent", "layout"), [
    ({}, True, "timestamped"),
    ({"dsl.store.format": "headers"}, True, "headers"),
    ({"default.dsl.store": "in_memory"}, False, "headers"),
])  # fmt: skip
def test_store_is_that_of_the_configuration(config, persistent, layout):
    """It is logged, never cached, and has the configured implementation and format."""
    resolved = StreamsConfig.of({**STRINGS, **config})
    (store,) = (
        builder
        for part in define().build(resolved).build(resolved).subtopologies
        for builder in part.store_builders
        if builder.name == "fk-subscription-store"
    )
    assert (store.persistent, store.value_format) == (persistent, layout)
    assert (store.logging_enabled, store.caching_enabled, store.kind) == (True, False, "key-value")


# Null keys, versions, failures.


def test_left_entries_without_foreign_key_are_dropped_by_an_inner_join_only():
    """The left join treats them as entries without a match."""
    with driver(define("join")) as running:
        running.pipe_raw("left", b"k", b"|1", 0)
        assert (out(running), running.dropped_records) == ([], 1)
    with driver(define("left_join")) as running:
        running.pipe_raw("left", b"k", b"|1", 0)
        assert (out(running), running.dropped_records) == ([("k", "|1/null")], 0)


def test_left_entry_that_loses_its_foreign_key_loses_its_result():
    """The inner join unsubscribes and deletes; the left join continues without a match."""
    for operator, last in (("join", None), ("left_join", "|2/null")):
        with driver(define(operator)) as running:
            running.pipe_raw("right", b"a", b"x", 0)
            running.pipe_raw("left", b"k", b"a|1", 0)
            running.pipe_raw("left", b"k", b"|2", 0)
            running.pipe_raw("right", b"a", b"y", 0)
            assert out(running) == [("k", "a|1/x"), ("k", last)]


def test_late_update_of_a_versioned_table_changes_no_result():
    """Out-of-order updates of either side are dropped by the join (KIP-914)."""

    def tables(builder, topic):
        return builder.table(topic, Materialized.as_(Stores.persistent_versioned_key_value_store(f"v-{topic}", 100)))

    with driver(define(tables=tables)) as running:
        running.pipe_raw("left", b"k", b"a|1", 50)
        running.pipe_raw("right", b"a", b"x", 50)
        running.pipe_raw("left", b"k", b"b|0", 40)
        running.pipe_raw("right", b"a", b"w", 40)
        assert out(running) == [("k", "a|1/x")]
        assert running.dropped_records == 2


@pytest.mark.parametrize("part", ["foreign_key", "joiner"])
def test_failing_functions_are_handled_as_in_other_operators(part):
    """The processing exception handler decides; by default the task fails."""

    def build():
        def fail(*_values):
            raise ValueError("no good")

        builder = StreamsBuilder()
        table = builder.table("left")
        joiner, key = (fail, foreign_key) if part == "joiner" else (pair, fail)
        table.join(builder.table("right"), joiner, foreign_key=key).to_stream().to("out")
        return builder

    skip = {"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}
    with driver(build(), **skip) as running:
        running.pipe_raw("right", b"a", b"x", 0)
        running.pipe_raw("left", b"k", b"a|1", 0)
        assert out(running) == []
    running = TopologyTestDriver(build().build(), STRINGS)
    running.pipe_raw("right", b"a", b"x", 0)
    with pytest.raises(FailedProcessingError, match="no good"):
        running.pipe_raw("left", b"k", b"a|1", 0)
    running.abandon()


@pytest.mark.parametrize("chosen", [[], [0, 1]])
def test_partitioner_has_to_choose_one_partition(chosen):
    """A subscription sent to several partitions, or to none, would lead to wrong results."""
    builder = define(joined=TableJoined.with_(None, lambda *_: chosen))
    running = TopologyTestDriver(builder.build(), STRINGS)
    with pytest.raises(FailedProcessingError, match="one partition"):
        running.pipe_raw("left", b"k", b"a|1", 0)
    running.abandon()


# Definition.


def test_tables_of_two_builders_cannot_be_joined():
    """As with every other join."""
    one, other = StreamsBuilder(), StreamsBuilder()
    with pytest.raises(TopologyError, match="StreamsBuilder"):
        one.table("left").join(other.table("right"), pair, foreign_key=foreign_key)


def test_join_has_one_name():
    """`named` is short for a `TableJoined` that only has a name."""
    assert define(joined=None, named="fk").build().describe() == define().build().describe()
    with pytest.raises(TopologyError, match="one name"):
        define(named="other")


def test_missing_serde_is_named_with_the_topic():
    """The error says which serde is missing, and for which join."""
    topology = define().build()
    with pytest.raises(ConfigError, match=r"fk-subscription-registration-topic has no key serde"):
        TopologyTestDriver(topology, {"application.id": "app", "default.value.serde": "string"})


def test_generated_names_can_be_refused():
    """An unnamed join has a store and two topics whose names change with the topology (KIP-1111)."""
    config = StreamsConfig.of({**STRINGS, "ensure.explicit.internal.resource.naming": "true"})

    def build(joined):
        builder = StreamsBuilder()
        left, right = builder.table("left", "left-store"), builder.table("right", "right-store")
        left.join(right, pair, foreign_key=foreign_key, joined=joined).to_stream().to("out")
        builder.build(config).build(config)

    build(NAMED)
    with pytest.raises(TopologyError) as refused:
        build(None)
    assert len(re.findall(r"KTABLE-FK-JOIN-SUBSCRIPTION-\S+", str(refused.value))) == 3


def test_result_is_a_table_like_any_other():
    """It can be looked up by name, grouped, and joined again; without a name it has a store only if one is needed."""
    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right")
    result = left.join(right, pair, foreign_key=ForeignKeyWithKey(lambda _key, value: foreign_key(value)))
    assert result.queryable_store_name is None
    assert "KTABLE-FK-JOIN-OUTPUT-STATE-STORE" not in builder.build().describe()
    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right")
    result = left.join(right, pair, foreign_key=foreign_key)
    result.join(left, pair).to_stream().to("out")
    named = left.join(right, pair, "kept", foreign_key=foreign_key)
    assert named.queryable_store_name == "kept"
    assert "KTABLE-FK-JOIN-OUTPUT-STATE-STORE" in builder.build().describe()


def test_subscription_serde_shows_what_it_is_made_of():
    """For messages."""
    assert repr(SubscriptionWrapperSerde(Serdes.string(), "t-pk")) == "SubscriptionWrapperSerde(StringSerde())"
