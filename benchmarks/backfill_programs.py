"""The programs of the benchmark of backfills, their input, and what must come out, counted without the engine."""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.dsl import Consumed, Grouped, Materialized, Produced, StreamsBuilder, TimeWindows
from millrace.engine.partitioner import partition_for_key
from millrace.serdes import Serdes
from millrace.topology import Topology

PARTITIONS = 4
STORE = "counts"
WINDOW_MS, GRACE_MS = 10_000, 5_000
_LATE_MS = 30_000
"""How late a tenth of the records may be, in programs with windows."""
_BATCH = 1_000
_TIMEOUT_S = 600.0
_VALUE = "the quick brown fox"
_STRING, _LONG = Serdes.string(), Serdes.long()
_STRINGS = Produced.with_(_STRING, _STRING)


@dataclass(frozen=True, slots=True)
class Names:
    """The topics of one set of records."""

    source: str

    @property
    def table(self) -> str:
        """Where the table of the join is."""
        return f"{self.source}-table"

    def sink(self, application: str) -> str:
        """Where an application writes."""
        return f"{application}-out"


@dataclass(frozen=True, slots=True)
class Build:
    """Builds the topology of a program, in Spark's executors too."""

    program: str
    names: Names
    application: str

    def __call__(self) -> Topology:
        """Build it."""
        builder = StreamsBuilder()
        _PROGRAMS[self.program](builder, self.names, self.names.sink(self.application))
        return builder.build(None)


def words(builder: StreamsBuilder, names: Names, sink: str) -> None:
    """Count words; every record is of one word, and counted in the partition of that."""
    counts: Materialized[str, int] = Materialized.as_(STORE)
    (
        builder.stream(names.source, Consumed.with_(_STRING, _STRING))
        .flat_map_values(str.split)
        .group_by(lambda _key, word: word, Grouped.with_(_STRING, _STRING, name="words"))
        .count(counts.with_key_serde(_STRING).with_value_serde(_LONG))
        .to_stream()
        .to(sink, Produced.with_(_STRING, _LONG))
    )


def windows(builder: StreamsBuilder, names: Names, sink: str) -> None:
    """Count by key and window, with grace."""
    counts: Materialized[str, int] = Materialized.as_(STORE)
    (
        builder.stream(names.source, Consumed.with_(_STRING, _STRING))
        .group_by_key(Grouped.with_(_STRING, _STRING))
        .windowed_by(TimeWindows.of_size_and_grace(WINDOW_MS, GRACE_MS))
        .count(counts.with_key_serde(_STRING).with_value_serde(_LONG))
        .to_stream()
        .to(sink, Produced.with_(Serdes.time_windowed(_STRING, WINDOW_MS), _LONG))
    )


def join(builder: StreamsBuilder, names: Names, sink: str) -> None:
    """Join a stream with a table."""
    table = builder.table(names.table, Consumed.with_(_STRING, _STRING))
    stream = builder.stream(names.source, Consumed.with_(_STRING, _STRING))
    stream.join(table, lambda left, right: left + right).to(sink, _STRINGS)


def stateless(builder: StreamsBuilder, names: Names, sink: str) -> None:
    """Filter and map."""
    stream = builder.stream(names.source, Consumed.with_(_STRING, _STRING))
    stream.filter(lambda _key, value: len(value) > 2).map_values(str.upper).to(sink, _STRINGS)


_PROGRAMS: Mapping[str, Callable[[StreamsBuilder, Names, str], None]] = {
    "words": words,
    "windows": windows,
    "join": join,
    "stateless": stateless,
}
TITLES = {
    "words": "word count",
    "windows": "windowed count",
    "join": "stream-table join",
    "stateless": "filter and map",
}
OUTPUTS = {"words": "none", "windows": "none", "join": "all", "stateless": "all"}
"""What a backfill keeps of the output: nothing where the state is the result."""
_SHUFFLED = frozenset({"words"})
"""Programs in which every record goes through a repartition topic."""


@dataclass(slots=True)
class Digest:
    """Records, in no order: how many, and the sum of their checksums."""

    records: int = 0
    checksum: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Add one."""
        self.records += 1
        self.checksum += zlib.crc32(value, zlib.crc32(key))


@dataclass(slots=True)
class Expected:
    """What a program must compute."""

    digest: Digest = field(default_factory=Digest)
    """Of its store's final contents, or of its output."""
    processed: int = 0
    """By all its tasks."""
    dropped: int = 0


def write_input(
    servers: str, program: str, names: Names, records: int, keys: int, start_ms: int, advance: Callable[[int], None]
) -> Expected:
    """Create the topics of a program, write its input, and return what it must compute."""
    create_topics(servers, names.source, names.table)
    expected = Expected(processed=records * (2 if program in _SHUFFLED else 1))
    rows = _late_rows(records, keys, start_ms) if program == "windows" else _rows(program, records, keys, start_ms)
    if program == "join":
        table = [(b"key-%07d" % number, b"value-%07d" % number) for number in range(keys)]
        _write(servers, names.table, ((key, value, start_ms) for key, value in table), lambda _count: None)
        expected.processed += keys
    counter = _counter(program, expected)
    _write(servers, names.source, (counter(row) for row in rows), advance)
    counter(None)
    return expected


Row = tuple[bytes, bytes, int]
"""Key, value, timestamp."""


def _rows(program: str, records: int, keys: int, start_ms: int) -> Iterator[Row]:
    """Return records a millisecond apart, in partitions by turns."""
    value = _VALUE.encode()
    for number in range(records):
        key = b"key-%07d" % (number * 7919 % keys)
        if program == "words":
            yield b"%d" % (number % 100), key.replace(b"key", b"word"), start_ms + number
        else:
            yield key, value, start_ms + number


def _late_rows(records: int, keys: int, start_ms: int) -> Iterator[Row]:
    """Return records of which a tenth is late."""
    chance, value = random.Random(1).random, _VALUE.encode()
    for number in range(records):
        late = int(chance() * _LATE_MS) if chance() < 0.1 else 0
        yield b"key-%07d" % (number * 7919 % keys), value, start_ms + max(0, number - late)


def _counter(program: str, expected: Expected) -> Callable[[Row | None], Row | None]:
    """Return a function that takes every record, then None, and counts on the way."""
    counts: Counter[bytes] = Counter()
    stream_time = [-1] * PARTITIONS
    digest = expected.digest

    def take(row: Row | None) -> Row | None:
        if row is None:
            for key, count in counts.items():
                digest.add(key, count.to_bytes(8, "big"))
            return None
        key, value, at = row
        if program == "words":
            counts[value] += 1
        elif program == "windows":
            partition = partition_for_key(key, PARTITIONS)
            now = stream_time[partition] = max(at, stream_time[partition])
            start = at - at % WINDOW_MS
            if start + WINDOW_MS > now - GRACE_MS:
                counts[key + start.to_bytes(8, "big") + bytes(4)] += 1
            else:
                expected.dropped += 1
        elif program == "join":
            digest.add(key, value + key.replace(b"key", b"value"))
        else:
            digest.add(key, value.upper())
        return row

    return take


def create_topics(servers: str, *topics: str) -> None:
    """Create topics."""
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        future.result(60)


def delete_topics(servers: str, prefix: str) -> None:
    """Delete all topics of this prefix."""
    admin = AdminClient({"bootstrap.servers": servers})
    found = [topic for topic in admin.list_topics(timeout=60).topics if topic.startswith(prefix)]
    for future in admin.delete_topics(found).values() if found else ():
        future.result(60)


def _write(servers: str, topic: str, rows: Iterator[Row | None], advance: Callable[[int], None]) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "enable.idempotence": True, "queue.buffering.max.messages": 0}
        | {"queue.buffering.max.kbytes": 65_536}
    )
    for batch in iter(lambda: list(itertools.islice(rows, _BATCH)), []):
        for row in batch:
            assert row is not None
            key, value, at = row
            partition = partition_for_key(key, PARTITIONS)
            while True:
                try:
                    producer.produce(topic, value, key, partition, timestamp=at)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        advance(len(batch))
    if producer.flush(_TIMEOUT_S):
        raise SystemExit(f"{topic} could not be written within {_TIMEOUT_S:.0f} s")


def found_in_kafka(servers: str, program: str, names: Names, application: str) -> Digest:
    """Return what an application has written: the last value of every key of its changelog, or its output."""
    digest = Digest()
    if OUTPUTS[program] == "all":
        for key, value in _read(servers, names.sink(application)):
            digest.add(key, value)
    else:
        last = dict(_read(servers, f"{application}-{STORE}-changelog"))
        for key, value in last.items():
            if value:
                digest.add(key, value)
    return digest


def _read(servers: str, topic: str) -> Iterator[tuple[bytes, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    left = PARTITIONS
    while left:
        messages = consumer.consume(10_000, 1.0)
        for message in messages:
            if message.error() is not None:
                left -= 1
            else:
                yield message.key() or b"", message.value() or b""
    consumer.close()


__all__ = [
    "OUTPUTS",
    "PARTITIONS",
    "TITLES",
    "Build",
    "Digest",
    "Expected",
    "Names",
    "create_topics",
    "delete_topics",
    "found_in_kafka",
    "write_input",
]
