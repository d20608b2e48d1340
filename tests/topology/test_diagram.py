"""Diagrams of topologies."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from millrace.config import StreamsConfig
from millrace.dsl import StreamsBuilder
from millrace.topology.diagram import Box, Graph, Shape, graphs_of, mermaid, svg

SVG = "{http://www.w3.org/2000/svg}"


def graph() -> Graph:
    """Return a diamond: a source, two processors, one of them with a store, and a sink below both."""
    names = {
        "in": Shape.TOPIC,
        "src": Shape.SOURCE,
        "a": Shape.PROCESSOR,
        "b": Shape.PROCESSOR,
        "st": Shape.STORE,
        "out": Shape.SINK,
    }
    boxes = tuple(Box(name, name, shape) for name, shape in names.items())
    edges = (("in", "src"), ("src", "a"), ("src", "b"), ("a", "st"), ("a", "out"), ("b", "out"))
    return Graph("Sub-topology 0", boxes, edges)


def test_mermaid_has_every_box_and_edge():
    """Topics, nodes and stores have different shapes; a store has a dotted line without an arrow."""
    assert mermaid([graph()]).splitlines() == [
        "flowchart TD",
        '  subgraph s0["Sub-topology 0"]',
        '    s0n0[["in"]]',
        '    s0n1(["src"])',
        '    s0n2["a"]',
        '    s0n3["b"]',
        '    s0n4[("st")]',
        '    s0n5(["out"])',
        "    s0n0 --> s0n1",
        "    s0n1 --> s0n2",
        "    s0n1 --> s0n3",
        "    s0n2 -.- s0n4",
        "    s0n2 --> s0n5",
        "    s0n3 --> s0n5",
        "  end",
    ]


def test_svg_boxes_do_not_overlap_and_edges_go_down():
    """Every box is below its parents and inside the frame, and no boxes overlap."""
    root = ET.fromstring(svg([graph(), graph()]))
    boxes = [item for item in root.iter(f"{SVG}rect") if item.get("class") != "frame"]
    places = [(float(b.get("x")), float(b.get("y")), float(b.get("width"))) for b in boxes]
    assert len(places) == 12
    for index, (x, y, width) in enumerate(places):
        assert x + width <= float(root.get("width"))
        assert y + 34 <= float(root.get("height"))
        for other_x, other_y, other_width in places[:index]:
            assert y != other_y or x >= other_x + other_width or other_x >= x + width
    assert [y for _, y, _ in places[:6]] == sorted(y for _, y, _ in places[:6])


def test_pictures_on_one_page_share_nothing():
    """A picture has no ids, which belong to the whole page: each arrow has a head of its own, at the end of its edge."""
    root = ET.fromstring(svg([graph()]))
    assert not [item for item in root.iter() if item.get("id")]
    edges = [item.get("d") for item in root.iter(f"{SVG}path") if item.get("class") == "edge"]
    heads = [item.get("d") for item in root.iter(f"{SVG}path") if item.get("class") == "head"]
    assert len(edges) == len(heads) == 5
    for edge, head in zip(edges, heads, strict=True):
        assert head == f"M{' '.join(edge.split()[-2:])}l-4 -8h8z"


def test_svg_of_a_loop():
    """What leads back to a box is drawn above or below it, and does not push it down forever."""
    boxes = tuple(Box(name, name, Shape.STAGE) for name in ("in", "a", "b"))
    root = ET.fromstring(svg([Graph("loop", boxes, (("in", "a"), ("a", "b"), ("b", "a")))]))
    assert len([item for item in root.iter(f"{SVG}path") if "edge" in item.get("class", "")]) == 3
    assert len({item.get("y") for item in root.iter(f"{SVG}rect") if item.get("class") != "frame"}) == 3


def test_nothing_to_draw():
    """A topology without nodes is an empty diagram, not an error."""
    assert mermaid([]) == "flowchart TD\n"
    assert ET.fromstring(svg([])).tag == f"{SVG}svg"


def test_word_count_is_drawn_with_kafkas_names():
    """Each sub-topology is a graph; an internal topic has its full name in both, and a user's topic is not mistaken for one."""
    builder = StreamsBuilder()
    builder.stream("lines").group_by(lambda _, line: line).count().to_stream().to(
        "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
    )
    first, second = graphs_of(builder.build().build(StreamsConfig.of({"application.id": "app"})))
    topics = [[box.label for box in item.boxes if box.shape is Shape.TOPIC] for item in (first, second)]
    inner = "app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition"
    assert topics == [["lines", inner], [inner, "KSTREAM-AGGREGATE-STATE-STORE-0000000002"]]
    assert [box.label for box in second.boxes if box.shape is Shape.STORE] == [
        "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
    ]
