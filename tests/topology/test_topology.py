"""Topologies assembled node by node."""

from __future__ import annotations

import pytest

from millrace.config import StreamsConfig
from millrace.errors import TopologyError
from millrace.processor import Processor
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.topology import AutoOffsetReset, Topology

CONFIG = StreamsConfig(application_id="app")


def kv(name):
    """Return the builder of a small store."""
    return Stores.key_value_store_builder(Stores.in_memory_key_value_store(name), Serdes.string(), Serdes.string())


def test_subtopologies_are_numbered_in_the_order_of_their_first_nodes():
    """Unconnected nodes run in separate tasks, numbered in the order in which they were added."""
    topology = (
        Topology().add_source("b", "two").add_source("a", "one").add_sink("x", "out", "a").add_sink("y", "out", "b")
    )
    built = topology.build(CONFIG)
    assert [(item.id, item.source_topics) for item in built.subtopologies] == [(0, ("two",)), (1, ("one",))]


def test_a_shared_store_makes_one_subtopology():
    """Processors that share a store run in the same task."""
    topology = Topology().add_source("a", "one").add_source("b", "two")
    topology.add_processor("p", Processor, "a").add_processor("q", Processor, "b").add_state_store(kv("s"), "p", "q")
    (only,) = topology.build(CONFIG).subtopologies
    assert only.source_topics == ("one", "two")
    assert only.changelog_topics == {"s": "app-s-changelog"}


def test_stores_of_the_supplier_are_connected():
    """A supplier's stores belong to its processor."""

    class Supplier:
        """Makes processors, and brings a store."""

        def __call__(self):
            """Make a processor."""
            return Processor()

        def stores(self):
            """Bring a store."""
            return [kv("own")]

    topology = Topology().add_source("a", "one").add_processor("p", Supplier(), "a")
    assert "Processor: p (stores: [own])" in topology.describe()


def test_global_stores_have_no_tasks():
    """A global store takes an id, but its sources are not inputs of a task, and its topic is its changelog."""
    topology = Topology().add_global_store(kv("g").with_logging_disabled(), "src", "all", "put", Processor)
    topology.add_source("a", "one").add_sink("x", "out", "a")
    built = topology.build(CONFIG)
    assert [item.id for item in built.subtopologies] == [1]
    assert built.global_subtopology.changelog_topics == {"g": "all"}
    assert [store.topic for store in built.plan().global_stores] == ["all"]


def test_read_only_store_is_restored_from_its_topic():
    """A read-only store has no changelog of its own (KIP-813)."""
    topology = Topology().add_read_only_state_store(kv("copy"), "src", "in", "put", Processor)
    (only,) = topology.build(CONFIG).subtopologies
    assert only.changelog_topics == {"copy": "in"}
    assert only.changelog_configs == {}
    assert only.source_changelogs == {"copy"}


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda t: t.add_source("a", "other"), "named a has already been added"),
        (lambda t: t.add_source("b"), "reads nothing"),
        (lambda t: t.add_source("b", "one"), "already read by source a"),
        (lambda t: t.add_source("b", pattern="on."), "matches topic one"),
        (lambda t: t.add_source("b", "two", pattern="x"), "both topics and a pattern"),
        (lambda t: t.add_source("b", "two", offset_reset="newest"), "Unknown offset reset"),
        (lambda t: t.add_processor("p", Processor), "no parents"),
        (lambda t: t.add_processor("p", Processor, "p"), "its own parent"),
        (lambda t: t.add_processor("p", Processor, "nobody"), "Parent nobody of node p is not added yet"),
        (lambda t: t.add_sink("x", "out", "a").add_processor("p", Processor, "x"), "is a sink"),
        (lambda t: t.add_state_store(kv("s"), "a"), "is a source or a sink"),
        (lambda t: t.add_state_store(kv("s")).add_state_store(kv("s")), "different state store named s"),
        (lambda t: t.add_global_store(kv("g"), "src", "all", "put", Processor), "must not log"),
        (lambda t: t.connect_processor_and_state_stores("p"), "No stores are given"),
    ],
)
def test_mistakes_are_named(mistake, message):
    """Each mistake is refused where it is made, and the error says what is wrong."""
    with pytest.raises(TopologyError, match=message):
        mistake(Topology().add_source("a", "one"))


def test_offset_reset_by_duration_cannot_be_negative():
    """A duration reaches only into the past."""
    assert AutoOffsetReset.by_duration(5).policy == "by_duration:5"
    with pytest.raises(TopologyError, match="at least 0 ms, not -1 ms"):
        AutoOffsetReset.by_duration(-1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 250])
def test_stores_have_names_that_topics_can_have(name):
    """A store's name becomes a folder and part of a topic's name, so others are refused when the store is added."""
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store(name), Serdes.string(), Serdes.string())
    topology = Topology().add_source("src", "in").add_processor("p", Processor, "src")
    with pytest.raises(TopologyError, match=r"[Nn]ame"):
        topology.add_state_store(store, "p")
    with pytest.raises(TopologyError, match=r"[Nn]ame"):
        topology.add_global_store(store.with_logging_disabled(), "gsrc", "g", "gproc", Processor)
