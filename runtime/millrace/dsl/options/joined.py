"""`Joined`, `StreamJoined` and `TableJoined`: how joins are named, and how they repartition and store records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from millrace.checks import Suggesting, callback, serdes
from millrace.dsl.options.named import WithName, name_of
from millrace.dsl.options.with_serdes import WithSerdes
from millrace.dsl.store_suppliers import DslStoreSuppliers
from millrace.durations import Duration, to_millis
from millrace.processor.api import StreamPartitioner
from millrace.serdes.base import Serde
from millrace.state.suppliers import WindowBytesStoreSupplier

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO2 = TypeVar("VO2")
R = TypeVar("R")
FK = TypeVar("FK")


@dataclass(frozen=True, slots=True)
class ValueJoinerWithKey(Generic[K, V, VO, R]):
    """Marks a joiner that takes the key too: `join(table, ValueJoinerWithKey(lambda key, left, right: …))`."""

    joiner: Callable[[K, V, VO], R]

    def __post_init__(self) -> None:
        callback(self.joiner, "joiner", "key, left, right")


def with_key(
    joiner: Callable[[Any, Any], object] | ValueJoinerWithKey[Any, Any, Any, Any],
) -> Callable[[Any, Any, Any], object]:
    """Return a joiner as a function of key, left and right value.

    Raises:
        TopologyError: it takes other arguments.
    """
    if isinstance(joiner, ValueJoinerWithKey):
        return joiner.joiner
    callback(joiner, "joiner", "left, right", {"key, left, right": "wrap it in ValueJoinerWithKey(…)"})
    return lambda _key, left, right: joiner(left, right)


@dataclass(frozen=True, slots=True)
class ForeignKeyWithKey(Generic[K, V, FK]):
    """Marks a foreign-key extractor that takes the key too: `foreign_key=ForeignKeyWithKey(lambda key, value: …)` (KIP-1104)."""

    extractor: Callable[[K, V], FK | None]

    def __post_init__(self) -> None:
        callback(self.extractor, "extractor", "key, value")


@dataclass(frozen=True, slots=True)
class Joined(Suggesting, WithName, WithSerdes[K, V], Generic[K, V, VO]):
    """How a stream is joined with a table."""

    name: str | None = None
    """Of the join, and of the repartition topic if one is needed."""
    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    """Of the stream."""
    other_value_serde: Serde[VO] | None = None
    """Of the table."""
    grace_period_ms: int | None = None
    """Hold stream records back for this time, so that a versioned table can catch up (KIP-923)."""

    def __post_init__(self) -> None:
        name_of(self.name)
        serdes(key_serde=self.key_serde, value_serde=self.value_serde, other_value_serde=self.other_value_serde)

    @classmethod
    def as_(cls, name: str) -> Joined[Any, Any, Any]:
        """Name the join."""
        return cls(name)

    @classmethod
    def with_(
        cls,
        key_serde: Serde[K2] | None = None,
        value_serde: Serde[V2] | None = None,
        other_value_serde: Serde[VO2] | None = None,
        *,
        name: str | None = None,
        grace_period: Duration | None = None,
    ) -> Joined[K2, V2, VO2]:
        """Use these serdes if the stream has to be repartitioned."""
        joined = Joined(name, key_serde, value_serde, other_value_serde)
        return joined if grace_period is None else joined.with_grace_period(grace_period)

    def with_other_value_serde(self, serde: Serde[VO] | None) -> Joined[K, V, VO]:
        """Use this serde for the table's values."""
        return replace(self, other_value_serde=serde)

    def with_grace_period(self, grace: Duration) -> Joined[K, V, VO]:
        """Hold stream records back for this time; the table must be versioned.

        Raises:
            TopologyError: it is negative.
        """
        return replace(self, grace_period_ms=to_millis(grace, "The grace period of a join"))


@dataclass(frozen=True, slots=True)
class StreamJoined(Suggesting, WithName, WithSerdes[K, V], Generic[K, V, VO]):
    """How two streams are joined: names, serdes and the window stores of both sides."""

    name: str | None = None
    store_name: str | None = None
    """Base name of the stores and their changelogs."""
    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    """Of the stream that is joined."""
    other_value_serde: Serde[VO] | None = None
    """Of the stream that it is joined with."""
    this_store_supplier: WindowBytesStoreSupplier | None = None
    other_store_supplier: WindowBytesStoreSupplier | None = None
    dsl_store_suppliers: DslStoreSuppliers | type[DslStoreSuppliers] | None = None
    logging_enabled: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name_of(self.name)
        name_of(self.store_name)
        serdes(key_serde=self.key_serde, value_serde=self.value_serde, other_value_serde=self.other_value_serde)

    @classmethod
    def as_(cls, store_name: str) -> StreamJoined[Any, Any, Any]:
        """Give the stores a base name."""
        return cls(store_name=store_name)

    @classmethod
    def with_(
        cls,
        key_serde: Serde[K2] | None = None,
        value_serde: Serde[V2] | None = None,
        other_value_serde: Serde[VO2] | None = None,
    ) -> StreamJoined[K2, V2, VO2]:
        """Use these serdes for keys and for the values of both sides."""
        return StreamJoined(key_serde=key_serde, value_serde=value_serde, other_value_serde=other_value_serde)

    def with_store_name(self, store_name: str | None) -> StreamJoined[K, V, VO]:
        """Give the stores a base name."""
        return replace(self, store_name=store_name)

    def with_other_value_serde(self, serde: Serde[VO] | None) -> StreamJoined[K, V, VO]:
        """Use this serde for the values of the other side."""
        return replace(self, other_value_serde=serde)

    def with_this_store_supplier(self, supplier: WindowBytesStoreSupplier) -> StreamJoined[K, V, VO]:
        """Keep this side in a store of this supplier, which must retain duplicates and match the windows."""
        return replace(self, this_store_supplier=supplier)

    def with_other_store_supplier(self, supplier: WindowBytesStoreSupplier) -> StreamJoined[K, V, VO]:
        """Keep the other side in a store of this supplier, which must retain duplicates and match the windows."""
        return replace(self, other_store_supplier=supplier)

    def with_dsl_store_suppliers(
        self, suppliers: DslStoreSuppliers | type[DslStoreSuppliers]
    ) -> StreamJoined[K, V, VO]:
        """Take all stores from these suppliers."""
        return replace(self, dsl_store_suppliers=suppliers)

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> StreamJoined[K, V, VO]:
        """Log the stores' changes to topics with these settings."""
        return replace(self, logging_enabled=True, log_config=dict(config or {}))

    def with_logging_disabled(self) -> StreamJoined[K, V, VO]:
        """Do not log changes."""
        return replace(self, logging_enabled=False, log_config={})


@dataclass(frozen=True, slots=True)
class TableJoined(Suggesting, WithName, Generic[K, VO]):
    """How two tables are joined by a foreign key."""

    name: str | None = None
    partitioner: StreamPartitioner | None = None
    """Of the left table's topic, if it is not the default one."""
    other_partitioner: StreamPartitioner | None = None
    """Of the right table's topic, if it is not the default one."""

    def __post_init__(self) -> None:
        name_of(self.name)
        for parameter, given in (("partitioner", self.partitioner), ("other_partitioner", self.other_partitioner)):
            if given is not None:
                callback(given, parameter, "topic, key, value, number_of_partitions")

    @classmethod
    def as_(cls, name: str) -> TableJoined[Any, Any]:
        """Name the join, its topics and its store."""
        return cls(name)

    @classmethod
    def with_(
        cls, partitioner: StreamPartitioner | None = None, other_partitioner: StreamPartitioner | None = None
    ) -> TableJoined[Any, Any]:
        """Let these choose the partitions of subscriptions and responses."""
        return cls(None, partitioner, other_partitioner)

    def with_partitioner(self, partitioner: StreamPartitioner | None) -> TableJoined[K, VO]:
        """Let this choose the partitions of responses."""
        return replace(self, partitioner=partitioner)

    def with_other_partitioner(self, partitioner: StreamPartitioner | None) -> TableJoined[K, VO]:
        """Let this choose the partitions of subscriptions."""
        return replace(self, other_partitioner=partitioner)


AnyStreamJoined: TypeAlias = StreamJoined[Any, Any, Any]
"""The options of a join of streams whose types only the author of the topology knows."""


AnyTableJoined: TypeAlias = TableJoined[Any, Any]
"""The options of a foreign-key join whose types only the author of the topology knows."""

AnyJoiner: TypeAlias = Callable[..., object] | ValueJoinerWithKey[Any, Any, Any, Any]
"""A joiner as users give it, called by `with_key` with two values or with the key too."""
AnyForeignKey: TypeAlias = Callable[..., object] | ForeignKeyWithKey[Any, Any, Any]
"""The function that returns the foreign key of a value, or of a key and a value."""
