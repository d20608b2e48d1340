"""`Grouped` and `Repartitioned`: how records are sent through a repartition topic, for a grouping or on request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from millrace.checks import Suggesting, callback, serdes, whole, wrong
from millrace.dsl.options.named import WithName, name_of
from millrace.dsl.options.with_serdes import WithSerdes
from millrace.processor.api import StreamPartitioner
from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


@dataclass(frozen=True, slots=True)
class Grouped(Suggesting, WithName, WithSerdes[K, V], Generic[K, V]):
    """How records are repartitioned for a grouping, if their key has changed."""

    name: str | None = None
    """The topic is `<application.id>-<name>-repartition`."""
    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None

    def __post_init__(self) -> None:
        name_of(self.name)
        serdes(key_serde=self.key_serde, value_serde=self.value_serde)

    @classmethod
    def as_(cls, name: str) -> Grouped[Any, Any]:
        """Name the repartition topic."""
        return cls(name=name)

    @classmethod
    def with_(
        cls, key_serde: Serde[K2] | None = None, value_serde: Serde[V2] | None = None, *, name: str | None = None
    ) -> Grouped[K2, V2]:
        """Use these serdes for the groups' keys and values."""
        return Grouped(name, key_serde, value_serde)


@dataclass(frozen=True, slots=True)
class Repartitioned(Suggesting, WithName, WithSerdes[K, V], Generic[K, V]):
    """How a stream is sent through an internal topic."""

    name: str | None = None
    """The topic is `<application.id>-<name>-repartition`."""
    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    partitions: int | None = None
    """None: as many as the largest input."""
    partitioner: StreamPartitioner | None = None

    def __post_init__(self) -> None:
        name_of(self.name)
        serdes(key_serde=self.key_serde, value_serde=self.value_serde)
        if self.partitions is not None:
            number = whole(self.partitions, "number_of_partitions", "an int of at least 1")
            if number < 1:
                raise wrong("number_of_partitions", "an int of at least 1", number)
            object.__setattr__(self, "partitions", number)
        if self.partitioner is not None:
            callback(self.partitioner, "partitioner", "topic, key, value, number_of_partitions")

    @classmethod
    def as_(cls, name: str) -> Repartitioned[Any, Any]:
        """Name the topic."""
        return cls(name=name)

    @classmethod
    def with_(cls, key_serde: Serde[K2] | None = None, value_serde: Serde[V2] | None = None) -> Repartitioned[K2, V2]:
        """Write and read with these serdes."""
        return Repartitioned(key_serde=key_serde, value_serde=value_serde)

    @classmethod
    def number_of_partitions(cls, number: int) -> Repartitioned[Any, Any]:
        """Use this number of partitions; streams and tables joined with it must have the same number."""
        return cls(partitions=number)

    @classmethod
    def stream_partitioner(cls, partitioner: StreamPartitioner) -> Repartitioned[Any, Any]:
        """Choose partitions with this function."""
        return cls(partitioner=partitioner)

    def with_number_of_partitions(self, number: int) -> Repartitioned[K, V]:
        """Use this number of partitions; streams and tables joined with it must have the same number."""
        return replace(self, partitions=number)

    def with_stream_partitioner(self, partitioner: StreamPartitioner | None) -> Repartitioned[K, V]:
        """Choose partitions with this function."""
        return replace(self, partitioner=partitioner)
