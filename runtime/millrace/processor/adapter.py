"""Turns a user's processor into a node, and a node of the DSL into a processor.

A processor sees a `Record` per call and forwards `Record`s; the closures of the engine take four plain arguments. The live
`RecordContext` is set to the processor's record on entry and again after each forward, because its stores log changes with it.

The other direction is for wrappers around processors (KIP-1112): a node of the DSL is compiled when the processor that
represents it is initialised, with a `NodeContext` that forwards through the processor's context. So the wrapper sees every
record that goes in and comes out. Nodes without a wrapper are never turned into processors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from millrace.checks import MAX_TIMESTAMP, timestamp_ms
from millrace.config import StreamsConfig
from millrace.durations import Duration, to_millis
from millrace.errors import (
    ConfigError,
    StreamsError,
    TopologyError,
)
from millrace.loading import implements
from millrace.processor.api import (
    Cancellable,
    ConnectedStoreProvider,
    FixedKeyProcessor,
    Processor,
    ProcessorContext,
    PunctuationType,
    Punctuator,
    RecordMetadata,
)
from millrace.processor.node import NodeContext, NodeFactory, ProcessFn
from millrace.records import NO_HEADERS, Headers, Record, TaskId
from millrace.serdes.base import AnySerde
from millrace.state.api import StoreBuilder

AnyProcessor: TypeAlias = Processor[Any, Any, Any, Any]
AnyFixedKeyProcessor: TypeAlias = FixedKeyProcessor[Any, Any, Any]
AnyContext: TypeAlias = ProcessorContext[Any, Any]
AnyRecord: TypeAlias = Record[Any, Any]
ProcessRecord: TypeAlias = Callable[[AnyRecord], object]


class NodeProcessorContext:
    """The `ProcessorContext` of one node in one task."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._record = node.record
        self._forward_all = node.forward
        self._children = node.children

    def __repr__(self) -> str:
        return f"<context of {self._node.name} in task {self._node.task_id}>"

    @property
    def node(self) -> NodeContext:
        """The node itself; operators of the DSL that run as processors use it."""
        return self._node

    @property
    def application_id(self) -> str:
        """The application's id."""
        return self._node.config.application_id

    @property
    def task_id(self) -> TaskId:
        """The task this processor runs in."""
        return self._node.task_id

    @property
    def config(self) -> StreamsConfig:
        """The application's settings."""
        return self._node.config

    @property
    def state_dir(self) -> Path:
        """The task's own directory."""
        return self._node.state_dir

    @property
    def key_serde(self) -> AnySerde:
        """The default key serde."""
        serde = self._node.default_key_serde
        if serde is None:
            raise ConfigError(f"Node {self._node.name} asks for the default key serde: set default.key.serde")
        return serde

    @property
    def value_serde(self) -> AnySerde:
        """The default value serde."""
        serde = self._node.default_value_serde
        if serde is None:
            raise ConfigError(f"Node {self._node.name} asks for the default value serde: set default.value.serde")
        return serde

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Position of the record being processed; None while punctuating."""
        record = self._record
        return None if record.topic is None else RecordMetadata(record.topic, record.partition, record.offset)

    def get_state_store(self, name: str) -> Any:
        """Return a store connected to this processor.

        Raises:
            TopologyError: the store is not connected to this processor, or does not exist.
        """
        return self._node.state_store(name)

    def schedule(
        self,
        interval_ms: Duration,
        punctuation_type: PunctuationType,
        callback: Punctuator,
        *,
        start_ms: int | None = None,
    ) -> Cancellable:
        """Call `callback` every `interval_ms`; with `start_ms`, at start, start + interval … (KIP-1146)."""
        millis = to_millis(interval_ms, f"The interval of a punctuator of node {self._node.name}", minimum=None)
        if start_ms is not None:
            start_ms = timestamp_ms(start_ms, lambda: f"The start of a punctuator of node {self._node.name}")
        return self._node.schedule(millis, punctuation_type, callback, start_ms=start_ms)

    def commit(self) -> None:
        """Ask for a commit as soon as the current record is done."""
        self._node.request_commit()

    def current_system_time_ms(self) -> int:
        """Return the wall clock's time, fixed for the record or punctuation being processed (ms)."""
        return self._node.system_time()

    def current_stream_time_ms(self) -> int:
        """Return the task's stream time: the largest timestamp seen, -1 before the first record (ms)."""
        return self._node.stream_time()

    def forward(self, record: AnyRecord, child: str | None = None) -> None:
        """Process a record in every child node, or in the one named.

        Raises:
            TopologyError: the node has no child of that name.
            SerializationError: the name of a header cannot be sent.
            InvalidTimestampError: the timestamp is negative, or no whole number.
        """
        try:
            key, value, timestamp, headers = record.key, record.value, record.timestamp, record.headers
        except AttributeError:
            raise TypeError(
                f"Node {self._node.name} forwarded a {type(record).__name__}; forward a Record, "
                "for example record.with_value(…) or Record(key, value, timestamp)"
            ) from None
        if headers is not NO_HEADERS and type(headers) is not Headers:
            headers = Headers(headers)
        if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP:
            timestamp = timestamp_ms(
                timestamp, lambda: f"The timestamp of a record that node {self._node.name} forwards"
            )
        context = self._record
        own_timestamp, own_headers = context.timestamp, context.headers
        if child is None:
            self._forward_all(key, value, timestamp, headers)
        else:
            self._child(child)(key, value, timestamp, headers)
        context.timestamp = own_timestamp
        context.headers = own_headers

    def calling(self, process: ProcessRecord) -> ProcessFn:
        """Return the node's function, which calls the processor's."""
        current, failed = self._record, self._node.processing_failed

        def process_record(key: object, value: object, timestamp: int, headers: Headers) -> None:
            current.timestamp = timestamp
            current.headers = headers
            try:
                process(Record(key, value, timestamp, headers))
            except Exception as error:
                failed(error, key, value, timestamp, headers)

        return process_record

    def _child(self, name: str) -> ProcessFn:
        try:
            return self._children[name]
        except KeyError:
            raise TopologyError(
                f"Node {self._node.name} has no child {name!r}; its children are {', '.join(self._children) or 'none'}"
            ) from None


class NodeFixedKeyProcessorContext(NodeProcessorContext):
    """The `FixedKeyProcessorContext` of one node in one task: forwarding another key than the one received fails."""

    _NO_KEY = object()

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self._key: object = self._NO_KEY

    def calling(self, process: ProcessRecord) -> ProcessFn:
        """Return the node's function, which calls the processor's and remembers the record's key meanwhile."""
        current, failed, no_key = self._record, self._node.processing_failed, self._NO_KEY

        # Written out rather than wrapped around the other one, which would be one more call for every record.
        def process_record(key: object, value: object, timestamp: int, headers: Headers) -> None:
            current.timestamp = timestamp
            current.headers = headers
            self._key = key
            try:
                process(Record(key, value, timestamp, headers))
            except Exception as error:
                failed(error, key, value, timestamp, headers)
            finally:
                self._key = no_key

        return process_record

    def forward(self, record: AnyRecord, child: str | None = None) -> None:
        """Process a record in every child node, or in the one named; its key must be the one received."""
        key = self._key
        if key is not self._NO_KEY and record.key is not key and record.key != key:
            raise StreamsError(
                f"Node {self._node.name} is a fixed-key processor and received key {key!r}, but forwards {record.key!r}: "
                "use record.with_value(…), or process() instead of process_values(), which repartitions"
            )
        super().forward(record, child)
        self._key = key


@dataclass(frozen=True, slots=True)
class ProcessorFactory:
    """The factory of a node that runs a user's processor, a new one per task."""

    supplier: Callable[[], AnyProcessor | AnyFixedKeyProcessor]
    context: type[NodeProcessorContext] = NodeProcessorContext
    """What the processor is given: `NodeFixedKeyProcessorContext` for a fixed-key processor."""

    @property
    def fixed_key(self) -> bool:
        """Whether its processors cannot change keys."""
        return self.context is NodeFixedKeyProcessorContext

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        processor = _new(self.supplier, node)
        context = self.context(node)
        node.on_init(lambda: processor.init(context))
        node.on_close(processor.close)
        return context.calling(processor.process)


def stores_of(supplier: object) -> tuple[StoreBuilder, ...]:
    """Return the stores of a supplier."""
    return tuple(supplier.stores() or ()) if implements(supplier, ConnectedStoreProvider) else ()


class _ProcessesRecords(Protocol):
    def process(self, record: AnyRecord) -> object: ...


class _ContextOfNode(Protocol):
    node: NodeContext


def _new(supplier: Callable[[], object], node: NodeContext) -> Any:
    processor = supplier()
    if not implements(processor, _ProcessesRecords):
        raise TopologyError(
            f"The supplier of node {node.name} returned {processor!r}, which is not a processor: "
            "give the processor's class, or a function that returns a new processor"
        )
    return processor


class NodeProcessor(AnyProcessor):
    """An operator of the DSL as a processor. Where it reads or yields a table, the values of records are `Change`s."""

    def __init__(self, name: str, factory: NodeFactory) -> None:
        self._name = name
        self._factory = factory
        self._closing: list[Callable[[], None]] = []

    def init(self, context: AnyContext) -> None:
        """Compile the operator, and run its start-up work.

        Raises:
            TopologyError: the context is not the one from the task, and does not delegate to it.
        """
        super().init(context)
        node = context.node if implements(context, _ContextOfNode) else None
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

    def process(self, record: AnyRecord) -> None:
        """Run the operator on one record."""
        self._process(record.key, record.value, record.timestamp, record.headers)

    def close(self) -> None:
        """Run the operator's closing work."""
        for callback in self._closing:
            callback()


class _NodeBehindContext:
    """A node that forwards through a processor's context, and starts and closes with the processor."""

    def __init__(self, node: NodeContext, context: AnyContext) -> None:
        self._node = node
        self.starting: list[Callable[[], None]] = []
        self.closing: list[Callable[[], None]] = []
        self.on_init = self.starting.append
        self.on_close = self.closing.append
        self.forward: ProcessFn = _through(context, None)
        self.children: Mapping[str, ProcessFn] = {name: _through(context, name) for name in node.children}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def _through(context: AnyContext, child: str | None) -> ProcessFn:
    forward_record = context.forward

    def forward(key: object, value: object, timestamp: int, headers: Headers) -> None:
        forward_record(Record(key, value, timestamp, headers), child)

    return forward
