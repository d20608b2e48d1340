"""Compiled closures do the same as a plain interpreter of the node graph."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.support import Echo, Harness

from millrace.engine.compile import forward_to
from millrace.errors import ConfigError
from millrace.processor.api import Processor
from millrace.topology import Topology


@dataclass(frozen=True)
class Step:
    """A random node: appends its mark to values, drops or doubles them, or picks a child by name."""

    name: str
    parents: tuple[str, ...]
    kind: str


@st.composite
def graphs(draw):
    """Draw a random acyclic graph of nodes below one source, in topological order, with a sink at every leaf."""
    steps = []
    for number in range(draw(st.integers(1, 8))):
        known = ["src", *(step.name for step in steps)]
        parents = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        kind = draw(st.sampled_from(["mark", "drop-odd", "twice", "first-child"]))
        steps.append(Step(f"n{number}", tuple(parents), kind))
    return steps


def children_of(steps, name):
    """Return the names of a node's children in the order they were added, its sink last."""
    return [step.name for step in steps if name in step.parents] + [f"sink-{name}"]


def interpret(steps, value):
    """Return (sink, value) pairs in order, walking the graph depth-first, node by node."""
    out = []
    by_name = {step.name: step for step in steps}
    todo = deque((child, value) for child in children_of(steps, "src") if child != "sink-src")
    while todo:
        name, item = todo.popleft()
        if name.startswith("sink-"):
            out.append((name, item))
            continue
        children = children_of(steps, name)
        match by_name[name].kind:
            case "mark":
                calls = [(child, item + name) for child in children]
            case "drop-odd":
                calls = [(child, item) for child in children] if len(item) % 2 == 0 else []
            case "twice":
                calls = [(child, item + mark) for mark in "ab" for child in children]
            case _:
                calls = [(children[0], item)]
        todo.extendleft(reversed(calls))
    return out


def compiled(steps, values, directory):
    """Return the (sink, value) pairs that the engine sends for the same graph."""
    topology = Topology().add_source("src", "in")
    for step in steps:
        first = children_of(steps, step.name)[0]

        class Node(Processor):
            kind, name, first_child = step.kind, step.name, first

            def process(self, record):
                value, forward = record.value, self.context.forward
                if self.kind == "mark":
                    forward(record.with_value(value + self.name))
                elif self.kind == "drop-odd":
                    if len(value) % 2 == 0:
                        forward(record)
                elif self.kind == "twice":
                    forward(record.with_value(value + "a"))
                    forward(record.with_value(value + "b"))
                else:
                    forward(record, self.first_child)

        topology.add_processor(step.name, Node, *step.parents)
    for step in steps:
        topology.add_sink(f"sink-{step.name}", f"sink-{step.name}", step.name)
    harness = Harness(topology, directory)
    task = harness.run()
    harness.add("in", *((None, value, at) for at, value in enumerate(values)))
    task.process(0, 1000)
    task.close_dirty()
    return [(sent.topic, sent.value.decode()) for sent in harness.collector.take()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(graphs(), st.lists(st.text("xyz", max_size=3), min_size=1, max_size=4))
def test_compiled_graph_sends_what_the_interpreter_sends(tmp_path, steps, values):
    """For random graphs and values, sinks get the same values in the same global order."""
    assert compiled(steps, values, tmp_path) == [pair for value in values for pair in interpret(steps, value)]


def test_single_child_is_called_without_a_detour():
    """The `forward` of a node with one child is that child's own closure."""

    def child(*_args):
        pass

    assert forward_to((child,)) is child


@pytest.mark.parametrize("number", range(6))
def test_children_are_called_in_order(number):
    """However many children a node has, each gets the record once, in order."""
    calls = []
    children = tuple((lambda *args, i=i: calls.append((i, args))) for i in range(number))
    forward_to(children)("k", "v", 1, ())
    assert calls == [(i, ("k", "v", 1, ())) for i in range(number)]


@pytest.fixture
def _recursion_limit():
    """Set Python's limit back to what it was."""
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("_recursion_limit")
def test_record_runs_through_a_long_chain(tmp_path):
    """A thousand processors, each called by the one before, although Python allows a thousand calls."""
    steps = [Step("n0", ("src",), "mark"), *(Step(f"n{n}", (f"n{n - 1}",), "mark") for n in range(1, 1_000))]
    sent = compiled(steps, [""], tmp_path)
    assert len(sent) == 1_000
    assert sent[0] == ("sink-n999", "".join(step.name for step in steps))


@pytest.mark.usefixtures("_recursion_limit")
def test_recursion_limit_of_a_program_is_not_lowered(tmp_path):
    """It may be higher than the nodes need."""
    sys.setrecursionlimit(5_000)
    compiled([Step("n0", ("src",), "mark")], ["x"], tmp_path)
    assert sys.getrecursionlimit() == 5_000


def test_source_without_serde_and_default_is_refused(tmp_path):
    """A source without a key serde fails at the start, and the error names the setting to use."""
    topology = Topology().add_source("src", "in").add_processor("p", Echo, "src")
    harness = Harness(topology, tmp_path, **{"default.key.serde": None})
    harness.task.open_stores()
    with pytest.raises(ConfigError, match=r"src has no key serde.*default\.key\.serde"):
        harness.task.initialize()


def test_pattern_source_reads_every_matching_topic(tmp_path):
    """A source with a pattern reads every assigned topic whose whole name matches it."""
    from tests.engine.support import DEFAULTS

    from millrace.config import StreamsConfig
    from millrace.engine.task import StreamTask
    from millrace.records import ConsumedRecord, TaskId, TopicPartition
    from millrace.testing.output_collector import CapturingCollector

    topology = Topology().add_source("src", pattern="in-.*").add_processor("p", Echo, "src").add_sink("snk", "out", "p")
    config = StreamsConfig.of({**DEFAULTS, "max.task.idle.ms": -1})
    collector = CapturingCollector()
    partitions = frozenset({TopicPartition("in-a", 0), TopicPartition("in-b", 0)})
    task = StreamTask(
        TaskId(0, 0),
        topology.build(config).subtopologies[0],
        config,
        collector,
        state_dir=tmp_path,
        cache=None,
        clock=lambda: 0,
        input_partitions=partitions,
    )
    task.open_stores()
    task.initialize()
    for number, partition in enumerate(sorted(partitions)):
        task.add_records(partition, [ConsumedRecord(partition.topic, 0, 0, number, None, partition.topic.encode())])
    task.process(0, 10)
    assert [sent.value for sent in collector.take()] == [b"in-a", b"in-b"]
