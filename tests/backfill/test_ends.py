"""Reading from Kafka up to fixed ends, and publishing: what is written, when, and what is refused."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.backfill.broker_app import App, run_command
from tests.backfill.programs import CopiedFrom, CountAndVersions, CountPerKey, Killed
from tests.backfill.support import rows_of
from tests.cli.test_bad_input import in_own_namespace
from tests.instance.test_producer import set_largest_batch
from tests.waiting import wait_until

from millrace.backfill import kafka_history, publish
from millrace.backfill.collector import Outputs
from millrace.backfill.kafka_history import backfill_clients, check_unchanged, freeze
from millrace.backfill.partition_write import Changes, ExecutorTombstones, OldRecords
from millrace.backfill.preconditions import NOTHING_WRITTEN
from millrace.backfill.rows import Row, to_arrow
from millrace.backfill.run import BackfillSpec, Phase, run_backfill
from millrace.backfill.transport import ordered
from millrace.backfill.writer import Writer
from millrace.cli.backfill_report import Reporter
from millrace.cli.errors import FAILED, WRONG_INPUT, exit_code
from millrace.config import StreamsConfig
from millrace.errors import (
    ActiveGroupError,
    ConfigError,
    MissingHistoryError,
    MissingSourceTopicError,
    ProductionError,
    StreamsError,
)
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.states import State
from millrace.kafka.admin import delete_topics
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import delete_records, latest_offsets
from millrace.records import NO_HEADERS, OFFSET, OffsetAndMetadata, TopicPartition
from millrace_operator.backfills.driver_log import parse_progress

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEYS = [f"k{number % 7}" for number in range(20)]
DEADLINE_S = 120.0


@pytest.fixture
def app(kafka):
    """An application with some records."""
    app = App(kafka)
    app.produce(KEYS)
    return app


def spec(app, **options):
    """Return what to do."""
    return BackfillSpec(CountPerKey(app.source, app.sink), app.settings, **options)


def go_on(app, tmp_path, program=None):
    """Run the application until it has read everything, and stop it."""
    settings = {**app.settings, "state.dir": str(tmp_path / "state"), "commit.interval.ms": "100"}
    streams = KafkaStreams((program or CountPerKey(app.source, app.sink))(), settings)
    streams.start()
    try:
        wait_until(lambda: app.table(app.changelog) == dict(app.counts), "exact counts", DEADLINE_S)
    finally:
        streams.close(60, leave_group=True)


@pytest.mark.thorough
def test_result_may_be_larger_than_what_the_driver_takes_at_once(kafka, tmp_path):
    """The driver gets its rows a part at a time, so its memory has to suffice for one part only."""
    app = App(kafka)
    app.produce([f"{number:04}".ljust(10_000, "x") for number in range(5_000)])
    app.write_project(tmp_path)
    found = run_command(tmp_path, PYSPARK_SUBMIT_ARGS="--conf spark.driver.maxResultSize=30m pyspark-shell")
    assert found.returncode == 0, found.stdout
    assert app.table(app.changelog) == dict(app.counts)


def test_the_application_goes_on_where_the_history_ends(spark, app, tmp_path):
    """Open transactions are left to the application, aborted ones are read by nobody, and each record counts once."""
    app.open_transaction(["aborted"] * 3).abort_transaction(60)
    opened = app.open_transaction(["open"])
    result = run_backfill(spark, spec(app, outputs=Outputs.LAST))
    assert app.table(app.changelog) == app.table(app.sink) == dict(app.counts)
    assert result.processed == len(KEYS)
    assert result.outputs == {app.sink: len(app.counts)}
    assert result.transactions == 1
    wait_until(lambda: len(app.committed()) == app.partitions, "the offsets", DEADLINE_S)
    opened.commit_transaction(60)
    app.counts["open"] += 1
    app.produce(["k1", "new"])
    go_on(app, tmp_path)


def test_where_the_application_is_may_be_known_only_when_its_last_transaction_has_ended(spark, app):
    """It was killed during its first one, which brokers end some time later. Until then its group has no offsets."""
    source = TopicPartition(app.source, 0)
    settings = {**app.settings, "producer.transaction.timeout.ms": "2000"}
    killed = Writer(backfill_clients(StreamsConfig.of(settings)), f"{app.id}-1")

    def check_that_it_has_ended(phase, _ends):
        if phase is Phase.COMPUTING:
            with GroupAdmin(app.clients, 5.0) as group:
                group.stable_offsets([source])

    with killed.transaction():
        killed.add_offsets(app.id, {source: OffsetAndMetadata(1)})
        run_backfill(spark, spec(app), check_that_it_has_ended)
    killed.close()


def produce_ghosts(app, keys):
    """Write keys to the changelog that the history does not have."""
    producer = Producer({"bootstrap.servers": app.kafka.bootstrap_servers})
    for number, key in enumerate(keys):
        producer.produce(app.changelog, (9).to_bytes(8, "big"), key, partition=number % app.partitions)
    assert producer.flush(60) == 0


def test_a_second_backfill_replaces_the_first(spark, app):
    """A key that the changelog holds and the history does not is deleted; nothing is counted twice.

    Only the keys of a changelog count as records of a transaction, not what it has held before: an application that has run for
    long has sent many records, but may have few keys. Tombstones do: a small result that replaces a large one is written in
    several transactions.
    """
    run_backfill(spark, spec(app))
    produce_ghosts(app, [f"ghost{number % 4}" for number in range(200)])
    app.produce(["k1", "k2"])
    result = run_backfill(spark, spec(app, outputs=Outputs.LAST, transaction_records=100))
    assert result.transactions == 1
    assert (result.stores["counts"].records, result.stores["counts"].tombstones) == (len(app.counts), 4)
    assert app.table(app.changelog) == app.table(app.sink) == dict(app.counts)
    tombstones = {record.key() for record in app.read(app.changelog) if record.value() is None}
    assert tombstones == {b"ghost%d" % number for number in range(4)}

    produce_ghosts(app, [f"many{number}" for number in range(200)])
    result = run_backfill(spark, spec(app, transaction_records=100))
    assert result.transactions == 2 + app.partitions
    assert result.stores["counts"].tombstones == 200
    assert app.table(app.changelog) == dict(app.counts)


def test_versions_of_the_first_millisecond_are_found_again(app):
    """A timestamp of 0 is written as 1, as producers take 0 for now; a second backfill knows it as its own."""
    target = TopicPartition(app.sink, 0)
    clients, admin = backfill_clients(app.clients.config), open_admin(app.clients.admin())
    writer = Writer(clients, f"{app.id}-backfill")
    rows = to_arrow([Row(app.sink, 0, 0, "0_0", 1, 0, b"k", b"v", NO_HEADERS)])
    for _ in range(2):
        end = latest_offsets(admin, [target])[target]
        old = {target: OldRecords(0, end, end)}
        with writer.transaction():
            changes = Changes(app.settings, old, versioned=frozenset({app.sink}), mark="")
            assert changes.write(writer, clients, target, iter([rows])).tombstones == 0
            writer.commit(app.id, {})
    writer.close()


def test_versions_that_cannot_be_deleted_are_found_before_anything_is_written(spark, app, tmp_path):
    """Even if there are several transactions: the application goes on. Versions that are computed again are no obstacle."""
    program, phases = CountAndVersions(app.source), []
    go_on(app, tmp_path, program)
    again = BackfillSpec(program, app.settings, transaction_records=1, allow_missing_history=True)
    assert run_backfill(spark, again).transactions == 2 + 2 * app.partitions
    delete_records(open_admin(app.clients.admin()), {TopicPartition(app.source, 0): 5})
    with pytest.raises(
        ConfigError, match=r"versions-changelog-0 holds 5 versions .* reset .*; nothing has been written"
    ):
        run_backfill(spark, again, lambda phase, _ends: phases.append(phase))
    assert phases == [Phase.COMPUTING]
    app.produce(["k1", "new"])
    go_on(app, tmp_path, program)


@pytest.mark.parametrize(("deleted", "left"), [(2, [(b"k2", b"v"), (b"k2", None)]), (3, [])])
def test_what_retention_deletes_from_a_changelog_meanwhile_needs_no_tombstone(app, deleted, left):
    """Keys that are left get theirs all the same."""
    target = TopicPartition(app.sink, 0)
    clients, admin = backfill_clients(app.clients.config), open_admin(app.clients.admin())
    producer = Producer({"bootstrap.servers": app.kafka.bootstrap_servers})
    for number in range(3):
        producer.produce(app.sink, b"v", b"k%d" % number, partition=0)
    assert producer.flush(60) == 0
    delete_records(admin, {target: deleted})
    changes = Changes(app.settings, {target: OldRecords(0, 3, 3)}, versioned=frozenset(), mark="")
    writer = Writer(clients, f"{app.id}-backfill")
    with writer.transaction():
        assert changes.write(writer, clients, target, iter([])).tombstones == 3 - deleted
        writer.commit(app.id, {})
    writer.close()
    assert [(record.key(), record.value()) for record in app.read(app.sink)] == left


def test_tombstones_have_the_same_place_whenever_they_are_looked_for(app):
    """Spark may do so again when it has lost some, and the changelog may have been compacted since: none may be left out."""
    target = TopicPartition(app.sink, 0)
    producer = Producer({"bootstrap.servers": app.kafka.bootstrap_servers})
    for number in range(9):
        producer.produce(app.sink, b"v", b"k%d" % number, partition=0)
    assert producer.flush(60) == 0
    find = ExecutorTombstones(Changes(app.settings, {target: OldRecords(0, 9, 9)}, versioned=frozenset(), mark=""))
    marker = to_arrow([Row(*target, -1, "", 0, 0, None, None, NO_HEADERS, packed=-1)])

    def places():
        return {row.key: row.number for batch in find(iter([marker])) for row in rows_of(batch)}

    before = places()
    assert before.keys() == {b"k%d" % number for number in range(9)}
    delete_records(open_admin(app.clients.admin()), {target: 3})
    assert places() == {key: place for key, place in before.items() if key not in {b"k0", b"k1", b"k2"}}


def check_untouched(app):
    """Check that a backfill has left no topic and no offset behind."""
    assert app.changelog not in app.kafka.admin().list_topics(timeout=60).topics
    assert app.committed() == {}


def test_tables_do_not_touch_kafka(spark, app, tmp_path):
    """The stores are reported, and in files."""
    result = run_backfill(spark, spec(app, tables=str(tmp_path / "tables")))
    assert result.stores["counts"].records == len(app.counts)
    check_untouched(app)
    rows = spark.read.parquet(str(tmp_path / "tables" / "counts")).collect()
    assert {row["key"]: row["value"] for row in rows} == dict(app.counts)


def test_deleted_history_is_refused_unless_allowed(spark, app):
    """The error names the partitions with their first offsets; nothing is written. A dry run does not touch Kafka either."""
    admin = open_admin(app.clients.admin())
    delete_records(admin, {TopicPartition(app.source, 0): 5})
    with pytest.raises(MissingHistoryError, match=rf"{app.source}-0 begins at offset 5"):
        run_backfill(spark, spec(app))
    check_untouched(app)
    result = run_backfill(spark, spec(app, dry_run=True, allow_missing_history=True))
    check_untouched(app)
    assert result.processed == len(KEYS) - 5
    assert result.stores["counts"].records == len(set(KEYS))  # of each some are left
    assert any(f"{app.source}-0 had before offset 5" in note for note in result.notes)


@pytest.mark.parametrize(("allow_missing", "code"), [(True, FAILED), (False, WRONG_INPUT)])
def test_history_that_is_deleted_before_it_is_read(app, allow_missing, code):
    """Another attempt reads what is left if that is allowed; otherwise no attempt can succeed."""
    admin = open_admin(app.clients.admin())
    plan = CountPerKey(app.source, app.sink)().build(app.clients.config).plan()
    partition = TopicPartition(app.source, 0)
    history = freeze(plan, app.settings, admin, allow_missing=allow_missing)
    delete_records(admin, {partition: 5})
    with pytest.raises(StreamsError, match=f"Records of {partition} were deleted") as failure:
        list(history.read(partition))
    assert exit_code(failure.value) == code
    if allow_missing:
        again = freeze(plan, app.settings, admin, allow_missing=True)
        assert next(again.read(partition))[0][OFFSET] == 5


def test_a_running_application_is_refused(spark, app, tmp_path):
    """The error names its members, and its offsets stay."""
    streams = KafkaStreams(CountPerKey(app.source, app.sink)(), {**app.settings, "state.dir": str(tmp_path)})
    streams.start()
    try:
        wait_until(lambda: app.table(app.changelog) == dict(app.counts), "it runs", DEADLINE_S)
        with pytest.raises(ActiveGroupError, match="Stop it, then start the backfill again"):
            run_backfill(spark, spec(app))
    finally:
        streams.close(60, leave_group=True)


def test_another_plan_is_refused(spark, app):
    """State of another topology would not fit."""
    with pytest.raises(ConfigError, match="the application's is 1234"):
        run_backfill(spark, spec(app, plan_hash="1234"))


def test_what_is_refused_before_anything_is_written_is_not_being_published(spark, app):
    """So that nobody takes it for half a result."""
    phases = []
    with pytest.raises(ConfigError, match=rf"There are {len(KEYS)} output records, .* at most 10\."):
        run_backfill(
            spark, spec(app, outputs=Outputs.ALL, transaction_records=10), lambda phase, _ends: phases.append(phase)
        )
    assert phases == [Phase.COMPUTING]
    assert app.committed() == {}


def test_a_record_that_brokers_refuse(spark, app, capsys):
    """The only transaction is aborted and leaves nothing, and the operator can tell from the report that it was the only one."""
    reporter = Reporter(as_json=True, bar=False)

    def refuse_records(phase, ends):
        reporter.phase(phase, ends)
        if phase is Phase.PUBLISHING:
            set_largest_batch(app.kafka, app.sink, 1)

    with pytest.raises(ProductionError, match=f"record for {app.sink}") as failure:
        run_backfill(spark, spec(app, outputs=Outputs.ALL), refuse_records)
    reporter.failed(failure.value)
    last = parse_progress(capsys.readouterr().out)
    assert (last.state, last.has_published, last.in_one_transaction) == ("Failed", True, True)
    assert (app.table(app.changelog), app.committed()) == ({}, {})


def test_an_executor_that_runs_out_of_memory(spark, app):
    """A process that the kernel has killed is named as what it is, with what helps; nothing is written."""
    with pytest.raises(StreamsError, match=r"did not survive .*: give executors more memory or local disk"):
        run_backfill(spark, BackfillSpec(Killed(app.source), app.settings))
    assert app.committed() == {}


@pytest.mark.thorough
def test_an_executor_whose_disk_is_full(kafka, tmp_path):
    """State that does not fit on an executor's disk ends the backfill with what helps; nothing is written."""
    app = App(kafka)
    app.produce([secrets.token_hex(20_000) for _ in range(200)])
    app.write_project(tmp_path)
    ends_on_full_disk(app, tmp_path)


@pytest.mark.thorough
def test_a_full_disk_is_not_the_fault_of_a_record(kafka, tmp_path):
    """Though it is noticed while a record is processed, nobody is asked whether to skip the record."""
    app = App(kafka, partitions=1)
    app.produce([secrets.token_hex(20_000) for _ in range(1_000)])
    app.write_project(tmp_path)
    (tmp_path / "shop.py").write_text(
        f"from tests.backfill.programs import Kept\n\n\ntopology = Kept({app.source!r})\n"
    )
    with (tmp_path / "streamsapp.yaml").open("a") as manifest:
        manifest.write("  processing: {errorPolicy: {processing: Continue}}\n")
    assert "skipped" not in ends_on_full_disk(app, tmp_path)


def ends_on_full_disk(app, folder):
    """Run a backfill whose executor has 2 MB of disk, and return what it printed."""
    (folder / "disk").mkdir()
    prefix = in_own_namespace(folder / "disk", "size=2m")
    done = run_command(folder, "--master", "local[1]", prefix=prefix, SPARK_LOCAL_DIRS=str(folder / "disk"))
    assert done.returncode == 1, done.stdout
    assert "No space left on device): give executors more memory or local disk" in " ".join(done.stdout.split())
    assert app.committed() == {}
    return done.stdout


def test_a_topic_that_was_deleted(app):
    """Before the backfill and during it the error names the topic; nothing is written."""
    admin = open_admin(app.clients.admin())
    plan = CountPerKey(app.source, app.sink)().build(app.clients.config).plan()
    history = freeze(plan, app.settings, admin)
    delete_topics(admin, [app.source])
    with pytest.raises(StreamsError, match=f"Topic {app.source} was deleted during the backfill"):
        check_unchanged(history, admin, NOTHING_WRITTEN)
    with pytest.raises(MissingSourceTopicError, match=app.source):
        freeze(plan, app.settings, admin)


def test_a_partition_that_is_created_while_the_ends_are_asked_for(app, monkeypatch):
    """It has no end: what came to it until the hand-over would count as processed."""

    def ask_and_create(*arguments, **options):
        found = latest_offsets(*arguments, **options)
        app.add_partition(app.source)
        return found

    monkeypatch.setattr(kafka_history, "latest_offsets", ask_and_create)
    plan = CountPerKey(app.source, app.sink)().build(app.clients.config).plan()
    with pytest.raises(StreamsError, match=f"{app.source}-2 was created while .* start the backfill again"):
        freeze(plan, app.settings, open_admin(app.clients.admin()))


def test_what_is_computed_again_while_it_is_published_has_to_be_the_same(spark, app, tmp_path, monkeypatch):
    """Spark may lose what it has computed after the driver got a part of it, and has compaction left less of the history."""
    first_key = tmp_path / "first"
    first_key.write_text("k0")

    def lose_all(*arguments):
        yield from ordered(*arguments)
        first_key.write_text("k3")
        spark.catalog.clearCache()

    monkeypatch.setattr(publish, "ordered", lose_all)
    what = BackfillSpec(CopiedFrom(app.source, app.sink, first_key), app.settings, outputs=Outputs.ALL)
    with pytest.raises(StreamsError, match=r"has computed something else .* Start the backfill again"):
        run_backfill(spark, what)
    assert app.committed() == {}
    assert app.read(app.sink) == []


def test_a_topic_created_again_meanwhile_is_noticed(app):
    """Offsets of the deleted topic mean nothing in the new one, so nothing is written."""
    admin = open_admin(app.clients.admin())
    plan = CountPerKey(app.source, app.sink)().build(app.clients.config).plan()
    history = freeze(plan, app.settings, admin)
    check_unchanged(history, admin, NOTHING_WRITTEN)
    delete_topics(admin, [app.source])
    app.kafka.create_topics(app.source, partitions=app.partitions)
    with pytest.raises(StreamsError, match="deleted and created again"):
        check_unchanged(history, admin, NOTHING_WRITTEN)


def command(app, folder, *arguments):
    """Return the command as a user types it, and its options."""
    app.write_project(folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))}
    full = [
        sys.executable,
        "-m",
        "millrace.cli.spark_driver",
        "-f",
        "streamsapp.yaml",
        "--master",
        "local[2]",
        *arguments,
    ]
    return full, {
        "cwd": folder,
        "env": environment,
        "text": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }


def wait_for_publishing(driver):
    """Wait until a driver, which reports its progress as JSON, is about to write."""
    said = []
    for line in driver.stdout:
        said.append(line)
        if '"Publishing"' in line:
            break
    else:
        pytest.fail("".join(said))


def refusal(app, tmp_path):
    """Start the application, and return why it ends."""
    settings = {**app.settings, "state.dir": str(tmp_path / "refused")}
    streams = KafkaStreams(CountPerKey(app.source, app.sink)(), settings)
    streams.start()
    try:
        wait_until(lambda: streams.state is State.ERROR, "the end of the application", DEADLINE_S)
        return str(next(thread.error for thread in streams.threads if thread.error is not None))
    finally:
        streams.close(60, leave_group=True)


@pytest.mark.thorough
def test_a_driver_killed_between_its_transactions(app, tmp_path):
    """Changelogs are written, offsets are not: the application refuses to start until another backfill has ended."""
    arguments, options = command(app, tmp_path, "--transaction-records", "1", "--progress", "json")
    admin = open_admin(ClientSettings(app.clients.config, "watch").admin())
    driver = subprocess.Popen(arguments, start_new_session=True, **options)
    logs = [TopicPartition(app.changelog, number) for number in range(app.partitions)]
    try:
        wait_for_publishing(driver)
        wait_until(lambda: any(latest_offsets(admin, logs).values()), "the first transaction", DEADLINE_S)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    app.produce(["k1"])
    assert "a backfill has begun to write this application's changelogs and has not ended" in refusal(app, tmp_path)
    arguments, options = command(app, tmp_path)
    done = subprocess.run(arguments, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stdout
    assert "Handed over in 2 transactions" in done.stdout  # the first says that the other backfill is over
    assert app.table(app.changelog) == dict(app.counts)
    go_on(app, tmp_path)
