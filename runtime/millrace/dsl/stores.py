"""The stores of tables and of stream-stream joins, as the graph declares them: names, implementations and defaults.

A spec knows its name at once, and becomes the builder of a real store only for a given configuration, which may choose the
implementation (`dsl.store.suppliers.class`, `default.dsl.store`) and the value format (`dsl.store.format`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace.checks import hint_for, instance, mistake
from millrace.config import StreamsConfig
from millrace.dsl.names import Names
from millrace.dsl.options.joined import AnyStreamJoined
from millrace.dsl.options.materialized import AnyMaterialized, Materialized
from millrace.dsl.options.named import Named
from millrace.dsl.store_suppliers import (
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    InMemoryDslStoreSuppliers,
    dsl_suppliers,
)
from millrace.dsl.windows import JoinWindows, planned_windows
from millrace.loading import implements
from millrace.plan.topology_plan import PlannedWindows
from millrace.serdes.base import AnySerde
from millrace.state.api import StoreBuilder
from millrace.state.builders import StoreBuilderBase
from millrace.state.outer_join_store import OuterJoinStoreBuilder
from millrace.state.stores import Stores
from millrace.state.suppliers import AnyStoreSupplier, VersionedBytesStoreSupplier, WindowBytesStoreSupplier


@dataclass(slots=True, eq=False)
class TableStoreSpec:
    """The store of a table before the configuration is known: a `DeferredStore`."""

    name: str
    option: AnyMaterialized
    windows: DslWindowParams | DslSessionParams | None = None
    planned_windows: PlannedWindows | None = None
    generated_name: bool = False

    @property
    def logging_enabled(self) -> bool:
        """Whether the store has a changelog."""
        return self.option.logging_enabled

    @property
    def versioned(self) -> bool:
        """Whether the store keeps the history of values."""
        return implements(self.option.supplier, VersionedBytesStoreSupplier)

    def for_config(self, config: StreamsConfig) -> StoreBuilder:
        """Return the builder of the real store."""
        option = self.option
        supplier = option.supplier if option.supplier is not None else self._default_supplier(config)
        builder = self._new_builder()(supplier, option.key_serde, option.value_serde)
        if option.logging_enabled:
            builder.with_logging_enabled(option.log_config)
        else:
            builder.with_logging_disabled()
        if self._caches:
            builder.with_caching_enabled()
        if self.windows is not None:
            # The changelog is kept for as long as the windows need, not for the supplier's retention.
            builder.retention_ms = self.windows.retention_ms
            builder.windows = self._planned_windows()
        return builder

    def _planned_windows(self) -> PlannedWindows | None:
        if self.planned_windows is None or self.option.supplier is None:
            return self.planned_windows
        return self.planned_windows.model_copy(update={"in_order_of_time": False})  # the user's supplier decides

    def _new_builder(self) -> Callable[[Any, AnySerde | None, AnySerde | None], StoreBuilderBase]:
        if isinstance(self.windows, DslSessionParams):
            return Stores.session_store_builder
        if isinstance(self.windows, DslWindowParams):
            windows = self.windows
            return (
                Stores.join_window_store_builder
                if windows.retain_duplicates
                else Stores.timestamped_window_store_builder
            )
        return (
            Stores.versioned_key_value_store_builder if self.versioned else Stores.timestamped_key_value_store_builder
        )

    @property
    def _caches(self) -> bool:
        """As in Java, only sliding windows and sessions go without a cache when they are emitted on close."""
        windows = self.windows
        if isinstance(windows, DslSessionParams) and windows.emits_on_close:
            return False
        if isinstance(windows, DslWindowParams) and (
            windows.retain_duplicates or (windows.emits_on_close and windows.is_sliding)
        ):
            return False
        return self.option.caching_enabled and not self.versioned

    def _default_supplier(self, config: StreamsConfig) -> AnyStoreSupplier:
        suppliers = dsl_suppliers(self.option.dsl_store_suppliers, self.option.store_type, config)
        store_format = config.dsl_store_format
        if isinstance(self.windows, DslWindowParams):
            return suppliers.window_store(replace(self.windows, store_format=store_format))
        if isinstance(self.windows, DslSessionParams):
            return suppliers.session_store(replace(self.windows, store_format=store_format))
        return suppliers.key_value_store(DslKeyValueParams(self.name, store_format))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A `Materialized` with its store name filled in, and whether the user gave that name (so that it can be queried)."""

    option: AnyMaterialized
    store_name: str
    queryable: bool

    @property
    def queryable_name(self) -> str | None:
        """The store's name, if the user gave it."""
        return self.store_name if self.queryable else None

    def with_defaults(self, key_serde: AnySerde | None = None, value_serde: AnySerde | None = None) -> TableOptions:
        """Fill in serdes that were not given."""
        option = self.option
        return replace(
            self,
            option=replace(
                option,
                key_serde=option.key_serde if option.key_serde is not None else key_serde,
                value_serde=option.value_serde if option.value_serde is not None else value_serde,
            ),
        )

    def store(
        self, windows: DslWindowParams | DslSessionParams | None = None, planned: PlannedWindows | None = None
    ) -> TableStoreSpec:
        """Return the store."""
        return TableStoreSpec(self.store_name, self.option, windows, planned, generated_name=not self.queryable)


def table_options(
    materialized: AnyMaterialized | str | None, names: Names | None = None, prefix: str = ""
) -> TableOptions:
    """Return the options with a store name, generated from the prefix if none was given.

    Without `names` nothing is generated: the table is stored only if the user named a store.

    Raises:
        TopologyError: `materialized` is something else.
    """
    if materialized is not None:
        kinds, expected = (Materialized, str), "a Materialized or the store's name"
        instance(materialized, "materialized", kinds, expected, _instead_of(materialized))
    option: AnyMaterialized = (
        Materialized(materialized) if isinstance(materialized, str) else materialized or Materialized()
    )
    if option.store_name is not None:
        return TableOptions(option, option.store_name, queryable=True)
    return TableOptions(option, "" if names is None else names.store(prefix), queryable=False)


def _instead_of(materialized: object) -> str:
    if isinstance(materialized, Named):
        return f"write named={materialized.name!r}"
    return hint_for(materialized, Materialized)


def names_of_stores(names: Iterable[object]) -> tuple[str, ...]:
    """Return the names of the stores that a processor uses.

    Raises:
        TopologyError: one is not a text.
    """
    found = []
    for name in names:
        instance(name, "store_names", str, "names of stores", "add the store to the builder, and give its name")
        found.append(str(name))
    return tuple(found)


def join_window_store(
    name: str,
    value_serde: AnySerde | None,
    supplier: WindowBytesStoreSupplier | None,
    windows: JoinWindows,
    joined: AnyStreamJoined,
) -> TableStoreSpec:
    """Return the store of one side. As in Java, the logging options of `joined` do not apply to stores that the user supplies.

    Raises:
        TopologyError: a store that the user supplies does not retain duplicates, or its windows differ from the join's.
    """
    retention = windows.size_ms + windows.grace_ms
    if supplier is not None:
        if not supplier.retain_duplicates:
            raise mistake(f"Store {supplier.name} of a stream-stream join must be made with retain_duplicates=True")
        if supplier.window_size_ms != windows.size_ms or supplier.retention_ms != retention:
            raise mistake(
                f"Store {supplier.name} has windows of {supplier.window_size_ms} ms kept for {supplier.retention_ms} ms; the "
                f"join needs its size, {windows.size_ms} ms, kept for size and grace, {retention} ms"
            )
        name = supplier.name
    option: AnyMaterialized = Materialized(
        supplier=supplier,
        dsl_store_suppliers=joined.dsl_store_suppliers,
        key_serde=joined.key_serde,
        value_serde=value_serde,
        logging_enabled=joined.logging_enabled or supplier is not None,
        caching_enabled=False,
        log_config={**joined.log_config, "cleanup.policy": "delete"} if supplier is None else {},
    )
    return TableStoreSpec(
        name,
        option,
        DslWindowParams(name, retention, windows.size_ms, retain_duplicates=True),
        planned_windows(windows),
        generated_name=supplier is None and joined.store_name is None,
    )


@dataclass(slots=True, eq=False)
class JoinSharedStoreSpec:
    """The store in which records of both sides wait for a match: a `DeferredStore`."""

    name: str
    key_serde: AnySerde | None
    left_serde: AnySerde | None
    right_serde: AnySerde | None
    suppliers: DslStoreSuppliers | type[DslStoreSuppliers] | None
    logging_enabled: bool
    log_config: Mapping[str, str]
    generated_name: bool

    @classmethod
    def of(cls, name: str, joined: AnyStreamJoined) -> JoinSharedStoreSpec:
        """Return the store that the options of a left or outer join ask for."""
        suppliers = joined.dsl_store_suppliers
        if suppliers is None and joined.this_store_supplier is not None and not joined.this_store_supplier.persistent:
            suppliers = InMemoryDslStoreSuppliers()
        return cls(
            name,
            joined.key_serde,
            joined.value_serde,
            joined.other_value_serde,
            suppliers,
            joined.logging_enabled,
            joined.log_config,
            generated_name=joined.store_name is None and joined.this_store_supplier is None,
        )

    def for_config(self, config: StreamsConfig) -> StoreBuilder:
        """Return the builder of the real store."""
        supplier = dsl_suppliers(self.suppliers, None, config).key_value_store(DslKeyValueParams(self.name, "plain"))
        builder = OuterJoinStoreBuilder(supplier, self.key_serde, self.left_serde, self.right_serde)
        return (
            builder.with_logging_enabled(self.log_config) if self.logging_enabled else builder.with_logging_disabled()
        )
