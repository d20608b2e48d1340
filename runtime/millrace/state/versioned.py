"""Versioned key-value stores as processors use them (KIP-889): typed → change log → RocksDB. They are never cached.

Changelog records have the version's timestamp, not that of the record being processed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar, cast

from millrace.checks import shown, timestamp_ms
from millrace.dropped_records import DropReason
from millrace.records import NO_HEADERS
from millrace.state.api import ChangelogRecord, LogChange, StoreContext
from millrace.state.cache import CacheEntry
from millrace.state.change_log import note_position, restored_offsets
from millrace.state.keys import MAX_LONG
from millrace.state.layered_store import LayeredStore
from millrace.state.versioned_bytes_store import NOT_PUT, VALID_TO_UNDEFINED, FoundVersion, RocksVersionedStore

K = TypeVar("K")
V = TypeVar("V")

PUT_RETURN_CODE_VALID_TO_UNDEFINED: Final = VALID_TO_UNDEFINED
"""What `put` returns for a version that is the latest of its key."""
PUT_RETURN_CODE_NOT_PUT: Final = NOT_PUT
"""What `put` returns for a version that was dropped because it is older than the grace period."""


class VersionedRecord(NamedTuple, Generic[V]):
    """A version: its value, and when its validity starts and ends (ms).

    The end is None for the latest version and, as in Java, in the results of `get` and `delete`; `get_versions` returns it.
    """

    value: V
    timestamp: int
    valid_to: int | None = None


class VersionedKeyValueStore(LayeredStore[RocksVersionedStore], Generic[K, V]):
    """A store that keeps the versions of each key for its history retention."""

    kind = "versioned"

    @property
    def history_retention_ms(self) -> int:
        """How long versions are kept, by observed stream time; also how late a put may be (ms)."""
        return self._bytes_store.history_retention_ms

    def _wire(self, context: StoreContext, log: LogChange | None) -> None:
        self._log = log
        self._drop_record = context.drop_record

    def _write_back(self, key: bytes, entry: CacheEntry) -> None:
        raise NotImplementedError  # never cached

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records, and note the offset they reach."""
        assert self._context is not None
        for record in records:
            if record.headers:
                note_position(self._bytes_store, record.headers)
        changes = ((record.key, record.value, record.timestamp) for record in records)
        self._bytes_store.restore_versions(changes, restored_offsets(records[-1:], self._context, self.name))

    def put(self, key: K, value: V | None, timestamp: int) -> int:
        """Write a version of a key that is valid from a time (ms); None deletes the key from then on.

        Returns:
            When its validity ends, `PUT_RETURN_CODE_VALID_TO_UNDEFINED` for the latest version, or `PUT_RETURN_CODE_NOT_PUT` if
            it was too late.
        """
        raw, timestamp = self._key_bytes(self._topic, key), self._checked_time(key, timestamp)
        data = None if value is None else self._value_bytes(self._topic, value)
        valid_to = self._bytes_store.put_version(raw, data, timestamp)
        self._written(raw, data, timestamp, dropped=valid_to == NOT_PUT)
        return valid_to

    def delete(self, key: K, timestamp: int) -> VersionedRecord[V] | None:
        """Delete a key from a time (ms); return the version that was valid then."""
        raw, timestamp = self._key_bytes(self._topic, key), self._checked_time(key, timestamp)
        old = self._bytes_store.as_of(raw, timestamp)
        dropped = self._bytes_store.put_version(raw, None, timestamp) == NOT_PUT
        self._written(raw, None, timestamp, dropped=dropped)
        return None if dropped or old is None else self._typed(raw, old)

    def _checked_time(self, key: K, timestamp: int) -> int:
        if type(timestamp) is int and 0 <= timestamp <= MAX_LONG:
            return timestamp
        return timestamp_ms(timestamp, lambda: f"Store {self.name!r}, key {shown(key)}: the time of a version")

    def _written(self, raw: bytes, data: bytes | None, timestamp: int, *, dropped: bool) -> None:
        record = self._record
        if dropped:
            late_ms = self._bytes_store.observed_stream_time - timestamp
            self._drop_record(self.name, DropReason.EXPIRED, late_ms, self.history_retention_ms)
        elif record.topic is not None:
            self._bytes_store.position[record.topic, record.partition] = record.offset
        if self._log is not None:
            self._log(raw, data, timestamp, NO_HEADERS)

    def get(self, key: K, as_of_timestamp: int | None = None) -> VersionedRecord[V] | None:
        """Return the latest version of a key, or the version valid at a time (ms); None if there is none, or no longer."""
        raw = self._key_bytes(self._topic, key)
        found = (
            self._bytes_store.latest(raw) if as_of_timestamp is None else self._bytes_store.as_of(raw, as_of_timestamp)
        )
        return None if found is None else self._typed(raw, found)

    def get_versions(
        self, key: K, time_from: int, time_to: int, *, ascending: bool = False
    ) -> Iterator[VersionedRecord[V]]:
        """Iterate the versions of a key valid at some time in [time_from, time_to], newest first unless ascending."""
        raw = self._key_bytes(self._topic, key)
        found = self._bytes_store.versions(raw, time_from, time_to)
        return (self._typed(raw, version, version[2]) for version in (reversed(found) if ascending else found))

    def _typed(self, raw: bytes, found: FoundVersion, valid_to: int | None = None) -> VersionedRecord[V]:
        try:
            return VersionedRecord(cast("V", self._value_of(self._topic, found[0])), found[1], valid_to)
        except Exception as error:
            raise self._unreadable(raw, error) from error
