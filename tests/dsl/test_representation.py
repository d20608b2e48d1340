"""How streams, tables and topologies show themselves in a notebook, a shell or a message."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from millrace.dsl import (
    BufferConfig,
    EmitStrategy,
    Grouped,
    JoinWindows,
    Repartitioned,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from millrace.topology import Topology

SVG = "{http://www.w3.org/2000/svg}"
FIVE = TimeWindows.of_size_with_no_grace("5m")


def first(*_):
    """Return nothing of interest."""
    return ("k", "v")


SHOWN = [
    (lambda b: b.stream("in"), "KStream(KSTREAM-SOURCE-0000000000, reads in)"),
    (lambda b: b.stream(["a", "b"]), "KStream(KSTREAM-SOURCE-0000000000, reads a, b)"),
    (
        lambda b: b.stream(re.compile("in-.*")),
        "KStream(KSTREAM-SOURCE-0000000000, reads topics that match in-.*)",
    ),
    (
        lambda b: b.stream([f"t{number}" for number in range(9)]),
        "KStream(KSTREAM-SOURCE-0000000000, reads t0, t1, t2, t3, t4 and 4 more)",
    ),
    (
        lambda b: b.stream("in").map(first),
        "KStream(KSTREAM-MAP-0000000001, from KSTREAM-SOURCE-0000000000, its key has changed)",
    ),
    (
        lambda b: b.stream("in").repartition(Repartitioned.as_("by-key")),
        "KStream(by-key-repartition-source, from KSTREAM-SOURCE-0000000000 through by-key-repartition)",
    ),
    (
        lambda b: b.stream("in").merge(b.stream("other")),
        "KStream(KSTREAM-MERGE-0000000002, from KSTREAM-SOURCE-0000000000, KSTREAM-SOURCE-0000000001)",
    ),
    (lambda b: b.table("in"), "KTable(KTABLE-SOURCE-0000000002, reads in)"),
    (lambda b: b.table("in", "latest"), "KTable(KTABLE-SOURCE-0000000001, reads in, store latest)"),
    (
        lambda b: b.table("in").filter(first, "kept"),
        "KTable(KTABLE-FILTER-0000000003, from KTABLE-SOURCE-0000000002, store kept)",
    ),
    (lambda b: b.global_table("names", "by-id"), "GlobalKTable(reads names, store by-id)"),
    (
        lambda b: b.stream("in").group_by_key(),
        "KGroupedStream(KSTREAM-SOURCE-0000000000, reads in)",
    ),
    (
        lambda b: b.stream("in").group_by(first, Grouped.as_("by-first")),
        "KGroupedStream(by-first, from KSTREAM-SOURCE-0000000000, to be repartitioned through by-first)",
    ),
    (
        lambda b: b.stream("in").group_by(first),
        (
            "KGroupedStream(KSTREAM-KEY-SELECT-0000000001, from KSTREAM-SOURCE-0000000000, to be repartitioned through a topic "
            "named after the store)"
        ),
    ),
    (
        lambda b: b.table("in").group_by(first),
        "KGroupedTable(KTABLE-SELECT-0000000003, from KTABLE-SOURCE-0000000002)",
    ),
    (
        lambda b: b.stream("in").group_by_key().windowed_by(FIVE).emit_strategy(EmitStrategy.on_window_close()),
        (
            "TimeWindowedKStream(KGroupedStream(KSTREAM-SOURCE-0000000000, reads in), TimeWindows(size_ms=300000, "
            "advance_ms=300000, grace_ms=0), emits on-window-close)"
        ),
    ),
    (
        lambda b: b.stream("in").group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace("5m")),
        (
            "SessionWindowedKStream(KGroupedStream(KSTREAM-SOURCE-0000000000, reads in), "
            "SessionWindows(inactivity_gap_ms=300000, grace_ms=0), emits on-window-update)"
        ),
    ),
    (
        lambda b: b.stream("in").group_by_key().cogroup(first),
        "CogroupedKStream(KGroupedStream(KSTREAM-SOURCE-0000000000, reads in))",
    ),
    (
        lambda b: b.stream("in").group_by_key().cogroup(first).windowed_by(FIVE),
        (
            "TimeWindowedCogroupedKStream(CogroupedKStream(KGroupedStream(KSTREAM-SOURCE-0000000000, reads in)), "
            "TimeWindows(size_ms=300000, advance_ms=300000, grace_ms=0))"
        ),
    ),
    (
        lambda b: b.stream("in").split("kind-").branch(first, "a"),
        "BranchedKStream(kind-, from KSTREAM-SOURCE-0000000000, branches kind-a)",
    ),
]


@pytest.mark.parametrize(("make", "shown"), SHOWN)
def test_what_a_stream_is(make, shown):
    """The kind, the name of its node, what it reads or comes from, and its store, windows or repartition topic."""
    assert repr(make(StreamsBuilder())) == shown


def test_streams_can_be_shown_after_the_topology_is_built():
    """The optimiser moves nodes and sources are merged; what refers to them can still be shown, and nothing fails."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    changed = stream.map(first)
    windows = JoinWindows.of_time_difference_with_no_grace(5)
    shown = [
        stream, builder.stream("in"), changed, changed.group_by_key().count(), changed.group_by_key().reduce(max),
        changed.join(stream, first, windows),
        changed.to_table().suppress(Suppressed.until_time_limit(1, BufferConfig.unbounded())),
        builder.table("t").join(builder.table("u"), first, foreign_key=len), changed.group_by_key().windowed_by(
            SlidingWindows.of_time_difference_with_no_grace(5)
        ).count().to_stream(),
    ]  # fmt: skip
    before = [repr(each) for each in shown]
    topology = builder.build({"application.id": "a", "topology.optimization": "all"})
    assert len(before) == len([repr(each) for each in shown])
    assert repr(topology).startswith("Topology(")


def test_topology_is_shown_as_a_picture():
    """Notebooks ask for SVG: it has a graph per sub-topology, with all nodes, topics and stores, and needs no settings."""
    builder = StreamsBuilder()
    table = builder.table("prices")
    grouped = table.group_by(lambda _, price: (price, price))  # its serde is only known with settings
    grouped.count("counts").to_stream().to("out")
    builder.global_table("names", "by-id")
    topology = builder.build()
    assert repr(topology) == "Topology(3 sub-topologies, 10 nodes, 2 stores)"
    labels = [item.text for item in ET.fromstring(topology._repr_svg_()).iter(f"{SVG}text")]
    assert [label for label in labels if label.startswith(("Sub", "Global"))] == [
        "Sub-topology 0", "Sub-topology 1", "Global stores",
    ]  # fmt: skip
    assert {"prices", "counts", "counts-repartition", "out", "names", "by-id"} <= set(labels)
    names = {node.name for part in topology.describe().subtopologies for node in part.nodes}
    assert names <= set(labels)


def test_empty_topology_is_shown_too():
    """A notebook may show a topology before anything is added."""
    assert ET.fromstring(Topology()._repr_svg_()).tag == f"{SVG}svg"
    assert repr(Topology()) == "Topology(0 sub-topologies, 0 nodes, 0 stores)"


def test_pictures_do_not_change_each_other():
    """The style of a picture is for its own elements: a page may have several, and other pictures."""
    style = ET.fromstring(Topology()._repr_svg_()).find(f"{SVG}style")
    selectors = [
        part.strip() for rule in style.text.split("}") if rule.strip() for part in rule.split("{")[0].split(",")
    ]
    assert selectors
    assert all(selector.startswith(".millrace ") for selector in selectors)
