"""The buffer of a stream-table join with a grace period (KIP-923): records in order of their timestamps, in RocksDB.

Rows have the key `00` ‖ timestamp(8) ‖ key ‖ sequence number(4); the changelog has the same rows, with eight zero bytes after
the value (formats §5). Every record is logged when it is put, and a tombstone when it is emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from millrace.records import NO_HEADERS, RecordContext, TopicPartition
from millrace.serdes.base import AnySerde
from millrace.state.api import ChangelogRecord, LogChange, StateStore, StoreContext
from millrace.state.buffered_records import BufferedChange, LeaveOut, decode_change, encode_change
from millrace.state.builders import StoreBuilderBase
from millrace.state.change_log import change_sender, restored_offsets
from millrace.state.keys import (
    BASE,
    MAX_INT,
    MAX_LONG,
    decode_time_ordered_window_key,
    encode_time_ordered_window_key,
)
from millrace.state.layered_store import shown_key, store_serdes, unreadable_row
from millrace.state.segments import SegmentedDatabase
from millrace.state.value_formats import PLAIN, pack_long

_NO_TIME = pack_long(0)

Emit = Callable[[Any, Any, RecordContext], None]
"""Gets key, value and context of the record."""


class GraceBuffer:
    """Records that wait for the grace period of a join.

    Args:
        name: of the store.
        key_serde: None means the configured default.
        value_serde: of the stream's values; None means the configured default.
        grace_ms: how long records wait, by the largest timestamp put here.
        serde_topic: what the serdes are told; None: the changelog.
        logging: whether changes are logged.
    """

    persistent = True
    kind = "buffer"

    def __init__(
        self,
        name: str,
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
        *,
        grace_ms: int,
        serde_topic: str | None = None,
        logging: bool = True,
    ) -> None:
        self.name = name
        self._given_serdes = key_serde, value_serde
        self._grace_ms = grace_ms
        self._serde_topic = serde_topic
        self._logging = logging
        self._log: LogChange | None = None
        self._rows = SegmentedDatabase(name, PLAIN, MAX_LONG, MAX_LONG)
        self._seq = 0
        self._earliest = 0
        """No waiting record is older."""

    # Life cycle.

    def init(self, context: StoreContext) -> None:
        """Resolve the serdes and open the database."""
        self._context = context
        keys, values = store_serdes(self.name, *self._given_serdes, context.config)
        self._rows_topic = context.rows_topic(self.name)
        self._topic = self._serde_topic or context.topic_of(self.name)
        self._key_bytes, self._key_of = keys.serialize, keys.deserialize
        self._value_bytes, self._value_of = values.serialize, values.deserialize
        self._rows.open(context)
        self._log = change_sender(context, self.name, self._rows.position, enabled=self._logging)
        for row, _ in self._rows.scan_segments(0, MAX_LONG, None, None):
            self._note_seq(row)

    def flush(self) -> None:
        """Do nothing: records were logged when they were put."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write changes so far to disk, with the changelog offset they reach."""
        self._rows.commit(offsets)

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the changelog offset of the last change on disk."""
        return self._rows.committed_offset(partition)

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records, and note the offset they reach."""
        for record in records:
            value = record.value
            self._write(record.key, None if value is None else value[: -len(_NO_TIME)])
            self._note_seq(record.key)
        self._earliest = 0
        self._rows.commit(restored_offsets(records[-1:], self._context, self.name))

    def uncommitted_bytes(self) -> int:
        """Return the memory held by rows that wait for commit."""
        return self._rows.uncommitted_bytes()

    def is_open(self) -> bool:
        """Tell whether the store is usable."""
        return self._rows.is_open()

    def close(self) -> None:
        """Release everything; uncommitted changes are lost."""
        self._rows.close()

    # Used by the processor.

    def put(self, key: object, value: object, context: RecordContext) -> bool:
        """Buffer a record; return False if it is too late to wait.

        Args:
            key: of the record.
            value: of the record.
            context: where the record came from, with its timestamp and headers.
        """
        timestamp = context.timestamp
        if timestamp < self._due():
            return False
        self._seq = (self._seq + 1) & MAX_INT
        row = encode_time_ordered_window_key(self._key_bytes(self._topic, key), timestamp, self._seq)
        kept = RecordContext(context.topic, context.partition, context.offset, timestamp, context.headers)
        data = encode_change(BufferedChange(kept, None, None, self._value_bytes(self._topic, value)))
        self._write(row, data)
        if self._log is not None:
            self._log(row, data + _NO_TIME, None, NO_HEADERS)
        self._earliest = min(self._earliest, timestamp)
        if context.topic is not None:
            self._rows.position[context.topic, context.partition] = context.offset
        return True

    def evict(self, emit: Emit, leave_out: LeaveOut | None = None) -> None:
        """Emit every record that has waited long enough, oldest first; ask about those that cannot be read, and drop them."""
        due = self._due()
        if due < self._earliest:
            return
        upper = BASE + pack_long(due + 1)
        for row, data in self._rows.scan_segments(0, due, None, upper):
            key, start, _ = decode_time_ordered_window_key(row)
            if start > due:
                break
            change, _ = decode_change(data)
            try:
                record = self._key_of(self._topic, key), self._value_of(self._topic, change.new or b"")
            except Exception as error:
                shown = partial(shown_key, self._key_of, self._topic, key)
                unreadable = unreadable_row(self.name, self._rows_topic, error, shown)
                if leave_out is None:
                    raise unreadable from error
                leave_out(unreadable, change.context)
            else:
                emit(*record, change.context)
            self._write(row, None)
            if self._log is not None:
                self._log(row, None, None, NO_HEADERS)
        self._earliest = due + 1

    def _due(self) -> int:
        return self._rows.observed_stream_time - self._grace_ms

    def _write(self, row: bytes, data: bytes | None) -> None:
        segment = self._rows.for_writing(decode_time_ordered_window_key(row).start)
        if segment is not None:
            segment.put(row, data)

    def _note_seq(self, row: bytes) -> None:
        """Continue after the largest number in use, so that a restart overwrites nothing (Java starts at 1 again)."""
        self._seq = max(self._seq, decode_time_ordered_window_key(row).seq)


class GraceBufferBuilder(StoreBuilderBase):
    """Builds the buffer of a join with a grace period; caching does not apply.

    Args:
        name: of the store.
        key_serde: None means the configured default.
        value_serde: of the stream's values; None means the configured default.
        grace_ms: how long records wait.
        serde_topic: what the serdes are told: in Java the name of the join; None: the changelog.
    """

    kind = "buffer"
    persistent = True
    value_format = "plain"

    def __init__(
        self,
        name: str,
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
        *,
        grace_ms: int,
        serde_topic: str | None = None,
    ) -> None:
        super().__init__(name)
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.grace_ms = grace_ms
        self._serde_topic = serde_topic

    def build(self) -> StateStore:
        """Return a new buffer."""
        return GraceBuffer(
            self.name,
            self.key_serde,
            self.value_serde,
            grace_ms=self.grace_ms,
            serde_topic=self._serde_topic,
            logging=self.logging_enabled,
        )
