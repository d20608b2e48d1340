"""`Produced` and `Printed`: how the records of a stream are written to a topic, or printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from millrace.checks import Suggesting, callback, instance, serdes
from millrace.dsl.options.named import WithName, name_of
from millrace.dsl.options.with_serdes import WithSerdes
from millrace.processor.api import StreamPartitioner
from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


@dataclass(frozen=True, slots=True)
class Produced(Suggesting, WithName, WithSerdes[K, V], Generic[K, V]):
    """How an output topic is written."""

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    partitioner: StreamPartitioner | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        serdes(key_serde=self.key_serde, value_serde=self.value_serde)
        if self.partitioner is not None:
            callback(self.partitioner, "partitioner", "topic, key, value, number_of_partitions")
        name_of(self.name)

    @classmethod
    def with_(
        cls,
        key_serde: Serde[K2] | None = None,
        value_serde: Serde[V2] | None = None,
        partitioner: StreamPartitioner | None = None,
    ) -> Produced[K2, V2]:
        """Write with these serdes; None means the stream's, or else the application's default."""
        return Produced(key_serde, value_serde, partitioner)

    @classmethod
    def as_(cls, name: str) -> Produced[Any, Any]:
        """Name the sink."""
        return cls(name=name)

    @classmethod
    def stream_partitioner(cls, partitioner: StreamPartitioner) -> Produced[Any, Any]:
        """Choose partitions with this function."""
        return cls(partitioner=partitioner)

    def with_stream_partitioner(self, partitioner: StreamPartitioner | None) -> Produced[K, V]:
        """Choose partitions with this function."""
        return replace(self, partitioner=partitioner)


@dataclass(frozen=True, slots=True)
class Printed(Suggesting, WithName, Generic[K, V]):
    """Where and how records are printed."""

    path: Path | None = None
    """None: standard output."""
    label: str | None = None
    mapper: Callable[[K, V], str] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.mapper is not None:
            callback(self.mapper, "mapper", "key, value")
        name_of(self.name)

    @classmethod
    def to_sys_out(cls) -> Printed[Any, Any]:
        """Print to standard output."""
        return cls()

    @classmethod
    def to_file(cls, path: str | os.PathLike[str]) -> Printed[Any, Any]:
        """Append to a file."""
        instance(path, "path", (str, os.PathLike), "a path")
        return cls(Path(path))

    def with_label(self, label: str) -> Printed[K, V]:
        """Start every line with `[label]: ` instead of the parent node's name."""
        return replace(self, label=label)

    def with_key_value_mapper(self, mapper: Callable[[K, V], str]) -> Printed[K, V]:
        """Print what this function returns instead of key and value."""
        return replace(self, mapper=mapper)
