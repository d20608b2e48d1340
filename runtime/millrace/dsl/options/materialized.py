"""`Materialized`: how a table is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar, cast

from millrace.checks import Suggesting, checked_name, instance, serdes, wrong
from millrace.dsl.options.with_serdes import WithSerdes
from millrace.dsl.store_suppliers import DslStoreSuppliers, StoreType
from millrace.durations import Duration, to_millis
from millrace.loading import implements
from millrace.serdes.base import Serde
from millrace.state.suppliers import AnyStoreSupplier

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


@dataclass(frozen=True, slots=True)
class Materialized(Suggesting, WithSerdes[K, V], Generic[K, V]):
    """How a table is kept: its name for queries, its store, serdes, cache and changelog.

    >>> Materialized.as_("counts").with_caching_disabled().caching_enabled
    False
    """

    store_name: str | None = None
    supplier: AnyStoreSupplier | None = None
    """A store supplier, for example from `Stores`, which also determines the name."""
    store_type: StoreType | None = None
    """None means `default.dsl.store`."""
    dsl_store_suppliers: DslStoreSuppliers | type[DslStoreSuppliers] | None = None
    """Makes the suppliers of all kinds of stores (KIP-954); None means `dsl.store.suppliers.class`."""
    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    logging_enabled: bool = True
    caching_enabled: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)
    """Settings of the changelog topic."""
    retention_ms: int | None = None
    """How long windows are kept; None means as long as late records can change them."""

    def __post_init__(self) -> None:
        if self.store_name is not None:
            checked_name(self.store_name)
        serdes(key_serde=self.key_serde, value_serde=self.value_serde)

    @classmethod
    def as_(cls, name_or_supplier: str | StoreType | DslStoreSuppliers | AnyStoreSupplier) -> Materialized[Any, Any]:
        """Name the store, or give a store supplier or a `StoreType`."""
        if isinstance(name_or_supplier, str):
            return cls(name_or_supplier)
        if isinstance(name_or_supplier, StoreType):
            return cls(store_type=name_or_supplier)
        if implements(name_or_supplier, DslStoreSuppliers):
            return cls(dsl_store_suppliers=name_or_supplier)
        if not (hasattr(name_or_supplier, "name") and callable(getattr(name_or_supplier, "get", None))):
            raise wrong("name_or_supplier", "a store's name, a StoreType or a store supplier", name_or_supplier)
        supplier = cast("AnyStoreSupplier", name_or_supplier)
        return cls(supplier.name, supplier)

    @classmethod
    def with_(cls, key_serde: Serde[K2] | None = None, value_serde: Serde[V2] | None = None) -> Materialized[K2, V2]:
        """Use these serdes, in a store that cannot be queried by name."""
        return Materialized(key_serde=key_serde, value_serde=value_serde)

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> Materialized[K, V]:
        """Log changes to a topic with these settings."""
        return replace(self, logging_enabled=True, log_config=dict(config or {}))

    def with_logging_disabled(self) -> Materialized[K, V]:
        """Do not log changes: if the disk is lost, so is the table."""
        return replace(self, logging_enabled=False, log_config={})

    def with_caching_enabled(self) -> Materialized[K, V]:
        """Combine several updates of a key between commits into one downstream."""
        return replace(self, caching_enabled=True)

    def with_caching_disabled(self) -> Materialized[K, V]:
        """Forward every update downstream."""
        return replace(self, caching_enabled=False)

    def with_retention(self, retention: Duration) -> Materialized[K, V]:
        """Keep windows this long after they start.

        Raises:
            TopologyError: it is negative.
        """
        return replace(self, retention_ms=to_millis(retention, "The retention of a store"))

    def with_store_type(self, store_type: StoreType) -> Materialized[K, V]:
        """Keep the table in this kind of store."""
        instance(store_type, "store_type", StoreType, "a StoreType")
        return replace(self, store_type=store_type)


AnyMaterialized: TypeAlias = Materialized[Any, Any]
"""The options of a store whose types only the author of the topology knows."""
