"""Compiles a sub-topology's nodes into closures, once per task.

Children come first: a node's closure is created after those it calls, so that `forward` of a node with one child *is* that
child's closure, and there are no look-ups in a record's path. `processor/node.py` states the rules for a node's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from millrace.engine.node_runtime import CompileEnv, NodeRuntime
from millrace.engine.sinks import compile_sink, required_serde
from millrace.errors import TopologyError
from millrace.processor.api import TimestampExtractor
from millrace.processor.node import ProcessFn
from millrace.records import Headers, RecordContext, TaskId
from millrace.serdes.base import AnySerde
from millrace.state.api import call_all
from millrace.topology.physical_topology import Node, SinkNode, SourceNode

_CALLS_OF_PROGRAM: Final = 1_000
"""How deep the calls outside of nodes and in the user's functions may be: Python's own limit."""
_CALLS_PER_NODE: Final = 10
"""The most calls from a node to its child: through an operator with a wrapper, or a cache that is written back."""

TraceRecord = Callable[[TaskId, str, int, int, Headers], AbstractContextManager[object]]
"""Called with task, topic, partition, offset and headers; returns a context manager around the processing of that record."""


@dataclass(frozen=True, slots=True)
class CompiledSource:
    """A compiled source node: its serdes, extractor (None = the task's default) and the closure of its children."""

    name: str
    node: SourceNode
    key_serde: AnySerde
    value_serde: AnySerde
    timestamp_extractor: TimestampExtractor | None
    forward: ProcessFn


class CompiledTopology:
    """The closures of one task."""

    def __init__(self, sources: Sequence[CompiledSource], nodes: Sequence[NodeRuntime]) -> None:
        self.sources = tuple(sources)
        self._by_topic = {topic: source for source in sources for topic in source.node.topics}
        self._nodes = tuple(nodes)

    def source_for(self, topic: str) -> CompiledSource:
        """Return the source that reads a topic.

        Raises:
            TopologyError: no source does.
        """
        found = self._by_topic.get(topic)
        if found is None:
            for source in self.sources:
                if source.node.pattern is not None and source.node.pattern.fullmatch(topic):
                    self._by_topic[topic] = found = source
                    break
            else:
                raise TopologyError(f"No source of this sub-topology reads topic {topic!r}")
        return found

    def init(self) -> None:
        """Initialise the nodes, parents first."""
        for node in self._nodes:
            node.run_init()

    def close(self) -> None:
        """Close the nodes, parents first; close all of them even if some fail, and then raise the first failure."""
        call_all(node.run_close for node in self._nodes)


def compile_topology(nodes: Sequence[Node], env: CompileEnv) -> CompiledTopology:
    """Compile nodes given in topological order.

    Each node calls the next, so Python's limit of recursion is raised for a long chain. These calls take no stack of the thread.

    Raises:
        ConfigError: a source or sink has no serde, and there is no default.
        TopologyError: a node cannot be part of this task.
    """
    child_names: dict[str, list[str]] = {node.name: [] for node in nodes}
    for node in nodes:
        if not isinstance(node, SourceNode):
            for parent in node.parents:
                child_names[parent].append(node.name)
    compiled: dict[str, ProcessFn] = {}
    sources: list[CompiledSource] = []
    runtimes: list[NodeRuntime] = []
    depths: dict[str, int] = {}
    for node in reversed(nodes):
        depths[node.name] = 1 + max((depths[child] for child in child_names[node.name]), default=0)
        children: Mapping[str, ProcessFn] = {name: compiled[name] for name in child_names[node.name]}
        forward = forward_to(tuple(children.values()))
        if isinstance(node, SourceNode):
            sources.append(_compile_source(node, env, forward))
        elif isinstance(node, SinkNode):
            compiled[node.name] = compile_sink(node, env)
        else:
            runtime = NodeRuntime(node.name, env, node.stores, forward, children)
            compiled[node.name] = node.factory(runtime)
            runtimes.append(runtime)
    calls = _CALLS_OF_PROGRAM + _CALLS_PER_NODE * max(depths.values(), default=0)
    if calls > sys.getrecursionlimit():
        sys.setrecursionlimit(calls)
    return CompiledTopology(sources[::-1], runtimes[::-1])


def _compile_source(node: SourceNode, env: CompileEnv, forward: ProcessFn) -> CompiledSource:
    return CompiledSource(
        node.name,
        node,
        required_serde(node.key_serde, env.default_key_serde, node.name, "key"),
        required_serde(node.value_serde, env.default_value_serde, node.name, "value"),
        node.timestamp_extractor,
        forward,
    )


def forward_to(children: tuple[ProcessFn, ...]) -> ProcessFn:
    """Return one function that calls every child in order; the child itself if there is only one."""
    if len(children) == 1:
        return children[0]
    if not children:
        return _forward_to_none
    if len(children) == 2:
        return _forward_to_two(*children)
    if len(children) == 3:
        return _forward_to_three(*children)

    def forward_to_all(key: object, value: object, timestamp: int, headers: Headers) -> None:
        for child in children:
            child(key, value, timestamp, headers)

    return forward_to_all


def _forward_to_none(_key: object, _value: object, _timestamp: int, _headers: Headers) -> None:
    pass


def _forward_to_two(first: ProcessFn, second: ProcessFn) -> ProcessFn:
    def forward(key: object, value: object, timestamp: int, headers: Headers) -> None:
        first(key, value, timestamp, headers)
        second(key, value, timestamp, headers)

    return forward


def _forward_to_three(first: ProcessFn, second: ProcessFn, third: ProcessFn) -> ProcessFn:
    def forward(key: object, value: object, timestamp: int, headers: Headers) -> None:
        first(key, value, timestamp, headers)
        second(key, value, timestamp, headers)
        third(key, value, timestamp, headers)

    return forward


def traced(source: CompiledSource, task_id: TaskId, current: RecordContext, trace: TraceRecord) -> CompiledSource:
    """Return a source whose children run in the context that `trace` gives for the current record.

    Only a traced task's sources get this closure in front of their children's; others have nothing extra in a record's path.
    """
    forward = source.forward

    def forward_traced(key: object, value: object, timestamp: int, headers: Headers) -> None:
        with trace(task_id, current.topic or "", current.partition, current.offset, headers):
            forward(key, value, timestamp, headers)

    return replace(source, forward=forward_traced)
