"""`Consumed`: how an input topic is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from millrace.checks import Suggesting, callback, serdes
from millrace.dsl.options.named import WithName, name_of
from millrace.dsl.options.with_serdes import WithSerdes
from millrace.processor.api import TimestampExtractor
from millrace.serdes.base import Serde
from millrace.topology.offset_reset import AutoOffsetReset

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


@dataclass(frozen=True, slots=True)
class Consumed(Suggesting, WithName, WithSerdes[K, V], Generic[K, V]):
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

    def __post_init__(self) -> None:
        serdes(key_serde=self.key_serde, value_serde=self.value_serde)
        if self.timestamp_extractor is not None:
            callback(self.timestamp_extractor, "timestamp_extractor", "record, partition_time")
        AutoOffsetReset.policy_of(self.offset_reset)
        name_of(self.name)

    @classmethod
    def with_(cls, key_serde: Serde[K2] | None = None, value_serde: Serde[V2] | None = None) -> Consumed[K2, V2]:
        """Read with these serdes; None means the application's default."""
        return Consumed(key_serde, value_serde)

    @classmethod
    def as_(cls, name: str) -> Consumed[Any, Any]:
        """Name the source."""
        return cls(name=name)

    def with_timestamp_extractor(self, extractor: TimestampExtractor | None) -> Consumed[K, V]:
        """Get the timestamps of records from this function."""
        return replace(self, timestamp_extractor=extractor)

    def with_offset_reset_policy(self, reset: AutoOffsetReset | str | None) -> Consumed[K, V]:
        """Start here when the group has no committed offset."""
        return replace(self, offset_reset=reset)
