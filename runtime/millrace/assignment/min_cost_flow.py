"""Minimum-cost flow by cancelling negative cycles, for `rack_aware` (KIP-925).

Among several solutions of the same cost, Java's is found: cycles are searched with Bellman and Ford's algorithm, visiting
nodes and edges by ascending number, and the same cycle is cancelled first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Edge:
    """One direction of an edge: `left` is how much more may flow; the opposite direction can take back what flows."""

    end: int
    cost: int
    left: int
    forward: bool
    opposite: _Edge | None = None

    def push(self, amount: int) -> None:
        """Let more flow along the edge."""
        assert self.opposite is not None
        self.left -= amount
        self.opposite.left += amount


class FlowGraph:
    """A directed graph from a source to a sink, with a flow that can be improved."""

    def __init__(self, source: int, sink: int) -> None:
        """Create a graph without edges.

        Args:
            source: The number of the node where everything flows from.
            sink: The number of the node where everything flows to.
        """
        self._source = source
        self._sink = sink
        self._edges: dict[int, dict[int, _Edge]] = {}

    def add(self, start: int, end: int, capacity: int, *, cost: int = 0, flow: int = 0) -> None:
        """Add an edge.

        Args:
            start: Where it starts.
            end: Where it ends; there must not be an edge back.
            capacity: How much may flow.
            cost: What one unit of flow costs.
            flow: How much flows now.
        """
        forward = _Edge(end, cost, capacity - flow, forward=True)
        forward.opposite = backward = _Edge(start, -cost, flow, forward=False, opposite=forward)
        self._edges.setdefault(start, {})[end] = forward
        self._edges.setdefault(end, {})[start] = backward

    def flows(self, start: int) -> list[int]:
        """Return the nodes to which something flows from a node, by ascending number."""
        return sorted(
            end
            for end, edge in self._edges[start].items()
            if edge.forward and edge.opposite is not None and edge.opposite.left > 0
        )

    def maximise(self) -> None:
        """Let as much flow as possible, along shortest paths first."""
        edges = self._sorted()
        while path := self._free_path(edges):
            amount = min(edge.left for edge in path)
            for edge in path:
                edge.push(amount)

    def _free_path(self, edges: dict[int, list[_Edge]]) -> list[_Edge]:
        reached_by: dict[int, _Edge] = {}
        queue = deque([self._source])
        while queue:
            for edge in edges[queue.popleft()]:
                if edge.end == self._source or edge.end in reached_by or edge.left <= 0:
                    continue
                reached_by[edge.end] = edge
                if edge.end == self._sink:
                    return self._way_back(reached_by, self._sink, self._source)
                queue.append(edge.end)
        return []

    def minimise_cost(self) -> None:
        """Redirect the flow, without changing its amount, until no redirection lowers the cost."""
        edges = self._sorted()
        while cycle := self._negative_cycle(edges):
            amount = min(edge.left for edge in cycle)
            for edge in cycle:
                edge.push(amount)

    def _negative_cycle(self, edges: dict[int, list[_Edge]]) -> list[_Edge]:
        """Return the edges of a cycle of negative cost along which more may flow; empty if there is none.

        All nodes start at distance 0, as if reached from one more node. A node is only looked at if its distance has become
        shorter since it was last looked at: nothing else can shorten its neighbours' distances. If distances still get
        shorter when as many rounds have passed as there are nodes, a cycle makes them so.
        """
        distance = dict.fromkeys(edges, 0)
        reached_by: dict[int, _Edge] = {}
        changed = set(edges)
        for last in [False] * len(edges) + [True]:
            if not changed:
                return []
            for start, outgoing in edges.items():
                if start not in changed:
                    continue
                changed.discard(start)
                for edge in outgoing:
                    reached = distance[start] + edge.cost
                    if edge.left and distance[edge.end] > reached:
                        distance[edge.end] = reached
                        reached_by[edge.end] = edge
                        changed.add(edge.end)
                        if last:
                            return self._cycle(reached_by, edge.end)
        return []

    def _cycle(self, reached_by: dict[int, _Edge], node: int) -> list[_Edge]:
        visited: set[int] = set()
        while node not in visited:
            visited.add(node)
            node = self._start(reached_by[node])
        return self._way_back(reached_by, node, node)

    def _way_back(self, reached_by: dict[int, _Edge], node: int, until: int) -> list[_Edge]:
        way = [reached_by[node]]
        while (node := self._start(way[-1])) != until:
            way.append(reached_by[node])
        return way

    @staticmethod
    def _start(edge: _Edge) -> int:
        assert edge.opposite is not None
        return edge.opposite.end

    def _sorted(self) -> dict[int, list[_Edge]]:
        return {node: [edge for _, edge in sorted(self._edges[node].items())] for node in sorted(self._edges)}
