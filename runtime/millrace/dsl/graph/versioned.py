"""Finds the operators that get their updates from versioned tables, where out-of-order updates keep their place (KIP-914)."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.dsl.graph.node import GraphNode


def mark_versioned_inputs(root: GraphNode, nodes: Iterable[GraphNode]) -> None:
    """Tell every node which of its parents send the updates of a versioned table."""
    for node in nodes:
        for parent in node.parents:
            if _is_versioned(root, parent):
                node.use_versioned_semantics(parent.name)


def _is_versioned(root: GraphNode, node: GraphNode) -> bool:
    if node.output_versioned is not None:
        return node.output_versioned
    if node is root:
        return False
    return all(_is_versioned(root, parent) for parent in node.parents)
