"""The programs of the benchmarks of backfills and peers, their input, and what must come out, counted without the engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from benchmarks.topics import PARTITIONS, Digest, Row, by_key, create_topics, read, write

from millrace.dsl import Consumed, Grouped, Materialized, Produced, StreamsBuilder, TimeWindows
from millrace.serdes import Serdes
from millrace.topology import Topology

STORE = "counts"
WINDOW_MS, GRACE_MS = 10_000, 5_000
_LATE_MS = 30_000
"""How late a tenth of the records of the program `windows` may be."""
_PER_MS = 20
"""How many records there are in a millisecond, in programs with windows: so each of 50,000 keys has four in a window."""
_VALUE = b"the quick brown fox"
LINE_WORDS = 4
"""How many words a record of the program `lines` has."""
_HOT_PARTITION = 2
_STRING, _LONG, _BYTES = Serdes.string(), Serdes.long(), Serdes.byte_array()
_STRINGS = Produced.with_(_STRING, _STRING)


@dataclass(frozen=True, slots=True)
class Names:
    """The topics of one set of records."""

    source: str
    partitions: int = PARTITIONS

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
    table = builder.table(names.table, consumed=Consumed.with_(_STRING, _STRING))
    stream = builder.stream(names.source, Consumed.with_(_STRING, _STRING))
    stream.join(table, lambda left, right: left + right).to(sink, _STRINGS)


def stateless(builder: StreamsBuilder, names: Names, sink: str) -> None:
    """Filter and map."""
    stream = builder.stream(names.source, Consumed.with_(_STRING, _STRING))
    stream.filter(lambda _key, value: len(value) > 2).map_values(str.upper).to(sink, _STRINGS)


def count(builder: StreamsBuilder, names: Names, sink: str) -> None:
    """Count by key."""
    counts: Materialized[str, int] = Materialized.as_(STORE)
    (
        builder.stream(names.source, Consumed.with_(_STRING, _STRING))
        .group_by_key(Grouped.with_(_STRING, _STRING))
        .count(counts.with_key_serde(_STRING).with_value_serde(_LONG))
        .to_stream()
        .to(sink, Produced.with_(_STRING, _LONG))
    )


def latest(builder: StreamsBuilder, names: Names, sink: str) -> None:
    """Keep the last value of every key, and write each."""
    values: Materialized[str, bytes] = Materialized.as_(STORE)
    (
        builder.stream(names.source, Consumed.with_(_STRING, _BYTES))
        .group_by_key(Grouped.with_(_STRING, _BYTES))
        .reduce(lambda _before, value: value, values.with_key_serde(_STRING).with_value_serde(_BYTES))
        .to_stream()
        .to(sink, Produced.with_(_STRING, _BYTES))
    )


_PROGRAMS: Mapping[str, Callable[[StreamsBuilder, Names, str], None]] = {
    "words": words,
    "lines": words,
    "windows": windows,
    "tumbling": windows,
    "join": join,
    "stateless": stateless,
    "count": count,
    "hot": count,
    "latest": latest,
}
"""`lines` have several words; `tumbling` has no late records; `hot` has all in one partition, and half of them of one key."""
TITLES = {
    "words": "word count",
    "windows": "windowed count",
    "join": "stream-table join",
    "stateless": "filter and map",
}
OUTPUTS = {"words": "none", "windows": "none", "join": "all", "stateless": "all"}
"""What a backfill keeps of the output: nothing where the state is the result."""


@dataclass(slots=True)
class Expected:
    """What a program must compute."""

    digest: Digest = field(default_factory=Digest)
    """Of its store's final contents, or of its output."""
    processed: int = 0
    """By all its tasks."""
    dropped: int = 0


def write_input(
    servers: str,
    program: str,
    names: Names,
    records: int,
    keys: int,
    start_ms: int,
    advance: Callable[[int], None],
    value: bytes = _VALUE,
) -> Expected:
    """Create the topics of a program, write its input, and return what it must compute."""
    create_topics(servers, names.source, names.table, partitions=names.partitions)
    per_record = {"words": 2, "lines": 1 + LINE_WORDS}  # every word goes through a repartition topic
    expected = Expected(processed=records * per_record.get(program, 1))
    rows = (
        _late_rows(records, keys, start_ms) if program == "windows" else _rows(program, records, keys, start_ms, value)
    )
    if program == "join":
        table = ((b"key-%07d" % number, b"value-%07d" % number, start_ms - 1) for number in range(keys))
        write(servers, names.table, table, lambda _count: None)
        expected.processed += keys
    partition_of = partial(by_key, partitions=names.partitions) if program != "hot" else lambda _key: _HOT_PARTITION
    write(servers, names.source, _counted(program, rows, expected, names.partitions), advance, partition_of)
    return expected


def _rows(program: str, records: int, keys: int, start_ms: int, value: bytes = _VALUE) -> Iterator[Row]:
    """Return records a millisecond apart, or less with windows, in partitions by turns."""
    per_ms = _PER_MS if program == "tumbling" else 1
    for number in range(records):
        key, at = b"key-%07d" % (number * 7919 % keys), start_ms + number // per_ms
        if program == "words":
            yield b"%d" % (number % 100), key.replace(b"key", b"word"), at
        elif program == "lines":
            first = number * LINE_WORDS
            words = [b"word-%07d" % (word * 7919 % keys) for word in range(first, first + LINE_WORDS)]
            yield b"%d" % (number % 100), b" ".join(words), at
        elif program == "hot" and number % 2:
            yield b"key-hot", value, at
        else:
            yield key, value, at


def _late_rows(records: int, keys: int, start_ms: int, per_ms: int = _PER_MS) -> Iterator[Row]:
    """Return records of which a tenth is late."""
    chance = random.Random(1).random
    for number in range(records):
        late = int(chance() * _LATE_MS) if chance() < 0.1 else 0
        yield b"key-%07d" % (number * 7919 % keys), _VALUE, start_ms + max(0, number // per_ms - late)


def _counted(program: str, rows: Iterator[Row], expected: Expected, partitions: int = PARTITIONS) -> Iterator[Row]:
    """Return the same records, and count meanwhile what must come out."""
    final: Counter[bytes] = Counter()
    so_far: Counter[bytes] = Counter()
    stream_time = [-1] * partitions
    digest = expected.digest
    for row in rows:
        key, value, at = row
        if program in {"words", "lines"}:
            final.update(value.split())
        elif program in {"windows", "tumbling"}:
            partition = by_key(key, partitions)
            now = stream_time[partition] = max(at, stream_time[partition])
            start = at - at % WINDOW_MS
            if start + WINDOW_MS > now - GRACE_MS:
                final[key + start.to_bytes(8, "big") + bytes(4)] += 1
            else:
                expected.dropped += 1
        elif program in {"count", "hot"}:
            so_far[key] += 1
            digest.add(key, so_far[key].to_bytes(8, "big"))
        elif program == "join":
            digest.add(key, value + key.replace(b"key", b"value"))
        elif program == "latest":
            digest.add(key, value)
        else:
            digest.add(key, value.upper())
        yield row
    for key, number in final.items():
        digest.add(key, number.to_bytes(8, "big"))


def found_in_kafka(servers: str, program: str, names: Names, application: str) -> Digest:
    """Return what an application has written: the last value of every key of its changelog, or its output."""
    digest = Digest()
    if OUTPUTS[program] == "all":
        for key, value in read(servers, names.sink(application)):
            digest.add(key, value)
    else:
        last = dict(read(servers, f"{application}-{STORE}-changelog"))
        for key, value in last.items():
            if value:
                digest.add(key, value)
    return digest
