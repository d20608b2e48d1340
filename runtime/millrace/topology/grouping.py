"""Sets of connected nodes: what becomes a sub-topology is whatever records or stores tie together."""

from __future__ import annotations

from collections.abc import Iterable


class UnionFind:
    """Disjoint sets over names, with path halving."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def copy(self) -> UnionFind:
        """Return the same sets, to be united further on their own."""
        result = UnionFind()
        result._parent = dict(self._parent)
        return result

    def add(self, name: str) -> None:
        """Start a set of one."""
        self._parent.setdefault(name, name)

    def root(self, name: str) -> str:
        """Return the name that stands for the set."""
        parent = self._parent
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def unite(self, name: str, others: Iterable[str]) -> None:
        """Join the sets of all these names."""
        root = self.root(name)
        for other in others:
            self._parent[self.root(other)] = root

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """Return the sets in the order in which their first members appear in `names`."""
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self.root(name), []).append(name)
        return list(found.values())
