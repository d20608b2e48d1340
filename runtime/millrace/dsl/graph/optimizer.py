"""The optimiser's rules, `topology.optimization`: each rewrites the logical graph, and may change topics and state.

| rule | effect |
|---|---|
| reuse.ktable.source.topics | a table's input topic serves as its store's changelog |
| merge.repartition.topics | several repartitions after one key-changing operator become one, right after that operator |
| single.store.self.join | a stream joined with itself keeps one window store instead of two |

`all` means every rule, `none` (the default) no rule. In any case, repartition topics of left and outer joins keep records with
null keys (KIP-962).
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.config import OPTIMIZATIONS, StreamsConfig
from millrace.dsl.graph.joins import StreamStreamJoin
from millrace.dsl.graph.nodes import GraphNode
from millrace.dsl.graph.repartition import REPARTITION_SUFFIX, Repartition
from millrace.dsl.graph.sources import TableSource
from millrace.dsl.names import Names
from millrace.topology.builder import TopologyBuilder

REUSE_SOURCE_TOPICS = "reuse.ktable.source.topics"
MERGE_REPARTITION_TOPICS = "merge.repartition.topics"
SINGLE_STORE_SELF_JOIN = "single.store.self.join"


def rules_of(setting: str) -> frozenset[str]:
    """Return the rules that `topology.optimization` turns on."""
    names = frozenset(name.strip() for name in setting.split(",") if name.strip())
    return OPTIMIZATIONS if names == {"all"} else names & OPTIMIZATIONS


def optimize(nodes: list[GraphNode], names: Names, topology: TopologyBuilder, config: StreamsConfig | None) -> None:
    """Apply the rules of a configuration.

    Args:
        nodes: all nodes of the graph in the order they were added; changed in place.
        names: generates the names of new nodes.
        topology: where co-partitioned sources are noted.
        config: the application's configuration; None applies no rule.
    """
    rules = frozenset[str]() if config is None else rules_of(config.topology_optimization)
    if REUSE_SOURCE_TOPICS in rules:
        for node in nodes:
            if isinstance(node, TableSource):
                node.reuse_source_topic = True
    if MERGE_REPARTITION_TOPICS in rules:
        _merge_repartition_topics(nodes, names, topology)
    if SINGLE_STORE_SELF_JOIN in rules:
        for node in nodes:
            if isinstance(node, StreamStreamJoin) and len(node.parents) == 1:
                node.become_self_join()
    for node in nodes:
        if isinstance(node, Repartition):
            node.keeps_null_keys = node.feeds_null_keeping_join()


def _merge_repartition_topics(nodes: list[GraphNode], names: Names, topology: TopologyBuilder) -> None:
    for changer, repartitions in _repartitions_by_key_changer(nodes).items():
        if not repartitions:
            continue
        first = repartitions[0]
        merged = Repartition(
            names,
            first.topic.name.removesuffix(REPARTITION_SUFFIX) + REPARTITION_SUFFIX,
            key_serde=next((item.key_serde for item in repartitions if item.key_serde is not None), None),
            value_serde=next((item.value_serde for item in repartitions if item.value_serde is not None), None),
            name_is_generated=first.name_is_generated,
        )
        merged.build_priority = changer.build_priority
        merged.call = first.call
        for repartition in repartitions:
            _replace(changer, repartition, merged)
            if repartition in nodes:
                nodes.remove(repartition)
            topology.replace_copartitioned_source(repartition.name, merged.name)
        changer.add_child(merged)
        nodes.append(merged)


def _replace(changer: GraphNode, repartition: Repartition, merged: Repartition) -> None:
    child = _find_upward(repartition, lambda node: changer in node.parents)
    assert child is not None, f"{repartition} is not below {changer}"
    merged.add_child(child)
    changer.remove_child(child)
    parents = repartition.parents
    for grandchild in repartition.children:
        for parent in parents:
            parent.add_child(grandchild)
    for parent in parents:
        parent.remove_child(repartition)
    repartition.clear_children()


def _repartitions_by_key_changer(nodes: list[GraphNode]) -> dict[GraphNode, list[Repartition]]:
    found: dict[GraphNode, list[Repartition]] = {}
    for node in nodes:
        if node.key_changing:
            found[node] = []
        elif isinstance(node, Repartition) and node.mergeable:
            changer = _key_changer_of(node)
            if changer is not None:
                found[changer].append(node)
    return _moved_below_merges(nodes, found)


def _moved_below_merges(
    nodes: list[GraphNode], found: dict[GraphNode, list[Repartition]]
) -> dict[GraphNode, list[Repartition]]:
    """If streams with changed keys are merged before they are repartitioned, one topic after the merge is enough."""
    merged: dict[GraphNode, list[GraphNode]] = {}
    for merge in (node for node in nodes if node.is_merge and not node.key_changing):
        merged[merge] = [
            changer
            for changer, repartitions in found.items()
            if all(_find_upward(item, _child_of(merge)) is not None for item in repartitions)
            and _find_upward(merge, _child_of(changer)) is not None
        ]
    for merge, changers in merged.items():
        found[merge] = list(dict.fromkeys(item for changer in changers for item in found[changer]))
    for changers in merged.values():
        for changer in changers:
            found.pop(changer, None)
    return found


def _child_of(parent: GraphNode) -> Callable[[GraphNode], bool]:
    return lambda node: parent in node.parents


def _key_changer_of(repartition: GraphNode) -> GraphNode | None:
    """Return the operator that changed the key, unless a later one may have changed the type of the value."""
    nearest = _find_upward(repartition, lambda node: node.key_changing or node.value_changing)
    changer = _find_upward(repartition, lambda node: node.key_changing)
    return changer if nearest is changer else None


def _find_upward(node: GraphNode, matches: Callable[[GraphNode], bool]) -> GraphNode | None:
    """Search a node and its ancestors, depth first; of several parents, the last one's ancestors take precedence."""
    if matches(node):
        return node
    found = None
    for parent in node.parents:
        if matches(parent):
            return parent
        found = _find_upward(parent, matches)
    return found
