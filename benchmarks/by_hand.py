"""What a careful programmer would write by hand instead of each benchmarked topology: plain loops that do the same work.

The same work means, per record: read key and value with the same serdes, keep the input's offset and time for the commit, keep
state in Kafka Streams' format (timestamp ‖ value; window keys with their start), use the `max` of the old and the new timestamp,
write one changelog record per change, and serialise the output, with windowed keys partitioned by their inner key. With a cache,
values stay objects in a bounded LRU map; changelog, store and output are written when an entry is evicted or at the commit.
Every `COMMIT` records the loop commits: RocksDB gets one WriteBatch with the changed rows and the offset.

The loops lack the engine's generality: they have one input, one known topology, no error handlers, no queries and no metrics, and
they reuse bytes for changelog and output (the engine calls the serdes again, since these depend on the topic).
"""
# ruff: noqa: B007, C901 (one loop per topology; the last offset is that of the loop)

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from millrace.engine.partitioner import partition_for_key
from millrace.records import NO_HEADERS, ConsumedRecord, Headers, TopicPartition
from millrace.serdes import Serdes

S, L = Serdes.string(), Serdes.long()
read, write, read_long, write_long = S.deserialize, S.serialize, L.deserialize, L.serialize
pack_time, unpack_time = Struct(">q").pack, Struct(">q").unpack_from
pack_window = Struct(">qi").pack

COMMIT = 10_000
CACHED_KEYS = 100_000
WINDOW_MS = 60_000
CHANGELOG = TopicPartition("changelog", 0)

Batches = list[list[ConsumedRecord]]
Row = tuple[Any, int, Headers]
"""A cached value, its timestamp, and the headers to send it with."""


class Output:
    """Counts output instead of sending it."""

    def __init__(self) -> None:
        self.sent = 0

    def send(
        self, _topic: str, _key: bytes | None, _value: bytes | None, _ts: int | None, _headers: Headers, _p: int | None
    ) -> None:
        """Count a record."""
        self.sent += 1

    def partition_count(self, _topic: str) -> int:
        """Return 4."""
        return 4

    def change_sender(self, _partition: TopicPartition) -> Callable[[bytes, bytes | None, int | None, Headers], None]:
        """Return a function that counts a changelog record."""

        def log(_key: bytes, _value: bytes | None, _ts: int | None, _headers: Headers) -> None:
            self.sent += 1

        return log

    def flush(self) -> None:
        """Do nothing."""

    def changelog_offsets(self) -> dict[TopicPartition, int]:
        """Return an offset, as a producer would."""
        return {CHANGELOG: self.sent}


class Progress:
    """Input offset and time, and when to commit."""

    def __init__(self, output: Output, store: MemoryRows | RocksRows | None = None) -> None:
        self.offsets: dict[str, tuple[int, int]] = {}
        self._output = output
        self._store = store
        self._uncommitted = 0

    def done(self, topic: str, records: int, offset: int, latest: int, write_back: Callable[[], None]) -> None:
        """Note that a batch is done, and commit if it is time."""
        self.offsets[topic] = (offset + 1, latest)
        self._uncommitted += records
        if self._uncommitted >= COMMIT:
            self.commit(write_back)

    def commit(self, write_back: Callable[[], None]) -> None:
        """Write back the cache, then flush the output, then commit the store."""
        write_back()
        self._output.flush()
        if self._store is not None:
            self._store.commit(self._output.sent)
        self._uncommitted = 0


class MemoryRows:
    """Rows in a dict."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self.get, self.put = self._rows.get, self._rows.__setitem__

    def commit(self, offset: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class RocksRows:
    """Rows in RocksDB, written once per commit."""

    def __init__(self, directory: Path) -> None:
        self._db = Rdict(str(directory / "by-hand"), Options(raw_mode=True))
        self._pending: dict[bytes, bytes] = {}
        self.put = self._pending.__setitem__
        self._options = WriteOptions()
        self._options.disable_wal = True

    def get(self, key: bytes) -> bytes | None:
        """Return a row, written or not."""
        row = self._pending.get(key)
        return self._db.get(key) if row is None else row

    def commit(self, offset: int) -> None:
        """Write the pending rows and the offset."""
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, row in self._pending.items():
            put(key, row)
        put(b"\0offset", pack_time(offset))
        self._db.write(batch, self._options)
        self._pending.clear()

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def nothing() -> None:
    """Do nothing: there is no cache."""


def stateless(batches: Batches, output: Output) -> Iterator[None]:
    """Filter → map_values → sink."""
    send, progress, latest = output.send, Progress(output), -1
    yield
    for batch in batches:
        for topic, _, offset, timestamp, raw_key, raw_value, headers in batch:
            key, value = read(topic, raw_key, headers), read(topic, raw_value, headers)
            if timestamp > latest:
                latest = timestamp
            if len(value) > 2:
                send("out", write("out", key, headers), write("out", value.upper(), headers), timestamp, headers, None)
        progress.done(topic, len(batch), offset, latest, nothing)
    progress.commit(nothing)


def count(batches: Batches, output: Output, store: MemoryRows | RocksRows) -> Iterator[None]:
    """Group by key → count → sink, without a cache."""
    send, log, get, put = output.send, output.change_sender(CHANGELOG), store.get, store.put
    progress, latest = Progress(output, store), -1
    yield
    for batch in batches:
        for topic, _, offset, timestamp, raw_key, raw_value, headers in batch:
            key, _ = read(topic, raw_key, headers), read(topic, raw_value, headers)
            if timestamp > latest:
                latest = timestamp
            key_bytes = write("changelog", key)
            row = get(key_bytes)
            if row is None:
                number, changed = 1, timestamp
            else:
                number = read_long("changelog", row[8:]) + 1
                changed = unpack_time(row)[0]
                if timestamp > changed:
                    changed = timestamp
            number_bytes = write_long("changelog", number)
            put(key_bytes, pack_time(changed) + number_bytes)
            log(key_bytes, number_bytes, changed, NO_HEADERS)
            send("out", key_bytes, number_bytes, changed, headers, None)
        progress.done(topic, len(batch), offset, latest, nothing)
    progress.commit(nothing)


def count_cached(batches: Batches, output: Output, store: MemoryRows | RocksRows) -> Iterator[None]:
    """The same with a write-back cache."""
    send, log, get, put = output.send, output.change_sender(CHANGELOG), store.get, store.put
    progress, latest = Progress(output, store), -1
    cache: OrderedDict[str, Row] = OrderedDict()
    touch = cache.move_to_end
    dirty: dict[str, Row] = {}

    def write_back() -> None:
        for key, (number, changed, headers) in dirty.items():
            key_bytes, number_bytes = write("changelog", key), write_long("changelog", number)
            put(key_bytes, pack_time(changed) + number_bytes)
            log(key_bytes, number_bytes, changed, NO_HEADERS)
            send("out", key_bytes, number_bytes, changed, headers, None)
        dirty.clear()

    yield
    for batch in batches:
        for topic, _, offset, timestamp, raw_key, raw_value, headers in batch:
            key, _ = read(topic, raw_key, headers), read(topic, raw_value, headers)
            if timestamp > latest:
                latest = timestamp
            found = cache.get(key)
            if found is not None:
                number, changed = found[0] + 1, found[1]
                if timestamp > changed:
                    changed = timestamp
            else:
                row = get(write("changelog", key))
                if row is None:
                    number, changed = 1, timestamp
                else:
                    number, changed = read_long("changelog", row[8:]) + 1, max(timestamp, unpack_time(row)[0])
            cache[key] = dirty[key] = (number, changed, headers)
            touch(key)
            if len(cache) > CACHED_KEYS:
                if next(iter(cache)) in dirty:
                    write_back()
                cache.popitem(last=False)
        progress.done(topic, len(batch), offset, latest, write_back)
    progress.commit(write_back)


def windowed_count(batches: Batches, output: Output, store: RocksRows) -> Iterator[None]:
    """Group by key → window → count → sink, without a cache."""
    send, log, get, put = output.send, output.change_sender(CHANGELOG), store.get, store.put
    partitions = output.partition_count("out")
    progress, latest = Progress(output, store), -1
    yield
    for batch in batches:
        for topic, _, offset, timestamp, raw_key, raw_value, headers in batch:
            key, _ = read(topic, raw_key, headers), read(topic, raw_value, headers)
            if timestamp > latest:
                latest = timestamp
            start = timestamp - timestamp % WINDOW_MS
            if start + WINDOW_MS <= latest:
                continue
            inner = write("changelog", key)
            key_bytes = inner + pack_window(start, 0)
            row = get(key_bytes)
            if row is None:
                number, changed = 1, timestamp
            else:
                number = read_long("changelog", row[8:]) + 1
                changed = unpack_time(row)[0]
                if timestamp > changed:
                    changed = timestamp
            number_bytes = write_long("changelog", number)
            put(key_bytes, pack_time(changed) + number_bytes)
            log(key_bytes, number_bytes, changed, NO_HEADERS)
            partition = partition_for_key(inner, partitions)
            send("out", inner + pack_time(start), number_bytes, changed, headers, partition)
        progress.done(topic, len(batch), offset, latest, nothing)
    progress.commit(nothing)


def windowed_count_cached(batches: Batches, output: Output, store: RocksRows) -> Iterator[None]:
    """The same with a write-back cache."""
    send, log, get, put = output.send, output.change_sender(CHANGELOG), store.get, store.put
    partitions = output.partition_count("out")
    progress, latest = Progress(output, store), -1
    cache: OrderedDict[tuple[str, int], Row] = OrderedDict()
    touch = cache.move_to_end
    dirty: dict[tuple[str, int], Row] = {}

    def write_back() -> None:
        for (key, start), (number, changed, headers) in dirty.items():
            inner, number_bytes = write("changelog", key), write_long("changelog", number)
            key_bytes = inner + pack_window(start, 0)
            put(key_bytes, pack_time(changed) + number_bytes)
            log(key_bytes, number_bytes, changed, NO_HEADERS)
            partition = partition_for_key(inner, partitions)
            send("out", inner + pack_time(start), number_bytes, changed, headers, partition)
        dirty.clear()

    yield
    for batch in batches:
        for topic, _, offset, timestamp, raw_key, raw_value, headers in batch:
            key, _ = read(topic, raw_key, headers), read(topic, raw_value, headers)
            if timestamp > latest:
                latest = timestamp
            start = timestamp - timestamp % WINDOW_MS
            if start + WINDOW_MS <= latest:
                continue
            window = (key, start)
            found = cache.get(window)
            if found is not None:
                number, changed = found[0] + 1, found[1]
                if timestamp > changed:
                    changed = timestamp
            else:
                row = get(write("changelog", key) + pack_window(start, 0))
                if row is None:
                    number, changed = 1, timestamp
                else:
                    number, changed = read_long("changelog", row[8:]) + 1, max(timestamp, unpack_time(row)[0])
            cache[window] = dirty[window] = (number, changed, headers)
            touch(window)
            if len(cache) > CACHED_KEYS:
                if next(iter(cache)) in dirty:
                    write_back()
                cache.popitem(last=False)
        progress.done(topic, len(batch), offset, latest, write_back)
    progress.commit(write_back)


def join(batches: Batches, output: Output, store: MemoryRows | RocksRows) -> Iterator[None]:
    """Join of a stream with a table → sink, with a write-back cache; the table's records come in the first batches."""
    send, log, get, put = output.send, output.change_sender(CHANGELOG), store.get, store.put
    progress, latest = Progress(output, store), -1
    cache: OrderedDict[str, tuple[str, int]] = OrderedDict()
    touch = cache.move_to_end
    dirty: dict[str, tuple[str, int]] = {}

    def write_back() -> None:
        for key, (value, changed) in dirty.items():
            key_bytes, value_bytes = write("changelog", key), write("changelog", value)
            put(key_bytes, pack_time(changed) + value_bytes)
            log(key_bytes, value_bytes, changed, NO_HEADERS)
        dirty.clear()

    def keep(key: str, found: tuple[str, int]) -> None:
        cache[key] = found
        touch(key)
        if len(cache) > CACHED_KEYS:
            if next(iter(cache)) in dirty:
                write_back()
            cache.popitem(last=False)

    for batch in batches:
        if batch[0].topic != "table":
            break
        for topic, _, _, timestamp, raw_key, raw_value, headers in batch:
            key = read(topic, raw_key, headers)
            dirty[key] = found = (read(topic, raw_value, headers), timestamp)
            keep(key, found)
    progress.commit(write_back)
    yield
    for batch in batches:
        if batch[0].topic == "table":
            continue
        for topic, _, offset, timestamp, raw_key, raw_value, headers in batch:
            key, value = read(topic, raw_key, headers), read(topic, raw_value, headers)
            if timestamp > latest:
                latest = timestamp
            right = cache.get(key)
            if right is not None:
                touch(key)
            else:
                row = get(write("changelog", key))
                if row is None:
                    continue
                right = (read("changelog", row[8:]), unpack_time(row)[0])
                keep(key, right)
            result = value + right[0]
            send("out", write("out", key, headers), write("out", result, headers), timestamp, headers, None)
        progress.done(topic, len(batch), offset, latest, write_back)
    progress.commit(write_back)


def timed(run: Iterator[None]) -> float:
    """Return the CPU seconds that a loop takes after its preparations."""
    next(run)
    started = time.process_time()
    for _ in run:
        pass
    return time.process_time() - started
