"""Minimum-cost flow by cancelling negative cycles, for `rack_aware` (KIP-925).

Among several solutions of the same cost, Java's is found: cycles are searched with Bellman and Ford's algorithm, visiting
nodes and edges by ascending number, and the same cycle is cancelled first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_Round: TypeAlias = tuple[dict[int, int], list[tuple[int, int]]]
"""All distances after a round of the search, and the edges along which they have become shorter."""
_LONGEST_PERIOD = 24


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
        edges = {node: [edge for _, edge in sorted(ends.items())] for node, ends in self._edges.items()}
        while path := self._free_path(edges):
            amount = min(edge.left for edge in path)
            for edge in path:
                edge.push(amount)

    def _free_path(self, edges: Mapping[int, list[_Edge]]) -> list[_Edge]:
        path_to: dict[int, list[_Edge]] = {self._source: []}
        queue = deque([self._source])
        while queue:
            start = queue.popleft()
            for edge in edges[start]:
                if edge.end in path_to or not edge.left:
                    continue
                path_to[edge.end] = [*path_to[start], edge]
                if edge.end == self._sink:
                    return path_to[edge.end]
                queue.append(edge.end)
        return []

    def minimise_cost(self) -> None:
        """Redirect the flow, without changing its amount, until no redirection lowers the cost."""
        while cycle := self._negative_cycle():
            amount = min(edge.left for edge in cycle)
            for edge in cycle:
                edge.push(amount)

    def _negative_cycle(self) -> list[_Edge]:
        """Return the edges of a cycle of negative cost along which more may flow; empty if there is none.

        All nodes start at distance 0, as if reached from one more node. If distances still get shorter when as many rounds have
        passed as there are nodes, a cycle makes them so. Two things save time without changing what is found: a node is only
        looked at if its own distance has become shorter since it was last looked at, and rounds that would repeat are skipped.
        """
        nodes = sorted(self._edges)
        free = {
            node: [(end, edge.cost) for end, edge in sorted(self._edges[node].items()) if edge.left] for node in nodes
        }
        distance = dict.fromkeys(nodes, 0)
        reached_from: dict[int, int] = {}
        changed = set(nodes)
        rounds: deque[_Round] = deque(maxlen=_LONGEST_PERIOD + 1)
        left = len(nodes)
        while changed:
            relaxed = []
            for start in nodes:
                if start not in changed:
                    continue
                changed.discard(start)
                from_start = distance[start]
                for end, cost in free[start]:
                    if distance[end] > from_start + cost:
                        distance[end] = from_start + cost
                        reached_from[end] = start
                        changed.add(end)
                        relaxed.append((start, end))
                        if not left:
                            return self._cycle(reached_from, end)
            left -= 1
            rounds.append((dict(distance), relaxed))
            if left >= _LONGEST_PERIOD and (period := _period(rounds, free)):
                left %= period
        return []

    def _cycle(self, reached_from: dict[int, int], node: int) -> list[_Edge]:
        visited: set[int] = set()
        while node not in visited:
            visited.add(node)
            node = reached_from[node]
        cycle: list[_Edge] = []
        start = node
        while not cycle or node != start:
            cycle.append(self._edges[reached_from[node]][node])
            node = reached_from[node]
        return cycle


def _period(rounds: Sequence[_Round], free: Mapping[int, list[tuple[int, int]]]) -> int:
    """Return after how many rounds the search repeats itself, 0 if it does not yet.

    It does once no node's distance shrinks faster than that of a node that can be reached from it, and only nodes whose distances
    shrink equally fast have made each other's shorter: then every comparison has the same result as that many rounds before.

    Args:
        rounds: The rounds so far.
        free: Node → the ends of its usable edges, with their costs.
    """
    now, relaxed = rounds[-1]
    for count in range(1, len(rounds)):
        before, relaxed_before = rounds[-1 - count]
        if relaxed != relaxed_before:
            continue
        shift = {node: now[node] - before[node] for node in now}
        repeated = all(shift[start] == shift[end] for _, pairs in list(rounds)[-count:] for start, end in pairs)
        if repeated and all(shift[end] <= shift[start] for start, ends in free.items() for end, _ in ends):
            return count
    return 0
