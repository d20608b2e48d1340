"""Where the DSL gets its stores from: the configured suppliers, or the built-in ones (KIP-954)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.loading import implements, load_instance
from millrace.state.stores import Stores
from millrace.state.suppliers import (
    KeyValueBytesStoreSupplier,
    SessionBytesStoreSupplier,
    WindowBytesStoreSupplier,
)


class StoreType(Enum):
    """What keeps a table's entries."""

    ROCKS_DB = "rocksDB"
    IN_MEMORY = "in_memory"


@dataclass(frozen=True, slots=True)
class DslKeyValueParams:
    """A key-value store that the DSL needs."""

    name: str
    store_format: str = "default"


@dataclass(frozen=True, slots=True)
class DslWindowParams:
    """A window store that the DSL needs (times in ms)."""

    name: str
    retention_ms: int
    window_size_ms: int
    retain_duplicates: bool = False
    emits_on_close: bool = False
    is_sliding: bool = False
    store_format: str = "default"


@dataclass(frozen=True, slots=True)
class DslSessionParams:
    """A session store that the DSL needs (times in ms)."""

    name: str
    retention_ms: int
    emits_on_close: bool = False
    store_format: str = "default"


class DslStoreSuppliers(Protocol):
    """Makes the store suppliers of the DSL; implement it to keep tables elsewhere.

    Given as `dsl.store.suppliers.class` (an object, a class, or `module:attribute`), or to `Materialized` and `StreamJoined`
    for one operator. Suppliers named by the configuration may also have a method `configure(config: StreamsConfig)`,
    which is called before the first store is requested.

    Example:
        >>> from millrace.dsl import BuiltInDslStoreSuppliers, StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> counts = builder.stream("in").group_by_key().count("counts")
        >>> config = {"application.id": "app", "dsl.store.suppliers.class": BuiltInDslStoreSuppliers.IN_MEMORY}
        >>> topology = builder.build(config).build(StreamsConfig.of(config))
        >>> [store.persistent for store in topology.subtopologies[0].store_builders]
        [False]
    """

    def key_value_store(self, params: DslKeyValueParams) -> KeyValueBytesStoreSupplier:
        """Return the supplier of a key-value store."""

    def window_store(self, params: DslWindowParams) -> WindowBytesStoreSupplier:
        """Return the supplier of a window store."""

    def session_store(self, params: DslSessionParams) -> SessionBytesStoreSupplier:
        """Return the supplier of a session store."""


class RocksDbDslStoreSuppliers:
    """Everything in RocksDB."""

    def key_value_store(self, params: DslKeyValueParams) -> KeyValueBytesStoreSupplier:
        """Return a timestamped store, or a plain one where the operator keeps no timestamps."""
        if params.store_format == "plain":
            return Stores.persistent_key_value_store(params.name)
        if params.store_format == "headers":
            return Stores.persistent_timestamped_key_value_store_with_headers(params.name)
        return Stores.persistent_timestamped_key_value_store(params.name)

    def window_store(self, params: DslWindowParams) -> WindowBytesStoreSupplier:
        """Return a timestamped window store; for results emitted on close, one that can be read in order of time."""
        store, headers = (params.name, params.retention_ms, params.window_size_ms), params.store_format == "headers"
        if params.retain_duplicates:
            return Stores.persistent_window_store(*store, retain_duplicates=True)
        if params.emits_on_close:
            return Stores.persistent_time_ordered_window_store(
                *store, has_index=params.is_sliding, with_headers=headers
            )
        if headers:
            return Stores.persistent_timestamped_window_store_with_headers(*store)
        return Stores.persistent_timestamped_window_store(*store)

    def session_store(self, params: DslSessionParams) -> SessionBytesStoreSupplier:
        """Return a session store."""
        store, headers = (params.name, params.retention_ms), params.store_format == "headers"
        if params.emits_on_close:
            return Stores.persistent_time_ordered_session_store(*store, with_headers=headers)
        if headers:
            return Stores.persistent_session_store_with_headers(*store)
        return Stores.persistent_session_store(*store)


class InMemoryDslStoreSuppliers:
    """Everything in memory, restored from the changelogs at startup."""

    def key_value_store(self, params: DslKeyValueParams) -> KeyValueBytesStoreSupplier:
        """Return a store in memory."""
        return Stores.in_memory_key_value_store(params.name)

    def window_store(self, params: DslWindowParams) -> WindowBytesStoreSupplier:
        """Return a window store in memory."""
        return Stores.in_memory_window_store(
            params.name, params.retention_ms, params.window_size_ms, retain_duplicates=params.retain_duplicates
        )

    def session_store(self, params: DslSessionParams) -> SessionBytesStoreSupplier:
        """Return a session store in memory."""
        return Stores.in_memory_session_store(params.name, params.retention_ms)


class BuiltInDslStoreSuppliers:
    """The suppliers that come with Millrace."""

    ROCKS_DB = RocksDbDslStoreSuppliers()
    IN_MEMORY = InMemoryDslStoreSuppliers()


_BUILT_IN = {
    "RocksDBDslStoreSuppliers": BuiltInDslStoreSuppliers.ROCKS_DB,
    "InMemoryDslStoreSuppliers": BuiltInDslStoreSuppliers.IN_MEMORY,
}


def dsl_suppliers(given: object, store_type: StoreType | None, config: StreamsConfig) -> DslStoreSuppliers:
    """Return the suppliers to use: those given to the operator, or else the configured ones.

    Raises:
        ConfigError: `dsl.store.suppliers.class` cannot be loaded.
    """
    if given is not None:
        return cast("DslStoreSuppliers", given() if isinstance(given, type) else given)
    configured = config.dsl_store_suppliers_class
    if store_type is None and configured is None:
        store_type = StoreType(config.default_dsl_store)
    if store_type is not None:
        return (
            BuiltInDslStoreSuppliers.IN_MEMORY
            if store_type is StoreType.IN_MEMORY
            else BuiltInDslStoreSuppliers.ROCKS_DB
        )
    suppliers = load_instance(configured, "dsl.store.suppliers.class", _BUILT_IN, config=config)
    if not implements(suppliers, DslStoreSuppliers):
        raise ConfigError(f"dsl.store.suppliers.class: {configured!r} is not a DslStoreSuppliers")
    return suppliers
