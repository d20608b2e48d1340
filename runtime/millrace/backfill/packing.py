"""Packs the records that tasks send, to each other or to be written: Spark moves batches of them, and never sees one by itself.

A packed row has many records of one topic's partition from one task in its `value`, in the form of an Arrow message, and the
`reached` and `number` of their first. So Spark's own order puts the packed rows of a partition in the order in which they begin.
What is left is to merge them, as those of different tasks overlap: records are in their order once no row that follows can have
earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.backfill.rows import COLUMNS, HEADERS_TYPE, REPORT, SCHEMA, Row, headers_array, values_of
from millrace.engine.partitioner import partition_for_key
from millrace.records import NO_HEADERS, UNKNOWN_TIMESTAMP, Headers, TopicPartition

__all__ = ["Changed", "PackedTopic", "Size", "bytes_of", "merged", "packed_changes", "size_of", "unpacked"]

_RECORDS = 10_000
_RECORDS_PER_PARTITION = 500
_BYTES = 16 * 1024 * 1024
"""How many bytes are packed at once, and one record more."""
_ROW_BYTES = 1024 * 1024
"""About how large a row is, or one record more. Rows of many tasks are merged, with one of each task in memory."""
_WAITING_BYTES = 200
"""What a record that is not packed yet takes besides its bytes, about."""
_MERGE_AT = 10_000
"""How many records are read before as many as possible are merged."""
_MERGE_BYTES = 64 * 1024 * 1024
"""How many bytes, likewise."""
_CONTENT = pa.schema(
    [
        ("reached", pa.int64()),
        ("number", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
_RECORD = ["timestamp", "key", "value", "headers"]
_MERGED = pa.schema([("topic", pa.string()), *_CONTENT])
_UNPACKED = pa.schema([SCHEMA.field(name) for name in COLUMNS])
Sent = tuple[int, "bytes | None", "bytes | None", Headers, "int | None"]
"""Timestamp, key, value, headers, and the partition if it was given."""
Changed = tuple[int, "bytes | None", "bytes | None", Headers]
"""Timestamp, key, value and headers of a record whose partition is known."""
_Record = TypeVar("_Record", Sent, Changed)
_KEY, _VALUE, _HEADERS = itemgetter(1), itemgetter(2), itemgetter(3)
_Longs = np.ndarray[Any, np.dtype[np.int64]]


class Size(NamedTuple):
    """How much there is of a topic."""

    records: int = 0
    bytes: int = 0
    """Of keys, values and headers."""

    def plus(self, records: int, size: int) -> Size:
        """Return this and some more."""
        return Size(self.records + records, self.bytes + size)


def size_of(records: pa.RecordBatch) -> Size:
    """Return how much single records are."""
    columns, headers = [records.column("key"), records.column("value")], records.column("headers")
    if headers.null_count < len(headers):
        columns += headers.flatten().flatten()
    return Size(len(records), sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns))


class PackedTopic:
    """What one task sends to one topic.

    Args:
        topic: the topic.
        partitions: how many it has.
        task: who sends.
        keyless: the partition of records without a key.
    """

    def __init__(self, topic: str, partitions: int, task: str, keyless: int) -> None:
        self.sent: list[Sent] = []
        """Records that are not packed yet; to be appended to."""
        self.size = Size()
        """Of what has been packed."""
        self._topic = topic
        self._partitions = partitions
        self._task = task
        self._keyless = keyless
        self._enough = max(_RECORDS, partitions * _RECORDS_PER_PARTITION)
        self._number = 0
        self._counted = 0
        """How many of `sent` have been counted."""
        self._bytes = 0
        """How many bytes these are."""
        self._sent_bytes = 0
        """How many bytes had been sent when they were counted."""
        self._reached = [UNKNOWN_TIMESTAMP] * partitions
        """The largest timestamp sent to each partition."""

    def count(self) -> int:
        """Return how many bytes have been sent, with headers."""
        new = _bytes(self.sent[self._counted :])
        self._sent_bytes += new
        self._bytes += new
        self._counted = len(self.sent)
        return self._sent_bytes

    def take(self, *, everything: bool) -> list[Row]:
        """Return packed rows if there is enough to pack, or if everything has to be."""
        self.count()
        sent, size = self.sent, self._bytes
        if not sent or not (everything or len(sent) >= self._enough or size >= _BYTES):
            return []
        self.sent, self._counted, self._bytes = [], 0, 0
        if size < _BYTES:
            return self._packed(sent)
        return list(chain.from_iterable(map(self._packed, _divided(sent, _BYTES))))

    @property
    def waiting(self) -> int:
        """How much memory is taken by what the last `take` left, about."""
        return self._bytes + _WAITING_BYTES * self._counted

    def _packed(self, sent: Sequence[Sent]) -> list[Row]:
        timestamps, keys, values, headers, given = zip(*sent, strict=True)
        batch = _batch(timestamps, keys, values, headers)
        partitions = self._partitions_of(keys, given)
        times = batch.column("timestamp").to_numpy()
        self.size = self.size.plus(*size_of(batch))
        order = np.argsort(partitions, kind="stable")
        ends = np.cumsum(np.bincount(partitions, minlength=self._partitions))
        rows = []
        for partition, (start, end) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
            if start < end:
                places = order[start:end]
                reached = np.maximum(np.maximum.accumulate(times[places]), self._reached[partition])
                self._reached[partition] = int(reached[-1])
                records = batch if end - start == len(batch) else batch.take(pa.array(places))
                numbers = places + (self._number + 1)
                step = max(1, len(places) * _ROW_BYTES // records.nbytes)
                for at in range(0, len(places), step):
                    some = slice(at, at + step)
                    part = reached[some], numbers[some], records.slice(at, step)
                    rows.append(_row(self._topic, partition, self._task, *part))
        self._number += len(sent)
        return rows

    def _partitions_of(self, keys: Sequence[bytes | None], given: Sequence[int | None]) -> _Longs:
        count, keyless = self._partitions, self._keyless
        if count == 1:
            return np.zeros(len(keys), np.int64)
        partitions = (
            partition if partition is not None else keyless if key is None else partition_for_key(key, count)
            for key, partition in zip(keys, given, strict=True)
        )
        return np.fromiter(partitions, np.int64, len(keys))


def packed_changes(
    target: TopicPartition, task: str, number: int, changes: Iterable[Changed]
) -> Iterator[tuple[Row, Size]]:
    """Return the records of one partition in their order as packed rows, each with the size of its records.

    They come before whatever else a task sends to the partition, which `reached` says: rows of one task must not overlap.

    Args:
        target: the partition.
        task: who sends.
        number: of the first record.
        changes: the records.
    """
    for some in _divided(changes, _ROW_BYTES):
        batch = _batch(*zip(*some, strict=True))
        numbers = np.arange(number, number + len(some), dtype=np.int64)
        number += len(some)
        yield _row(*target, task, np.full(len(some), UNKNOWN_TIMESTAMP), numbers, batch), size_of(batch)


def _divided(records: Iterable[_Record], limit_bytes: int) -> Iterator[list[_Record]]:
    """Divide records by their number and their bytes, holding no more than one group at a time."""
    found: list[_Record] = []
    size = 0
    for record in records:
        found.append(record)
        size += bytes_of(*record[1:4])
        if size >= limit_bytes or len(found) >= _RECORDS:
            yield found
            found, size = [], 0
    if found:
        yield found


def _bytes(records: Sequence[_Record]) -> int:
    """Return how many bytes keys, values and headers have."""
    size = sum(map(len, filter(None, chain(map(_KEY, records), map(_VALUE, records)))))
    return size + sum(map(_length, filter(None, map(_HEADERS, records))))


def _batch(
    timestamps: Sequence[int], keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers]
) -> pa.RecordBatch:
    columns = [
        pa.array(timestamps, pa.int64()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        headers_array(headers),
    ]
    return pa.RecordBatch.from_arrays(columns, _RECORD)


def bytes_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return how many bytes a record has."""
    return len(key or b"") + len(value or b"") + (_length(headers) if headers else 0)


def _length(headers: Headers) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


def _row(topic: str, partition: int, task: str, reached: _Longs, numbers: _Longs, records: pa.RecordBatch) -> Row:
    content = pa.RecordBatch.from_arrays([pa.array(reached), pa.array(numbers), *records.columns], schema=_CONTENT)
    value = content.serialize().to_pybytes()
    first = int(reached[0]), task, int(numbers[0])
    return Row(topic, partition, *first, 0, None, value, NO_HEADERS, len(numbers))


class _Source(NamedTuple):
    """Where records come from; decides between records that have the same `reached`."""

    returns: bool
    topic: str
    task: str


class _Run(NamedTuple):
    """Records of one source in their order."""

    source: _Source
    reached: _Longs
    records: pa.RecordBatch

    def slice(self, start: int, end: int) -> _Run:
        """Return some of them."""
        return _Run(self.source, self.reached[start:end], self.records.slice(start, end - start))


def merged(batches: Iterator[pa.RecordBatch], circular: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Return single records in the order in which their task is to get them.

    Args:
        batches: rows in that order, of which some are packed; reports are left out.
        circular: topics whose records come after others with the same `reached`.
    """
    held: list[_Run] = []
    count = size = 0
    for run in _runs(batches, circular):
        if count >= _MERGE_AT or size >= _MERGE_BYTES:
            # No record that follows is earlier than the first of this run. Of its own source, all in hand are.
            bound, source = int(run.reached[0]), run.source
            ends = [
                len(one.reached)
                if one.source == source
                else int(np.searchsorted(one.reached, bound, "right" if one.source < source else "left"))
                for one in held
            ]
            due = [one.slice(0, end) for one, end in zip(held, ends, strict=True) if end]
            if due:
                yield _merge(due)
            held = [
                one.slice(end, len(one.reached)) for one, end in zip(held, ends, strict=True) if end < len(one.reached)
            ]
            count = sum(len(one.reached) for one in held)
            size = sum(one.records.nbytes for one in held)
        held.append(run)
        count += len(run.reached)
        size += run.records.nbytes
    if held:
        yield _merge(held)


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows without `packed`, each of one record, in any order."""
    for batch in batches:
        packed = values_of(batch, "packed")
        for index in np.nonzero(np.greater(packed, 0))[0].tolist():
            records = _content(batch, index)
            topic, partition, task = (batch.column(name)[index] for name in ("topic", "partition", "task"))
            columns = {
                "topic": pa.repeat(topic, len(records)),
                "partition": pa.repeat(partition, len(records)),
                "task": pa.repeat(task, len(records)),
                **{name: records.column(name) for name in _CONTENT.names},
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in COLUMNS], schema=_UNPACKED)
        single = batch.filter(pa.array(np.equal(packed, 0)))
        # Spark's batches say which columns may be null, and all that is returned needs one schema.
        yield pa.RecordBatch.from_arrays(
            [single.column(name).cast(_UNPACKED.field(name).type) for name in COLUMNS], schema=_UNPACKED
        )


def _runs(batches: Iterator[pa.RecordBatch], circular: frozenset[str]) -> Iterator[_Run]:
    """Return runs in the order of their first records."""
    for batch in batches:
        packed, single = values_of(batch, "packed"), batch.select(_CONTENT.names)
        rows: dict[_Source, list[int]] = {}
        found: list[tuple[int, _Run]] = []
        for index, (topic, task) in enumerate(zip(values_of(batch, "topic"), values_of(batch, "task"), strict=True)):
            if topic == REPORT or packed[index] < 0:
                continue
            source = _Source(topic in circular, topic, task)
            if packed[index]:
                found.append((index, _run(source, _content(batch, index))))
            else:
                rows.setdefault(source, []).append(index)
        found += [(places[0], _run(source, single.take(pa.array(places)))) for source, places in rows.items()]
        for _, run in sorted(found, key=itemgetter(0)):
            yield run


def _content(batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
    message = pa.py_buffer(batch.column("value")[index].as_py())  # a copy is aligned, and lets go of the batch
    return pa.ipc.read_record_batch(message, _CONTENT)


def _run(source: _Source, records: pa.RecordBatch) -> _Run:
    return _Run(source, records.column("reached").to_numpy(), records)


def _merge(runs: Sequence[_Run]) -> pa.RecordBatch:
    sources = sorted({run.source for run in runs})
    records = pa.concat_batches([run.records for run in runs])
    if len(sources) == 1:  # whose runs are in order
        topics = pa.repeat(sources[0].topic, len(records))
    else:
        ranks = np.repeat([sources.index(run.source) for run in runs], [len(run.reached) for run in runs])
        number = records.column("number").to_numpy()
        order = pa.array(np.lexsort((number, ranks, records.column("reached").to_numpy())))
        records = records.take(order)
        names = pa.array([source.topic for source in sources], pa.string())
        topics = names.take(pa.array(ranks).take(order))
    return pa.RecordBatch.from_arrays([topics, *records.columns], schema=_MERGED)
