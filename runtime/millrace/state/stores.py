"""`Stores`: the factory of suppliers and builders, under Kafka Streams' names."""

from __future__ import annotations

from millrace.checks import Suggesting, instance
from millrace.durations import Duration, to_millis
from millrace.serdes.base import AnySerde
from millrace.state.builders import (
    LayeredStoreBuilder,
    SessionStoreBuilder,
    VersionedKeyValueStoreBuilder,
    WindowStoreBuilder,
)
from millrace.state.key_value import KeyValueStore, TimestampedKeyValueStore, TimestampedKeyValueStoreWithHeaders
from millrace.state.session import SessionStore, SessionStoreWithHeaders
from millrace.state.session_bytes_store import RocksSessionStore, RocksTimeOrderedSessionStore
from millrace.state.suppliers import (
    KeyValueBytesStoreSupplier,
    KeyValueSupplier,
    SessionBytesStoreSupplier,
    SessionLayout,
    SessionSupplier,
    VersionedBytesStoreSupplier,
    VersionedSupplier,
    WindowBytesStoreSupplier,
    WindowLayout,
    WindowSupplier,
)
from millrace.state.value_formats import (
    HEADERS,
    PLAIN,
    SESSION_HEADERS,
    TIME_ORDERED_HEADERS,
    TIME_ORDERED_SESSION_HEADERS,
    TIME_ORDERED_TIMESTAMPED,
    TIMESTAMPED,
    ValueFormat,
)
from millrace.state.versioned import VersionedKeyValueStore
from millrace.state.window import (
    JoinWindowStore,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    WindowStore,
)
from millrace.state.window_bytes_store import RocksIndexedWindowStore, RocksTimeOrderedWindowStore, RocksWindowStore


def _named(name: str) -> str:
    instance(name, "name", str, "a text")
    return name


def _millis(name: str, what: str, duration: Duration) -> int:
    return to_millis(duration, f"The {what} of store {name!r}", minimum=None)


def _windows(
    name: str,
    retention: Duration,
    size: Duration,
    retain_duplicates: bool = False,  # noqa: FBT001, FBT002 (Kafka's order)
    value_format: ValueFormat | None = PLAIN,
    layout: WindowLayout | None = RocksWindowStore,
) -> WindowSupplier:
    retention_ms, size_ms = _millis(name, "retention", retention), _millis(name, "window size", size)
    return WindowSupplier(_named(name), retention_ms, size_ms, retain_duplicates, value_format, layout)


def _sessions(
    name: str,
    retention: Duration,
    value_format: ValueFormat | None = PLAIN,
    layout: SessionLayout | None = RocksSessionStore,
) -> SessionSupplier:
    return SessionSupplier(_named(name), _millis(name, "retention", retention), value_format, layout)


class Stores(Suggesting):
    """Makes store suppliers and store builders. Durations may be given in milliseconds or as elsewhere: a timedelta, or "10s".

    >>> Stores.key_value_store_builder(Stores.persistent_key_value_store("totals"), None, None).with_caching_enabled()
    LayeredStoreBuilder('totals')
    """

    # Suppliers.

    @staticmethod
    def persistent_key_value_store(name: str) -> KeyValueSupplier:
        """Return a supplier of plain values in RocksDB."""
        return KeyValueSupplier(_named(name), PLAIN)

    @staticmethod
    def persistent_timestamped_key_value_store(name: str) -> KeyValueSupplier:
        """Return a supplier of timestamped values in RocksDB."""
        return KeyValueSupplier(_named(name), TIMESTAMPED)

    @staticmethod
    def persistent_timestamped_key_value_store_with_headers(name: str) -> KeyValueSupplier:
        """Return a supplier of values with timestamp and headers in RocksDB (KIP-1271)."""
        return KeyValueSupplier(_named(name), HEADERS)

    @staticmethod
    def in_memory_key_value_store(name: str) -> KeyValueSupplier:
        """Return a supplier of a store in memory."""
        return KeyValueSupplier(_named(name), None)

    @staticmethod
    def lru_map(name: str, max_cache_size: int) -> KeyValueSupplier:
        """Return a supplier of a store in memory that keeps only the `max_cache_size` most recently used keys."""
        return KeyValueSupplier(_named(name), None, max_cache_size)

    @staticmethod
    def persistent_window_store(
        name: str,
        retention_ms: Duration,
        window_size_ms: Duration,
        retain_duplicates: bool = False,  # noqa: FBT001, FBT002 (Kafka's order)
    ) -> WindowSupplier:
        """Return a supplier of plain windowed values in RocksDB segments."""
        return _windows(name, retention_ms, window_size_ms, retain_duplicates)

    @staticmethod
    def persistent_timestamped_window_store(
        name: str,
        retention_ms: Duration,
        window_size_ms: Duration,
        retain_duplicates: bool = False,  # noqa: FBT001, FBT002
    ) -> WindowSupplier:
        """Return a supplier of timestamped windowed values in RocksDB segments."""
        return _windows(name, retention_ms, window_size_ms, retain_duplicates, TIMESTAMPED)

    @staticmethod
    def persistent_timestamped_window_store_with_headers(
        name: str,
        retention_ms: Duration,
        window_size_ms: Duration,
        retain_duplicates: bool = False,  # noqa: FBT001, FBT002
    ) -> WindowSupplier:
        """Return a supplier of windowed values with timestamp and headers in RocksDB segments (KIP-1271)."""
        return _windows(name, retention_ms, window_size_ms, retain_duplicates, HEADERS)

    @staticmethod
    def persistent_time_ordered_window_store(
        name: str,
        retention_ms: Duration,
        window_size_ms: Duration,
        *,
        has_index: bool = False,
        with_headers: bool = False,
    ) -> WindowSupplier:
        """Return a supplier of windows in order of time, for results emitted on close.

        Args:
            name: the store's name.
            retention_ms: how long windows are kept.
            window_size_ms: the size of a window.
            has_index: whether windows can also be found by key without reading all windows of that time (for sliding windows).
            with_headers: the header-aware format, which always has the index.
        """
        return _windows(
            name,
            retention_ms,
            window_size_ms,
            value_format=TIME_ORDERED_HEADERS if with_headers else TIME_ORDERED_TIMESTAMPED,
            layout=RocksIndexedWindowStore if has_index or with_headers else RocksTimeOrderedWindowStore,
        )

    @staticmethod
    def in_memory_window_store(
        name: str,
        retention_ms: Duration,
        window_size_ms: Duration,
        retain_duplicates: bool = False,  # noqa: FBT001, FBT002
    ) -> WindowSupplier:
        """Return a supplier of a window store in memory."""
        return _windows(name, retention_ms, window_size_ms, retain_duplicates, None, None)

    @staticmethod
    def persistent_session_store(name: str, retention_ms: Duration) -> SessionSupplier:
        """Return a supplier of sessions in RocksDB segments."""
        return _sessions(name, retention_ms)

    @staticmethod
    def persistent_session_store_with_headers(name: str, retention_ms: Duration) -> SessionSupplier:
        """Return a supplier of sessions in the header-aware format (KIP-1271)."""
        return _sessions(name, retention_ms, SESSION_HEADERS)

    @staticmethod
    def persistent_time_ordered_session_store(
        name: str, retention_ms: Duration, *, with_headers: bool = False
    ) -> SessionSupplier:
        """Return a supplier of sessions in order of their ends, for results emitted on close."""
        value_format = TIME_ORDERED_SESSION_HEADERS if with_headers else PLAIN
        return _sessions(name, retention_ms, value_format, RocksTimeOrderedSessionStore)

    @staticmethod
    def in_memory_session_store(name: str, retention_ms: Duration) -> SessionSupplier:
        """Return a supplier of a session store in memory."""
        return _sessions(name, retention_ms, None, None)

    @staticmethod
    def persistent_versioned_key_value_store(
        name: str, history_retention_ms: Duration, segment_interval_ms: Duration | None = None
    ) -> VersionedSupplier:
        """Return a supplier of versioned values in RocksDB (KIP-889)."""
        interval = None if segment_interval_ms is None else _millis(name, "segment interval", segment_interval_ms)
        return VersionedSupplier(_named(name), _millis(name, "history retention", history_retention_ms), interval)

    # Builders.

    @staticmethod
    def key_value_store_builder(
        supplier: KeyValueBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> LayeredStoreBuilder[KeyValueBytesStoreSupplier]:
        """Return a builder of plain key-value stores; a serde of None means the configured default."""
        return LayeredStoreBuilder(supplier, key_serde, value_serde, KeyValueStore)

    @staticmethod
    def timestamped_key_value_store_builder(
        supplier: KeyValueBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> LayeredStoreBuilder[KeyValueBytesStoreSupplier]:
        """Return a builder of timestamped stores; on a plain supplier the timestamps are not kept on disk (-1)."""
        return LayeredStoreBuilder(supplier, key_serde, value_serde, TimestampedKeyValueStore)

    @staticmethod
    def timestamped_key_value_store_with_headers_builder(
        supplier: KeyValueBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> LayeredStoreBuilder[KeyValueBytesStoreSupplier]:
        """Return a builder of stores whose values have timestamp and headers; the disk keeps what its format can."""
        return LayeredStoreBuilder(supplier, key_serde, value_serde, TimestampedKeyValueStoreWithHeaders)

    @staticmethod
    def window_store_builder(
        supplier: WindowBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> WindowStoreBuilder:
        """Return a builder of plain window stores."""
        return WindowStoreBuilder(supplier, key_serde, value_serde, WindowStore)

    @staticmethod
    def join_window_store_builder(
        supplier: WindowBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> WindowStoreBuilder:
        """Return a builder of the stores of stream-stream joins: plain values, logged with their record's headers (4.3)."""
        return WindowStoreBuilder(supplier, key_serde, value_serde, JoinWindowStore)

    @staticmethod
    def timestamped_window_store_builder(
        supplier: WindowBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> WindowStoreBuilder:
        """Return a builder of timestamped window stores."""
        return WindowStoreBuilder(supplier, key_serde, value_serde, TimestampedWindowStore)

    @staticmethod
    def timestamped_window_store_with_headers_builder(
        supplier: WindowBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> WindowStoreBuilder:
        """Return a builder of window stores whose values have timestamp and headers."""
        return WindowStoreBuilder(supplier, key_serde, value_serde, TimestampedWindowStoreWithHeaders)

    @staticmethod
    def session_store_builder(
        supplier: SessionBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> SessionStoreBuilder:
        """Return a builder of session stores."""
        return SessionStoreBuilder(supplier, key_serde, value_serde, SessionStore)

    @staticmethod
    def session_store_with_headers_builder(
        supplier: SessionBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> SessionStoreBuilder:
        """Return a builder of session stores whose aggregates have headers; the disk keeps what its format can (KIP-1271)."""
        return SessionStoreBuilder(supplier, key_serde, value_serde, SessionStoreWithHeaders)

    @staticmethod
    def versioned_key_value_store_builder(
        supplier: VersionedBytesStoreSupplier, key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> VersionedKeyValueStoreBuilder:
        """Return a builder of versioned stores."""
        return VersionedKeyValueStoreBuilder(supplier, key_serde, value_serde, VersionedKeyValueStore)
