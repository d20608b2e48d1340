"""Operators on tables that the recorded cases do not cover: keys in mappers, stores of transformers, versions in joins."""

from __future__ import annotations

import pytest

from millrace import Grouped, Materialized, Serdes, Stores, StoreType, StreamsBuilder, StreamsConfig, TopologyTestDriver
from millrace.errors import ConfigError, FailedProcessingError

TEXT, LONG = Serdes.string(), Serdes.long()
SETTINGS = {
    "application.id": "app",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "statestore.cache.max.bytes": 0,
}


def pipe(builder, *records, settings=()):
    """Send (topic, key, value, timestamp) and return keys and values of `out`."""
    with TopologyTestDriver(builder.build(), {**SETTINGS, **dict(settings)}) as driver:
        for topic, key, value, timestamp in records:
            driver.create_input_topic(topic).pipe_input(key, value, timestamp)
        return driver.create_output_topic("out").read_key_values_to_list()


@pytest.mark.parametrize("operator", ["filter", "filter_not"])
def test_entries_that_do_not_pass_are_deleted(operator):
    """Downstream, an entry that does not pass is a deletion, whether or not it existed before."""
    builder = StreamsBuilder()
    keeps_short = (lambda key, value: len(value) < 3) if operator == "filter" else (lambda key, value: len(value) >= 3)
    table = getattr(builder.table("in"), operator)(keeps_short, "short", named="short-ones")
    table.to_stream().to("out")
    assert table.queryable_store_name == "short"
    assert ": short-ones (stores: [short])" in builder.build().describe()
    got = pipe(builder, ("in", "a", "ab", 0), ("in", "a", "abc", 1), ("in", "b", "abc", 2))
    assert got == [("a", "ab"), ("a", None), ("b", None)]


def test_values_are_mapped_with_or_without_the_key():
    """Deletions stay deletions, and are not mapped."""
    builder = StreamsBuilder()
    mapped = builder.table("in").map_values(str.upper).map_values_with_key(lambda key, value: key + value, "mapped")
    mapped.to_stream().to("out")
    assert mapped.queryable_store_name == "mapped"
    assert pipe(builder, ("in", "k", "v", 0), ("in", "k", None, 1)) == [("k", "kV"), ("k", None)]


def test_a_table_without_a_name_cannot_be_queried():
    """As in Java, where `queryableStoreName` is null."""
    builder = StreamsBuilder()
    table = builder.table("in")
    assert table.queryable_store_name is None
    assert table.map_values(len).queryable_store_name is None
    assert builder.table("named", "store").queryable_store_name == "store"


class Numbered:
    """Puts a number from a store before each value; each task has its own."""

    def init(self, context):
        self.numbers = context.get_state_store("n")

    def transform(self, key, value):
        number = (self.numbers.get(key) or 0) + 1
        self.numbers.put(key, number)
        return f"{number}:{value}"

    def close(self):
        pass


def test_values_are_transformed_with_a_store():
    """The transformer is called once per update when its table is kept."""
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store_builder(Stores.in_memory_key_value_store("n"), TEXT, LONG))
    table = builder.table("in").transform_values(Numbered, "n", materialized="numbered", named="numbering")
    table.to_stream().to("out")
    assert pipe(builder, ("in", "k", "a", 0), ("in", "k", "b", 1)) == [("k", "1:a"), ("k", "2:b")]


def test_updates_are_sent_on_under_a_new_key():
    """`to_stream` with a selector is the same as `to_stream` and `select_key`, with the names of both."""
    builder = StreamsBuilder()
    builder.table("in").to_stream(lambda key, value: value).to("out")
    assert "KSTREAM-KEY-SELECT-" in builder.build().describe()
    assert pipe(builder, ("in", "k", "v", 0)) == [("v", "v")]


def grouped_by_first_letter(builder):
    """Group the table of `in` by the first letter of its values."""
    return builder.table("in").group_by(lambda key, value: (value[0], value), Grouped.as_("g"))


def test_a_group_is_aggregated_with_what_comes_and_goes():
    """An update removes the old value from its group before it adds the new one."""
    builder = StreamsBuilder()
    table = grouped_by_first_letter(builder).aggregate(
        str,
        lambda key, value, so_far: so_far + f"+{value}",
        lambda key, value, so_far: so_far + f"-{value}",
        Materialized.with_(TEXT, TEXT),
    )
    table.to_stream().to("out")
    records = [
        ("in", "1", "aa", 0),
        ("in", "2", "ab", 1),
        ("in", "1", "ba", 2),
        ("in", "2", "ac", 3),
        ("in", "1", None, 4),
    ]
    assert pipe(builder, *records) == [
        ("a", "+aa"),
        ("a", "+aa+ab"),
        ("a", "+aa+ab-aa"),
        ("b", "+ba"),
        ("a", "+aa+ab-aa-ab+ac"),
        ("b", "+ba-ba"),
    ]


@pytest.mark.parametrize("handler", [None, "LogAndContinueProcessingExceptionHandler"])
@pytest.mark.parametrize("nothing", [None, (None, "x"), ("x", None)])
@pytest.mark.parametrize("upgraded_from", [None, "3.4"])
def test_an_entry_without_a_group_leaves_the_one_it_was_in(nothing, upgraded_from, handler):
    """The selector may return None, or a pair with None in it: only that value is not subtracted, or not added."""
    builder = StreamsBuilder()
    people = builder.table("in").group_by(lambda key, city: nothing if city == "?" else (city, key))
    people.count().to_stream().map_values(str).to("out")
    records = [
        ("ann", "Oslo"),
        ("bob", "Oslo"),
        ("ann", "?"),
        ("cid", "Rome"),
        ("ann", "??"),
        ("bob", "Rome"),
        ("ann", "?"),
    ]
    settings = {"processing.exception.handler": handler, "upgrade.from": upgraded_from}
    settings = {name: value for name, value in settings.items() if value}
    assert pipe(builder, *[("in", *record, 0) for record in records], settings=settings) == [
        ("Oslo", "1"),
        ("Oslo", "2"),
        ("Oslo", "1"),
        ("Rome", "1"),
        ("??", "1"),
        ("Oslo", "0"),
        ("Rome", "2"),
        ("??", "0"),
    ]


@pytest.mark.parametrize("returned", [7, 0, ""])
def test_a_group_must_be_a_pair(returned):
    """What is returned instead is an error of the selector, which says so."""
    builder = StreamsBuilder()
    builder.table("in").group_by(lambda _key, _value: returned).count().to_stream().to("out")
    with pytest.raises(FailedProcessingError, match="must return a pair of key and value, or None"):
        pipe(builder, ("in", "k", "v", 0))


@pytest.mark.parametrize("version", ["2.3", "4.3", "3.4.1", "latest"])
def test_upgrade_from_takes_the_versions_that_java_takes(version):
    """Kafka Streams 4.3 can be reached by a rolling upgrade from 2.4 to 4.2 only."""
    with pytest.raises(ConfigError, match=r"upgrade\.from"):
        StreamsConfig.of({**SETTINGS, "upgrade.from": version})


@pytest.mark.parametrize(("upgrade_from", "records"), [(None, 2), ("3.4", 3), ("3.5", 2)])
def test_during_an_upgrade_from_3_4_old_and_new_value_go_separately(upgrade_from, records):
    """Older instances cannot read both values in one record (KIP-904)."""
    builder = StreamsBuilder()
    grouped_by_first_letter(builder).count("c")
    settings = {**SETTINGS, **({"upgrade.from": upgrade_from} if upgrade_from else {})}
    with TopologyTestDriver(builder.build(), settings) as driver:
        produced = driver.record_produced()
        driver.create_input_topic("in").pipe_list([("1", "aa"), ("1", "ab")])
        assert sum(record.topic == "app-g-repartition" for record in produced) == records


def versioned(name):
    """Keep a table in a versioned store."""
    return Materialized.as_(Stores.persistent_versioned_key_value_store(name, 1_000))


def test_joins_of_versioned_tables_leave_out_of_order_updates_out():
    """An update that is not the latest version of its key changes no result (KIP-914)."""
    for left, right, expected in (
        (versioned("l"), versioned("r"), [("k", "a/x"), ("k", "b/x")]),
        ("l", "r", [("k", "a/x"), ("k", "b/x"), ("k", "late/x")]),
    ):
        builder = StreamsBuilder()
        joined = builder.table("one", left).join(builder.table("two", right), lambda one, two: f"{one}/{two}")
        joined.to_stream().to("out")
        records = [("two", "k", "x", 0), ("one", "k", "a", 10), ("one", "k", "b", 30), ("one", "k", "late", 20)]
        assert pipe(builder, *records) == expected


def test_a_join_of_tables_has_the_later_time():
    """Whichever side completes the result."""
    builder = StreamsBuilder()
    joined = builder.table("one").join(builder.table("two"), lambda one, two: one + two, "both")
    joined.to_stream().to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("one").pipe_input("k", "a", 50)
        driver.create_input_topic("two").pipe_input("k", "b", 20)
        assert driver.create_output_topic("out").read_record().timestamp == 50
    assert joined.queryable_store_name == "both"


def test_versioned_tables_have_no_cache():
    """A cache would lose versions; enabling it in the Processor API is refused."""
    builder = StreamsBuilder()
    builder.table("in", versioned("v"))
    config = StreamsConfig.of(SETTINGS)
    (store,) = builder.build().build(config).subtopologies[0].store_builders
    assert (store.kind, store.caching_enabled, store.retention_ms) == ("versioned", False, 1_000)


def test_how_a_table_is_kept_can_be_said_option_by_option():
    """Name, serdes, cache, changelog with its settings, retention, kind of store."""
    option = (
        Materialized.as_("s")
        .with_key_serde(TEXT)
        .with_value_serde(LONG)
        .with_caching_disabled()
        .with_caching_enabled()
        .with_logging_disabled()
        .with_logging_enabled({"cleanup.policy": "compact", "segment.ms": "1000"})
        .with_retention(5_000)
        .with_store_type(StoreType.IN_MEMORY)
    )
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(option)
    config = StreamsConfig.of(SETTINGS)
    (part,) = builder.build().build(config).subtopologies
    (store,) = part.store_builders
    assert (store.name, store.persistent, store.caching_enabled, store.logging_enabled) == ("s", False, True, True)
    assert part.changelog_configs["app-s-changelog"]["segment.ms"] == "1000"
    assert option.retention_ms == 5_000
