"""What the stores and repartition topics with generated names are made from, so that plans can tell them apart.

A generated name belongs to the operator that has this number, which may be another one in the next version of the program. What
comes before and after the operator in the graph says which one it is: the topics that it is made from, the steps on the way
with their serdes, and the topics that its results go to. The user's functions have no lasting description, so operators that
differ only in these look the same.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from millrace.plan.names import without_numbers
from millrace.plan.topology_plan import PlannedOrigin
from millrace.serdes.base import AnySerde
from millrace.topology.physical_topology import Node, ProcessorNode, SinkNode, SourceNode, Subtopology

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Origins:
    """The origins in one topology; repartition topics connect the nodes that write them with those that read them."""

    def __init__(self, subtopologies: Sequence[Subtopology]) -> None:
        self._internal = {topic for item in subtopologies for topic in item.repartition_topics}
        self._builders = {builder.name: builder for item in subtopologies for builder in item.store_builders}
        self._nodes: dict[str, Node] = {node.name: node for item in subtopologies for node in item.nodes}
        self._writers: dict[str, list[str]] = defaultdict(list)
        self._users: dict[str, list[str]] = defaultdict(list)
        for node in self._nodes.values():
            if isinstance(node, SinkNode) and node.topic in self._internal:
                self._writers[node.topic].append(node.name)
            elif isinstance(node, ProcessorNode):
                for store in node.stores:
                    self._users[store].append(node.name)
        self._parents = {name: self._parents_of(node) for name, node in self._nodes.items()}
        self._children: dict[str, list[str]] = defaultdict(list)
        for name, parents in self._parents.items():
            for parent in parents:
                self._children[parent].append(name)
        self._steps = {name: self._step(node) for name, node in self._nodes.items()}

    def of_store(self, name: str) -> PlannedOrigin:
        """Return the origin of a store that tasks own."""
        builder = self._builders[name]
        serdes = (_text(getattr(builder, serde, None)) for serde in ("key_serde", "value_serde"))
        what = " ".join((builder.kind, builder.value_format, str(builder.windows), *serdes))
        return self._origin(what, self._users.get(name, ()))

    def of_topic(self, name: str) -> PlannedOrigin:
        """Return the origin of a repartition topic, given with the application id."""
        return self._origin("topic", self._writers.get(name, ()))

    def _origin(self, what: str, users: Sequence[str]) -> PlannedOrigin:
        before, after = _reached(users, self._parents), _reached(users, self._children)
        inputs, patterns, results = set[str](), set[str](), set[str]()
        for node in map(self._nodes.__getitem__, before):
            if isinstance(node, SourceNode):
                inputs.update(node.topics)
                patterns.update(() if node.pattern is None else (node.pattern.pattern,))
        for node in map(self._nodes.__getitem__, after):
            if isinstance(node, SinkNode) and node.topic is not None:
                results.add(node.topic)
        steps = "\n".join(
            (what, *sorted(self._steps[name] for name in users), "", *sorted(self._steps[name] for name in before))
        )
        return PlannedOrigin(
            topics=tuple(sorted((inputs - self._internal) | patterns)),
            steps=hashlib.sha256(steps.encode()).hexdigest()[:16],
            results=tuple(sorted(results - self._internal)),
        )

    def _parents_of(self, node: Node) -> tuple[str, ...]:
        if isinstance(node, SourceNode):
            return tuple(writer for topic in node.topics for writer in self._writers.get(topic, ()))
        return node.parents

    def _step(self, node: Node) -> str:
        """Return a line about a node and what comes directly before it, without the numbers of operators."""
        if isinstance(node, ProcessorNode):
            more = ""
        else:
            topics = node.topics if isinstance(node, SourceNode) else (node.topic,)
            named = (topic for topic in topics if topic is not None and topic not in self._internal)
            more = " ".join((*named, _text(node.key_serde), _text(node.value_serde)))
        parents = sorted(without_numbers(parent) for parent in self._parents[node.name])
        return f"{without_numbers(node.name)} {more} < {' '.join(parents)}"


def _reached(start: Iterable[str], neighbours: Mapping[str, Sequence[str]]) -> set[str]:
    found, waiting = set[str](), list(start)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += neighbours.get(name, ())
    return found


def _text(serde: AnySerde | None) -> str:
    return _ADDRESS.sub("", repr(serde))
