"""What users of a store see as a value, and how it is split for the layers below: plain, timestamped, or with headers.

Each class is a mixin of typed stores. Below the typed layer, a value always has three parts: the serde's bytes, a timestamp and
headers. The disk format keeps some or all of them; the changelog record has all.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 (lower case in the standard library)
from typing import Any, Final, NoReturn

from millrace.checks import shown, timestamp_ms
from millrace.errors import SerializationError, UnreadableRowError
from millrace.records import NO_HEADERS, Headers, RecordContext, ValueAndTimestamp, Window, Windowed, new_tuple
from millrace.serdes.base import AnySerde
from millrace.serdes.primitives import FIXED_FORMATS
from millrace.state.api import FlushListener, ValueTimestampHeaders
from millrace.state.cache import CacheEntry, StoreCache
from millrace.state.change_log import Write
from millrace.state.keys import MAX_LONG
from millrace.state.value_formats import TIMESTAMPED, ValueFormat, pack_long, unpack_long, unpack_long_from

Parts = tuple[bytes, int, Headers]
"""The serde's bytes, timestamp (ms), headers."""
Serialize = Callable[[str, Any], bytes]
Deserialize = Callable[[str, bytes], Any]
Reader = Callable[[Any], Any]
"""Gets the value of a row, or None."""
Writer = Callable[[Any, Any], None]
"""Writes the value of a row; None deletes."""
WriteBack = Callable[[bytes, CacheEntry], None]
"""Writes one dirty entry of the cache to the layers below, and forwards it."""

_NO_WINDOW: Final = Window(-1, -1)


class Values:
    """What differs between stores of plain, timestamped and header-aware values."""

    logs_evictions = False
    """Whether evictions of an LRU map in the bytes store are logged."""
    prefix_size = 8
    """What the cache counts per value in addition to the serde's bytes."""
    timed = True
    """Whether values are tuples that start with the bare value and its timestamp."""

    name: str
    _format: ValueFormat
    _shareable: bool
    _type_read_back: type | None
    _record: RecordContext
    _topic: str
    _from_disk: Callable[[Any, bytes], Any]
    """Reads the value of a row, given the row to name it if that fails."""
    _unreadable: Callable[[Any, Exception], UnreadableRowError]
    _flush_failed: Callable[[Exception, object, object, CacheEntry], None]
    _write_failed: Callable[[Any, Exception], NoReturn]
    _key_of: Callable[[str, bytes], Any]
    _value_serde: AnySerde | None
    _value_bytes: Serialize
    _value_of: Deserialize

    def _disk_reader(self) -> Callable[[Any, bytes], Any]:
        """Return the function that turns the disk value of a row into the user's value."""
        take_apart, from_parts = self._format.from_disk, self._from_parts
        return lambda row, data: from_parts(row, take_apart(data))

    def _from_parts(self, row: object, parts: Parts) -> Any:
        """Return the user's value of a row.

        Raises:
            SerializationError: the serde cannot read it.
        """
        try:
            return self._join(parts)
        except Exception as error:
            raise self._unreadable(row, error) from error

    # Functions on the path of every record; each kind of values may override them with faster ones.

    def _reader(self, read: Callable[[Any], bytes | None]) -> Reader:
        """Return the function that gets the value for a row, or None, using a function that reads disk values."""
        from_disk = self._from_disk

        def get(row: object) -> Any:
            data = read(row)
            return None if data is None else from_disk(row, data)

        return get

    def _writer(self, write: Write) -> Writer:
        """Return the function that writes a value (None deletes), using a function that writes its parts."""
        split, to_disk, record, tombstone_headers = (
            self._split,
            self._format.to_disk,
            self._record,
            self._tombstone_headers,
        )

        def put(raw: bytes, value: object) -> None:
            if value is None:
                write(raw, None, None, record.timestamp, tombstone_headers())
            else:
                data, timestamp, headers = split(value)
                write(raw, to_disk(data, timestamp, headers), data, timestamp, headers)

        return put

    def _cache_writer(self, cache: StoreCache, extra_bytes: int = 0, *, of_windows: bool = False) -> Writer:
        """Return the function that puts a value (None deletes) into the cache.

        Args:
            cache: to put it into.
            extra_bytes: to count in addition, per key.
            of_windows: the row is a tuple that starts with the cache's key.
        """
        keep, split, size, shareable, as_read = cache.put, self._split, self._size, self._shareable, self._as_read
        prefix_size = self.prefix_size + extra_bytes

        def put(row: Any, value: Any) -> None:
            raw = row[0] if of_windows else row
            if value is None:
                keep(raw, None, extra_bytes)
            elif shareable:
                value = as_read(value)
                keep(raw, value, size(value) + extra_bytes)
            else:
                parts = split(value)
                keep(raw, parts, len(parts[0]) + prefix_size)

        return put

    def _write_back_of(  # noqa: C901 (one closure for every entry that is flushed)
        self,
        read: Callable[[Any], bytes | None],
        write: Write,
        write_through: Writer,
        listener: FlushListener | None,
        *,
        send_old_values: bool,
        window_size_ms: int | None = None,
    ) -> WriteBack:
        """Return the function that writes a dirty cache entry back, using functions that read and write rows.

        A window's row is its cache key, which ends with the start and a number of four bytes, and the start.
        """
        shareable, timed, key_of, topic = self._shareable, self.timed, self._key_of, self._topic
        to_disk, from_parts, from_disk, bare = self._format.to_disk, self._from_parts, self._from_disk, self._bare
        unreadable, failed, write_failed = self._unreadable, self._flush_failed, self._write_failed
        size, last = window_size_ms, _NO_WINDOW

        def write_back(raw: bytes, entry: CacheEntry) -> None:  # noqa: C901
            nonlocal last
            row: Any = raw
            if size is not None:
                start = unpack_long_from(raw, len(raw) - 12)[0]
                row = raw, start
            cached = entry.value
            old_data: bytes | None = None
            if listener is not None and (cached is None or send_old_values):
                old_data = read(row)
                if old_data is None and cached is None:
                    return
            if cached is None or shareable:
                try:
                    write_through(row, cached)
                except Exception as error:
                    write_failed(row, error)
            else:
                data, timestamp, headers = cached
                write(row, to_disk(data, timestamp, headers), data, timestamp, headers)
            if listener is None:
                return
            key = new = None
            try:
                if size is None:
                    key = key_of(topic, raw)
                else:
                    if last[0] != start:  # otherwise it is the window flushed last, as often
                        last = Window(start, min(start + size, MAX_LONG))
                    key = new_tuple(Windowed, (key_of(topic, raw[:-12]), last))
                new = cached if shareable or cached is None else from_parts(row, cached)
                old = None if old_data is None or not send_old_values else bare(from_disk(row, old_data))
            except Exception as error:
                failed(unreadable(row, error), key, new, entry)
                return
            timestamp = entry.timestamp
            if timed and new is not None:
                new, timestamp = new[0], new[1]
            listener(key, (new, old, True), timestamp, entry.headers)

        return write_back

    def _timestamp(self, key: object, what: str, value: object, minimum: int) -> int:
        """Return a timestamp that a user has given for a key."""
        return timestamp_ms(value, lambda: f"Store {self.name!r}, key {shown(key)}: {what}", minimum)

    def _wrong_value(self, key: object, expected: str, value: object) -> SerializationError:
        return SerializationError(f"Store {self.name!r}, key {shown(key)}: put takes {expected}, not {shown(value)}")

    def _present(self, value: object) -> Any:
        """Return a value in the form that users get."""
        return value

    def _as_read(self, value: object) -> Any:
        """Return a value that the cache may keep: as it will be read, if its type leaves doubt.

        So what the serde cannot write is an error of the put, not of a later write-back during another record.
        """
        kind = self._type_read_back
        return value if kind is None or type(self._bare(value)) is kind else self._join(self._split(value))

    def _split(self, value: object) -> Parts:
        raise NotImplementedError

    def _join(self, parts: Parts) -> Any:
        raise NotImplementedError

    def _bare(self, value: object) -> Any:
        """Return the value that a flush listener gets."""
        raise NotImplementedError

    def _size(self, value: object) -> int:
        """Return roughly how many bytes a value takes in the cache."""
        raise NotImplementedError

    def _tombstone_headers(self) -> Headers:
        """Return the headers of changelog records that delete; header-aware stores use the causing record's."""
        return self._record.headers if self._format.name == "headers" else NO_HEADERS


class PlainValues(Values):
    """Plain values; changelog records have the timestamp of the record being processed."""

    logs_evictions = True
    prefix_size = 0
    timed = False

    def _disk_reader(self) -> Callable[[Any, bytes], Any]:
        if self._format.name != "plain":
            return super()._disk_reader()
        value_of, topic, unreadable = self._value_of, self._topic, self._unreadable

        def from_disk(row: object, data: bytes) -> Any:
            try:
                return value_of(topic, data)
            except Exception as error:
                raise unreadable(row, error) from error

        return from_disk

    def _split(self, value: object) -> Parts:
        return self._value_bytes(self._topic, value), self._record.timestamp, NO_HEADERS

    def _join(self, parts: Parts) -> Any:
        return self._value_of(self._topic, parts[0])

    def _bare(self, value: object) -> Any:
        return value

    def _size(self, value: object) -> int:
        return value_size(value)


class TimestampedValues(Values):
    """Pairs of value and timestamp; changelog records have the value's timestamp.

    Internally they are plain tuples; users get `ValueAndTimestamp`.
    """

    def _checked(self, key: object, value: Any) -> Any:
        """Return a value that a user puts.

        Raises:
            SerializationError: it is no pair.
            InvalidTimestampError: its timestamp is not one.
        """
        if value is None:
            return None
        if not isinstance(value, tuple) or len(value) != 2:
            raise self._wrong_value(key, "a ValueAndTimestamp(value, timestamp), or None", value)
        data, timestamp = value
        if data is None or (type(timestamp) is int and -1 <= timestamp <= MAX_LONG):
            return value
        return data, self._timestamp(key, "the timestamp of a value", timestamp, -1)

    def _disk_reader(self) -> Callable[[Any, bytes], Any]:
        if self._format.from_disk is not TIMESTAMPED.from_disk:
            return super()._disk_reader()
        value_of, topic, unreadable = self._value_of, self._topic, self._unreadable

        def from_disk(row: object, data: bytes) -> Any:
            try:
                return value_of(topic, data[8:]), unpack_long(data)
            except Exception as error:
                raise unreadable(row, error) from error

        return from_disk

    def _numbers(self) -> Struct | None:
        """Return the layout of a disk value if it consists of two numbers, timestamp and value, so that one call reads both."""
        code = FIXED_FORMATS.get(type(self._value_serde))
        return Struct(f">q{code}") if code is not None and self._format.to_disk is TIMESTAMPED.to_disk else None

    def _reader(self, read: Callable[[Any], bytes | None]) -> Reader:
        if self._format.from_disk is not TIMESTAMPED.from_disk:
            return super()._reader(read)
        value_of, topic, numbers, from_disk = self._value_of, self._topic, self._numbers(), self._from_disk
        unreadable = self._unreadable

        def get(row: object) -> Any:
            data = read(row)
            if data is None:
                return None
            try:
                return value_of(topic, data[8:]), unpack_long_from(data)[0]
            except Exception as error:
                raise unreadable(row, error) from error

        if numbers is None:
            return get
        unpack = numbers.unpack

        def get_numbers(row: object) -> Any:
            data = read(row)
            if data is None:
                return None
            try:
                timestamp, value = unpack(data)
            except StructError:
                return from_disk(row, data)  # raises what the serde does
            return value, timestamp

        return get_numbers

    def _writer(self, write: Write) -> Writer:
        general = super()._writer(write)
        if self._format.to_disk is not TIMESTAMPED.to_disk:
            return lambda raw, pair: general(raw, None if pair is None or pair[0] is None else pair)
        value_bytes, topic, numbers = self._value_bytes, self._topic, self._numbers()

        def put(raw: bytes, pair: Any) -> None:
            if pair is None or pair[0] is None:
                general(raw, None)
            else:
                value, timestamp = pair
                data = value_bytes(topic, value)
                write(raw, pack_long(timestamp) + data, data, timestamp, NO_HEADERS)

        if numbers is None:
            return put
        pack = numbers.pack

        def put_numbers(raw: bytes, pair: Any) -> None:
            if pair is None or pair[0] is None:
                general(raw, None)
                return
            value, timestamp = pair
            try:
                disk = pack(timestamp, value)
            except (StructError, OverflowError):
                disk = pack_long(timestamp) + value_bytes(topic, value)  # raises what the serde does
            write(raw, disk, disk[8:], timestamp, NO_HEADERS)

        return put_numbers

    def _cache_writer(self, cache: StoreCache, extra_bytes: int = 0, *, of_windows: bool = False) -> Writer:
        general = super()._cache_writer(cache, extra_bytes, of_windows=of_windows)
        keep, shareable, prefix_size = cache.put, self._shareable, self.prefix_size + extra_bytes
        kind, as_read = self._type_read_back, self._as_read

        def put(row: Any, pair: Any) -> None:
            value = None if pair is None else pair[0]
            if value is None:
                general(row, None)
            elif shareable:
                if type(value) is not kind and kind is not None:
                    pair = as_read(pair)
                    value = pair[0]
                size = 8 if type(value) is int else value_size(value)
                keep(row[0] if of_windows else row, pair, size + prefix_size)
            else:
                general(row, pair)

        return put

    def _present(self, value: Any) -> Any:
        return None if value is None else ValueAndTimestamp(value[0], value[1])

    def _split(self, value: Any) -> Parts:
        return self._value_bytes(self._topic, value[0]), value[1], NO_HEADERS

    def _join(self, parts: Parts) -> Any:
        return self._value_of(self._topic, parts[0]), parts[1]

    def _bare(self, value: Any) -> Any:
        return value[0]

    def _size(self, value: Any) -> int:
        return value_size(value[0]) + 8


class HeaderValues(Values):
    """`ValueTimestampHeaders`; changelog records have the value's timestamp and headers (KIP-1271)."""

    def _checked(self, key: object, value: Any) -> Any:
        """Return a value that a user puts, None for a value of None.

        Raises:
            SerializationError: it is something else, or what it has cannot be headers.
            InvalidTimestampError: its timestamp is not one.
        """
        if value is None:
            return None
        if not isinstance(value, tuple) or len(value) != 3:
            raise self._wrong_value(key, "a ValueTimestampHeaders(value, timestamp, headers), or None", value)
        data, timestamp, headers = value
        if data is None:
            return None
        if type(timestamp) is int and -1 <= timestamp <= MAX_LONG and type(headers) is Headers:
            return value
        timestamp = self._timestamp(key, "the timestamp of a value", timestamp, -1)
        return ValueTimestampHeaders(data, timestamp, Headers(headers))

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
    """Return the size of a value in bytes, without serialising it: exact for bytes and ASCII text, 8 for numbers."""
    kind = type(value)
    if kind is int or kind is float:
        return 8
    if kind is bytes or kind is str:
        return len(value)  # type: ignore[arg-type]
    return 16
