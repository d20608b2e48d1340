"""Records that tasks send each other are packed for Spark, and come out in the order in which single ones would."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.backfill.programs import Copied
from tests.backfill.support import SETTINGS, Partitions, packed_rows, single_rows

from millrace.backfill import packing, task_run
from millrace.backfill.changes import CompactedChanges
from millrace.backfill.collector import BackfillCollector, Outputs, Topics
from millrace.backfill.history import Backfill
from millrace.backfill.packing import PackedTopic, merged, packed_changes
from millrace.backfill.rows import REPORT, Row, to_arrow
from millrace.dsl import BufferConfig, StreamsBuilder, Suppressed
from millrace.engine.partitioner import partition_for_key
from millrace.records import NO_HEADERS, Headers, TaskId, TopicPartition

PARTITIONS = 3
TASKS = ("0_0", "0_1", "1_0")
TOPICS = ("a", "b")
FIRST = Row(REPORT, 0, -1, "", 0, 0, None, None, NO_HEADERS)


def send(topic, task, chance, records):
    """Return what one task sends to a topic: packed rows, and the same as single rows."""
    keyless = TASKS.index(task)
    target = PackedTopic(topic, PARTITIONS, task, keyless)
    packed, single, reached = [], [], [-1] * PARTITIONS
    time = 0
    for number in range(1, records + 1):
        time += chance.randrange(3)
        at = max(0, time - chance.randrange(50)) if chance.random() < 0.2 else time
        key = None if chance.random() < 0.1 else b"k" * chance.randrange(12) + b"%d" % chance.randrange(50)
        value = None if chance.random() < 0.1 else b"%d" % number
        headers = Headers([("h", b"1"), ("h", None)]) if chance.random() < 0.1 else NO_HEADERS
        given = chance.randrange(PARTITIONS) if chance.random() < 0.1 else None
        target.sent.append((at, key, value, headers, given))
        if given is None:
            given = keyless if key is None else partition_for_key(key, PARTITIONS)
        reached[given] = max(reached[given], at)
        single.append(Row(topic, given, reached[given], task, number, at, key, value, headers))
        if chance.random() < 0.05:
            packed += target.take(everything=chance.random() < 0.3)
    return packed + target.take(everything=True), single


def in_order(rows, partition, circular=frozenset()):
    """Return the rows of a partition as Spark sorts them."""
    own = [row for row in rows if row.partition == partition]
    return sorted(own, key=lambda row: (row.reached, row.topic in circular, row.topic, row.task, row.number))


def arrow(rows, size):
    """Return rows as Spark gives them to a task."""
    return iter(pa.Table.from_batches([to_arrow([FIRST, *rows])]).to_batches(max_chunksize=size))


def seen(row):
    """Return what a task sees of a row."""
    return row.topic, row.timestamp, row.key, row.value, tuple(row.headers)


def seen_of(batches):
    """Return what a task sees of merged records."""
    return [
        (row["topic"], row["timestamp"], row["key"], row["value"], headers)
        for batch in batches
        for row in batch.to_pylist()
        for headers in [tuple((one["name"], one["value"]) for one in row["headers"] or ())]
    ]


@pytest.mark.parametrize("merge_at", [1, 40, 10_000])
@pytest.mark.parametrize("seed", range(4))
def test_packed_records_are_merged_in_the_order_of_single_ones(monkeypatch, seed, merge_at):
    """With late records, records without a key, given partitions, and topics of which some rows are not packed at all."""
    monkeypatch.setattr(packing, "_MERGE_AT", merge_at)
    monkeypatch.setattr(packing, "_RECORDS", 20)
    monkeypatch.setattr(packing, "_RECORDS_PER_PARTITION", 1)
    chance = random.Random(seed)
    circular = frozenset({"b"} if seed % 2 else ())
    given, expected = [], []
    for topic in TOPICS:
        for task in TASKS:
            packed, single = send(topic, task, chance, 200)
            given += single if topic in circular or (seed > 1 and task == "0_1") else packed
            expected += single
    assert any(row.packed > 1 for row in given)
    for partition in range(PARTITIONS):
        found = list(merged(arrow(in_order(given, partition, circular), chance.choice([1, 7, 1_000])), circular))
        assert seen_of(found) == [seen(row) for row in in_order(expected, partition, circular)]
        assert merge_at != 40 or len(found) > 3


def test_records_with_the_same_timestamp_are_merged_bit_by_bit(monkeypatch):
    """Many records at once, as from files that have only dates, are not all held in memory."""
    monkeypatch.setattr(packing, "_MERGE_AT", 100)
    monkeypatch.setattr(packing, "_RECORDS", 50)
    monkeypatch.setattr(packing, "_RECORDS_PER_PARTITION", 1)
    target = PackedTopic("a", 1, "0_0", 0)
    rows = []
    for number in range(2_000):
        target.sent.append((7, None, b"%d" % number, NO_HEADERS, None))
        rows += target.take(everything=False)
    found = list(merged(arrow(rows, 1_000), frozenset()))
    assert [row[3] for row in seen_of(found)] == [b"%d" % number for number in range(2_000)]
    assert max(batch.num_rows for batch in found) <= 150


def test_a_task_that_runs_again_packs_the_same_rows(monkeypatch):
    """However its records come in batches: Spark may run it again, and use some of its rows of both runs."""
    monkeypatch.setattr(packing, "_RECORDS", 20)
    monkeypatch.setattr(packing, "_RECORDS_PER_PARTITION", 1)
    monkeypatch.setattr(task_run, "_TURN_RECORDS", 10)
    history = Partitions.of([("in", b"k%d" % (n % 7), b"v", n, ()) for n in range(200)], {"in": 1, "out": 2})
    found = []
    for batch in (7, 50):
        runs = Backfill(Copied("in", "out"), SETTINGS, replace(history, batch=batch), outputs=Outputs.ALL)
        found.append([(row.partition, row.number, row.packed) for row in packed_rows(runs) if row.topic == "out"])
    assert found[0] == found[1]
    assert len(found[0]) >= 10


def waiting():
    """Count records per key, and let no count through."""
    builder = StreamsBuilder()
    wait = Suppressed.until_time_limit(3_600_000, BufferConfig.unbounded())
    builder.stream("in").group_by_key().count().suppress(wait).to_stream().to("out")
    return builder.build()


def test_a_task_that_runs_again_has_its_changelogs_in_the_same_order(monkeypatch):
    """However its records come in batches, also those of suppressed tables, which are written when the task commits."""
    monkeypatch.setattr(task_run, "_TURN_RECORDS", 10)
    history = Partitions.of([("in", b"k%d" % (n % 70), b"v", n, ()) for n in range(200)], {"in": 1, "out": 1})
    found = []
    for batch in (7, 50):
        runs = Backfill(waiting, {**SETTINGS, "uncommitted.max.bytes": "1000"}, replace(history, batch=batch))
        rows = [row for row in single_rows(packed_rows(runs)) if row.topic.endswith("-changelog")]
        found.append([(row.topic, row.number, row.key, row.value) for row in rows])
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 70


def test_large_values_are_packed_soon(monkeypatch):
    """So that a row is never much larger than the limit."""
    monkeypatch.setattr(packing, "_BYTES", 10_000)
    target = PackedTopic("a", 1, "0_0", 0)
    rows = []
    for _ in range(100):
        target.sent.append((1, b"k", b"v" * 1_000, NO_HEADERS, None))
        rows += target.take(everything=False)
    assert [row.packed for row in rows] == [10] * 10


def test_many_large_records_that_are_sent_at_once(monkeypatch):
    """A record that makes many is one turn of its task; their rows are no larger for it, whatever has the bytes."""
    monkeypatch.setattr(packing, "_BYTES", 10_000)
    monkeypatch.setattr(packing, "_ROW_BYTES", 5_000)
    for record in (
        (b"k" * 990, None, NO_HEADERS),
        (None, b"v" * 990, NO_HEADERS),
        (None, None, Headers([("h", b"x" * 990)])),
    ):
        target = PackedTopic("a", 1, "0_0", 0)
        target.sent += [(number, *record, None) for number in range(100)]
        rows = target.take(everything=False)
        assert max(len(row.value) for row in rows) < 7_000
        starts = [sum(row.packed for row in rows[:index]) for index in range(len(rows))]
        assert [(row.number, row.reached) for row in rows] == [(start + 1, start) for start in starts]
        assert [time for _, time, *_ in seen_of(merged(arrow(rows, 7), frozenset()))] == list(range(100))
        assert target.size == (100, 99_000 if record[2] is NO_HEADERS else 99_100)


def test_many_topics_with_few_records_each(tmp_path):
    """As topics whose names are computed: what waits to be packed takes no more memory than is allowed for all of them."""
    topics = {f"t{number}": 1 for number in range(100)}
    none = frozenset()
    known = Topics(topics, none, none, none, none, none, None)
    collector = BackfillCollector(TaskId(0, 0), tmp_path, known, outputs=Outputs.ALL, limit_bytes=60_000)
    rows = []
    for number in range(1_000):
        collector.send(f"t{number % 100}", b"k", b"v", number, NO_HEADERS, None)
        rows += collector.take()
    rows += collector.take(everything=True)
    assert {row.topic for row in rows} == topics.keys()
    assert 1 < max(row.packed for row in rows) < 10
    assert collector.sizes() == dict.fromkeys(topics, (10, 20))


def test_the_last_records_of_keys_come_before_those_without_a_key(monkeypatch, tmp_path):
    """Which several tasks send to a partition, and which stay in the order of time."""
    monkeypatch.setattr(packing, "_MERGE_AT", 1)
    none = frozenset()
    known = Topics({"a": 1}, none, none, none, none, none, None)
    rows = []
    for number, task in enumerate((TaskId(0, 0), TaskId(0, 1))):
        collector = BackfillCollector(task, tmp_path / str(task), known, outputs=Outputs.LAST, limit_bytes=60_000)
        for time in range(number, 20, 2):
            collector.send("a", None, b"%d" % time, time, NO_HEADERS, None)
            collector.send("a", b"k%d" % number, b"last", time, NO_HEADERS, None)
        rows += [*collector.take(everything=True), *collector.final_rows(20)]
    found = seen_of(merged(arrow(in_order(rows, 0), 5), none))
    keyless = [(b"%d" % time, time) for time in range(20)]
    assert [(value, time) for _, time, _, value, _ in found] == [(b"last", 18), (b"last", 19), *keyless]


def test_a_record_larger_than_the_limits(monkeypatch):
    """It has a row for itself."""
    monkeypatch.setattr(packing, "_BYTES", 10_000)
    monkeypatch.setattr(packing, "_ROW_BYTES", 5_000)
    target = PackedTopic("a", 1, "0_0", 0)
    target.sent += [(number, b"k", b"v" * 30_000, NO_HEADERS, None) for number in range(3)]
    assert [row.packed for row in target.take(everything=False)] == [1, 1, 1]


def test_large_changes_on_disk_are_packed_a_row_at_a_time(tmp_path):
    """Of what does not fit into memory, no more is taken from the disk than a row has."""
    changes = CompactedChanges(tmp_path / "changes", limit_bytes=1_000_000)
    for number in range(2_000):
        changes.log_change(b"%d" % number, b"v" * 100_000, number, NO_HEADERS)
    taken = []

    def left():
        for key, (value, timestamp, headers) in changes.rows():
            taken.append(len(key) + len(value))
            yield timestamp, key, value, headers

    packed = []
    for row, size in packed_changes(TopicPartition("a", 0), "0_0", 1, left()):
        assert size == (row.packed, sum(taken[sum(packed) :]))
        assert size.bytes < 1_200_000
        packed.append(row.packed)
    changes.close()
    assert sum(packed) == len(taken) == 2_000


def test_large_values_are_merged_soon(monkeypatch):
    """So that a task never holds much more than the limit, however few its records are."""
    monkeypatch.setattr(packing, "_BYTES", 10_000)
    monkeypatch.setattr(packing, "_MERGE_BYTES", 50_000, raising=False)
    rows = []
    for task in TASKS:
        target = PackedTopic("a", 1, task, 0)
        for number in range(200):
            target.sent.append((number, b"k", b"v" * 1_000, NO_HEADERS, None))
            rows += target.take(everything=False)
    found = list(merged(arrow(in_order(rows, 0), 10), frozenset()))
    assert [seen[1] for seen in seen_of(found)] == sorted(3 * list(range(200)))
    assert max(batch.nbytes for batch in found) < 100_000


def test_packed_rows_become_single_ones_again():
    """As outputs of topics that the application reads as well are needed."""
    chance = random.Random(3)
    packed, single = send("a", "0_0", chance, 300)
    other = Row("b", 1, 5, "0_0", 1, 4, b"k", None, Headers([("h", b"x")]))
    found = single_rows([*packed, other])
    assert sorted(found, key=lambda row: (row.topic, row.number)) == [*single, other]
