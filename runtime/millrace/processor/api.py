"""The Processor API as users write against it: processors, contexts, punctuation (KIP-478, KIP-820)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from millrace.config import StreamsConfig
from millrace.durations import Duration
from millrace.records import ConsumedRecord, Headers, Record, TaskId, TopicPartition
from millrace.serdes.base import AnySerde
from millrace.state.api import StoreBuilder

KIn = TypeVar("KIn")
VIn = TypeVar("VIn")
KOut = TypeVar("KOut")
VOut = TypeVar("VOut")


class PunctuationType(Enum):
    """Which clock drives a punctuator."""

    STREAM_TIME = "stream-time"
    WALL_CLOCK_TIME = "wall-clock-time"


class Cancellable(Protocol):
    """The handle of a scheduled punctuator."""

    def cancel(self) -> None:
        """Never call the punctuator again."""


Punctuator = Callable[[int], None]
"""Called with the time (ms) of the clock that drives it."""


class RecordMetadata(NamedTuple):
    """Where the record being processed came from."""

    topic: str
    partition: int
    offset: int


class ProcessingContext(Protocol):
    """What every processor can get from its task.

    Java's `metrics()` is not here: metrics of your own are OpenTelemetry's, and are exported with Millrace's. In a processor's
    `init`: ``meter = opentelemetry.metrics.get_meter("orders")`` and ``self.rejected = meter.create_counter("orders.rejected")``;
    in `process`: ``self.rejected.add(1, {"task_id": str(self.context.task_id)})``.
    """

    @property
    def application_id(self) -> str:
        """The application's id."""

    @property
    def task_id(self) -> TaskId:
        """The task this processor runs in."""

    @property
    def config(self) -> StreamsConfig:
        """The application's settings."""

    @property
    def state_dir(self) -> Path:
        """The task's own directory."""

    @property
    def key_serde(self) -> AnySerde:
        """The default key serde."""

    @property
    def value_serde(self) -> AnySerde:
        """The default value serde."""

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Position of the record being processed; None while punctuating."""

    def get_state_store(self, name: str) -> Any:
        """Return a store connected to this processor.

        A name does not tell the type, so say it yourself: `seen: KeyValueStore[str, int] = context.get_state_store("seen")`.

        Raises:
            TopologyError: the store is not connected to this processor, or does not exist.
        """

    def schedule(
        self,
        interval_ms: Duration,
        punctuation_type: PunctuationType,
        callback: Punctuator,
        *,
        start_ms: int | None = None,
    ) -> Cancellable:
        """Call `callback` at this interval, a duration of any form; with `start_ms`, at start, start + interval … (KIP-1146)."""

    def commit(self) -> None:
        """Ask for a commit as soon as the current record is done."""

    def current_system_time_ms(self) -> int:
        """Return the wall clock's time, fixed while one record or punctuation is processed."""

    def current_stream_time_ms(self) -> int:
        """Return the largest timestamp the task has seen; -1 before the first record."""


class ProcessorContext(ProcessingContext, Protocol[KOut, VOut]):
    """A processor's context: forwards records of any key."""

    def forward(self, record: Record[KOut, VOut], child: str | None = None) -> None:
        """Process a record in every child node, or in the one named."""


class FixedKeyProcessorContext(ProcessingContext, Protocol[KOut, VOut]):
    """A fixed-key processor's context: a forwarded record must have the key of the record received."""

    def forward(self, record: Record[KOut, VOut], child: str | None = None) -> None:
        """Process a record in every child node, or in the one named; its key must be the one received."""


class Processor(Generic[KIn, VIn, KOut, VOut]):
    """A node of user code: override `process`, and `init` and `close` if needed."""

    context: ProcessorContext[KOut, VOut]

    def init(self, context: ProcessorContext[KOut, VOut]) -> None:
        """Keep the context, fetch stores, schedule punctuators. When overriding, call super().init to keep `context`."""
        self.context = context

    def process(self, record: Record[KIn, VIn]) -> None:
        """Handle one record."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `init` acquired. Stores are closed by the task.

        Anything forwarded or stored here comes after the task's last commit, and is lost under exactly-once: use a punctuator
        instead.
        """


class FixedKeyProcessor(Generic[KIn, VIn, VOut]):
    """Like `Processor`, for `process_values`: it can change the value but not the key."""

    context: FixedKeyProcessorContext[KIn, VOut]

    def init(self, context: FixedKeyProcessorContext[KIn, VOut]) -> None:
        """Keep the context, fetch stores, schedule punctuators. When overriding, call super().init."""
        self.context = context

    def process(self, record: Record[KIn, VIn]) -> None:
        """Handle one record."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `init` acquired. Stores are closed by the task.

        Anything forwarded or stored here comes after the task's last commit, and is lost under exactly-once: use a punctuator
        instead.
        """


ProcessorSupplier = Callable[[], Processor[KIn, VIn, KOut, VOut]]
"""Returns a new processor per task. It may also have `stores() -> Iterable[StoreBuilder]` (a ConnectedStoreProvider)."""
FixedKeyProcessorSupplier = Callable[[], FixedKeyProcessor[KIn, VIn, VOut]]


class ConnectedStoreProvider(Protocol):
    """A supplier that provides the stores of its processor."""

    def stores(self) -> Iterable[StoreBuilder]:
        """Return the builders of the stores; they are added to the topology and connected."""


TimestampExtractor = Callable[[ConsumedRecord, int], int]
"""Gets the deserialised record and the partition time (ms, -1 unknown); returns the record's timestamp in ms."""

TopicNameExtractor = Callable[[Any, Any, "SinkRecordContext"], str]
"""Gets key, value and context; returns the topic to send to."""

StreamPartitioner = Callable[[str, Any, Any, int], "int | Sequence[int] | None"]
"""Gets topic, key, value, number of partitions. Returns a partition, several (multicast; none = drop), or None = default."""


class SinkRecordContext(Protocol):
    """The record context that a topic name extractor gets."""

    topic: str | None
    partition: int
    offset: int
    timestamp: int
    headers: Headers


__all__ = [
    "Cancellable",
    "ConnectedStoreProvider",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyProcessorSupplier",
    "ProcessingContext",
    "Processor",
    "ProcessorContext",
    "ProcessorSupplier",
    "PunctuationType",
    "Punctuator",
    "RecordMetadata",
    "SinkRecordContext",
    "StreamPartitioner",
    "TimestampExtractor",
    "TopicNameExtractor",
    "TopicPartition",
]
