"""Store suppliers: which physical store a builder puts below its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from millrace.state.memory import LruKeyValueStore, MemoryKeyValueStore
from millrace.state.physical import PhysicalKeyValueStore
from millrace.state.rocksdb import RocksKeyValueStore
from millrace.state.value_formats import PLAIN, ValueFormat


class KeyValueBytesStoreSupplier(Protocol):
    """Makes the physical layer of a key-value store; implement it to bring a store of your own."""

    @property
    def name(self) -> str:
        """The store's name."""

    @property
    def persistent(self) -> bool:
        """Whether the store survives a restart."""

    @property
    def value_format(self) -> ValueFormat | None:
        """The layout on disk; None lets the builder choose (stores in memory keep whatever layout they are given)."""

    def get(self) -> PhysicalKeyValueStore:
        """Return a new store."""


@dataclass(frozen=True, slots=True)
class PersistentKeyValueSupplier:
    """RocksDB, in one value format."""

    name: str
    value_format: ValueFormat = PLAIN
    persistent: bool = True

    def get(self) -> PhysicalKeyValueStore:
        """Return a new store."""
        return RocksKeyValueStore(self.name, self.value_format)


@dataclass(frozen=True, slots=True)
class MemoryKeyValueSupplier:
    """Memory, in whatever value format the builder asks for."""

    name: str
    factory: Callable[[str], PhysicalKeyValueStore] = MemoryKeyValueStore
    value_format: ValueFormat | None = None
    persistent: bool = False

    def get(self) -> PhysicalKeyValueStore:
        """Return a new store."""
        return self.factory(self.name)


def lru_supplier(name: str, max_entries: int) -> MemoryKeyValueSupplier:
    """Return a supplier of a store that keeps only the `max_entries` keys used last."""
    return MemoryKeyValueSupplier(name, lambda store_name: LruKeyValueStore(store_name, max_entries))
