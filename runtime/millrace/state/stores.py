"""`Stores`: the factory of suppliers and builders, under Kafka Streams' names."""

from __future__ import annotations

from typing import Any

from millrace.serdes.base import Serde
from millrace.state.builders import KeyValueStoreBuilder
from millrace.state.key_value import TimestampedKeyValueStore, TimestampedKeyValueStoreWithHeaders
from millrace.state.suppliers import (
    KeyValueBytesStoreSupplier,
    MemoryKeyValueSupplier,
    PersistentKeyValueSupplier,
    lru_supplier,
)
from millrace.state.value_formats import HEADERS, TIMESTAMPED


class Stores:
    """Makes store suppliers and store builders.

    >>> Stores.key_value_store_builder(Stores.persistent_key_value_store("totals"), None, None).with_caching_enabled()
    KeyValueStoreBuilder('totals')
    """

    # Suppliers.

    @staticmethod
    def persistent_key_value_store(name: str) -> PersistentKeyValueSupplier:
        """Return a supplier of plain values in RocksDB."""
        return PersistentKeyValueSupplier(name)

    @staticmethod
    def persistent_timestamped_key_value_store(name: str) -> PersistentKeyValueSupplier:
        """Return a supplier of timestamped values in RocksDB."""
        return PersistentKeyValueSupplier(name, TIMESTAMPED)

    @staticmethod
    def persistent_timestamped_key_value_store_with_headers(name: str) -> PersistentKeyValueSupplier:
        """Return a supplier of values with timestamp and headers in RocksDB (KIP-1271)."""
        return PersistentKeyValueSupplier(name, HEADERS)

    @staticmethod
    def in_memory_key_value_store(name: str) -> MemoryKeyValueSupplier:
        """Return a supplier of a store in memory."""
        return MemoryKeyValueSupplier(name)

    @staticmethod
    def lru_map(name: str, max_cache_size: int) -> MemoryKeyValueSupplier:
        """Return a supplier of a store in memory that keeps only the `max_cache_size` keys used last."""
        return lru_supplier(name, max_cache_size)

    # Builders.

    @staticmethod
    def key_value_store_builder(
        supplier: KeyValueBytesStoreSupplier, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None
    ) -> KeyValueStoreBuilder:
        """Return a builder of plain key-value stores; a serde of None stands for the configured default."""
        return KeyValueStoreBuilder(supplier, key_serde, value_serde)

    @staticmethod
    def timestamped_key_value_store_builder(
        supplier: KeyValueBytesStoreSupplier, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None
    ) -> KeyValueStoreBuilder:
        """Return a builder of timestamped stores; on a plain supplier the timestamps are not kept on disk (-1)."""
        return KeyValueStoreBuilder(supplier, key_serde, value_serde, store_type=TimestampedKeyValueStore)

    @staticmethod
    def timestamped_key_value_store_with_headers_builder(
        supplier: KeyValueBytesStoreSupplier, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None
    ) -> KeyValueStoreBuilder:
        """Return a builder of stores whose values have timestamp and headers; the disk keeps what its format can."""
        return KeyValueStoreBuilder(supplier, key_serde, value_serde, store_type=TimestampedKeyValueStoreWithHeaders)
