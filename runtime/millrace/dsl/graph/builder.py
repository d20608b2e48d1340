"""Collects the logical graph of one application and compiles it: merges sources, optimises, and writes nodes in build order.

Nodes are written in the order in which the user called the operators (the build priority), parents first. That determines the
order of nodes in a task and the numbers of sub-topologies.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from millrace.checks import at, placed, users_call
from millrace.config import StreamsConfig
from millrace.dsl.graph.nodes import GraphNode, Root
from millrace.dsl.graph.optimizer import optimize
from millrace.dsl.graph.sources import merge_duplicate_sources
from millrace.dsl.names import Names
from millrace.errors import TopologyError
from millrace.topology.builder import TopologyBuilder


class GraphBuilder:
    """The logical graph while operators are being called."""

    def __init__(self, new_stream: Callable[..., Any]) -> None:
        self.new_stream = new_stream
        """The class `KStream`. Tables can be turned into streams, but `KTable` cannot import `KStream`, which imports it."""
        self.root = Root()
        self.names = Names()
        self.topology = TopologyBuilder()
        self.nodes: list[GraphNode] = []
        """All nodes in the order in which they were added, each once."""
        self._priority = 0
        self._built = ""

    def add(self, parents: GraphNode | Iterable[GraphNode], node: GraphNode) -> None:
        """Add a node below its parents.

        Raises:
            TopologyError: the topology has been built already.
        """
        call = users_call()
        if self._built:
            raise TopologyError(
                f"{call.function} is called after {self._built}, so the topology would lack it: call build() last{at(call.place)}"
            )
        node.call = call
        for parent in (parents,) if isinstance(parents, GraphNode) else tuple(parents):
            parent.add_child(node)
            self._priority += 1
            node.build_priority = self._priority
        if node not in self.nodes:
            self.nodes.append(node)

    def compile(self, config: StreamsConfig | None) -> TopologyBuilder:
        """Write the graph into the topology; optimise it only if the configuration says so.

        Raises:
            TopologyError: what a node needs does not fit the others.
        """
        self._built = f"build(){at(users_call().place)}"
        merge_duplicate_sources(self.root)
        optimize(self.nodes, self.names, self.topology, config)
        for node in self.nodes:
            for parent in node.parents:
                if parent.is_versioned:
                    node.use_versioned_semantics(parent.name)
        queue: list[tuple[int, int, GraphNode]] = [(0, 0, self.root)]
        sequence = 0
        while queue:
            _, _, node = heapq.heappop(queue)
            if node.written or not all(parent.written for parent in node.parents):
                continue
            before, nodes_before = len(self.topology.stores), len(self.topology.nodes)
            with placed(node.call.place):
                node.write(self.topology)
            for store in list(self.topology.stores)[before:]:
                self.topology.store_calls[store] = node.call
            for name in list(self.topology.nodes)[nodes_before:]:
                self.topology.places[name] = node.call.place
            node.written = True
            for child in node.children:
                sequence += 1
                heapq.heappush(queue, (child.build_priority, sequence, child))
        return self.topology
