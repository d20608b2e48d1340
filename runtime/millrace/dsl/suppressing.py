"""The suppression of a table's updates. What `KTable.suppress` calls."""

# ruff: noqa: SLF001 (tables and their operators are one facade)
from __future__ import annotations

from typing import Any

from millrace.dsl.graph.nodes import GraphNode, ProcessorStep
from millrace.dsl.ktable import KTable
from millrace.dsl.options.suppressed import Suppressed
from millrace.dsl.processors.suppress import TableSuppress
from millrace.errors import TopologyError
from millrace.state.suppression_buffer import SuppressionBufferBuilder

SUPPRESS = "KTABLE-SUPPRESS-"


def suppress(table: KTable[Any, Any], suppressed: Suppressed) -> KTable[Any, Any]:
    """Hold back the updates of a table.

    Raises:
        TopologyError: the table is versioned, or is to be held back until its windows close but has none.
    """
    if table._node.output_versioned:
        raise TopologyError(
            f"Table {table._name} is kept in a versioned store, whose updates cannot be suppressed; keep it in another one"
        )
    graph = table._graph
    name = suppressed.name if suppressed.name is not None else graph.names.processor(SUPPRESS)
    store_name = graph.names.store(SUPPRESS) if suppressed.name is None else f"{suppressed.name}-store"
    wait_ms = suppressed.wait_ms if suppressed.wait_ms is not None else window_grace_ms(table._node)
    processor = TableSuppress(
        parent=table._processor,
        store_name=store_name,
        wait_ms=wait_ms,
        final_results=suppressed.wait_ms is None,
        buffer=suppressed.buffer,
    )
    buffer = SuppressionBufferBuilder(store_name, table._key_serde, table._value_serde)
    if suppressed.buffer.logging_enabled:
        buffer.with_logging_enabled(suppressed.buffer.log_config)
    else:
        buffer.with_logging_disabled()
    node = ProcessorStep(name, processor, stores=(buffer,))
    node.versioned_output = False
    graph.add(table._node, node)
    return KTable(
        graph,
        name,
        node,
        processor,
        sources=table._sources,
        key_serde=table._key_serde,
        value_serde=table._value_serde,
    )


def window_grace_ms(node: GraphNode) -> int:
    """Return how long after its end a window can still change: the longest grace of the windowed aggregations upstream.

    Raises:
        TopologyError: there are none.
    """
    grace = node.longest_grace_ms()
    if grace is None:
        raise TopologyError(
            f"Table {node.name} has no windows whose end could be waited for: suppress it with "
            "Suppressed.until_time_limit(…), or aggregate by windows first"
        )
    return grace
