"""The values that travel through a topology: records, headers, windows, task ids and the context of the current record.

Everything here is data without behaviour. The classes that are created for every record are plain slotted classes or tuples and
must be treated as immutable: freezing a dataclass costs several hundred nanoseconds per instance, too much for that path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from millrace.errors import SerializationError

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

UNKNOWN_TIMESTAMP = -1


class Headers(tuple[tuple[str, "bytes | None"], ...]):
    """Record headers: an immutable sequence of (name, value) pairs in which names may repeat. None makes empty ones.

    Raises:
        SerializationError: a name is not text, or has a lone surrogate and so no bytes; a value is not bytes or None; or
            something else than pairs is given.

    >>> Headers([("trace", b"1")]).add("lang", b"en").last("lang")
    b'en'
    """

    __slots__ = ()

    def __new__(cls, pairs: Iterable[tuple[str, bytes | None]] | None = ()) -> Self:
        """Make headers of pairs."""
        try:
            made = super().__new__(cls, pairs or ())
            for name, value in made:
                _check_header(name, value)
        except (TypeError, ValueError):
            raise SerializationError(
                f"{pairs!r} cannot be headers. Give pairs of a name and bytes, such as [('trace', b'1')], or nothing"
            ) from None
        return made

    def add(self, name: str, value: bytes | None) -> Headers:
        """Return these headers with one added at the end."""
        _check_header(name, value)
        return new_tuple(Headers, (*self, (name, value)))

    def remove(self, name: str) -> Headers:
        """Return these headers without the ones with this name."""
        return new_tuple(Headers, [pair for pair in self if pair[0] != name])

    def last(self, name: str) -> bytes | None:
        """Return the value of the last header of that name, or None."""
        return next((value for key, value in reversed(self) if key == name), None)

    def all(self, name: str) -> Iterator[bytes | None]:
        """Iterate over the values of all headers of that name, in order."""
        return (value for key, value in self if key == name)


def _check_header(name: str, value: bytes | None) -> None:
    """Refuse what confluent-kafka cannot send: it would end the process for a name that has no bytes."""
    try:
        str.encode(name)
    except (TypeError, UnicodeEncodeError) as error:
        raise SerializationError(f"{name!r} cannot be the name of a header: {error}. Names are text") from error
    if value is not None and not isinstance(value, bytes):
        raise SerializationError(
            f"{value!r} cannot be the value of the header {name!r}: give bytes, such as b'1', or None"
        )


new_tuple = tuple.__new__
"""Makes a named tuple from a plain one: `new_tuple(Window, (0, 10))`. The class itself, called, is twice as slow.

Also makes `Headers` without checking their names, if these come from headers or from bytes.
"""

NO_HEADERS = Headers()


@dataclass(slots=True)
class Record(Generic[K, V]):
    """A key, a value, a timestamp in milliseconds since the epoch, and headers. Treat as immutable.

    Headers can be given as pairs too; None means none, as in Java.

    Raises:
        SerializationError: the headers cannot be sent.
    """

    key: K
    value: V
    timestamp: int
    headers: Headers = NO_HEADERS

    def __post_init__(self) -> None:
        """Make headers of what was given."""
        if type(self.headers) is not Headers:
            self.headers = Headers(self.headers)

    def with_key(self, key: K2) -> Record[K2, V]:
        """Return a copy with another key."""
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: V2) -> Record[K, V2]:
        """Return a copy with another value."""
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> Record[K, V]:
        """Return a copy with another timestamp (milliseconds; must not be negative)."""
        return Record(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Iterable[tuple[str, bytes | None]] | None) -> Record[K, V]:
        """Return a copy with other headers."""
        return Record(self.key, self.value, self.timestamp, Headers(headers))


class KeyValue(NamedTuple, Generic[K, V]):
    """A key and a value; what `map`, `flat_map` and store iterators yield. Any 2-tuple can be used instead."""

    key: K
    value: V


class ValueAndTimestamp(NamedTuple, Generic[V]):
    """A value with the timestamp (ms) of the record that last changed it, as timestamped stores hold it."""

    value: V
    timestamp: int


class Change(NamedTuple, Generic[V]):
    """One update of a table: the new value and the one it replaces (None: absent, or old values are not requested).

    Nodes pass plain tuples to each other instead, which cost a tenth; so access the parts by index or by unpacking.
    """

    new: V | None
    old: V | None
    is_latest: bool = True


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TaskId(NamedTuple):
    """A task: one sub-topology over one partition; written `<subtopology>_<partition>`."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Parse a task id as it appears in directory names, for example `0_3`."""
        subtopology, _, partition = text.partition("_")
        return cls(int(subtopology), int(partition))


class OffsetAndMetadata(NamedTuple):
    """An offset to commit (of the next record to read) and its metadata string (formats §9)."""

    offset: int
    metadata: str = ""


class ConsumedRecord(NamedTuple):
    """A record as it was read from a topic, in bytes; timestamp extractors get it deserialised."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: object
    value: object
    headers: Headers = NO_HEADERS


RawRecord: TypeAlias = tuple[str, int, int, int, object, object, Headers]
"""The parts of a `ConsumedRecord`. A host may pass them as a plain tuple, which takes a third of the time to make."""
OFFSET: Final = 2
"""Where a raw record has its offset."""
TIMESTAMP: Final = 3
"""Where it has its timestamp."""
KEY: Final = 4
"""Where it has its key."""
VALUE: Final = 5
"""Where it has its value."""


class Window(NamedTuple):
    """A time window [start, end) in milliseconds; for sessions the end is inclusive."""

    start: int
    end: int


class Windowed(NamedTuple, Generic[K]):
    """A key together with the window it was aggregated in."""

    key: K
    window: Window


@dataclass(slots=True)
class RecordContext:
    """Where the record being processed came from; one per task, overwritten for every record.

    A forward that changes the timestamp or headers also changes them here while the child runs, because stores log their
    changes with them. Outside of processing (in punctuation) topic is None and partition and offset are -1.
    """

    topic: str | None = None
    partition: int = -1
    offset: int = -1
    timestamp: int = UNKNOWN_TIMESTAMP
    headers: Headers = field(default=NO_HEADERS)
    raw_key: bytes | None = None
    raw_value: bytes | None = None

    def copy(self) -> RecordContext:
        """Return a snapshot; the record cache keeps one per entry."""
        return RecordContext(
            self.topic, self.partition, self.offset, self.timestamp, self.headers, self.raw_key, self.raw_value
        )
