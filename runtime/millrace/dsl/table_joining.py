"""Joins of two tables by key, as `KTable.join`, `left_join` and `outer_join` define them."""

# ruff: noqa: SLF001 (tables and their joins are one facade)
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from millrace.dsl.graph.joins import TableTableJoin
from millrace.dsl.kstream import require_same_builder
from millrace.dsl.ktable import KTable
from millrace.dsl.options.joined import ValueJoinerWithKey
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.table_join import JoinSide, TableJoinMerge, TableJoinSide
from millrace.dsl.table_stores import table_options

JoinKind = Literal["inner", "left", "outer"]

JOIN_THIS = "KTABLE-JOINTHIS-"
JOIN_OTHER = "KTABLE-JOINOTHER-"
MERGE = "KTABLE-MERGE-"

_SIDES: dict[JoinKind, tuple[JoinSide, JoinSide]] = {
    "inner": (JoinSide(needs_own=True, needs_other=True), JoinSide(needs_own=True, needs_other=True)),
    "left": (JoinSide(needs_own=True, needs_other=False), JoinSide(needs_own=False, needs_other=True)),
    "outer": (JoinSide(needs_own=False, needs_other=False), JoinSide(needs_own=False, needs_other=False)),
}
"""Which values a result needs: for updates of the left table, and for those of the right one."""


def primary_key_join(
    left: Any,
    right: Any,
    joiner: Callable[..., Any] | ValueJoinerWithKey[Any, Any, Any, Any],
    materialized: Materialized[Any, Any] | str | None,
    named: Named | str | None,
    kind: JoinKind,
) -> KTable[Any, Any]:
    """Join two tables by their key."""
    require_same_builder(left, right)
    graph, given = left._graph, name_of(named)
    options = table_options(materialized).with_defaults(left._key_serde)
    name = graph.names.processor(MERGE, given)
    sources = left._copartition_with(right)
    if kind in ("left", "outer"):
        left._processor.send_old_values(force=True)
    if kind == "outer":
        right._processor.send_old_values(force=True)
    join = joiner.joiner if isinstance(joiner, ValueJoinerWithKey) else _without_key(joiner)
    left_side, right_side = _SIDES[kind]
    this = TableJoinSide(this=left._processor, other=right._processor, joiner=join, side=left_side)
    other = TableJoinSide(
        this=right._processor,
        other=left._processor,
        joiner=lambda key, right_value, left_value: join(key, left_value, right_value),
        side=right_side,
    )
    merge = TableJoinMerge(this, other, options.queryable_name)
    store = options.store() if options.queryable else None
    node = TableTableJoin(
        name,
        this_parent=left._node.name,
        other_parent=right._node.name,
        this_name=graph.names.processor(JOIN_THIS, given, "-join-this"),
        other_name=graph.names.processor(JOIN_OTHER, given, "-join-other"),
        this=this,
        other=other,
        merge=merge,
        store=store,
        versioned_output=None if store is None else store.versioned,
    )
    graph.add((left._node, right._node), node)
    return KTable(
        graph,
        name,
        node,
        merge,
        sources=sources,
        key_serde=options.option.key_serde,
        value_serde=options.option.value_serde,
        queryable_store_name=options.queryable_name,
    )


def _without_key(joiner: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    return lambda _key, left_value, right_value: joiner(left_value, right_value)
