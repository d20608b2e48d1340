"""From `Materialized` to the store of a table: names, implementations and defaults.

A `TableStoreSpec` is what the graph carries. It knows its name at once, and becomes the builder of a real store only for a
given configuration, which may choose the implementation (`dsl.store.suppliers.class`, `default.dsl.store`) and the value
format (`dsl.store.format`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from millrace.config import StreamsConfig
from millrace.dsl.graph.names import Names
from millrace.dsl.options.materialized import Materialized, StoreType
from millrace.dsl.store_suppliers import (
    DslKeyValueParams,
    DslSessionParams,
    DslWindowParams,
    dsl_suppliers,
    is_versioned,
    store_builder,
)
from millrace.errors import TopologyError
from millrace.serdes.base import Serde
from millrace.state.api import StateStore, StoreBuilder


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """What a window store is asked for."""

    retention_ms: int
    size_ms: int
    emits_on_close: bool = False
    is_sliding: bool = False
    retain_duplicates: bool = False


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a session store is asked for."""

    retention_ms: int
    emits_on_close: bool = False


@dataclass(slots=True, eq=False)
class TableStoreSpec:
    """The store of a table, before the configuration is known. A `StoreBuilder`, resolved by `for_config`."""

    name: str
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    supplier: Any = None
    store_type: StoreType | None = None
    suppliers: Any = None
    windows: WindowSpec | SessionSpec | None = None
    logging_enabled: bool = True
    caching_enabled: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)
    generated_name: bool = False

    @property
    def versioned(self) -> bool:
        """Whether the store keeps the history of values."""
        return is_versioned(self.supplier)

    @property
    def kind(self) -> str:
        """As `StoreBuilder` has it."""
        if isinstance(self.windows, WindowSpec):
            return "window"
        if isinstance(self.windows, SessionSpec):
            return "session"
        return "versioned" if self.versioned else "key-value"

    @property
    def retention_ms(self) -> int | None:
        """As `StoreBuilder` has it."""
        if self.windows is not None:
            return self.windows.retention_ms
        return getattr(self.supplier, "history_retention_ms", None)

    @property
    def retain_duplicates(self) -> bool:
        """As `StoreBuilder` has it."""
        return isinstance(self.windows, WindowSpec) and self.windows.retain_duplicates

    @property
    def persistent(self) -> bool:
        """Unknown before the configuration is; most are."""
        return bool(getattr(self.supplier, "persistent", True))

    @property
    def value_format(self) -> str:
        """As `StoreBuilder` has it; only the resolved builder knows for sure."""
        return "timestamped"

    def build(self) -> StateStore:
        """Refuse: there is no configuration yet."""
        raise TopologyError(f"Store {self.name} has to be resolved for a configuration before it can be built")

    def for_config(self, config: StreamsConfig) -> StoreBuilder:
        """Return the builder of the real store."""
        supplier = self.supplier if self.supplier is not None else self._default_supplier(config)
        builder: Any = store_builder(
            supplier,
            kind=self.kind,
            key_serde=self.key_serde,
            value_serde=self.value_serde,
            logging_enabled=self.logging_enabled,
            caching_enabled=self._caches,
            log_config=self.log_config,
            retain_duplicates=self.retain_duplicates,
        )
        if self.windows is not None:
            builder.retention_ms = (
                self.windows.retention_ms
            )  # of the changelog: what the windows need, not the supplier's
        return cast("StoreBuilder", builder)

    @property
    def _caches(self) -> bool:
        """As in Java, where of the windows that are emitted on close only sliding ones and sessions go without a cache."""
        windows = self.windows
        if (
            windows is not None
            and windows.emits_on_close
            and not (isinstance(windows, WindowSpec) and not windows.is_sliding)
        ):
            return False
        return self.caching_enabled and not (self.versioned or self.retain_duplicates)

    def _default_supplier(self, config: StreamsConfig) -> Any:
        suppliers = dsl_suppliers(self.suppliers, self.store_type, config)
        store_format = config.dsl_store_format
        if isinstance(self.windows, WindowSpec):
            windows = self.windows
            return suppliers.window_store(
                DslWindowParams(
                    self.name,
                    windows.retention_ms,
                    windows.size_ms,
                    windows.retain_duplicates,
                    windows.emits_on_close,
                    windows.is_sliding,
                    store_format,
                )
            )
        if isinstance(self.windows, SessionSpec):
            return suppliers.session_store(
                DslSessionParams(self.name, self.windows.retention_ms, self.windows.emits_on_close, store_format)
            )
        return suppliers.key_value_store(DslKeyValueParams(self.name, store_format))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A `Materialized` with its store name filled in, and whether the user gave that name (so that it can be queried)."""

    option: Materialized[Any, Any]
    store_name: str
    queryable: bool

    @property
    def queryable_name(self) -> str | None:
        """The store's name, if the user gave it."""
        return self.store_name if self.queryable else None

    def with_defaults(self, key_serde: Serde[Any] | None = None, value_serde: Serde[Any] | None = None) -> TableOptions:
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

    def store(self, windows: WindowSpec | SessionSpec | None = None) -> TableStoreSpec:
        """Return the store."""
        option = self.option
        return TableStoreSpec(
            self.store_name,
            option.key_serde,
            option.value_serde,
            option.supplier,
            option.store_type,
            option.dsl_store_suppliers,
            windows,
            option.logging_enabled,
            option.caching_enabled,
            option.log_config,
            generated_name=not self.queryable,
        )


def table_options(
    materialized: Materialized[Any, Any] | str | None, names: Names | None = None, prefix: str = ""
) -> TableOptions:
    """Return the options with a store name, generated from the prefix if none was given.

    Without `names` nothing is generated: the table is stored only if the user named a store.
    """
    option: Materialized[Any, Any] = (
        Materialized(materialized) if isinstance(materialized, str) else materialized or Materialized()
    )
    if option.store_name is not None:
        return TableOptions(option, option.store_name, queryable=True)
    return TableOptions(option, "" if names is None else names.store(prefix), queryable=False)
