"""What a store's user sees as a value, and how it is taken apart for the layers below: plain, timestamped, with headers.

Each class is mixed into a typed store. Below the typed layer a value is always the same three parts: the serde's bytes, a
timestamp and headers; the disk format keeps what it can of them, the changelog record carries all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.records import NO_HEADERS, Headers, RecordContext, ValueAndTimestamp
from millrace.state.api import ValueTimestampHeaders
from millrace.state.value_formats import TIMESTAMPED, ValueFormat, unpack_long

Parts = tuple[bytes, int, Headers]
"""The serde's bytes, timestamp (ms), headers."""


class Values:
    """What differs between stores of plain, timestamped and header-aware values."""

    logs_evictions = False
    """Whether evictions of an LRU map below reach the changelog."""
    prefix_size = 8
    """What the cache counts per value beside the serde's bytes."""

    _format: ValueFormat
    _record: RecordContext
    _topic: str
    _value_bytes: Callable[[str, Any], bytes]
    _value_of: Callable[[str, bytes], Any]

    def _disk_reader(self) -> Callable[[bytes], Any]:
        """Return what turns disk values into the user's."""
        take_apart, join = self._format.from_disk, self._join
        return lambda data: join(take_apart(data))

    def _split(self, value: Any) -> Parts:
        raise NotImplementedError

    def _join(self, parts: Parts) -> Any:
        raise NotImplementedError

    def _bare(self, value: Any) -> Any:
        """Return the value that a flush listener is given."""
        raise NotImplementedError

    def _size(self, value: Any) -> int:
        """Return roughly how many bytes a value takes in the cache."""
        raise NotImplementedError

    def _log_timestamp(self, timestamp: int) -> int:
        """Return the timestamp of a changelog record, given that of the value."""
        return timestamp

    def _tombstone_headers(self) -> Headers:
        """Return the headers of a changelog record that deletes: header-aware stores give it those of its cause."""
        return self._record.headers if self._format.name == "headers" else NO_HEADERS


class PlainValues(Values):
    """Values as they are; changelog records have the timestamp of the record being processed."""

    logs_evictions = True
    prefix_size = 0

    def _disk_reader(self) -> Callable[[bytes], Any]:
        if self._format.name != "plain":
            return super()._disk_reader()
        value_of, topic = self._value_of, self._topic
        return lambda data: value_of(topic, data)

    def _split(self, value: Any) -> Parts:
        return self._value_bytes(self._topic, value), self._record.timestamp, NO_HEADERS

    def _join(self, parts: Parts) -> Any:
        return self._value_of(self._topic, parts[0])

    def _bare(self, value: Any) -> Any:
        return value

    def _size(self, value: Any) -> int:
        return value_size(value)

    def _log_timestamp(self, timestamp: int) -> int:  # noqa: ARG002 (a plain value has none of its own)
        return self._record.timestamp


class PlainValuesLoggedWithHeaders(PlainValues):
    """Plain values whose changelog records carry the headers of the record being processed (joins, since 4.3)."""

    def _split(self, value: Any) -> Parts:
        return self._value_bytes(self._topic, value), self._record.timestamp, self._record.headers

    def _tombstone_headers(self) -> Headers:
        return self._record.headers


class TimestampedValues(Values):
    """`ValueAndTimestamp`; changelog records have the value's timestamp."""

    def _disk_reader(self) -> Callable[[bytes], Any]:
        if self._format is not TIMESTAMPED:
            return super()._disk_reader()
        value_of, topic = self._value_of, self._topic
        return lambda data: ValueAndTimestamp(value_of(topic, data[8:]), unpack_long(data))

    def _split(self, value: Any) -> Parts:
        return self._value_bytes(self._topic, value[0]), value[1], NO_HEADERS

    def _join(self, parts: Parts) -> Any:
        return ValueAndTimestamp(self._value_of(self._topic, parts[0]), parts[1])

    def _bare(self, value: Any) -> Any:
        return value[0]

    def _size(self, value: Any) -> int:
        return value_size(value[0]) + 8


class HeaderValues(Values):
    """`ValueTimestampHeaders`; changelog records have the value's timestamp and headers (KIP-1271)."""

    def _split(self, value: Any) -> Parts:
        return self._value_bytes(self._topic, value[0]), value[1], value[2]

    def _join(self, parts: Parts) -> Any:
        return ValueTimestampHeaders(self._value_of(self._topic, parts[0]), parts[1], parts[2])

    def _bare(self, value: Any) -> Any:
        return value[0]

    def _size(self, value: Any) -> int:
        return value_size(value[0]) + 9

    def _tombstone_headers(self) -> Headers:
        return self._record.headers


def value_size(value: object) -> int:
    """Return how many bytes a value takes, without serialising it: exact for bytes and ASCII text, 8 for numbers."""
    kind = type(value)
    if kind is int or kind is float:
        return 8
    if kind is bytes or kind is str:
        return len(value)  # type: ignore[arg-type]
    return 16
