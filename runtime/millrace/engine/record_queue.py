"""The queue of one input partition's records that wait for their task; they are deserialised only when they are needed.

There are two ways to take records out, because choosing between partitions needs the timestamp of each queue's head while a
single partition does not: `peek` reads one record ahead, `drain` reads and processes in one loop with everything bound. Records
that cannot be read, or have no valid timestamp, are dropped on the way and count as consumed; one that makes the task fail stays
at the head.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from typing import cast

from millrace.checks import MAX_TIMESTAMP, timestamp_ms
from millrace.config import StreamsConfig
from millrace.dropped_records import DropAt, DropReason
from millrace.engine.compile import CompiledSource
from millrace.engine.error_handling import ErrorHandling
from millrace.engine.punctuation import PunctuationQueue
from millrace.engine.task_state import TaskTimes
from millrace.errors import ConfigError, FailedProcessingError, StreamsError
from millrace.loading import load_instance
from millrace.processor.api import TimestampExtractor
from millrace.processor.timestamp_extractors import (
    EXTRACTORS_BY_NAME,
    RECORD_TIMESTAMP_EXTRACTORS,
    fail_on_invalid_timestamp,
)
from millrace.records import (
    OFFSET,
    UNKNOWN_TIMESTAMP,
    ConsumedRecord,
    Headers,
    RawRecord,
    RecordContext,
    TopicPartition,
)
from millrace.serdes.primitives import c_decoder

_SHORTEST_RUN = 8
_LONGEST_RUN = 1024
"""Records taken at a time while another partition waits, or a punctuation may: few while turns alternate, then more as long as
they do not."""

_offset_of: Callable[[RawRecord], int] = itemgetter(OFFSET)

Head = tuple[int, object, object, RawRecord]
"""timestamp ms, key, value, the raw record."""


class Turn:
    """How long a task may go on processing: as long as there is something, unless a host has its own turns.

    Between two records `clock` is read, which costs a few dozen nanoseconds; once it has reached `look_at`, the host is asked.
    """

    clock: Callable[[], float] = int
    look_at: float = math.inf

    def over(self) -> bool:
        """Return whether to stop before the next record; the answer stays yes until the host begins another turn."""
        return False


ENDLESS = Turn()


class RecordQueue:
    """One input partition of a task."""

    __slots__ = (
        "_current",
        "_decode",
        "_drop",
        "_extract",
        "_failures",
        "_forward",
        "_own_timestamps",
        "_punctuations",
        "_read_key",
        "_read_value",
        "_run",
        "_source",
        "_times",
        "committed_position",
        "head",
        "idle_deadline_ms",
        "lag",
        "partition",
        "partition_time",
        "position",
        "raw",
    )

    def __init__(
        self,
        partition: TopicPartition,
        source: CompiledSource,
        extractor: TimestampExtractor,
        *,
        current: RecordContext,
        times: TaskTimes,
        failures: ErrorHandling,
        drop_record: DropAt,
        punctuations: PunctuationQueue | None = None,
    ) -> None:
        self.partition = partition
        self.partition_time = UNKNOWN_TIMESTAMP
        self.position: int | None = None
        """Offset of the next record to process; None until one has been consumed."""
        self.committed_position: int | None = None
        """`position` at the last commit."""
        self.lag: int | None = None
        """Records known to be on the broker but not fetched; None = unknown."""
        self.idle_deadline_ms: int | None = None
        self.raw: deque[RawRecord] = deque()
        self.head: Head | None = None
        self._source = source
        self._read_key = source.key_serde.deserialize
        self._read_value = source.value_serde.deserialize
        self._decode = c_decoder(source.key_serde) if c_decoder(source.value_serde) is not None else None
        self._extract = extractor
        self._own_timestamps = extractor in RECORD_TIMESTAMP_EXTRACTORS
        self._forward = source.forward
        self._current = current
        self._times = times
        self._failures = failures
        self._drop = drop_record
        self._punctuations = punctuations
        self._run = _SHORTEST_RUN

    def __len__(self) -> int:
        return len(self.raw) + (self.head is not None)

    def __repr__(self) -> str:
        return f"<queue of {self.partition}: {len(self)} records, next offset {self.position}>"

    def head_offset(self) -> int | None:
        """Return the offset of the record to be processed next, or None if the queue is empty."""
        if self.head is not None:
            return self.head[3][OFFSET]
        return self.raw[0][OFFSET] if self.raw else None

    def peek(self) -> int | None:
        """Read the head if necessary; return its timestamp, or None if no valid record is left."""
        head = self.head
        while head is None:
            if not self.raw:
                return None
            raw = self.raw.popleft()
            try:
                self.head = head = self._read(raw)
            except StreamsError:
                self._put_back(raw)
                raise
            if head is None:
                self.position = raw[OFFSET] + 1
        return head[0]

    def process_head(self) -> None:
        """Process the record that `peek` read."""
        assert self.head is not None
        timestamp, key, value, raw = self.head
        _, _, offset, _, raw_key, raw_value, headers = raw
        self.head = None
        if timestamp > self.partition_time:
            self.partition_time = timestamp
        times = self._times
        if timestamp > times.stream_time:
            times.stream_time = timestamp
        current = self._current
        current.topic, current.partition = self.partition
        current.offset = offset
        current.timestamp = timestamp
        current.headers = headers
        current.raw_key = raw_key  # type: ignore[assignment]
        current.raw_value = raw_value  # type: ignore[assignment]
        try:
            self._forward(key, value, timestamp, headers)
        except StreamsError:
            self._put_back(raw)
            raise
        except Exception as error:
            self._put_back(raw)
            raise self._unexpected(error, offset) from error
        self.position = offset + 1

    def drain(  # noqa: C901, PLR0912, PLR0915 (one loop, unrolled)
        self, max_records: int, until: int | None = None, turn: Turn = ENDLESS
    ) -> int:
        """Process at most this many records, including the head; return how many were taken from the queue.

        If the queue knows the task's punctuations, it stops after the record that makes one due.

        Args:
            max_records: how many at most.
            until: the timestamp of another partition's head, or a large one if no other has any: None is for a task's only
                partition. A head that has already been read is processed in any case; of the others, the first that is not
                earlier than `until` becomes the head. As with `peek`, dropped records do not count.
            turn: when it is over, no further record is begun.
        """
        done = 0
        punctuations = self._punctuations
        clock, look_at = turn.clock, turn.look_at
        if self.head is not None and max_records > 0:
            self.process_head()
            done = 1
            if punctuations is not None and self._times.stream_time >= punctuations.next_ms:
                return done
            if clock() >= look_at and turn.over():
                return done
        waiting = self.raw
        whole = until is None and punctuations is None
        limit = min(max_records - done, len(waiting) if whole else self._run, len(waiting))
        if limit <= 0:
            return done
        batch = list(waiting) if limit == len(waiting) else list(islice(waiting, limit))
        forward, read_key, read_value = self._forward, self._read_key, self._read_value
        own_timestamps, times, current = self._own_timestamps, self._times, self._current
        topic, partition = self.partition
        partition_time, stream_time = self.partition_time, times.stream_time
        current.topic = topic
        current.partition = partition
        decode = self._decode
        offset = -1
        dropped = 0
        run = 2 * self._run
        try:
            for raw in batch:
                if clock() >= look_at and offset >= 0:
                    if turn.over():
                        limit = _index(batch, offset) + 1
                        run = _SHORTEST_RUN
                        break
                    look_at = turn.look_at
                _, _, offset, timestamp, raw_key, raw_value, headers = raw
                if decode is not None:
                    try:
                        key = None if raw_key is None else decode(raw_key)  # type: ignore[arg-type]
                        value = None if raw_value is None else decode(raw_value)  # type: ignore[arg-type]
                    except Exception:
                        decode = None  # the serdes read this record, and the rest of the batch
                if decode is None:
                    try:
                        key = None if raw_key is None else read_key(topic, raw_key, headers)  # type: ignore[arg-type]
                        value = None if raw_value is None else read_value(topic, raw_value, headers)  # type: ignore[arg-type]
                    except Exception as error:
                        self._unreadable(raw, error)
                        dropped += 1
                        continue
                if timestamp < 0 or not own_timestamps:
                    timestamp = self._timestamp(offset, timestamp, key, value, headers, partition_time)
                    if timestamp < 0:
                        dropped += 1
                        continue
                if until is not None and timestamp >= until:
                    self.head = timestamp, key, value, raw
                    before = batch.index(raw)
                    self._run = _SHORTEST_RUN
                    self._take(before + 1, offset)
                    return done + before - dropped
                if timestamp > partition_time:
                    partition_time = timestamp
                    if timestamp > stream_time:
                        times.stream_time = stream_time = timestamp
                current.offset = offset
                current.timestamp = timestamp
                current.headers = headers
                current.raw_key = raw_key  # type: ignore[assignment]
                current.raw_value = raw_value  # type: ignore[assignment]
                forward(key, value, timestamp, headers)
                if punctuations is not None and stream_time >= punctuations.next_ms:
                    limit = _index(batch, offset) + 1
                    run = _SHORTEST_RUN
                    break
        except StreamsError:
            self._take(_index(batch, offset), offset)
            raise
        except Exception as error:
            self._take(_index(batch, offset), offset)
            raise self._unexpected(error, offset) from error
        finally:
            self.partition_time = partition_time
        self._take(limit, offset + 1)
        self._run = min(run, _LONGEST_RUN)
        return done + limit - (0 if until is None else dropped)

    def _take(self, number: int, position: int) -> None:
        """Remove processed records, and note the offset of the next."""
        waiting = self.raw
        if number == len(waiting):
            waiting.clear()
        else:
            for _ in range(number):
                waiting.popleft()
        self.position = position

    def _put_back(self, raw: RawRecord) -> None:
        """Keep a record that failed at the head, so that its offset is not committed."""
        self.raw.appendleft(raw)
        self.position = raw[OFFSET]

    def _read(self, raw: RawRecord) -> Head | None:
        topic, _, offset, timestamp, raw_key, raw_value, headers = raw
        try:
            key = None if raw_key is None else self._read_key(topic, raw_key, headers)  # type: ignore[arg-type]
            value = None if raw_value is None else self._read_value(topic, raw_value, headers)  # type: ignore[arg-type]
        except Exception as error:
            self._unreadable(raw, error)
            return None
        if timestamp < 0 or not self._own_timestamps:
            timestamp = self._timestamp(offset, timestamp, key, value, headers, self.partition_time)
            if timestamp < 0:
                return None
        return timestamp, key, value, raw

    def _timestamp(
        self, offset: int, timestamp: int, key: object, value: object, headers: Headers, partition_time: int
    ) -> int:
        record = ConsumedRecord(*self.partition, offset, timestamp, key, value, headers)
        try:
            timestamp = self._extract(record, partition_time)
        except StreamsError:
            raise
        except Exception as error:
            raise FailedProcessingError(
                f"The timestamp extractor {self._extract!r} of source {self._source.name} failed on the record at offset "
                f"{offset} of {self.partition}: {error!r}. An extractor may return -1 to have a record dropped."
            ) from error
        if type(timestamp) is not int or timestamp > MAX_TIMESTAMP:
            timestamp = timestamp_ms(
                timestamp,
                lambda: (
                    f"What the timestamp extractor {self._extract!r} of source {self._source.name} returns for the record at "
                    f"offset {offset} of {self.partition}"
                ),
                -MAX_TIMESTAMP - 1,
            )
        if timestamp < 0:
            self._drop(self._source.name, DropReason.INVALID_TIMESTAMP)
        return timestamp

    def _unreadable(self, raw: RawRecord, error: Exception) -> None:
        source, record = self._source, ConsumedRecord._make(raw)
        self._failures.deserialization_failed(source.name, record, source.key_serde, source.value_serde, error)

    def _unexpected(self, error: Exception, offset: int) -> FailedProcessingError:
        return FailedProcessingError(
            f"Processing failed on the record at offset {offset} of {self.partition} (source {self._source.name}): "
            f"{type(error).__name__}: {error}"
        )


def _index(batch: list[RawRecord], offset: int) -> int:
    return bisect_left(batch, offset, key=_offset_of)


def default_timestamp_extractor(config: StreamsConfig) -> TimestampExtractor:
    """Return the extractor of `default.timestamp.extractor`; see `millrace.loading` for what the value may be.

    Raises:
        ConfigError: the value names no function.
    """
    key, value = "default.timestamp.extractor", config.default_timestamp_extractor
    if value is None:
        return fail_on_invalid_timestamp
    found = load_instance(value, key, EXTRACTORS_BY_NAME)
    if not callable(found):
        raise ConfigError(f"{key}: {value!r} is not callable")
    return cast("TimestampExtractor", found)
