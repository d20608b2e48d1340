"""Presents a node of the DSL as a processor: the inverse of `adapter`, for wrappers around processors (KIP-1112).

The node is compiled when the processor is initialised, onto a `NodeContext` whose forwards go through the processor's context,
so that whoever wraps the processor sees every record that goes in and every one that comes out. Nodes that nobody wraps are
never presented so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from millrace.errors import TopologyError
from millrace.processor.api import Processor, ProcessorContext
from millrace.processor.node import NodeContext, NodeFactory, ProcessFn
from millrace.records import Headers, Record
from millrace.state.api import StoreBuilder


@dataclass(frozen=True, slots=True)
class NodeProcessorSupplier:
    """Supplies a node of the DSL as a processor."""

    name: str
    factory: NodeFactory

    def __call__(self) -> NodeProcessor:
        """Return a new processor."""
        return NodeProcessor(self.name, self.factory)

    def stores(self) -> tuple[StoreBuilder, ...]:
        """Return nothing: the stores of operators are connected already."""
        return ()


class NodeProcessor(Processor[Any, Any, Any, Any]):
    """An operator of the DSL. Values of its records are `Change`s where it reads a table, and where it is one."""

    def __init__(self, name: str, factory: NodeFactory) -> None:
        self._name = name
        self._factory = factory
        self._closing: list[Callable[[], None]] = []

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        """Compile the operator, and run its start-up work.

        Raises:
            TopologyError: the context is neither the one that the task gives nor passes on that one's attributes.
        """
        super().init(context)
        node = getattr(context, "node", None)
        if node is None:
            raise TopologyError(
                f"Operator {self._name} was given the context {context!r}: give it the one that the wrapping processor "
                "gets, or one that passes on its attributes"
            )
        behind = _NodeBehindContext(node, context)
        self._process = self._factory(cast("NodeContext", behind))
        self._closing = behind.closing
        for callback in behind.starting:
            callback()

    def process(self, record: Record[Any, Any]) -> None:
        """Run the operator on one record."""
        self._process(record.key, record.value, record.timestamp, record.headers)

    def close(self) -> None:
        """Run the operator's closing work."""
        for callback in self._closing:
            callback()


class _NodeBehindContext:
    """A node that forwards through a processor's context, and whose start and end are the processor's."""

    def __init__(self, node: NodeContext, context: ProcessorContext[Any, Any]) -> None:
        self._node = node
        self.starting: list[Callable[[], None]] = []
        self.closing: list[Callable[[], None]] = []
        self.on_init = self.starting.append
        self.on_close = self.closing.append
        self.forward: ProcessFn = _through(context, None)
        self.children: Mapping[str, ProcessFn] = {name: _through(context, name) for name in node.children}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def _through(context: ProcessorContext[Any, Any], child: str | None) -> ProcessFn:
    forward_record = context.forward

    def forward(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        forward_record(Record(key, value, timestamp, headers), child)

    return forward
