"""Store builders: a physical store, serdes, and whether changes are cached and logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from millrace.errors import TopologyError
from millrace.serdes.base import Serde
from millrace.state.api import StateStore
from millrace.state.key_value import (
    KeyValueStore,
    TimestampedKeyValueStore,
    TimestampedKeyValueStoreWithHeaders,
    TypedKeyValueStore,
)
from millrace.state.session import SessionStore, TypedSessionStore
from millrace.state.session_with_headers import SessionStoreWithHeaders
from millrace.state.suppliers import (
    KeyValueBytesStoreSupplier,
    PersistentVersionedSupplier,
    SessionBytesStoreSupplier,
    WindowBytesStoreSupplier,
)
from millrace.state.value_formats import HEADERS, PLAIN, SESSION_HEADERS, TIMESTAMPED, ValueFormat
from millrace.state.versioned import VersionedKeyValueStore
from millrace.state.window import (
    JoinWindowStore,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    TypedWindowStore,
    WindowStore,
)


class StoreBuilderBase:
    """What all builders share; the `with_…` methods change the builder and return it, as in Java.

    Derive the builder of a store of your own from it: `build` is all it needs, and `persistent` if the store survives a restart.
    """

    kind: str = "key-value"
    retention_ms: int | None = None
    retain_duplicates: bool = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.caching_enabled = False
        self.logging_enabled = True
        self.log_config: Mapping[str, str] = {}

    def with_caching_enabled(self) -> Self:
        """Hold writes back in the record cache, so that several updates of a key become one."""
        self.caching_enabled = True
        return self

    def with_caching_disabled(self) -> Self:
        """Write every update through at once."""
        self.caching_enabled = False
        return self

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> Self:
        """Log changes to a changelog topic.

        Args:
            config: topic settings that override the defaults, for example `{"retention.ms": "1234"}`; they join those given
                before.
        """
        self.logging_enabled = True
        self.log_config = {**self.log_config, **(config or {})}
        return self

    def with_logging_disabled(self) -> Self:
        """Keep no changelog: the store is lost with its task."""
        self.logging_enabled = False
        self.log_config = {}
        return self

    @property
    def persistent(self) -> bool:
        """Tell whether the store survives a restart."""
        return False

    @property
    def value_format(self) -> str:
        """Return the name of the value layout, as `StoreBuilder` describes it."""
        return "plain"

    def build(self) -> StateStore:
        """Return a new store; called once per task."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class KeyValueStoreBuilder(StoreBuilderBase):
    """Builds key-value stores of one of the three value types."""

    kind = "key-value"

    def __init__(
        self,
        supplier: KeyValueBytesStoreSupplier,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        *,
        store_type: type[TypedKeyValueStore[Any, Any]] = KeyValueStore,
    ) -> None:
        super().__init__(supplier.name)
        self.supplier = supplier
        self.key_serde = key_serde
        self.value_serde = value_serde
        self._store_type = store_type

    @property
    def persistent(self) -> bool:
        """Tell whether the store survives a restart."""
        return self.supplier.persistent

    @property
    def value_format(self) -> str:
        """Return the name of the value layout, as `StoreBuilder` describes it."""
        return self._format().name

    def _format(self) -> ValueFormat:
        return self.supplier.value_format or _NATURAL_FORMAT[self._store_type]

    def build(self) -> StateStore:
        """Return a new store: typed → record cache → change log → physical."""
        return self._store_type(
            self.supplier.get(),
            self._format(),
            self.key_serde,
            self.value_serde,
            caching=self.caching_enabled,
            logging=self.logging_enabled,
        )


_NATURAL_FORMAT: dict[type[TypedKeyValueStore[Any, Any]], ValueFormat] = {
    KeyValueStore: PLAIN,
    TimestampedKeyValueStore: TIMESTAMPED,
    TimestampedKeyValueStoreWithHeaders: HEADERS,
}


class WindowStoreBuilder(StoreBuilderBase):
    """Builds window stores; one that retains duplicates is never cached."""

    kind = "window"

    def __init__(
        self,
        supplier: WindowBytesStoreSupplier,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        *,
        store_type: type[TypedWindowStore[Any, Any]] = WindowStore,
    ) -> None:
        super().__init__(supplier.name)
        self.supplier = supplier
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.retention_ms = supplier.retention_ms
        self.window_size_ms = supplier.window_size_ms
        self.retain_duplicates = supplier.retain_duplicates
        self._store_type = store_type
        if self.retain_duplicates and store_type is WindowStore:
            self.log_config = {"cleanup.policy": "delete"}

    def with_caching_enabled(self) -> Self:
        """Hold writes back in the record cache; without effect where duplicates are retained."""
        self.caching_enabled = not self.retain_duplicates
        return self

    @property
    def persistent(self) -> bool:
        """Tell whether the store survives a restart."""
        return self.supplier.persistent

    @property
    def value_format(self) -> str:
        """Return the name of the value layout, as `StoreBuilder` describes it."""
        return self._format().name

    def _format(self) -> ValueFormat:
        return self.supplier.value_format or _NATURAL_WINDOW_FORMAT[self._store_type]

    def build(self) -> StateStore:
        """Return a new store: typed → record cache → change log → physical."""
        return self._store_type(
            self.supplier.get(),
            self._format(),
            self.key_serde,
            self.value_serde,
            window_size_ms=self.window_size_ms,
            retain_duplicates=self.retain_duplicates,
            caching=self.caching_enabled,
            logging=self.logging_enabled,
        )


_NATURAL_WINDOW_FORMAT: dict[type[TypedWindowStore[Any, Any]], ValueFormat] = {
    WindowStore: PLAIN,
    JoinWindowStore: PLAIN,
    TimestampedWindowStore: TIMESTAMPED,
    TimestampedWindowStoreWithHeaders: HEADERS,
}


class SessionStoreBuilder(StoreBuilderBase):
    """Builds session stores."""

    kind = "session"

    def __init__(
        self,
        supplier: SessionBytesStoreSupplier,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        *,
        store_type: type[TypedSessionStore[Any, Any]] = SessionStore,
    ) -> None:
        super().__init__(supplier.name)
        self.supplier = supplier
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.retention_ms = supplier.retention_ms
        self._store_type = store_type

    @property
    def persistent(self) -> bool:
        """Tell whether the store survives a restart."""
        return self.supplier.persistent

    @property
    def value_format(self) -> str:
        """Return the name of the value layout, as `StoreBuilder` describes it."""
        return self._format().name

    def _format(self) -> ValueFormat:
        return self.supplier.value_format or _NATURAL_SESSION_FORMAT[self._store_type]

    def build(self) -> StateStore:
        """Return a new store: typed → record cache → change log → physical."""
        return self._store_type(
            self.supplier.get(),
            self._format(),
            self.key_serde,
            self.value_serde,
            caching=self.caching_enabled,
            logging=self.logging_enabled,
        )


_NATURAL_SESSION_FORMAT: dict[type[TypedSessionStore[Any, Any]], ValueFormat] = {
    SessionStore: PLAIN,
    SessionStoreWithHeaders: SESSION_HEADERS,
}


class VersionedKeyValueStoreBuilder(StoreBuilderBase):
    """Builds versioned stores, which are never cached."""

    kind = "versioned"
    value_format = "plain"

    def __init__(
        self, supplier: PersistentVersionedSupplier, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None
    ) -> None:
        super().__init__(supplier.name)
        self.supplier = supplier
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.retention_ms = supplier.history_retention_ms

    def with_caching_enabled(self) -> Self:
        """Refuse: a cache would drop versions.

        Raises:
            TopologyError: always.
        """
        raise TopologyError(f"Store {self.name!r}: versioned stores cannot be cached; call with_caching_disabled()")

    @property
    def persistent(self) -> bool:
        """Tell whether the store survives a restart."""
        return self.supplier.persistent

    def build(self) -> StateStore:
        """Return a new store: typed → change log → physical."""
        return VersionedKeyValueStore[Any, Any](
            self.supplier.get(), self.key_serde, self.value_serde, logging=self.logging_enabled
        )
