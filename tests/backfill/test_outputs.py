"""Which records of an output topic are written, and in which order, if many of them are packed to a row of Spark."""

import hashlib
import random
from itertools import groupby
from operator import itemgetter

import pytest
from confluent_kafka import Producer
from pyspark import AccumulatorParam
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from tests.backfill.broker_app import FIRST_TIMESTAMP, App
from tests.backfill.programs import Copied
from tests.backfill.test_packing import in_order, seen, seen_of, send

from millrace.backfill import packing, transport
from millrace.backfill.collector import BackfillCollector, Outputs, Topics
from millrace.backfill.packing import Size, merged
from millrace.backfill.rows import COLUMNS, PACKED_DDL
from millrace.backfill.run import BackfillSpec, run_backfill
from millrace.records import NO_HEADERS, TaskId, TopicPartition

TASKS = ("0_0", "0_1", "1_0")


@pytest.mark.broker
@pytest.mark.slow
def test_the_last_record_of_each_key_and_all_without_a_key(spark, kafka):
    """Both kinds in the same partition, the latter in their order."""
    app = App(kafka, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(20):
        key = None if number % 2 else b"k%d" % (number % 3)
        producer.produce(app.source, b"%d" % number, key, timestamp=FIRST_TIMESTAMP + number)
    assert producer.flush(60) == 0
    result = run_backfill(spark, BackfillSpec(Copied(app.source, app.sink), app.settings, outputs=Outputs.LAST))
    found = [(record.key(), int(record.value())) for record in app.read(app.sink)]
    assert [value for key, value in found if key is None] == list(range(1, 20, 2))
    assert {key: value for key, value in found if key is not None} == {b"k0": 18, b"k1": 16, b"k2": 14}
    assert len(found) == 13
    assert result.outputs == {app.sink: 13}


def test_partitions_of_an_output_share_memory(tmp_path):
    """The last records of keys go to disk before many partitions together have more than a topic may."""
    none = frozenset()
    topics = Topics({"out": 8}, none, none, none, none, none, None)
    collector = BackfillCollector(TaskId(0, 0), tmp_path, topics, outputs=Outputs.LAST, limit_bytes=16_000_000)
    for number in range(30):
        collector.send("out", b"k%d" % number, bytes(100_000), number, NO_HEADERS, 0)
        collector.send("out", b"k%d" % number, bytes(10_000), number, NO_HEADERS, 1)
    assert [folder.name for folder in tmp_path.iterdir()] == ["out-0"]
    assert sum(row.packed for row in collector.final_rows(30)) == 60
    collector.close()
    assert list(tmp_path.iterdir()) == []


def test_rows_of_several_tasks_come_to_the_driver_in_order(spark, monkeypatch):
    """However Spark divides them into the parts that the driver gets."""
    monkeypatch.setattr(packing, "_RECORDS", 20)
    monkeypatch.setattr(packing, "_RECORDS_PER_PARTITION", 1)
    monkeypatch.setattr(packing, "_MERGE_AT", 40)
    monkeypatch.setattr(transport, "_PART_BYTES", 2_000)
    chance = random.Random(7)
    given, expected = [], []
    for task in TASKS:
        packed, single = send("a", task, chance, 400)
        given += single if task == "0_1" else packed
        expected += single
    chance.shuffle(given)
    rows = spark.createDataFrame([(*row[:8], list(row.headers), row.packed) for row in given], PACKED_DDL)
    targets = [TopicPartition("a", number) for number in range(4)]  # the last one has nothing
    found = {}
    for target, batches in groupby(transport.ordered(spark, rows, targets, {"a": Size(1_200, 20_000)}), itemgetter(0)):
        assert target not in found
        found[target] = seen_of(merged((batch for _, batch in batches), frozenset()))
    assert found == {target: [seen(row) for row in in_order(expected, target[1])] for target in targets}


def test_what_comes_to_the_driver_at_once_is_small(spark):
    """Java has it several times, and a gigabyte by default; of large rows, so does Python."""
    rows = large_rows(spark, 100, 256_000)
    messages = [batch.num_rows for batch in transport._arrow_batches(rows)]
    assert sum(messages) == 100
    assert max(messages) <= 64
    batches = [batch for _, batch in transport.ordered(spark, rows, [], {"a": Size(100, 0)})]
    assert [number for batch in batches for number in batch.column("number").to_pylist()] == list(range(100))
    assert max(batch.nbytes for batch in batches) < 64 * 260_000


def test_large_rows_come_to_the_driver_apart_from_small_ones(spark, monkeypatch):
    """Parts have as many rows as each other, and those of a changelog may have a thousand times the bytes of others."""
    monkeypatch.setattr(transport, "_PART_BYTES", 1 << 20)
    small, large = large_rows(spark, 20_000, 64, topic="small"), large_rows(spark, 40, 256_000, topic="large")
    parts = []
    original = transport._arrow_batches

    def seen(rows):
        part = F.struct(F.spark_partition_id().alias("part"), F.octet_length("value").alias("size"))
        parts.extend(rows.select(part.alias("it")).groupBy("it.part").agg(F.sum("it.size")).collect())
        return original(rows)

    monkeypatch.setattr(transport, "_arrow_batches", seen)
    sizes = {"large": Size(40, 40 * 256_000), "small": Size(20_000, 20_000 * 64)}
    targets = [TopicPartition("large", 0), TopicPartition("large", 1), TopicPartition("small", 0)]
    found = {}
    for target, batches in groupby(transport.ordered(spark, small.unionByName(large), targets, sizes), itemgetter(0)):
        assert target not in found
        found[target] = [n for _, batch in batches for n in batch.column("number").to_pylist()]
    marker = 0
    assert found == {
        TopicPartition("small", 0): [marker, *range(20_000)],
        TopicPartition("large", 0): [marker, *range(40)],
        TopicPartition("large", 1): [marker],
    }
    assert sum(size for _, size in parts) == 40 * 256_000 + 20_000 * 64
    assert max(size for _, size in parts) < 4 << 20


def test_python_gets_as_little_at_once_as_the_session_says(spark):
    """Also where Spark only runs jobs of RDDs, which have no settings of a session: 20 rows of a megabyte are not one batch."""
    sizes = spark.sparkContext.accumulator(0, Largest())

    def noted(batches):
        for batch in batches:
            sizes.add(batch.nbytes)
            yield batch

    before = spark.conf.get(transport.ARROW_BATCH_BYTES)
    spark.conf.set(transport.ARROW_BATCH_BYTES, "2000000")
    try:
        rows = large_rows(spark, 20, 1_024_000).coalesce(1).mapInArrow(noted, PACKED_DDL)
        found = [batch.num_rows for _, batch in transport.ordered(spark, rows, [], {"a": Size(20, 20 << 20)})]
    finally:
        spark.conf.set(transport.ARROW_BATCH_BYTES, before)
    assert sum(found) == 20
    assert 1_000_000 < sizes.value < 5_000_000


class Largest(AccumulatorParam):
    """Keeps the largest number."""

    def zero(self, value):
        """Return what is smaller than any."""
        return value

    def addInPlace(self, value1, value2):  # noqa: N802 (Spark's name)
        """Return the larger one."""
        return max(value1, value2)


@pytest.mark.parametrize("large", ["true", "false"])
def test_small_rows_come_to_the_driver_many_at_once(spark, large):
    """With Arrow's usual types, whatever the session has."""
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        rows = large_rows(spark, 5_000, 64)
        batches = [batch for _, batch in transport.ordered(spark, rows, [], {"a": Size(5_000, 0)})]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    values = [value.decode() for batch in batches for value in batch.column("value").to_pylist()]
    assert values == [hashlib.sha256(b"%d" % number).hexdigest() for number in range(5_000)]
    assert len(batches) < 5


@pytest.mark.slow
def test_what_the_driver_has_written_it_forgets(spark):
    """A hundred megabytes go through, and Java has few of them at any time."""
    before, rows = live_java_bytes(spark), large_rows(spark, 100, 1_024_000)
    live = [live_java_bytes(spark) for _ in transport.ordered(spark, rows, [], {"a": Size(100, 100 << 20)})]
    assert len(live) >= 5
    assert max(live) - before < 50 << 20


def large_rows(spark, count, size, topic="a"):
    """Return rows with values of about this many bytes."""
    given = {
        "topic": f"'{topic}'",
        "partition": "0",
        "task": "'0_0'",
        "reached": "id",
        "number": "id",
        "value": f"repeat(sha2(cast(id AS string), 256), {size // 64})",
        "packed": "0",
    }
    columns = {**COLUMNS, "packed": "int"}
    return spark.range(count).selectExpr(
        *(f"cast({given.get(name, 'NULL')} AS {of}) {name}" for name, of in columns.items())
    )


def live_java_bytes(spark):
    """Return how much memory Spark's Java uses."""
    java = spark._jvm.java.lang
    java.System.gc()
    return java.Runtime.getRuntime().totalMemory() - java.Runtime.getRuntime().freeMemory()
