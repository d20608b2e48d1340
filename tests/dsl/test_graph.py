"""The logical graph: names, sources, optimiser rules."""

from __future__ import annotations

import re

import pytest

from millrace.checks import checked_name
from millrace.config import OPTIMIZATIONS, StreamsConfig
from millrace.dsl import Consumed, Grouped, Materialized, Named, StreamsBuilder
from millrace.dsl.graph.optimizer import rules_of
from millrace.dsl.names import Names
from millrace.errors import ConfigError, TopologyError

NAMES = "Processor: (\\S+)"


def config(**settings):
    """Return a configuration; underscores stand for dots."""
    return StreamsConfig.of({"application.id": "app", **{key.replace("_", "."): v for key, v in settings.items()}})


def test_every_operator_uses_up_one_index():
    """Naming one operator does not change the generated names of others."""
    plain, named = StreamsBuilder(), StreamsBuilder()
    plain.stream("in").filter(bool).map_values(str).to("out")
    named.stream("in").filter(bool, Named.as_("kept")).map_values(str).to("out")
    assert re.findall(NAMES, plain.build().describe()) == [
        "KSTREAM-FILTER-0000000001",
        "KSTREAM-MAPVALUES-0000000002",
    ]
    assert re.findall(NAMES, named.build().describe()) == ["kept", "KSTREAM-MAPVALUES-0000000002"]


def test_generated_names_have_ten_digits():
    """Nodes and stores share one counter."""
    names = Names()
    assert names.store("in-") == "in-STATE-STORE-0000000000"
    assert names.processor("KSTREAM-MAP-") == "KSTREAM-MAP-0000000001"
    assert names.processor("KSTREAM-MAP-", "mine", "-source") == "mine-source"
    assert names.processor("KSTREAM-MAP-") == "KSTREAM-MAP-0000000003"


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
def test_names_must_be_possible_in_topics(name):
    """Names become parts of topic names."""
    with pytest.raises(TopologyError):
        checked_name(name)


def test_streams_of_the_same_topics_share_a_source():
    """Reading a topic twice is one source with two children."""
    builder = StreamsBuilder()
    builder.stream("in").to("one")
    builder.stream("in").to("two")
    assert builder.build().describe().count("Source:") == 1


def test_streams_of_overlapping_topics_are_refused():
    """One record cannot come from two sources."""
    builder = StreamsBuilder()
    builder.stream(["a", "b"])
    builder.stream(["b", "c"])
    with pytest.raises(TopologyError, match="overlap in topic b"):
        builder.build()


def test_streams_of_the_same_topic_must_begin_at_the_same_offset():
    """A source has one reset policy."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed(offset_reset="earliest")).to("one")
    builder.stream("in", Consumed(offset_reset="latest")).to("two")
    with pytest.raises(TopologyError, match="different offset resets"):
        builder.build()


@pytest.mark.parametrize("pattern", ["orders-.*", re.compile("orders-.*")])
def test_streams_of_the_same_pattern_share_a_source(pattern):
    """Patterns are compared by their text."""
    builder = StreamsBuilder()
    for sink in ("one", "two"):
        builder.stream(re.compile(pattern)).to(sink)
    assert "(topics: orders-.*)" in builder.build().describe()


def test_optimisation_setting_names_rules():
    """All, none, or a list; other values are refused."""
    assert rules_of("none") == frozenset()
    assert rules_of("all") == OPTIMIZATIONS
    assert rules_of("merge.repartition.topics, single.store.self.join") == OPTIMIZATIONS - {
        "reuse.ktable.source.topics"
    }
    for wrong in ("al", "faster", "all,none", "all,merge.repartition.topics"):
        with pytest.raises(ConfigError, match=r"topology\.optimization.*none, all, or a list of merge.*got '" + wrong):
            StreamsConfig.of({"application.id": "app", "topology.optimization": wrong})


def reused(builder, settings):
    """Return the changelogs of a table `tab` of topic `in`."""
    return builder.build(settings).build(settings).subtopologies[0].changelog_topics


def test_source_topics_are_changelogs_only_if_asked_for():
    """The rule is off by default, because it changes which topic contains the state."""
    for rule, topic in (("none", "app-tab-changelog"), ("reuse.ktable.source.topics", "in"), ("all", "in")):
        builder = StreamsBuilder()
        builder.table("in", "tab")
        assert reused(builder, config(topology_optimization=rule)) == {"tab": topic}


def test_repartitions_behind_one_key_change_become_one():
    """The merged topic has the name of the first."""
    builder = StreamsBuilder()
    stream = builder.stream("in").select_key(lambda _key, value: value)
    stream.group_by_key(Grouped.as_("first")).count("a")
    stream.filter(bool).group_by_key(Grouped.as_("second")).count("b")
    description = builder.build(config(topology_optimization="merge.repartition.topics")).describe()
    assert set(re.findall(r"topic: (\S+)\)", description)) == {"first-repartition"}


def test_repartitions_behind_a_change_of_values_stay():
    """The values may have another type there, so one topic cannot contain both."""
    builder = StreamsBuilder()
    stream = builder.stream("in").select_key(lambda _key, value: value)
    stream.group_by_key(Grouped.as_("first")).count("a")
    stream.map_values(len).group_by_key(Grouped.as_("second")).count("b")
    description = builder.build(config(topology_optimization="all")).describe()
    assert set(re.findall(r"topic: (\S+)\)", description)) == {"first-repartition", "second-repartition"}


def test_merged_streams_with_changed_keys_share_a_repartition():
    """The topic is moved after the merge."""
    builder = StreamsBuilder()
    one = builder.stream("a").select_key(lambda _key, value: value)
    two = builder.stream("b").select_key(lambda _key, value: value)
    one.merge(two).group_by_key(Grouped.as_("both")).count("c")
    description = builder.build(config(topology_optimization="all")).describe()
    assert re.findall(r"topic: (\S+)\)", description) == ["both-repartition"]
    assert "<-- KSTREAM-MERGE-" in description


def test_named_grouping_is_repartitioned_once():
    """Two aggregations of one grouping with a name read the same topic."""
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by(lambda _key, value: value, Grouped.as_("g"))
    grouped.count("a")
    grouped.reduce(max, "b")
    assert builder.build().describe().count("(topic: g-repartition)") == 1


def test_generated_names_can_be_forbidden():
    """With KIP-1111 the error lists the resources that must be named."""
    settings = config(ensure_explicit_internal_resource_naming=True)
    builder = StreamsBuilder()
    builder.stream("in").group_by(lambda _key, value: value).count()
    with pytest.raises(
        TopologyError, match="repartition topic: KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition; state"
    ):
        builder.build(settings).build(settings)

    named = StreamsBuilder()
    named.stream("in").group_by(lambda _key, value: value, Grouped.as_("g")).count(Materialized.as_("c"))
    assert named.build(settings).build(settings).subtopologies


def test_long_and_branching_topologies_are_built():
    """Each node is looked at a few times, however long a chain is and however often branches meet again."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    for _ in range(500):
        stream = stream.filter(lambda _, value: value)
    for _ in range(40):
        stream = stream.filter(lambda _, value: value).merge(stream.filter_not(lambda _, value: value))
    stream.to("out")
    (part,) = (
        builder.build(StreamsConfig.of({"application.id": "app"}))
        .build(StreamsConfig.of({"application.id": "app"}))
        .subtopologies
    )
    assert len(part.nodes) == 1 + 500 + 3 * 40 + 1
