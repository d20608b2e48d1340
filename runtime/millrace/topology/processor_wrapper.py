"""`processor.wrapper.class` (KIP-1112): user code around every processor of a topology, including operators of the DSL.

The wrapper is applied when the topology is built for a configuration, so describing a topology needs none. Without a wrapper,
none of this runs. With one, operators of the DSL, which are otherwise plain functions, become processors of `Record`s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from millrace.checks import new_processors
from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.loading import implements, load_instance
from millrace.processor.adapter import NodeProcessor, ProcessorFactory, stores_of
from millrace.processor.api import FixedKeyProcessorSupplier, ProcessorSupplier
from millrace.processor.node import NodeFactory
from millrace.state.api import StoreBuilder
from millrace.topology.physical_topology import ProcessorNode


class ProcessorWrapper:
    """Wraps processors, for example to log, trace or check every record.

    The setting `processor.wrapper.class` is an object, a class, or `module:attribute` naming one. Override the methods you
    need; returning the given supplier unchanged costs nothing.

    The returned supplier is called once per task, and twice before, to check that it makes new processors. The processor it
    returns should delegate `init`, `process` and `close` to the processor of the given supplier. Like any supplier, it may have
    `stores()`: these are added to the topology and connected to the node, in addition to the stores that the processor already
    has.

    Example:
        >>> from millrace import Processor, StreamsBuilder, TopologyTestDriver
        >>> class Printing(Processor):
        ...     def __init__(self, name, inner):
        ...         self.name, self.inner = name, inner
        ...     def init(self, context):
        ...         self.inner.init(context)
        ...     def process(self, record):
        ...         print(self.name, record.value)
        ...         self.inner.process(record)
        ...     def close(self):
        ...         self.inner.close()
        >>> class PrintAll(ProcessorWrapper):
        ...     def wrap_processor_supplier(self, name, supplier):
        ...         return lambda: Printing(name, supplier())
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").map_values(str.upper, "up").to("out")
        >>> config = {"default.key.serde": "string", "default.value.serde": "string", "processor.wrapper.class": PrintAll}
        >>> with TopologyTestDriver(builder.build(), config) as driver:
        ...     driver.create_input_topic("in").pipe_input("k", "hello")
        up hello
    """

    def configure(self, config: StreamsConfig) -> None:
        """Configure the wrapper from the application's settings; called once, before anything is wrapped."""

    def wrap_processor_supplier(
        self,
        name: str,  # noqa: ARG002
        supplier: ProcessorSupplier[Any, Any, Any, Any],
    ) -> ProcessorSupplier[Any, Any, Any, Any]:
        """Return a supplier to use instead for a node, which is a user's processor or an operator of the DSL.

        Args:
            name: of the node.
            supplier: returns the processor. For operators that read a table, the value of records is a `Change`, the tuple
                (new, old, is latest).
        """
        return supplier

    def wrap_fixed_key_processor_supplier(
        self,
        name: str,  # noqa: ARG002
        supplier: FixedKeyProcessorSupplier[Any, Any, Any],
    ) -> FixedKeyProcessorSupplier[Any, Any, Any]:
        """Return a supplier to use instead for a node of `process_values`.

        Args:
            name: of the node.
            supplier: returns the user's processor.
        """
        return supplier


class _OperatorSupplier(partial[NodeProcessor]):
    """What a wrapper is given for an operator of the DSL, whose stores are already connected."""

    def stores(self) -> tuple[StoreBuilder, ...]:
        """Return nothing; a wrapper may ask without knowing whether the supplier is a user's."""
        return ()


class _WrapsSuppliers(Protocol):
    """What a user's class needs to have if it is not derived from ProcessorWrapper."""

    def wrap_processor_supplier(self, name: str, supplier: Any) -> Any: ...
    def wrap_fixed_key_processor_supplier(self, name: str, supplier: Any) -> Any: ...


def configured_wrapper(config: StreamsConfig) -> ProcessorWrapper | None:
    """Return the wrapper of a configuration, configured.

    Raises:
        ConfigError: it cannot be loaded, or is not a wrapper.
    """
    given = config.processor_wrapper_class
    if given is None or (isinstance(given, str) and given.endswith("NoOpProcessorWrapper")):
        return None
    wrapper = load_instance(given, "processor.wrapper.class", config=config)
    if not implements(wrapper, _WrapsSuppliers):
        raise ConfigError(
            f"processor.wrapper.class: {given!r} is not a processor wrapper; derive it from ProcessorWrapper, which has the "
            "methods wrap_processor_supplier and wrap_fixed_key_processor_supplier"
        )
    return cast("ProcessorWrapper", wrapper)


def wrapped(node: ProcessorNode, wrapper: ProcessorWrapper) -> tuple[NodeFactory, tuple[StoreBuilder, ...]]:
    """Return the factory of a node with its processor wrapped, and the stores that the wrapper adds.

    Raises:
        ConfigError: the wrapper did not return a supplier.
        TopologyError: the supplier gives all tasks the same processor.
    """
    factory = node.factory
    users = factory if isinstance(factory, ProcessorFactory) else None
    given: Any = users.supplier if users else _OperatorSupplier(NodeProcessor, node.name, factory)
    fixed_key = users is not None and users.fixed_key
    wrap: Callable[[str, Any], Any] = (
        wrapper.wrap_fixed_key_processor_supplier if fixed_key else wrapper.wrap_processor_supplier
    )
    result = wrap(node.name, given)
    if result is given:
        return factory, ()
    if not callable(result):
        raise ConfigError(
            f"processor.wrapper.class: {wrapper!r} returned {result!r} for node {node.name}; return a supplier, "
            "which is the given one or a function that returns a processor"
        )
    new_processors(result, node.name)
    stores = tuple(builder for builder in stores_of(result) if builder.name not in node.stores)
    return (replace(users, supplier=result) if users else ProcessorFactory(result)), stores
