"""How a topology describes itself: as a text, and as values."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re

import pytest
from tests.topologies.by_name import load_topologies

from millrace.processor import Processor
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.topology import (
    GlobalStoreDescription,
    ProcessorDescription,
    SinkDescription,
    SourceDescription,
    SubtopologyDescription,
    Topology,
    TopologyDescription,
)


def by_header(_key, _value, _context):
    """Choose a topic."""
    return "somewhere"


def example():
    """Return a topology with a node of every kind."""
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), Serdes.string(), Serdes.string())
    countries = Stores.key_value_store_builder(Stores.in_memory_key_value_store("countries"), None, None)
    return (
        Topology()
        .add_source("orders", "eu", "us")
        .add_processor("check", Processor, "orders")
        .add_state_store(store, "check")
        .add_sink("good", "good-orders", "check")
        .add_sink("any", by_header, "check", "orders")
        .add_source("more", pattern=re.compile("more-.*"))
        .add_sink("rest", "rest", "more")
        .add_global_store(countries.with_logging_disabled(), "read", "country", "fill", Processor)
    )


def test_description_is_read_by_its_parts():
    """Sub-topologies with their nodes, the neighbours of each node, and global stores separately."""
    description = example().describe()
    assert description.subtopologies == (
        SubtopologyDescription(
            0,
            (
                SourceDescription("orders", ("eu", "us"), None, ("check", "any")),
                ProcessorDescription("check", ("seen",), ("orders",), ("any", "good")),
                SinkDescription("any", None, by_header, ("orders", "check")),
                SinkDescription("good", "good-orders", None, ("check",)),
            ),
        ),
        SubtopologyDescription(
            1,
            (SourceDescription("more", (), "more-.*", ("rest",)), SinkDescription("rest", "rest", None, ("more",))),
        ),
    )
    assert description.global_stores == (
        GlobalStoreDescription(
            2,
            SourceDescription("read", ("country",), None, ("fill",)),
            ProcessorDescription("fill", ("countries",), ("read",)),
        ),
    )
    source, *_, sink = description.subtopologies[0].nodes
    assert (source.predecessors, sink.successors) == ((), ())


def test_description_is_the_text():
    """It is an ordinary string, and every part is found in it."""
    description = example().describe()
    assert isinstance(description, str)
    assert str(description) == description
    assert description.startswith("Topologies:\n   Sub-topology: 0\n    Source: orders (topics: [eu, us])\n")
    assert "Sink: any (extractor class: by_header)" in description
    for part in (*description.subtopologies, *description.global_stores):
        assert str(part) in description


def test_description_never_changes():
    """Its values are frozen, and it can be compared, copied and pickled."""
    description = example().describe()
    assert description == example().describe()
    for other in (copy.copy(description), pickle.loads(pickle.dumps(description))):
        assert other == description
        assert other.subtopologies == description.subtopologies
    with pytest.raises(dataclasses.FrozenInstanceError):
        description.subtopologies[0].id = 7


def test_text_is_made_of_the_values():
    """For every recorded topology, assembling the parts gives the text that Java prints."""
    for definition in load_topologies().values():
        try:
            description = definition().describe()
        except TypeError:  # it asks for a configuration
            continue
        assert TopologyDescription(description.subtopologies, description.global_stores) == description
        names = [node.name for part in description.subtopologies for node in part.nodes]
        assert len(set(names)) == len(names)
        for part in description.subtopologies:
            nodes = {node.name: node for node in part.nodes}
            for node in part.nodes:
                assert all(node.name in nodes[name].predecessors for name in node.successors)
                assert all(node.name in nodes[name].successors for name in node.predecessors)


def test_branches_that_meet_again_many_times_are_described():
    """The number of paths to a node doubles with each such pair of branches, but not the time."""
    topology, above = Topology().add_source("in", "in"), "in"
    for number in range(100):
        names = f"left-{number}", f"right-{number}"
        for name in names:
            topology.add_processor(name, Processor, above)
        above = f"meet-{number}"
        topology.add_processor(above, Processor, *names)
    (part,) = topology.describe().subtopologies
    assert [node.name for node in part.nodes[:4]] == ["in", "left-0", "right-0", "meet-0"]


def test_long_chain_is_described():
    """It may be longer than Python's limit of recursion."""
    topology, above = Topology().add_source("in", "in"), "in"
    for number in range(1_500):
        topology.add_processor(f"node-{number}", Processor, above)
        above = f"node-{number}"
    (part,) = topology.describe().subtopologies
    assert [node.name for node in part.nodes] == ["in", *(f"node-{number}" for number in range(1_500))]
