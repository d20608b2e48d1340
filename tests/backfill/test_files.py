"""History from files: which rows become which records, and what is wrong with files."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyspark
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from tests.backfill.broker_app import FIRST_TIMESTAMP, App
from tests.backfill.programs import CountPerKey, JoinedByValue, ReadWithUnavailableSerde, TableOfTopic
from tests.backfill.support import Engine, Partitions
from tests.waiting import wait_until

from millrace.backfill.collector import Outputs
from millrace.backfill.failures import spark_failures
from millrace.backfill.file_history import FileHistory, source_of_table
from millrace.backfill.kafka_history import Extent, KafkaHistory
from millrace.backfill.run import BackfillSpec, run_backfill
from millrace.backfill.sources import FileSource, read_sources
from millrace.config import StreamsConfig
from millrace.engine.partitioner import partition_for_key
from millrace.errors import ConfigError, StreamsError, UnavailableSerdeError
from millrace.records import TopicPartition

PARTITIONS = 3
SETTINGS = {"application.id": "files", "bootstrap.servers": "127.0.0.1:9"}
START = datetime(2024, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
PROGRAM = CountPerKey("lines", "out", SETTINGS)
COLUMNS = {"timestamp": "at", "key": "word", "value": "text"}


def history(*sources, program=PROGRAM):
    """Return the history of an application that reads `lines`."""
    extents = {TopicPartition("lines", number): Extent(0, 0, 0) for number in range(PARTITIONS)}
    kafka = KafkaHistory(SETTINGS, {"lines": PARTITIONS}, {}, extents)
    plan = program().build(StreamsConfig.of(SETTINGS)).plan()
    return FileHistory.of(kafka, sources, program, plan)


@pytest.fixture(scope="module")
def table(spark):
    """A hundred rows, out of order."""
    rows = [(START + timedelta(seconds=(n * 37) % 100), f"w{n % 9}", f"v{n}", n, {"n": b"%d" % n}) for n in range(100)]
    return spark.createDataFrame(rows, "at timestamp, word string, text string, n int, head map<string,binary>")


@pytest.fixture(scope="module")
def written(table, tmp_path_factory):
    """The table as Parquet."""
    path = str(tmp_path_factory.mktemp("files") / "table")
    table.write.parquet(path)
    return path


def records(spark, *sources):
    """Return the rows of files in the order in which tasks would get them."""
    with spark_failures(spark):
        return history(*sources).rows(spark).orderBy("topic", "partition", "number").collect()


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_rows_become_records(spark, table, tmp_path, form):
    """Key and value are what the serdes write, the partition is that of the key, and the order is that of the timestamps."""
    path = str(tmp_path / form)
    table.drop("head").write.format(form).options(header="true").save(path)
    found = records(spark, FileSource("lines", path, COLUMNS, form))
    assert len(found) == 100
    assert {(row["key"], row["value"], row["timestamp"]) for row in found} == {
        (f"w{n % 9}".encode(), f"v{n}".encode(), START_MS + (n * 37) % 100 * 1000) for n in range(100)
    }
    for row in found:
        assert row["partition"] == partition_for_key(bytes(row["key"]), PARTITIONS)
    for number in range(PARTITIONS):
        own = [row for row in found if row["partition"] == number]
        assert [row["number"] for row in own] == list(range(1, len(own) + 1))
        assert [row["timestamp"] for row in own] == sorted(row["timestamp"] for row in own)


def test_the_order_column_decides(spark, written):
    """Records that are out of order in time stay so; `reached` is the largest time so far. Headers come along."""
    found = records(spark, FileSource("lines", written, {**COLUMNS, "order": "n", "headers": "head"}))
    for number in range(PARTITIONS):
        own = [row for row in found if row["partition"] == number]
        places = [int(row["headers"][0]["value"]) for row in own]
        assert places == sorted(places)
        stamps = [row["timestamp"] for row in own]
        assert stamps != sorted(stamps)
        assert [row["reached"] for row in own] == [max(stamps[: n + 1]) for n in range(len(stamps))]


def test_columns_named_after_their_roles_need_no_mapping(spark, table, tmp_path):
    """`--from parquet://…` takes them as they are called."""
    path = str(tmp_path / "table")
    table.selectExpr("at as timestamp", "word as key", "text as value").write.parquet(path)
    assert source_of_table(spark, "lines", path).columns == {"timestamp": "timestamp", "key": "key", "value": "value"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"timestamp": "at", "key": "word", "partition": "n", "headers": "head", "order": "text"},
            r"No column of .* has the values of topic lines; it has at, word, text, n, head, which are all something else",
        ),
        ({"timestamp": "time", "key": "word"}, r"no column time \(timestamp\); it has at, word, text, n, head"),
        ({"key": "word"}, "No column of .* has the timestamps of topic lines"),
        ({"timestamp": "head", "key": "word"}, "Column head of .* has type map<string,binary>: timestamps are"),
        ({"timestamp": "at", "key": "word", "value": "n"}, "Column n of .* has a value that the serde of topic lines"),
        ({**COLUMNS, "partition": "n"}, f"has partition .*, but topic lines has {PARTITIONS}"),
        ({**COLUMNS, "headers": "n"}, "Column n of .* has type int: headers are a map"),
    ],
)
def test_columns_that_do_not_fit(spark, written, columns, message):
    """The error says which column of which file is wrong, and what would be right."""
    with pytest.raises(StreamsError, match=message):
        records(spark, FileSource("lines", written, columns))


def test_a_registry_that_is_down_is_not_the_fault_of_the_data(spark, written):
    """Another attempt may succeed, which a SerializationError rules out."""
    source = FileSource("lines", written, COLUMNS)
    with pytest.raises(UnavailableSerdeError, match="No schema for 'v"), spark_failures(spark):
        history(source, program=ReadWithUnavailableSerde("lines")).rows(spark).collect()


def test_null_timestamps(spark, table, tmp_path):
    """Rows without a timestamp are not guessed at."""
    path = str(tmp_path / "table")
    table.selectExpr("if(n = 5, null, at) as at", "word", "text").write.parquet(path)
    with pytest.raises(ConfigError, match=r"1 rows of .* have no timestamp \(column at\)"):
        records(spark, FileSource("lines", path, COLUMNS))


def test_files_that_do_not_exist(spark, tmp_path):
    """The error is Spark's first line, with the path."""
    with pytest.raises(ConfigError, match="Spark cannot read /nowhere as parquet"):
        records(spark, FileSource("lines", "/nowhere", COLUMNS))


def test_files_whose_storage_needs_a_package(spark):
    """Which class is missing says it."""
    with pytest.raises(ConfigError, match=r"Spark cannot read s3a://lake/lines as parquet: .*S3AFileSystem not found"):
        records(spark, FileSource("lines", "s3a://lake/lines", COLUMNS))


def test_files_whose_storage_does_not_answer(spark):
    """It may at the next attempt, which a ConfigError rules out; the error says what has failed."""
    path = "webhdfs://127.0.0.1:1/lines"
    with pytest.raises(StreamsError, match=rf"Spark cannot read {path} as parquet now: .*ConnectException") as raised:
        records(spark, FileSource("lines", path, COLUMNS))
    assert not isinstance(raised.value, ConfigError)


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_formats_of_packages(spark, tmp_path, form):
    """Without the package the error names it with Spark's version, and what to do if there is none for it."""
    expected = rf"needs the package of {form} for Spark {pyspark.__version__}.*write the table as Parquet"
    with pytest.raises(ConfigError, match=expected):
        records(spark, FileSource("lines", str(tmp_path), COLUMNS, form))


@pytest.mark.parametrize(
    "said",
    [
        "java.lang.NoSuchMethodError: 'void org.apache.spark.sql.execution.LogicalRDD.<init>(scala.collection.immutable.Seq)'",
        "java.lang.IncompatibleClassChangeError: class SparkView can not implement org.apache.spark.sql.connector.catalog.View",
    ],
    ids=["delta 4.4.0 for Spark 4.2", "iceberg 1.12.0 for Spark 4.1"],
)
def test_packages_for_another_spark(spark, said):
    """What Java said of them in Spark 4.3 becomes an error that says why, and what to do."""
    with (
        pytest.raises(ConfigError, match=r"made for another version than Spark .* as Parquet files"),
        spark_failures(spark),
    ):
        raise PySparkException(
            f"An error occurred while calling o63.collectToPython.\n: {said}\n\tat org.apache.spark.X"
        )


def test_topics_that_do_not_fit():
    """Files are for topics that the application reads, once each."""
    with pytest.raises(ConfigError, match="files for topic other, which files does not read; it reads lines"):
        history(FileSource("other", "/a", COLUMNS))
    with pytest.raises(ConfigError, match="Topic lines has files twice"):
        history(FileSource("lines", "/a", COLUMNS), FileSource("lines", "/b", COLUMNS))


def test_a_file_of_sources(tmp_path):
    """Times are read with their zone, and what is not known is refused by name."""
    path = tmp_path / "source.yaml"
    path.write_text(
        "files:\n- topic: lines\n  path: /data\n  format: csv\n  options: {sep: ';'}\n"
        "  columns: {timestamp: at, key: word}\n  until: 2024-01-01T01:00:00+01:00\n"
    )
    expected = FileSource("lines", "/data", {"timestamp": "at", "key": "word"}, "csv", {"sep": ";"}, START_MS)
    assert read_sources(path) == (expected,)
    path.write_text("files: [{topic: lines, path: /data, columns: {time: at}}]")
    with pytest.raises(ConfigError, match=r"files\.0\.columns"):
        read_sources(path)
    with pytest.raises(ConfigError, match=r"Cannot read .*: No such file"):
        read_sources(tmp_path / "missing.yaml")


@pytest.mark.broker
@pytest.mark.slow
def test_files_up_to_an_instant_and_kafka_from_then_on(spark, kafka, tmp_path):
    """What both have counts once, and the application goes on behind what Kafka has."""
    app = App(kafka)
    keys = [f"k{number % 5}" for number in range(60)]
    app.produce(keys)
    until = FIRST_TIMESTAMP + 30_000
    older = [(FIRST_TIMESTAMP - 1_000, "old", "old")]
    both = [(FIRST_TIMESTAMP + n * 1_000, key, key) for n, key in enumerate(keys[:40])]
    path = str(tmp_path / "table")
    spark.createDataFrame([*older, *both], "timestamp bigint, key string, value string").write.parquet(path)
    columns = {"timestamp": "timestamp", "key": "key", "value": "value"}
    result = run_backfill(
        spark,
        BackfillSpec(
            CountPerKey(app.source, app.sink),
            app.settings,
            files=[FileSource(app.source, path, columns, until_ms=until)],
        ),
    )
    app.counts["old"] += 1
    assert app.table(app.changelog) == dict(app.counts)
    wait_until(lambda: sum(app.committed().values()) == len(keys), "the offsets", 60)
    assert result.notes == [
        f"{app.source}: 31 records from files (10 at or after the instant left out), 30 offsets from Kafka (30 earlier left out)"
    ]


@pytest.mark.broker
@pytest.mark.slow
def test_a_table_that_goes_on_in_kafka_while_others_arrive(spark, kafka, tmp_path):
    """A stream with another key is joined with what the table has at its time, on both sides of the instant."""
    app = App(kafka)
    table = f"{app.id}.table"
    kafka.create_topics(table, partitions=app.partitions, config={"retention.ms": "-1"})
    updates = [(FIRST_TIMESTAMP + n * 1_000, "k", f"v{n}") for n in range(60)]
    asked = [
        (FIRST_TIMESTAMP + n * 5 + 1, "any", "k") for n in range(12_000)
    ]  # so many that they arrive in several batches
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"})
    for topic, records in ((table, updates), (app.source, asked)):
        for at, key, value in records:
            producer.produce(topic, value, key, timestamp=at)
    assert producer.flush(60) == 0
    path = str(tmp_path / "table")
    spark.createDataFrame(updates[:40], "timestamp bigint, key string, value string").write.parquet(path)
    columns = {"timestamp": "timestamp", "key": "key", "value": "value"}
    files = [FileSource(table, path, columns, until_ms=FIRST_TIMESTAMP + 30_000)]
    program = JoinedByValue(app.source, table, app.sink)
    run_backfill(spark, BackfillSpec(program, app.settings, files=files, outputs=Outputs.ALL))
    inputs = [
        (topic, key.encode(), value.encode(), at, ())
        for topic, records in ((table, updates), (app.source, asked))
        for at, key, value in records
    ]
    history = Partitions.of(inputs, dict.fromkeys((table, app.source, app.sink), app.partitions))
    expected = Engine(program, app.settings, history).run().outputs
    sent = sorted((key, value, at) for rows in expected.values() for key, value, at, _ in rows)
    assert len(sent) == len(asked)
    found = app.read(app.sink)
    assert sorted((record.key(), record.value(), record.timestamp()[1]) for record in found) == sent


@pytest.mark.broker
@pytest.mark.slow
def test_files_of_a_topic_from_which_a_table_is_restored(spark, kafka, tmp_path):
    """What is only in files would be gone after the first restoration, so they are refused; as tables they can be computed."""
    app = App(kafka)
    settings = {**app.settings, "topology.optimization": "all"}
    path = str(tmp_path / "rows")
    spark.createDataFrame([(1, "a", "b")], "timestamp bigint, key string, value string").write.parquet(path)
    columns = {"timestamp": "timestamp", "key": "key", "value": "value"}
    what = BackfillSpec(TableOfTopic(app.source, settings), settings, files=[FileSource(app.source, path, columns)])
    with pytest.raises(
        ConfigError, match=f"Store table .* restored from topic {app.source}.* Write these records to the"
    ):
        run_backfill(spark, what)
    assert app.committed() == {}
    assert run_backfill(spark, replace(what, tables=str(tmp_path / "tables"))).processed == 1
