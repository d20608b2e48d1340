"""The questions that `KafkaStreams.query` answers (KIP-796 and its successors, up to Kafka 4.4).

What each returns per partition:

| query | of stores | result |
|---|---|---|
| `KeyQuery` | key-value | value or None |
| `TimestampedKeyQuery` | timestamped | `ValueAndTimestamp` or None |
| `TimestampedKeyWithHeadersQuery` | with headers | `Record` or None |
| `RangeQuery` | key-value | rows of key and value |
| `TimestampedRangeQuery` | timestamped | rows of key and `ValueAndTimestamp` |
| `TimestampedRangeWithHeadersQuery` | with headers | records |
| `WindowKeyQuery` | window | rows of window start and value, as the store keeps it, without headers |
| `TimestampedWindowKeyWithHeadersQuery` | window, with headers | records whose key is `Windowed` |
| `WindowRangeQuery.with_window_start_range` | window | rows of `Windowed` key and value, as the store keeps it, without headers |
| `WindowRangeQuery.with_key` | session | rows of `Windowed` key and aggregate |
| `TimestampedWindowRangeWithHeadersQuery` | the same, with headers | records whose key is `Windowed` |
| `VersionedKeyQuery` | versioned | `VersionedRecord` or None |
| `MultiVersionedKeyQuery` | versioned | versions, newest first unless ascending |

A store with more is also read as one with less. A session's record has its end as timestamp. Rows and records come in a
`StoreIterator`. Times are in ms since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, Self, TypeVar

from millrace.checks import Suggesting, mistake
from millrace.query.read_only_stores import StoreIterator
from millrace.records import KeyValue, Record, ValueAndTimestamp, Windowed
from millrace.state.keys import MAX_LONG
from millrace.state.versioned import VersionedRecord

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Query(Suggesting, Generic[R]):
    """A question about one state store; R is what it returns per partition."""


class ResultOrder(Enum):
    """In which order rows are returned."""

    ANY = "any"
    ASCENDING = "ascending"
    DESCENDING = "descending"


@dataclass(frozen=True)
class _OneKey(Query[R], Generic[K, R]):
    key: K
    skips_cache: bool = False

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Ask for one key.

        Raises:
            TopologyError: it is None.
        """
        return cls(_present(key, cls))

    def skip_cache(self) -> Self:
        """Leave the record cache out: read only what has been flushed to the store."""
        return replace(self, skips_cache=True)


class KeyQuery(_OneKey[K, V]):
    """The value of a key, without timestamp and headers.

    >>> KeyQuery.with_key("hello").skip_cache()
    KeyQuery(key='hello', skips_cache=True)
    """


class TimestampedKeyQuery(_OneKey[K, ValueAndTimestamp[V]], Generic[K, V]):
    """The value of a key with its timestamp (KIP-992)."""


class TimestampedKeyWithHeadersQuery(_OneKey[K, Record[K, V]], Generic[K, V]):
    """The value of a key with timestamp and headers (KIP-1356)."""


@dataclass(frozen=True)
class _KeyRange(Query[R], Generic[K, R]):
    lower: K | None = None
    upper: K | None = None
    order: ResultOrder = ResultOrder.ANY

    @classmethod
    def with_range(cls, lower: K | None, upper: K | None) -> Self:
        """Ask for lower <= key <= upper, by the serialised keys; None is open."""
        return cls(lower, upper)

    @classmethod
    def with_lower_bound(cls, lower: K) -> Self:
        """Ask for lower <= key."""
        return cls(lower, None)

    @classmethod
    def with_upper_bound(cls, upper: K) -> Self:
        """Ask for key <= upper."""
        return cls(None, upper)

    @classmethod
    def with_no_bounds(cls) -> Self:
        """Ask for all keys."""
        return cls()

    def with_ascending_keys(self) -> Self:
        """Order rows by the serialised key."""
        return replace(self, order=ResultOrder.ASCENDING)

    def with_descending_keys(self) -> Self:
        """Order rows by the serialised key, greatest first."""
        return replace(self, order=ResultOrder.DESCENDING)


class RangeQuery(_KeyRange[K, StoreIterator[KeyValue[K, V]]], Generic[K, V]):
    """Keys and values, without timestamps and headers (KIP-805).

    >>> RangeQuery.with_range("a", "c").with_descending_keys()
    RangeQuery(lower='a', upper='c', order=<ResultOrder.DESCENDING: 'descending'>)
    """


class TimestampedRangeQuery(_KeyRange[K, StoreIterator[KeyValue[K, ValueAndTimestamp[V]]]], Generic[K, V]):
    """Keys, and values with their timestamps (KIP-992)."""


class TimestampedRangeWithHeadersQuery(_KeyRange[K, StoreIterator[Record[K, V]]], Generic[K, V]):
    """Keys, and values with timestamps and headers (KIP-1356)."""


@dataclass(frozen=True)
class _WindowsOfKey(Query[R], Generic[K, R]):
    key: K
    time_from: int
    time_to: int

    @classmethod
    def with_key_and_window_start_range(cls, key: K, time_from: int, time_to: int) -> Self:
        """Ask for the windows of a key that start in [time_from, time_to] (ms).

        Raises:
            TopologyError: the key is None, or a time is not an int.
        """
        return cls(_present(key, cls), _time(time_from, cls), _time(time_to, cls))


class WindowKeyQuery(_WindowsOfKey[K, StoreIterator[KeyValue[int, V]]], Generic[K, V]):
    """The windows of a key (KIP-806)."""


class TimestampedWindowKeyWithHeadersQuery(_WindowsOfKey[K, StoreIterator[Record[Windowed[K], V]]], Generic[K, V]):
    """The windows of a key, with timestamps and headers (KIP-1356)."""


@dataclass(frozen=True)
class _WindowRange(Query[R], Generic[K, R]):
    key: K | None = None
    time_from: int | None = None
    time_to: int | None = None

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Ask for all sessions of a key, of a session store.

        Raises:
            TopologyError: it is None.
        """
        return cls(key=_present(key, cls))

    @classmethod
    def with_window_start_range(cls, time_from: int, time_to: int) -> Self:
        """Ask for the windows of all keys that start in [time_from, time_to] (ms), of a window store.

        Raises:
            TopologyError: a time is not an int.
        """
        return cls(time_from=_time(time_from, cls), time_to=_time(time_to, cls))


class WindowRangeQuery(_WindowRange[K, StoreIterator[KeyValue[Windowed[K], V]]], Generic[K, V]):
    """The windows of all keys, or the sessions of one (KIP-806)."""


class TimestampedWindowRangeWithHeadersQuery(_WindowRange[K, StoreIterator[Record[Windowed[K], V]]], Generic[K, V]):
    """The windows of all keys, or the sessions of one, with timestamps and headers (KIP-1356)."""


@dataclass(frozen=True)
class VersionedKeyQuery(Query[VersionedRecord[V]], Generic[K, V]):
    """The latest version of a key, or the one valid at a time (KIP-960).

    >>> VersionedKeyQuery.with_key("hello").as_of(1_000)
    VersionedKeyQuery(key='hello', as_of_timestamp=1000)
    """

    key: K
    as_of_timestamp: int | None = None

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Ask for one key.

        Raises:
            TopologyError: it is None.
        """
        return cls(_present(key, cls))

    def as_of(self, timestamp: int) -> Self:
        """Ask for the version that was valid at a time (ms).

        Raises:
            TopologyError: it is not an int.
        """
        return replace(self, as_of_timestamp=_time(timestamp, type(self)))


@dataclass(frozen=True)
class MultiVersionedKeyQuery(Query[StoreIterator[VersionedRecord[V]]], Generic[K, V]):
    """The versions of a key that were valid at some time in a range (KIP-968).

    >>> MultiVersionedKeyQuery.with_key("hello").from_time(5).with_ascending_timestamps().order
    <ResultOrder.ASCENDING: 'ascending'>
    """

    key: K
    time_from: int = -MAX_LONG - 1
    time_to: int = MAX_LONG
    order: ResultOrder = ResultOrder.ANY

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Ask for one key.

        Raises:
            TopologyError: it is None.
        """
        return cls(_present(key, cls))

    def from_time(self, time_from: int) -> Self:
        """Leave out versions that ended before a time (ms)."""
        return replace(self, time_from=_time(time_from, type(self)))

    def to_time(self, time_to: int) -> Self:
        """Leave out versions that began after a time (ms)."""
        return replace(self, time_to=_time(time_to, type(self)))

    def with_ascending_timestamps(self) -> Self:
        """Order versions by time, oldest first."""
        return replace(self, order=ResultOrder.ASCENDING)

    def with_descending_timestamps(self) -> Self:
        """Order versions by time, newest first."""
        return replace(self, order=ResultOrder.DESCENDING)


def _present(key: K, query: type) -> K:
    if key is None:
        raise mistake(f"{query.__name__} needs a key, which cannot be None")
    return key


def _time(given: int, query: type) -> int:
    if type(given) is not int:
        raise mistake(f"{query.__name__} needs times as ints, in ms since the epoch, not {given!r}")
    return given
