"""The buffer of a suppressed table: waiting updates, in order of due time and key, in memory.

The changelog is written only on flush, once per key that has changed since the last one: the key's row, or a tombstone if it
was emitted. Keys are in the order of Java's hash set, so that the output records are the same. Nothing is on disk; after a
restart, the buffer is restored from the changelog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sortedcontainers import SortedDict

from millrace.errors import ConfigError, SerializationError
from millrace.java_collections import by_bucket
from millrace.records import NO_HEADERS, Change, RecordContext, TopicPartition, ValueAndTimestamp
from millrace.serdes.base import AnySerde
from millrace.state.api import ChangelogRecord, LogChange, StateStore, StoreContext
from millrace.state.buffered_records import (
    VERSION_HEADERS,
    BufferedChange,
    BufferKey,
    LeaveOut,
    decode_logged_change,
    encode_change,
)
from millrace.state.builders import StoreBuilderBase
from millrace.state.change_log import change_sender
from millrace.state.layered_store import shown_key, store_serdes, unreadable_row
from millrace.state.value_formats import pack_long

NEVER = 2**63 - 1
_DIRTY_OVERHEAD = 100
"""Bytes of memory per key that is marked to be logged, in addition to the key."""

Emit = Callable[[Any, "Change[Any]", RecordContext], None]
"""Gets key, change and the context of the record that caused the change."""


_NO_SERDES: Final = (
    "suppress() takes no serdes: it uses its table's, so give them to the operator before it. One that aggregates by "
    "windows needs the key's serde for that: Materialized.with_(key_serde, value_serde)"
)


class SuppressionBuffer:
    """Changes of a table that wait to be emitted.

    Args:
        name: of the store.
        key_serde: None means the configured default.
        value_serde: of new and old values; None means the configured default.
        logging: whether changes are logged.
    """

    persistent = False
    kind = "buffer"

    def __init__(
        self, name: str, key_serde: AnySerde | None, value_serde: AnySerde | None, *, logging: bool = True
    ) -> None:
        self.name = name
        self.min_timestamp = NEVER
        """When the first change is due (ms); NEVER if the buffer is empty."""
        self.buffer_size = 0
        """Bytes held, as Java estimates them."""
        self._given_serdes = key_serde, value_serde
        self._logging = logging
        self._log: LogChange | None = None
        self._times: dict[bytes, int] = {}
        self._changes: SortedDict[BufferKey, BufferedChange] = SortedDict()
        self._dirty: dict[bytes, None] = {}
        self._dirty_bytes = 0
        self._hash_table_size = 16
        self._topic = ""
        self._partition = 0
        self._open = False

    # Life cycle.

    def init(self, context: StoreContext) -> None:
        """Resolve the serdes; the buffer is empty until it is restored."""
        try:
            keys, values = store_serdes(self.name, *self._given_serdes, context.config)
        except ConfigError as error:
            raise ConfigError(f"{error}. {_NO_SERDES}") from error
        self._topic = context.topic_of(self.name)
        self._rows_topic = context.rows_topic(self.name)
        self._partition = context.task_id.partition
        self._key_bytes, self._key_of = keys.serialize, keys.deserialize
        self._value_bytes, self._value_of = values.serialize, values.deserialize
        self._log = change_sender(context, self.name, {}, enabled=self._logging)
        self._open = True

    def flush(self) -> None:
        """Log the changes since the last flush."""
        log = self._log
        if log is None or not self._dirty:
            return
        for key in by_bucket(self._dirty, self._hash_table_size):
            time = self._times.get(key)
            if time is None:
                log(key, None, None, NO_HEADERS)
            else:
                log(key, encode_change(self._changes[time, key]) + pack_long(time), None, VERSION_HEADERS)
        self._dirty.clear()
        self._dirty_bytes = 0

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Do nothing: there is no disk."""

    def committed_offset(self, partition: TopicPartition) -> int | None:  # noqa: ARG002 (there is no disk)
        """Return None: the changelog is read from its beginning."""
        return None

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records of any version."""
        for record in records:
            if record.value is None:
                self._forget(record.key)
                continue
            context = RecordContext(self._topic, self._partition, record.offset, record.timestamp, record.headers)
            buffered = self._buffered(record.key)
            prior = None if buffered is None else (buffered.prior,)
            time, change = decode_logged_change(record.value, record.headers.last("v"), context, prior)
            self._keep(time, record.key, change)

    def uncommitted_bytes(self) -> int:
        """Return what keys take that have changed since the last flush, also those that were emitted."""
        return self._dirty_bytes

    def is_open(self) -> bool:
        """Tell whether the store is usable."""
        return self._open

    def close(self) -> None:
        """Forget everything."""
        self._open = False
        self._times.clear()
        self._changes.clear()
        self._dirty.clear()
        self._dirty_bytes = 0
        self.min_timestamp = NEVER
        self.buffer_size = 0

    # Used by the processor.

    @property
    def num_records(self) -> int:
        """The number of waiting keys."""
        return len(self._times)

    def put(self, time: int, key: object, change: Change[Any], context: RecordContext) -> None:
        """Buffer a change; it replaces an earlier change of the same key and keeps its due time.

        Args:
            time: when the first change of the key is due (ms).
            key: of the table.
            change: new and old value.
            context: of the record that caused the change.
        """
        topic = self._topic
        try:
            raw = self._key_bytes(topic, key)
            new, old = (None if value is None else self._value_bytes(topic, value) for value in (change[0], change[1]))
        except SerializationError as error:
            raise SerializationError(f"{error}. {_NO_SERDES}") from error
        buffered = self._buffered(raw)
        prior = old if buffered is None else buffered.prior
        kept = RecordContext(context.topic, context.partition, context.offset, context.timestamp, context.headers)
        self._keep(time, raw, BufferedChange(kept, prior, old, new))
        self._mark_dirty(raw)

    def evict_while(self, wanted: Callable[[], bool], emit: Emit, leave_out: LeaveOut | None = None) -> None:
        """Emit changes in order of due time, as long as `wanted` returns true.

        Args:
            wanted: whether to go on.
            emit: gets each change.
            leave_out: asked about a change that cannot be read; if it returns, the change is dropped.
        """
        topic, changes = self._topic, self._changes
        while changes and wanted():
            (_, raw), buffered = changes.peekitem(0)
            try:
                parts = buffered.old, buffered.new
                old, new = (None if data is None else self._value_of(topic, data) for data in parts)
                key = self._key_of(topic, raw)
            except Exception as error:
                unreadable = self._unreadable(raw, error)
                if leave_out is None:
                    raise unreadable from error
                leave_out(unreadable, buffered.context)
            else:
                emit(key, Change(new, old), buffered.context)
            self._forget(raw)
            self._mark_dirty(raw)

    def prior_value_for_buffered(self, key: object) -> tuple[bool, ValueAndTimestamp[Any] | None]:
        """Return whether a change of the key is waiting, and the value that was emitted before it (timestamp unknown)."""
        buffered = self._buffered(self._key_bytes(self._topic, key))
        if buffered is None:
            return False, None
        if buffered.prior is None:
            return True, None
        try:
            return True, ValueAndTimestamp(self._value_of(self._topic, buffered.prior), -1)
        except Exception as error:
            raise self._unreadable(self._key_bytes(self._topic, key), error) from error

    # Inside.

    def _unreadable(self, raw: bytes, error: Exception) -> Exception:
        return unreadable_row(self.name, self._rows_topic, error, partial(shown_key, self._key_of, self._topic, raw))

    def _buffered(self, raw: bytes) -> BufferedChange | None:
        time = self._times.get(raw)
        return None if time is None else self._changes[time, raw]

    def _keep(self, time: int, raw: bytes, change: BufferedChange) -> None:
        known = self._times.get(raw)
        if known is None:
            known = self._times[raw] = time
            self.min_timestamp = min(self.min_timestamp, time)
        else:
            self.buffer_size -= _size(raw, self._changes[known, raw])
        self._changes[known, raw] = change
        self.buffer_size += _size(raw, change)

    def _forget(self, raw: bytes) -> None:
        time = self._times.pop(raw, None)
        if time is None:
            return
        self.buffer_size -= _size(raw, self._changes.pop((time, raw)))
        self.min_timestamp = self._changes.peekitem(0)[0][0] if self._changes else NEVER

    def _mark_dirty(self, raw: bytes) -> None:
        """Mark a key to be logged, if any are, and grow the simulated hash table of Java."""
        if self._log is None or raw in self._dirty:
            return
        self._dirty[raw] = None
        self._dirty_bytes += _DIRTY_OVERHEAD + len(raw)
        while len(self._dirty) > self._hash_table_size * 0.75:
            self._hash_table_size *= 2


def _size(raw: bytes, change: BufferedChange) -> int:
    """Return Java's estimate of the bytes that a change takes in memory."""
    context = change.context
    size = 28 + len(raw) + len(context.topic or "")
    size += sum(len(name) + len(value or b"") for name, value in context.headers)
    for part in (change.prior, None if change.old == change.prior else change.old, change.new):
        if part is not None:
            size += len(part)
    return size


class SuppressionBufferBuilder(StoreBuilderBase):
    """Builds the buffer of a suppressed table; caching does not apply.

    Args:
        name: of the store.
        key_serde: None means the configured default.
        value_serde: of the table's values; None means the configured default.
    """

    kind = "buffer"
    persistent = False
    value_format = "plain"

    def __init__(self, name: str, key_serde: AnySerde | None, value_serde: AnySerde | None) -> None:
        super().__init__(name)
        self.key_serde = key_serde
        self.value_serde = value_serde

    def build(self) -> StateStore:
        """Return a new buffer."""
        return SuppressionBuffer(self.name, self.key_serde, self.value_serde, logging=self.logging_enabled)
