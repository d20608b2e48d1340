"""Store suppliers: which bytes store a builder puts at the bottom of its layers.

To use your own store, implement one of the supplier protocols here and the bytes store it creates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millrace.checks import located
from millrace.errors import ConfigError
from millrace.state.bytes_store import BytesStore, KeyValueBytesStore
from millrace.state.memory import LruKeyValueStore, MemoryKeyValueStore
from millrace.state.rocksdb import RocksKeyValueStore
from millrace.state.segments import default_segment_interval_ms
from millrace.state.session_bytes_store import (
    MemorySessionStore,
    RocksSessionStore,
    RocksTimeOrderedSessionStore,
    SessionBytesStore,
)
from millrace.state.value_formats import PLAIN, ValueFormat
from millrace.state.versioned_bytes_store import RocksVersionedStore
from millrace.state.versioned_bytes_store import default_segment_interval_ms as default_versioned_interval_ms
from millrace.state.window_bytes_store import (
    MemoryWindowStore,
    RocksIndexedWindowStore,
    RocksTimeOrderedWindowStore,
    RocksWindowStore,
    WindowBytesStore,
)


class StoreSupplier(Protocol):
    """What the suppliers of all kinds of stores have in common."""

    @property
    def name(self) -> str:
        """The store's name."""

    @property
    def persistent(self) -> bool:
        """Whether the store survives a restart."""

    @property
    def value_format(self) -> ValueFormat | None:
        """The layout on disk; None lets the builder choose (stores in memory keep any layout)."""

    def get(self) -> BytesStore:
        """Return a new store."""


class KeyValueBytesStoreSupplier(StoreSupplier, Protocol):
    """Creates the bytes store below a key-value store; implement it to use your own store."""

    def get(self) -> KeyValueBytesStore:
        """Return a new store."""


class WindowBytesStoreSupplier(StoreSupplier, Protocol):
    """Creates the bytes store below a window store (times in ms)."""

    @property
    def retention_ms(self) -> int:
        """How long windows are kept, by stream time."""

    @property
    def window_size_ms(self) -> int:
        """The size of a window."""

    @property
    def retain_duplicates(self) -> bool:
        """Whether every put of a key and time is kept."""

    def get(self) -> WindowBytesStore:
        """Return a new store."""


class SessionBytesStoreSupplier(StoreSupplier, Protocol):
    """Creates the bytes store below a session store (times in ms)."""

    @property
    def retention_ms(self) -> int:
        """How long sessions are kept, by stream time."""

    def get(self) -> SessionBytesStore:
        """Return a new store."""


class VersionedBytesStoreSupplier(Protocol):
    """Creates the bytes store below a versioned store."""

    @property
    def name(self) -> str:
        """The store's name."""

    @property
    def persistent(self) -> bool:
        """Whether the store survives a restart."""

    @property
    def history_retention_ms(self) -> int:
        """How long old versions are kept, by stream time."""

    def get(self) -> RocksVersionedStore:
        """Return a new store."""


AnyStoreSupplier = StoreSupplier | VersionedBytesStoreSupplier

WindowLayout = type[RocksWindowStore] | type[RocksTimeOrderedWindowStore] | type[RocksIndexedWindowStore]
SessionLayout = type[RocksSessionStore] | type[RocksTimeOrderedSessionStore]


@dataclass(frozen=True, slots=True)
class KeyValueSupplier:
    """RocksDB in one value format, or a store in memory, in the value format that the builder chooses."""

    name: str
    value_format: ValueFormat | None
    """None: in memory."""
    max_size: int | None = None
    """How many keys a store in memory keeps: the most recently used ones; None: all."""

    @property
    def persistent(self) -> bool:
        """Whether the store survives a restart."""
        return self.value_format is not None

    def get(self) -> KeyValueBytesStore:
        """Return a new store."""
        if self.value_format is not None:
            return RocksKeyValueStore(self.name, self.value_format)
        return MemoryKeyValueStore(self.name) if self.max_size is None else LruKeyValueStore(self.name, self.max_size)


@dataclass(frozen=True, slots=True)
class WindowSupplier:
    """Windows in RocksDB segments, or in memory, in the value format that the builder chooses."""

    name: str
    retention_ms: int
    window_size_ms: int
    retain_duplicates: bool = False
    value_format: ValueFormat | None = PLAIN
    layout: WindowLayout | None = RocksWindowStore
    """None: in memory."""
    segment_interval_ms: int | None = None

    def __post_init__(self) -> None:
        """Check that windows do not expire before they end.

        Raises:
            ConfigError: retention or size is negative, or the retention is smaller than a window.
        """
        if self.retention_ms < 0 or self.window_size_ms < 0:
            raise ConfigError(
                located(
                    f"Window store {self.name!r}: retention {self.retention_ms} ms and size {self.window_size_ms} ms must be >= 0"
                )
            )
        if self.window_size_ms > self.retention_ms:
            raise ConfigError(
                located(
                    f"Window store {self.name!r}: its retention of {self.retention_ms} ms must be at least the window size, "
                    f"{self.window_size_ms} ms"
                )
            )

    @property
    def persistent(self) -> bool:
        """Whether the store survives a restart."""
        return self.layout is not None

    def get(self) -> WindowBytesStore:
        """Return a new store."""
        if self.layout is None:
            return MemoryWindowStore(self.name, self.retention_ms, retain_duplicates=self.retain_duplicates)
        interval = self.segment_interval_ms or default_segment_interval_ms(self.retention_ms)
        return self.layout(self.name, self.value_format or PLAIN, self.retention_ms, interval)


@dataclass(frozen=True, slots=True)
class SessionSupplier:
    """Sessions in RocksDB segments, or in memory, in the value format that the builder chooses."""

    name: str
    retention_ms: int
    value_format: ValueFormat | None = PLAIN
    layout: SessionLayout | None = RocksSessionStore
    """None: in memory."""
    segment_interval_ms: int | None = None

    @property
    def persistent(self) -> bool:
        """Whether the store survives a restart."""
        return self.layout is not None

    def get(self) -> SessionBytesStore:
        """Return a new store."""
        if self.layout is None:
            return MemorySessionStore(self.name, self.retention_ms)
        interval = self.segment_interval_ms or default_segment_interval_ms(self.retention_ms)
        return self.layout(self.name, self.value_format or PLAIN, self.retention_ms, interval)


@dataclass(frozen=True, slots=True)
class VersionedSupplier:
    """Versions of keys in RocksDB (KIP-889)."""

    name: str
    history_retention_ms: int
    segment_interval_ms: int | None = None
    persistent: bool = True

    def __post_init__(self) -> None:
        if self.history_retention_ms < 0:
            raise ConfigError(located(f"Versioned store {self.name!r}: history retention must be >= 0 ms"))
        if self.segment_interval_ms is not None and self.segment_interval_ms < 1:
            raise ConfigError(located(f"Versioned store {self.name!r}: segment interval must be >= 1 ms"))

    def get(self) -> RocksVersionedStore:
        """Return a new store."""
        interval = self.segment_interval_ms or default_versioned_interval_ms(self.history_retention_ms)
        return RocksVersionedStore(self.name, self.history_retention_ms, interval)
