"""What typed stores of every kind share: serdes, life cycle, flush listener, and the order of their layers."""

# ruff: noqa: SLF001 (a view of a store is a changed copy of it, or reads its parts)

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Generic, NoReturn, Self, TypeVar, cast

from millrace.config import StreamsConfig
from millrace.errors import (
    ConfigError,
    FailedProcessingError,
    InvalidStateStoreError,
    SerializationError,
    StreamsError,
    UnreadableRowError,
)
from millrace.records import Headers, TopicPartition
from millrace.serdes.base import AnySerde
from millrace.serdes.primitives import type_read_back
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.api import FlushListener, LogChange, StateStore, StoreContext, call_all
from millrace.state.bytes_store import BytesStore, SharedBytesStore
from millrace.state.cache import CacheEntry, CacheView, StoreCache
from millrace.state.change_log import change_sender
from millrace.state.value_formats import ValueFormat

P = TypeVar("P", bound=BytesStore)
FlushFailed = Callable[[Exception, Any, Any, int, Headers], None]
"""The error, key and value if they can be read, timestamp (ms) and headers of the update; returns to leave it out."""

_MOST_SHOWN = 80

_CHANGES: Final = frozenset(
    [
        "clear_cache",
        "close",
        "commit",
        "delete",
        "flush",
        "init",
        "put",
        "put_all",
        "put_if_absent",
        "remove",
        "restore",
        "set_flush_listener",
        "view",
    ]
)
"""The methods of stores, of all kinds, that change what they hold or are for the task that owns them."""


class TypedRows(map):  # type: ignore[type-arg]
    """Rows as users get them. Unlike a generator it continues after a row that cannot be read, and can be closed."""

    def __init__(self, _typed: Callable[[Any], Any], rows: Iterator[Any]) -> None:
        self._rows = rows

    def close(self) -> None:
        """End, and release what the rows are read from."""
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()
        deque(self._rows, maxlen=0)


class LayeredStore(Generic[P]):
    """A typed store on top of an optional record cache, an optional changelog and a bytes store P."""

    kind = "key-value"

    def __init__(
        self,
        bytes_store: P,
        value_format: ValueFormat,
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
        *,
        caching: bool = False,
        logging: bool = True,
    ) -> None:
        self.name = bytes_store.name
        self.persistent = bytes_store.persistent
        self._bytes_store = bytes_store
        self._format = value_format
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._caching = caching
        self._logging = logging
        self._cache: StoreCache | None = None
        self._shareable = False
        self._context: StoreContext | None = None
        self._listener: FlushListener | None = None
        self._send_old_values = False
        self.flush_failed: FlushFailed | None = None
        """Asked about an update that cannot be forwarded when it is flushed, because a row cannot be read."""

    def init(self, context: StoreContext) -> None:
        """Resolve serdes, open the bytes store and connect the layers."""
        self._context = context
        self._record = context.record
        self._topic = context.topic_of(self.name)
        self._rows_topic = context.rows_topic(self.name)
        keys, values = store_serdes(self.name, self._key_serde, self._value_serde, context.config)
        self._key_bytes: Callable[[str, Any], bytes] = keys.serialize
        self._key_of: Callable[[str, bytes], Any] = keys.deserialize
        self._value_bytes: Callable[[str, Any], bytes] = values.serialize
        self._value_of: Callable[[str, bytes], Any] = values.deserialize
        self._shareable = values.shareable
        self._type_read_back = type_read_back(values)
        self._value_serde = values
        if context.shared:
            self._bytes_store = cast("P", SharedBytesStore(self._bytes_store))
        self._bytes_store.open(context)
        log = change_sender(context, self.name, self._bytes_store.position, enabled=self._logging)
        self._wire(context, log)
        budget = context.cache
        if self._caching and budget is not None and budget.max_bytes > 0:
            self._cache = StoreCache(budget, context.record, self._write_back)
        self._compile()
        if self._cache is not None:
            self._cache.write_back = self._compile_write_back()

    def _unreadable(self, row: Any, error: Exception) -> UnreadableRowError:
        """Return the error of a row that a serde cannot read."""
        return unreadable_row(self.name, self._rows_topic, error, partial(self._shown, row))

    def _write_failed(self, row: Any, error: Exception) -> NoReturn:
        """Raise what to tell of a cached value that cannot be written back, often while another record is processed.

        Raises:
            FailedProcessingError: the serde cannot write it; no handler is asked, as it would be asked about that other record.
            StreamsError: something else failed.
        """
        if isinstance(error, StreamsError) and not isinstance(error, SerializationError):
            raise error
        raise FailedProcessingError(
            f"Store {self.name!r} cannot write the value that was put for key {self._shown(row)}: {error}"
        ) from error

    def _shown(self, row: Any) -> str:
        """Return the key of a row as a message shows it."""
        return shown_key(self._key_of, self._topic, row)

    def _flush_failed(self, error: Exception, key: object, value: object, entry: CacheEntry) -> None:
        """Ask what to do about an update that was written and cannot be forwarded, as a row cannot be read.

        Raises:
            Exception: the update cannot be left out.
        """
        if self.flush_failed is None:
            raise error
        self.flush_failed(error, key, value, entry.timestamp, entry.headers)

    def _wire(self, context: StoreContext, log: LogChange | None) -> None:
        """Connect the layers below the cache."""
        raise NotImplementedError

    def _compile(self) -> None:
        """Create the functions on the path of every record; called when all layers are known."""

    def _write_back(self, key: bytes, entry: CacheEntry) -> None:
        """Write one dirty entry to the layers below, and forward it."""
        raise NotImplementedError

    def _compile_write_back(self) -> Callable[[bytes, CacheEntry], None]:
        """Return the function that writes dirty entries back; called again when there is a listener to forward them to."""
        return self._write_back

    def flush(self) -> None:
        """Write dirty cache entries to the layers below, and forward them."""
        if self._cache is not None:
            self._cache.flush()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write changes so far to disk, with the changelog offsets they reach."""
        self._bytes_store.commit(offsets)

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the changelog offset of the last change on disk."""
        return self._bytes_store.committed_offset(partition)

    def uncommitted_bytes(self) -> int:
        """Return the memory held by rows that wait for commit."""
        return self._bytes_store.uncommitted_bytes()

    def is_open(self) -> bool:
        """Tell whether the store is usable."""
        return self._bytes_store.is_open()

    def close(self) -> None:
        """Release everything; uncommitted changes are lost."""
        if self._cache is not None:
            self._cache.clear()
            self._cache = None
        self._bytes_store.close()

    def clear_cache(self) -> None:
        """Drop what the record cache holds, and release its memory; call it after a commit, as changes are not written."""
        if self._cache is not None:
            self._cache.clear()

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:
        """Have flushed updates forwarded; return False if the store is not cached."""
        if self._context is None:
            raise InvalidStateStoreError(f"Store {self.name!r}: set the flush listener after init")
        if self._cache is None:
            return False
        self._listener = listener
        self._send_old_values = send_old_values
        self._cache.write_back = self._compile_write_back()
        return True

    def view(self, *, committed: bool, cached: bool = True) -> Self:
        """Return the store as threads other than its own may read it; it must not be changed.

        Its `position` stays as it is: what is read later is as new, or newer.

        Args:
            committed: only what is on disk; otherwise everything that the store's own thread reads. A store in memory is
                read as it is.
            cached: whether the record cache is read too, if not only `committed` rows are.
        """
        if self._context is None or not self.is_open():
            raise InvalidStateStoreError(f"Store {self.name!r} is not open")
        view, cache = copy(self), self._cache
        view._cache = None if committed or not cached or cache is None else cast("StoreCache", CacheView(cache))
        view._bytes_store = self._bytes_store.view(committed=committed)
        view._compile()
        return view

    @property
    def cached(self) -> bool:
        """Whether writes are held back by the record cache; known after `init`."""
        return self._cache is not None

    @property
    def needs_flush(self) -> bool:
        """Whether the record cache holds writes back."""
        return self._cache is not None and self._cache.is_dirty

    @property
    def position(self) -> Mapping[tuple[str, int], int]:
        """The input offsets, by topic and partition, that the store's content reflects (KIP-796)."""
        below = self._bytes_store.position
        if self._cache is None or self._context is None:
            return below
        partition, position = self._context.task_id.partition, dict(below)
        for topic, offset in self._cache.reached.items():
            if topic is not None and offset > position.get((topic, partition), -1):
                position[topic, partition] = offset
        return position


class ReadOnlyStore:
    """A global store as the tasks see it that do not fill it: its contents can only be read.

    Reads cost nothing extra, because its methods are the store's own. It counts as an instance of the store's class.
    """

    def __init__(self, store: StateStore) -> None:
        name = store.name

        def refuse(*_arguments: object, **_named: object) -> NoReturn:
            raise InvalidStateStoreError(
                f"Store {name!r} is global, and read only: only the processor that fills it may change it. Send the change to "
                "the store's topic"
            )

        self._store = store
        for method in dir(store):
            if not method.startswith("_") and callable(own := getattr(store, method)):
                setattr(self, method, refuse if method in _CHANGES else own)
        if hasattr(store, "direct"):
            self.direct: Callable[[], Any] = lambda: store.direct()._replace(put=refuse)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return f"<{self._store.name}, read only>"


def read_only(store: StateStore) -> StateStore:
    """Return a global store for those who may only read it; a store of the user's own class is returned as it is, as in Java."""
    return cast("StateStore", ReadOnlyStore(store)) if isinstance(store, LayeredStore) else store


def flush_stores(stores: Sequence[StateStore]) -> None:
    """Flush the stores of a task, all of them even after one has failed, so that their changelogs are complete.

    A flush forwards, and so may put into a store that has been flushed already: that one is flushed again, because the offsets of
    what was put are about to be committed. Each round reaches at least one more store, unless stores feed each other for ever.

    Raises:
        Exception: the first error of a round.
    """
    waiting = stores
    for _ in stores:
        call_all(store.flush for store in waiting)
        waiting = [store for store in stores if isinstance(store, LayeredStore) and store.needs_flush]
        if not waiting:
            return


def store_serdes(
    store_name: str, key_serde: AnySerde | None, value_serde: AnySerde | None, config: StreamsConfig
) -> tuple[AnySerde, AnySerde]:
    """Return the key and the value serde of a store, configured.

    Raises:
        ConfigError: one is neither given nor configured; the message names the store.
    """
    keys = key_serde or default_key_serde(config)
    values = value_serde or default_value_serde(config)
    if keys is None or values is None:
        part = "key" if keys is None else "value"
        raise ConfigError(
            f"State store {store_name!r} has no {part} serde: give one to the operator or the store's builder, "
            f"or set default.{part}.serde"
        )
    keys.configure(config)
    values.configure(config)
    return keys, values


def unreadable_row(store: str, topic: str | None, error: Exception, shown: Callable[[], str]) -> UnreadableRowError:
    """Return the error of a row that a store's serdes cannot read.

    Args:
        store: the store's name.
        topic: that has the store's rows, if any.
        error: what the serde raised; already the result if a layer below has made it.
        shown: returns the row's key as the message shows it.
    """
    if isinstance(error, UnreadableRowError):
        return error
    found = UnreadableRowError(
        f"store {store!r} cannot read the row of key {shown()}, "
        f"{'which is in no topic' if topic is None else f'which comes from topic {topic}'}: {type(error).__name__}: {error}"
    )
    found.__cause__ = error
    return found


def shown_key(key_of: Callable[[str, bytes], object], topic: str, raw: bytes) -> str:
    """Return a key as a message shows it: its bytes, if the serde cannot read them."""
    try:
        text = repr(key_of(topic, raw))
    except Exception:
        text = repr(raw)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
