"""`processor.wrapper.class` (KIP-1112): code of the user's around every processor of a topology, also those of the DSL.

The wrapper is applied when the topology is built for a configuration, so describing a topology needs none.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Protocol, cast

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.processor.node import NodeContext, NodeFactory, ProcessFn
from millrace.topology.nodes import ProcessorNode


class ProcessorWrapper(Protocol):
    """Puts something around processors, such as logging, tracing or a check of every record."""

    def wrap(self, name: str, process: ProcessFn, node: NodeContext) -> ProcessFn:
        """Return what a node runs instead of `process`.

        Args:
            name: of the node.
            process: what it would run: a function of key, value, timestamp (ms) and headers; values are `Change`s where the
                node's input is a table.
            node: the node in its task.
        """


def configured_wrapper(config: StreamsConfig) -> ProcessorWrapper | None:
    """Return the wrapper of a configuration: an object, a class, or `module:attribute` naming one.

    Raises:
        ConfigError: it cannot be loaded, or has no method `wrap`.
    """
    given: Any = config.processor_wrapper_class
    if given is None or (isinstance(given, str) and given.endswith("NoOpProcessorWrapper")):
        return None
    if isinstance(given, str):
        module, _, attribute = given.partition(":")
        try:
            given = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"processor.wrapper.class: {config.processor_wrapper_class!r} cannot be loaded ({error}); give module:attribute"
            ) from error
    wrapper = given() if isinstance(given, type) else given
    if not callable(getattr(wrapper, "wrap", None)):
        raise ConfigError(f"processor.wrapper.class: {given!r} has no method wrap(name, process, node)")
    return cast("ProcessorWrapper", wrapper)


def wrapped(node: ProcessorNode, wrapper: ProcessorWrapper | None) -> ProcessorNode:
    """Return a node with the wrapper around what it runs."""
    if wrapper is None:
        return node
    return dataclasses.replace(node, factory=_wrapping(node.name, node.factory, wrapper))


def _wrapping(name: str, factory: NodeFactory, wrapper: ProcessorWrapper) -> NodeFactory:
    return lambda context: wrapper.wrap(name, factory(context), context)
