"""How records are read from, written to and sent through topics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from millrace.processor.api import StreamPartitioner, TimestampExtractor
from millrace.serdes.base import Serde
from millrace.topology.offset_reset import AutoOffsetReset

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Consumed(Generic[K, V]):
    """How an input topic is read.

    >>> from millrace.serdes import Serdes
    >>> Consumed.with_(Serdes.string(), Serdes.long()).with_name("orders").name
    'orders'
    """

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: AutoOffsetReset | str | None = None
    name: str | None = None

    @classmethod
    def with_(cls, key_serde: Serde[K] | None = None, value_serde: Serde[V] | None = None) -> Consumed[K, V]:
        """Read with these serdes; None takes the application's default."""
        return cls(key_serde, value_serde)

    @classmethod
    def as_(cls, name: str) -> Consumed[Any, Any]:
        """Name the source."""
        return cls(name=name)

    def with_key_serde(self, serde: Serde[K] | None) -> Consumed[K, V]:
        """Read keys with this serde."""
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde[V] | None) -> Consumed[K, V]:
        """Read values with this serde."""
        return replace(self, value_serde=serde)

    def with_timestamp_extractor(self, extractor: TimestampExtractor | None) -> Consumed[K, V]:
        """Take the time of records from this function."""
        return replace(self, timestamp_extractor=extractor)

    def with_offset_reset_policy(self, reset: AutoOffsetReset | str | None) -> Consumed[K, V]:
        """Begin here when the group has no committed offset."""
        return replace(self, offset_reset=reset)

    def with_name(self, name: str | None) -> Consumed[K, V]:
        """Name the source."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class Produced(Generic[K, V]):
    """How an output topic is written."""

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    partitioner: StreamPartitioner | None = None
    name: str | None = None

    @classmethod
    def with_(
        cls,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        partitioner: StreamPartitioner | None = None,
    ) -> Produced[K, V]:
        """Write with these serdes; None takes the stream's, or the application's default."""
        return cls(key_serde, value_serde, partitioner)

    @classmethod
    def as_(cls, name: str) -> Produced[Any, Any]:
        """Name the sink."""
        return cls(name=name)

    @classmethod
    def stream_partitioner(cls, partitioner: StreamPartitioner) -> Produced[Any, Any]:
        """Choose partitions with this function."""
        return cls(partitioner=partitioner)

    def with_key_serde(self, serde: Serde[K] | None) -> Produced[K, V]:
        """Write keys with this serde."""
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde[V] | None) -> Produced[K, V]:
        """Write values with this serde."""
        return replace(self, value_serde=serde)

    def with_stream_partitioner(self, partitioner: StreamPartitioner | None) -> Produced[K, V]:
        """Choose partitions with this function."""
        return replace(self, partitioner=partitioner)

    def with_name(self, name: str | None) -> Produced[K, V]:
        """Name the sink."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class Repartitioned(Generic[K, V]):
    """How a stream goes through an internal topic on its way."""

    name: str | None = None
    """The topic is `<application.id>-<name>-repartition`."""
    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    number_of_partitions: int | None = None
    """None: as many as the largest input has."""
    partitioner: StreamPartitioner | None = None

    @classmethod
    def as_(cls, name: str) -> Repartitioned[Any, Any]:
        """Name the topic."""
        return cls(name=name)

    @classmethod
    def with_(cls, key_serde: Serde[K] | None = None, value_serde: Serde[V] | None = None) -> Repartitioned[K, V]:
        """Write and read with these serdes."""
        return cls(key_serde=key_serde, value_serde=value_serde)

    @classmethod
    def stream_partitioner(cls, partitioner: StreamPartitioner) -> Repartitioned[Any, Any]:
        """Choose partitions with this function."""
        return cls(partitioner=partitioner)

    def with_name(self, name: str | None) -> Repartitioned[K, V]:
        """Name the topic."""
        return replace(self, name=name)

    def with_number_of_partitions(self, number: int) -> Repartitioned[K, V]:
        """Demand that many partitions; inputs joined with it must have as many."""
        return replace(self, number_of_partitions=number)

    def with_key_serde(self, serde: Serde[K] | None) -> Repartitioned[K, V]:
        """Write and read keys with this serde."""
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde[V] | None) -> Repartitioned[K, V]:
        """Write and read values with this serde."""
        return replace(self, value_serde=serde)

    def with_stream_partitioner(self, partitioner: StreamPartitioner | None) -> Repartitioned[K, V]:
        """Choose partitions with this function."""
        return replace(self, partitioner=partitioner)
