"""Turns of a task: what it does between two records depends on its records alone, and what it holds until then is limited.

Spark may run a task again, and use some of its rows of both runs.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.backfill.programs import Copied, TableOfTopic
from tests.backfill.support import (
    SETTINGS,
    Engine,
    Partitions,
    differences,
    packed_rows,
    run_without_spark,
    single_rows,
)

from millrace.backfill import packing, task_run
from millrace.backfill.collector import BackfillCollector, Outputs, Topics
from millrace.backfill.history import Backfill
from millrace.backfill.task_run import Arrival, Inputs, TaskRun
from millrace.config import StreamsConfig
from millrace.engine.partition_group import PartitionGroup
from millrace.engine.task_state import IllegalTaskStateError
from millrace.processor.api import Processor, PunctuationType, Record
from millrace.processor.timestamp_extractors import log_and_skip_on_invalid_timestamp
from millrace.records import NO_HEADERS, ConsumedRecord, TaskId, TopicPartition
from millrace.serdes import Serdes
from millrace.topology import Topology


class SchedulesLater(Processor):
    """Begins to punctuate in the middle of its records."""

    def init(self, context):
        """Begin to count."""
        super().init(context)
        self.count = 0

    def process(self, record):
        """Count it, and schedule at some of them."""
        self.count += 1
        if record.value == "at once":
            self.context.schedule(20, PunctuationType.STREAM_TIME, self.tell)
        elif record.value == "later":
            at = self.context.current_stream_time_ms() + 5
            self.context.schedule(1_000, PunctuationType.STREAM_TIME, self.tell, start_ms=at)
        self.context.forward(record)

    def tell(self, timestamp):
        """Forward how many there were."""
        self.context.forward(Record("count", str(self.count), timestamp))


def punctuated(*topics):
    """Return a function that makes a topology of such a processor."""
    return lambda: (
        Topology()
        .add_source("source", *topics)
        .add_processor("later", SchedulesLater, "source")
        .add_sink("sink", "out", "later")
    )


@pytest.mark.parametrize("topics", [("a",), ("a", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("value", ["at once", "later"])
def test_punctuators_that_are_scheduled_in_the_middle(topics, value):
    """They are called after the same records, however these come in batches."""
    values = {40: value, 90: value}
    records = [(topics[n % len(topics)], b"k", values.get(n, "v").encode(), n, ()) for n in range(200)]
    history = Partitions.of(records, {**dict.fromkeys(topics, 1), "out": 1})
    topology = punctuated(*topics)
    found = []
    for batch in (7, 300):
        backfill = Backfill(topology, SETTINGS, replace(history, batch=batch), outputs=Outputs.ALL)
        assert differences(Engine(topology, SETTINGS, history).run(), run_without_spark(backfill)) == []
        rows = packed_rows(backfill)
        sent = [row for row in single_rows(rows) if row.topic == "out"]
        counts = [(row.timestamp, row.value) for row in sent if row.key == b"count"]
        assert counts[0] == ((40, b"41") if value == "at once" else (45, b"46"))
        found.append((sent, [(row.number, row.packed) for row in rows if row.topic == "out"]))
    assert found[0] == found[1]


def held(tmp_path, topology, records, monkeypatch, limit):
    """Run a task over records that are read at once; return the sizes of what it hands on, and how often it commits."""
    monkeypatch.setattr(task_run, "_TURN_BYTES", limit, raising=False)
    monkeypatch.setattr(packing, "_BYTES", limit)
    config = StreamsConfig.of({**SETTINGS, "uncommitted.max.bytes": str(limit)})
    task, source, none = TaskId(0, 0), TopicPartition("in", 0), frozenset()
    topics = Topics({"in": 1, "out": 1}, frozenset({"in"}), none, none, none, none, None)
    collector = BackfillCollector(task, tmp_path / "changes", topics, outputs=Outputs.ALL, limit_bytes=limit)
    inputs = Inputs({source: iter([records])}, none, iter(()))
    part = topology().build(config).subtopologies[0]
    run = TaskRun(task, part, config, collector, tmp_path / "state", inputs)
    sizes = [sum(len(row.value) for row in rows if row.topic == "out") for rows in run.rows()]
    collector.close()
    assert run.task.counters.records_processed == len(records)
    return [size for size in sizes if size], run.task.counters.commits


def records_of(sizes):
    """Return records whose values have these sizes."""
    return [ConsumedRecord("in", 0, n, n, b"k%d" % n, b"v" * size, NO_HEADERS) for n, size in enumerate(sizes)]


def test_a_turn_is_shorter_if_what_is_sent_is_large(tmp_path, monkeypatch):
    """So a task holds little more than the limit, however large its records are."""
    sizes, _ = held(tmp_path, Copied("in", "out"), records_of([10_000] * 1_000), monkeypatch, 200_000)
    assert max(sizes) < 450_000
    assert len(sizes) > 20


def test_a_turn_ends_early_if_records_become_large(tmp_path, monkeypatch):
    """What is held is little more than the limit, also if the turn began with small ones."""
    sizes, _ = held(tmp_path, Copied("in", "out"), records_of([1] * 6_000 + [10_000] * 1_000), monkeypatch, 1_000_000)
    assert max(sizes) < 2_000_000


def test_a_turn_ends_early_if_what_is_kept_becomes_large(tmp_path, monkeypatch):
    """So a task also commits soon after the limit."""
    commits = []
    commit = TaskRun._commit

    def note(run):
        commits.append(run.task.counters.records_processed)
        commit(run)

    monkeypatch.setattr(TaskRun, "_commit", note)
    held(tmp_path, TableOfTopic("in", SETTINGS), records_of([1] * 5_100 + [10_000] * 1_000), monkeypatch, 200_000)
    assert next(number for number in commits if number > 5_100) < 5_200


def test_a_turn_is_longer_again_once_records_are_small(tmp_path, monkeypatch):
    """Whoever sends little is not kept up."""
    turns = []
    over = TaskRun._is_turn_over

    def is_turn_over(run):
        if found := over(run):
            turns.append(run.task.counters.records_processed)
        return found

    monkeypatch.setattr(TaskRun, "_is_turn_over", is_turn_over)
    held(tmp_path, Copied("in", "out"), records_of([10_000] * 100 + [1] * 6_000), monkeypatch, 200_000)
    assert [end - start for start, end in pairwise(turns)][-3:] == [1_000] * 3


def test_a_turn_is_shorter_if_what_is_kept_is_large(tmp_path, monkeypatch):
    """So a task commits soon after the limit, however large what it has in its stores is."""
    topology = TableOfTopic("in", SETTINGS)
    _, commits = held(tmp_path, topology, records_of([10_000] * 1_000), monkeypatch, 200_000)
    assert commits > 20


@pytest.mark.parametrize("topics", ["ab", "abc"])
def test_ties_after_dropped_records(topics):
    """Which partition comes first is the same whether what follows a dropped record is read together with it or later."""
    topology = Topology().add_source("source", *topics, timestamp_extractor=log_and_skip_on_invalid_timestamp)
    topology.add_sink("sink", "out", "source")
    dropped = ((), (), (-1,), (-1, -1))
    chance = random.Random(1)
    records = [
        (topic, b"k", f"{topic}{at}".encode(), timestamp, ())
        for topic in topics
        for at in range(50)
        for timestamp in (*(chance.choice(dropped) if at else dropped[2 * (topic == "a")]), at)
    ]
    history = Partitions.of(records, {**dict.fromkeys(topics, 1), "out": 1})
    expected = Engine(lambda: topology, SETTINGS, history).run()
    for batch in (1, 2, 3, 500):
        backfill = Backfill(lambda: topology, SETTINGS, replace(history, batch=batch), outputs=Outputs.ALL)
        assert differences(expected, run_without_spark(backfill)) == []


@pytest.mark.parametrize("topics", ["ab", "abc"])
def test_dead_letters_before_the_first_record(topics):
    """They are sent in the same order however records come in batches: those of one partition after those of another."""
    long = Serdes.long()
    topology = (
        Topology().add_source("source", *topics, value_serde=long).add_sink("sink", "out", "source", value_serde=long)
    )
    handler = "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler"
    dead = {"deserialization.exception.handler": handler, "errors.dead.letter.queue.topic.name": "dead"}
    values = [b"bad"] * 3 + [bytes(8)]
    records = [(topic, b"k", value, n, ()) for topic in topics for n, value in enumerate(values)]
    history = Partitions.of(records, {**dict.fromkeys(topics, 1), "out": 1, "dead": 1})
    found = []
    for batch in (1, 300):
        settings = {**SETTINGS, **dead}
        rows = packed_rows(Backfill(lambda: topology, settings, replace(history, batch=batch), outputs=Outputs.ALL))
        assert len([row for row in single_rows(rows) if row.topic == "dead"]) == 3 * len(topics)
        found.append([(row.number, row.packed, row.value) for row in rows if row.topic in {"dead", "out"}])
    assert found[0] == found[1]


P, Q, Z = (TopicPartition(topic, 0) for topic in "pqz")


def at(partition, *timestamps):
    """Return records of a partition with these timestamps."""
    return [ConsumedRecord(*partition, n, n, b"k", b"%d" % n, NO_HEADERS) for n in timestamps]


def sent_at(tmp_path, inputs):
    """Return the timestamps of what a task sends that copies these inputs."""
    config, task, none = StreamsConfig.of(SETTINGS), TaskId(0, 0), frozenset()
    read = sorted({partition.topic for partition in inputs.read.keys() | inputs.arriving})
    topics = Topics({**dict.fromkeys(read, 1), "out": 1}, frozenset(read), none, none, none, none, None)
    collector = BackfillCollector(task, tmp_path / "changes", topics, outputs=Outputs.ALL, limit_bytes=1_000_000)
    topology = Topology().add_source("source", *read).add_sink("sink", "out", "source")
    run = TaskRun(task, topology.build(config).subtopologies[0], config, collector, tmp_path / "state", inputs)
    rows = [row for rows in run.rows() for row in rows]
    collector.close()
    return [row.timestamp for row in single_rows(rows)]


def test_what_is_read_after_the_last_arrival(tmp_path):
    """A partition that goes on in Kafka after its files is never passed over while it has records there."""
    read = {P: iter([at(P, 10, 20)]), Q: iter([at(Q, 5, 15, 25)])}
    arrivals = iter([Arrival(1, False, [(P, at(P, 1))])])
    assert sent_at(tmp_path, Inputs(read, frozenset({P}), arrivals)) == [1, 5, 10, 15, 20, 25]


def test_what_is_read_while_others_arrive(tmp_path):
    """From the instant at which its files end, a partition is read whatever else arrives."""
    read = {P: iter([at(P, 10, 20)])}
    arrivals = iter(
        [Arrival(1, False, [(P, at(P, 1))]), Arrival(15, False, [(Z, at(Z, 15))]), Arrival(25, False, [(Z, at(Z, 25))])]
    )
    assert sent_at(tmp_path, Inputs(read, frozenset({P, Z}), arrivals, {P: 10})) == [1, 10, 15, 20, 25]


def both_arriving():
    """Return inputs of two partitions that arrive, one after the other."""
    arrivals = iter([Arrival(1, False, [(P, at(P, 1))]), Arrival(2, False, [(Z, at(Z, 2, 3, 4))])])
    return Inputs({}, frozenset({P, Z}), arrivals)


def test_a_clock_that_is_set_back(tmp_path, monkeypatch):
    """What has arrived last is processed whatever the wall clock shows."""
    monkeypatch.setattr(task_run, "_now", map(max, itertools.count(1_000, -100), itertools.repeat(0)).__next__)
    assert sent_at(tmp_path, both_arriving()) == [1, 2, 3, 4]


def test_records_that_are_left(tmp_path, monkeypatch):
    """A task never ends well without having processed everything."""
    monkeypatch.setattr(PartitionGroup, "ready", lambda *_: False)
    with pytest.raises(IllegalTaskStateError, match="task 0_0 left 4 records of its history unprocessed"):
        sent_at(tmp_path, both_arriving())
