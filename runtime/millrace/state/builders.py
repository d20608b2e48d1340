"""Store builders: they combine a bytes store and serdes with caching and logging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Self, TypeVar

from millrace.checks import mistake, serdes, wrong
from millrace.plan.topology_plan import PlannedWindows
from millrace.serdes.base import AnySerde
from millrace.state.api import StateStore
from millrace.state.key_value import (
    KeyValueStore,
    TimestampedKeyValueStore,
    TimestampedKeyValueStoreWithHeaders,
)
from millrace.state.session import SessionStore, SessionStoreWithHeaders
from millrace.state.suppliers import (
    AnyStoreSupplier,
    SessionBytesStoreSupplier,
    VersionedBytesStoreSupplier,
    WindowBytesStoreSupplier,
)
from millrace.state.value_formats import HEADERS, PLAIN, SESSION_HEADERS, TIMESTAMPED, ValueFormat
from millrace.state.versioned import VersionedKeyValueStore
from millrace.state.window import (
    JoinWindowStore,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    WindowStore,
)


class StoreBuilderBase:
    """What all builders share; the `with_…` methods change the builder and return it, as in Java.

    Derive the builder of your own store from it: implement `build`, and `persistent` if the store survives a restart.
    """

    kind: str = "key-value"
    retention_ms: int | None = None
    retain_duplicates: bool = False
    windows: PlannedWindows | None = None
    generated_name: bool = False
    """Whether the DSL generated its name."""

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
            config: topic settings that override the defaults, for example `{"retention.ms": "1234"}`; they are merged with
                settings given before.
        """
        self.logging_enabled = True
        self.log_config = {**self.log_config, **(config or {})}
        return self

    def with_logging_disabled(self) -> Self:
        """Keep no changelog: the content is lost when the task moves."""
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


class _Kind(NamedTuple):
    """What builders have to know of the suppliers of a kind of store."""

    attribute: str
    """Every supplier of this kind has it …"""
    others: tuple[str, ...] = ()
    """… and none of these, which suppliers of other kinds have."""
    retention: str | None = None
    """Where it says how long entries are kept (ms)."""
    options: tuple[str, ...] = ()
    """What the typed store is told too."""


_KINDS: Mapping[str, _Kind] = {
    "key-value": _Kind("name", ("retention_ms", "history_retention_ms")),
    "window": _Kind("window_size_ms", (), "retention_ms", ("window_size_ms", "retain_duplicates")),
    "session": _Kind("retention_ms", ("window_size_ms",), "retention_ms"),
    "versioned": _Kind("history_retention_ms", (), "history_retention_ms"),
}


S = TypeVar("S", bound=AnyStoreSupplier)

_FORMATS: dict[Callable[..., StateStore], ValueFormat] = {
    KeyValueStore: PLAIN,
    TimestampedKeyValueStore: TIMESTAMPED,
    TimestampedKeyValueStoreWithHeaders: HEADERS,
    WindowStore: PLAIN,
    JoinWindowStore: PLAIN,
    TimestampedWindowStore: TIMESTAMPED,
    TimestampedWindowStoreWithHeaders: HEADERS,
    SessionStore: PLAIN,
    SessionStoreWithHeaders: SESSION_HEADERS,
    VersionedKeyValueStore: PLAIN,
}
"""The format of the values of each type of store, if the supplier leaves the choice to the builder."""


class LayeredStoreBuilder(StoreBuilderBase, Generic[S]):
    """Builds a store of any type in its layers: typed → record cache → change log → bytes.

    Args:
        supplier: creates the bytes store at the bottom.
        key_serde: None means the configured default, as for values.
        value_serde: of what `put` takes.
        store_type: creates the store at the top.
    """

    def __init__(
        self,
        supplier: S,
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
        store_type: Callable[..., StateStore],
    ) -> None:
        kind = _KINDS[self.kind]
        fits = hasattr(supplier, kind.attribute) and not any(hasattr(supplier, name) for name in kind.others)
        if isinstance(supplier, type) or not fits or not callable(getattr(supplier, "get", None)):
            raise wrong("supplier", f"a supplier of a {self.kind} store", supplier, "Stores makes them")
        serdes(key_serde=key_serde, value_serde=value_serde)
        super().__init__(supplier.name)
        self.supplier = supplier
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.retention_ms = getattr(supplier, kind.retention) if kind.retention else None
        self._store_type = store_type
        self._options = {name: getattr(supplier, name) for name in kind.options}
        self._format = getattr(supplier, "value_format", None) or _FORMATS[store_type]

    @property
    def persistent(self) -> bool:
        """Tell whether the store survives a restart."""
        return self.supplier.persistent

    @property
    def value_format(self) -> str:
        """Return the name of the value layout, as `StoreBuilder` describes it."""
        return self._format.name

    def build(self) -> StateStore:
        """Return a new store."""
        return self._store_type(
            self.supplier.get(),
            self._format,
            self.key_serde,
            self.value_serde,
            caching=self.caching_enabled,
            logging=self.logging_enabled,
            **self._options,
        )


class SessionStoreBuilder(LayeredStoreBuilder[SessionBytesStoreSupplier]):
    """Builds session stores."""

    kind = "session"


class WindowStoreBuilder(LayeredStoreBuilder[WindowBytesStoreSupplier]):
    """Builds window stores; one that retains duplicates is never cached."""

    kind = "window"

    def __init__(
        self,
        supplier: WindowBytesStoreSupplier,
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
        store_type: Callable[..., StateStore],
    ) -> None:
        super().__init__(supplier, key_serde, value_serde, store_type)
        self.window_size_ms = supplier.window_size_ms
        self.retain_duplicates = supplier.retain_duplicates
        if self.retain_duplicates and store_type is WindowStore:
            self.log_config = {"cleanup.policy": "delete"}

    def with_caching_enabled(self) -> Self:
        """Hold writes back in the record cache; no effect if duplicates are retained."""
        self.caching_enabled = not self.retain_duplicates
        return self


class VersionedKeyValueStoreBuilder(LayeredStoreBuilder[VersionedBytesStoreSupplier]):
    """Builds versioned stores, which are never cached."""

    kind = "versioned"

    def with_caching_enabled(self) -> Self:
        """Fail: a cache would drop versions.

        Raises:
            TopologyError: always.
        """
        raise mistake(f"Store {self.name!r}: versioned stores cannot be cached; call with_caching_disabled()")
