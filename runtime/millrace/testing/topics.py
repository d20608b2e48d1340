"""The typed topics of a test driver: pipe records into them, and read results from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from millrace.checks import Suggesting, timestamp_ms, wrong
from millrace.durations import Duration, to_millis
from millrace.errors import InvalidTimestampError
from millrace.records import NO_HEADERS, Headers, KeyValue, Record
from millrace.serdes.base import Serde
from millrace.testing.output_collector import ProducedRecord

K = TypeVar("K")
V = TypeVar("V")

PipeFn = Callable[[str, "bytes | None", "bytes | None", int, Headers], None]
_SHOWN = 5


class TestInputTopic(Suggesting, Generic[K, V]):
    """An input topic: serialises records and has the driver process them immediately.

    Timestamps that are not given start at `start_ms` and increase by `auto_advance_ms` with each record.
    """

    __test__ = False  # keeps pytest from taking it for a test class because of its name

    def __init__(
        self,
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        pipe: PipeFn,
        *,
        start_ms: int,
        auto_advance_ms: Duration = 0,
    ) -> None:
        self.name = name
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._pipe = pipe
        self._next_ms = timestamp_ms(start_ms, lambda: f"The start of input topic {name}", -(2**63))
        self._auto_advance_ms = to_millis(auto_advance_ms, "auto_advance_ms")

    def pipe_input(
        self,
        key: K | None,
        value: V | None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = NO_HEADERS,
    ) -> None:
        """Pipe one record.

        Args:
            key: None is a null key.
            value: None is a tombstone.
            timestamp: milliseconds since the epoch; None for the topic's own time, which then advances.
            headers: name and value pairs.

        Raises:
            TopologyError: the timestamp is no whole number of milliseconds.
        """
        if timestamp is None:
            timestamp = self._next_ms
            self._next_ms += self._auto_advance_ms
        else:
            try:
                timestamp = timestamp_ms(timestamp, str, -(2**63))
            except InvalidTimestampError:
                raise wrong("the timestamp", "whole milliseconds since the epoch", timestamp) from None
        headers = Headers(headers)
        key_bytes = None if key is None else self._key_serde.serialize(self.name, key, headers)
        value_bytes = None if value is None else self._value_serde.serialize(self.name, value, headers)
        self._pipe(self.name, key_bytes, value_bytes, timestamp, headers)

    def pipe_value(self, value: V | None, timestamp: int | None = None) -> None:
        """Pipe one record with a null key."""
        self.pipe_input(None, value, timestamp)

    def pipe_record(self, record: Record[Any, Any]) -> None:
        """Pipe one record with its own timestamp and headers."""
        self.pipe_input(record.key, record.value, record.timestamp, record.headers)

    def pipe_list(
        self, pairs: Iterable[tuple[K | None, V | None]], start_ms: int | None = None, advance_ms: int = 0
    ) -> None:
        """Pipe (key, value) pairs; with `start_ms` their timestamps start there and grow by `advance_ms`."""
        timestamp = start_ms
        for key, value in pairs:
            self.pipe_input(key, value, timestamp)
            timestamp = None if timestamp is None else timestamp + advance_ms

    def pipe_values(self, values: Iterable[V | None]) -> None:
        """Pipe values with null keys."""
        for value in values:
            self.pipe_value(value)

    def pipe_records(self, records: Iterable[Record[Any, Any]]) -> None:
        """Pipe records with their own timestamps and headers."""
        for record in records:
            self.pipe_record(record)

    def advance_time(self, by_ms: Duration) -> None:
        """Advance the topic's own time, for records without a timestamp.

        Raises:
            TopologyError: it would go back; give records timestamps instead.
        """
        self._next_ms += to_millis(by_ms, "What the topic's time is advanced by")

    def __repr__(self) -> str:
        return f"<input topic {self.name}: next timestamp {self._next_ms}, {self._key_serde!r} → {self._value_serde!r}>"


class TestOutputTopic(Suggesting, Generic[K, V]):
    """An output topic: reads, in order, what the topology has sent to it."""

    __test__ = False

    def __init__(
        self,
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        queue: deque[ProducedRecord],
        now_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._queue = queue
        self._now_ms = now_ms

    def read_record(self) -> Record[K | None, V | None]:
        """Read the next record.

        Raises:
            LookupError: nothing is left.
        """
        if not self._queue:
            raise LookupError(f"Nothing more was sent to topic {self.name}")
        return self._record(self._queue.popleft())

    def read_key_value(self) -> KeyValue[K | None, V | None]:
        """Read the next record's key and value."""
        record = self.read_record()
        return KeyValue(record.key, record.value)

    def read_value(self) -> V | None:
        """Read the next record's value."""
        return self.read_record().value

    def read_records_to_list(self) -> list[Record[K | None, V | None]]:
        """Read all remaining records."""
        return [self.read_record() for _ in range(len(self._queue))]

    def read_key_values_to_list(self) -> list[KeyValue[K | None, V | None]]:
        """Read keys and values of all remaining records."""
        return [self.read_key_value() for _ in range(len(self._queue))]

    def read_key_values_to_map(self) -> dict[K | None, V | None]:
        """Read all remaining records into a map; the last value of each key wins."""
        return dict(self.read_key_values_to_list())

    def read_values_to_list(self) -> list[V | None]:
        """Read the values of all remaining records."""
        return [self.read_value() for _ in range(len(self._queue))]

    def is_empty(self) -> bool:
        """Return whether nothing is left to read."""
        return not self._queue

    def queue_size(self) -> int:
        """Return how many records are left to read."""
        return len(self._queue)

    def _record(self, produced: ProducedRecord) -> Record[K | None, V | None]:
        name, headers = self.name, produced.headers
        key = None if produced.key is None else self._key_serde.deserialize(name, produced.key, headers)
        value = None if produced.value is None else self._value_serde.deserialize(name, produced.value, headers)
        return Record(key, value, self._now_ms() if produced.timestamp is None else produced.timestamp, headers)

    def __repr__(self) -> str:
        lines = [f"<output topic {self.name}: {len(self._queue)} records to read>"]
        lines += [f"  {self._show(produced)}" for produced in list(self._queue)[:_SHOWN]]
        if len(self._queue) > _SHOWN:
            lines.append("  …")
        return "\n".join(lines)

    def _show(self, produced: ProducedRecord) -> str:
        try:
            record = self._record(produced)
        except Exception as error:
            return f"{produced.key!r} → {produced.value!r} @ {produced.timestamp} (not readable: {error})"
        return f"{record.key!r} → {record.value!r} @ {record.timestamp}"
