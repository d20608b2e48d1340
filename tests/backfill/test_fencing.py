"""Two backfills of one application, and an application that starts meanwhile: only one of them gets to write."""

import gc
import os
import signal
import subprocess
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.backfill.broker_app import App
from tests.backfill.programs import CountPerKey
from tests.backfill.test_ends import DEADLINE_S, KEYS, command, go_on, spec, wait_for_publishing
from tests.backfill.test_stale_tasks import mark_with_another_topic
from tests.operator.kafka.support import patient_clusters, streams_app
from tests.waiting import wait_until

from millrace.backfill.collector import Outputs
from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.publish import DEFAULT_TRANSACTION_RECORDS, Publisher
from millrace.backfill.run import Phase, run_backfill
from millrace.backfill.writer import Writer
from millrace.config import StreamsConfig
from millrace.errors import (
    ActiveGroupError,
    ConfigError,
    ProductionError,
    StreamsError,
    StreamsTimeoutError,
    TaskMigratedError,
)
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.states import State
from millrace.kafka.admin import delete_topics
from millrace.kafka.clients import open_admin
from millrace.kafka.offsets import latest_offsets
from millrace.kafka.resetter import Resetter
from millrace.records import NO_HEADERS, OffsetAndMetadata, TopicPartition
from millrace_operator.kafka.client_config import Credentials

pytestmark = [pytest.mark.broker, pytest.mark.slow]

in_one_transaction_and_in_several = pytest.mark.parametrize("transaction_records", [DEFAULT_TRANSACTION_RECORDS, 1])


@pytest.fixture
def before_writing(monkeypatch):
    """Give a function that has something done once, when a backfill has checked everything and begins its first transaction."""
    begin = Writer.transaction

    def arrange(action):
        def act_and_begin(writer):
            monkeypatch.setattr(Writer, "transaction", begin)
            action()
            return begin(writer)

        monkeypatch.setattr(Writer, "transaction", act_and_begin)

    return arrange


@pytest.fixture
def app(kafka):
    """An application with some records."""
    app = App(kafka)
    app.produce(KEYS)
    return app


def test_of_two_backfills_the_later_one_ends(spark, app):
    """The earlier one is fenced when it writes, leaves nothing, and gives up without taking the producer's id back."""
    computed, fenced = threading.Event(), threading.Event()

    def wait_for_the_end_of_the_earlier(phase, _ends):
        if phase is Phase.PUBLISHING:
            computed.set()
            assert fenced.wait(DEADLINE_S)

    with ThreadPoolExecutor(1) as threads:
        later = []

        def start_another(phase, _ends):
            if phase is Phase.PUBLISHING:
                later.append(threads.submit(run_backfill, spark, spec(app), wait_for_the_end_of_the_earlier))
                assert computed.wait(DEADLINE_S)

        with pytest.raises(TaskMigratedError, match="Another backfill"):
            run_backfill(spark, spec(app), start_another)
        assert (app.table(app.changelog), app.committed()) == ({}, {})
        fenced.set()
        assert later[0].result(DEADLINE_S).transactions == 1
    assert app.table(app.changelog) == dict(app.counts)


@pytest.mark.thorough
def test_a_frozen_backfill_that_goes_on_after_another_has_ended(spark, kafka, tmp_path):
    """Its tasks that have not written yet write nothing more: the changelogs are the later one's."""
    app = App(kafka, partitions=6)
    app.produce([f"k{number}" for number in range(100)])
    arguments, options = command(app, tmp_path, "--transaction-records", "1", "--progress", "json")
    arguments[arguments.index("local[2]")] = "local[1]"
    admin = open_admin(app.clients.admin())
    logs = [TopicPartition(app.changelog, number) for number in range(app.partitions)]
    frozen = subprocess.Popen(arguments, start_new_session=True, **options)

    def frozen_with_something_written():
        os.killpg(frozen.pid, signal.SIGSTOP)  # it goes on only between two looks, however slow they are
        if any(latest_offsets(admin, logs).values()):
            return True
        os.killpg(frozen.pid, signal.SIGCONT)
        return False

    try:
        wait_for_publishing(frozen)
        wait_until(frozen_with_something_written, "the first transaction", DEADLINE_S)
        assert not all(latest_offsets(admin, logs).values()), "it was not fast enough to write everything"
        app.produce([f"k{number}" for number in range(100)])
        run_backfill(spark, spec(app))
        os.killpg(frozen.pid, signal.SIGCONT)
        rest, _ = frozen.communicate(timeout=DEADLINE_S)
    finally:
        if frozen.poll() is None:
            os.killpg(frozen.pid, signal.SIGKILL)
            frozen.communicate()
    assert frozen.returncode == 1, rest
    assert "Another backfill of this application was started" in rest
    assert app.table(app.changelog) == dict(app.counts)
    go_on(app, tmp_path)


@in_one_transaction_and_in_several
def test_an_application_that_is_started_while_results_are_written(
    spark, app, tmp_path, before_writing, transaction_records
):
    """The backfill gives up before its first commit, and the application counts as if there had been none.

    Nobody is told of half a result, for which the operator would keep the application stopped.
    """
    streams = KafkaStreams(CountPerKey(app.source, app.sink)(), {**app.settings, "state.dir": str(tmp_path)})
    phases = []

    def start():
        streams.start()
        wait_until(lambda: streams.state is State.RUNNING, "it runs", DEADLINE_S)

    try:
        before_writing(start)
        with pytest.raises(ActiveGroupError, match="nothing has been written"):
            run_backfill(
                spark,
                spec(app, transaction_records=transaction_records),
                lambda phase, _ends: phases.append(phase),
            )
        assert Phase.PUBLISHING_IN_PARTS not in phases
        app.produce(["k1", "new"])
        wait_until(lambda: app.table(app.changelog) == dict(app.counts), "exact counts", DEADLINE_S)
    finally:
        streams.close(60, leave_group=True)


def test_an_application_that_has_run_and_was_stopped_meanwhile(spark, app, tmp_path, before_writing):
    """Its state and its offsets stay as it has left them, and the next backfill takes what it has read into account."""

    def run():
        app.produce(["k1", "new"])
        go_on(app, tmp_path)

    for transaction_records in (DEFAULT_TRANSACTION_RECORDS, 1):
        before_writing(run)
        with pytest.raises(StreamsError, match=r"ran during the backfill.*start the backfill again; nothing has been"):
            run_backfill(spark, spec(app, transaction_records=transaction_records))
        assert app.table(app.changelog) == dict(app.counts)
    assert run_backfill(spark, spec(app)).processed == len(KEYS) + 4


def test_an_application_that_is_reset_after_its_changelogs_were_written(spark, app, before_writing):
    """It starts at the beginning, although the offsets are the same, and the mark is left in a topic that it no longer reads."""
    mark_with_another_topic(app)

    def reset():
        with Resetter(app.clients.config) as resetter:
            resetter.execute(resetter.plan(app.topology().build(app.clients.config).plan()))

    before_writing(lambda: before_writing(reset))  # in the second transaction: the first has the mark
    with pytest.raises(StreamsError, match="was reset"):
        run_backfill(spark, spec(app, transaction_records=1))
    assert set(app.committed().values()) == {0}
    assert app.table(app.changelog) == {}


@in_one_transaction_and_in_several
def test_a_topic_that_is_created_again_while_results_are_written(spark, app, before_writing, transaction_records):
    """The offsets of the deleted topic are not committed for the new one."""
    admin = open_admin(app.clients.admin())

    def create_again():
        delete_topics(admin, [app.source])
        app.kafka.create_topics(app.source, partitions=app.partitions)

    before_writing(create_again)
    with pytest.raises(StreamsError, match="created again during the backfill: start it again; nothing has been"):
        run_backfill(spark, spec(app, transaction_records=transaction_records))
    assert (app.table(app.changelog), app.committed()) == ({}, {})


def impatient_writer(app, purpose="backfill"):
    """Return a writer whose transactions brokers end after a second."""
    settings = {**app.settings, "producer.transaction.timeout.ms": "1000"}
    return Writer(backfill_clients(StreamsConfig.of(settings)), f"{app.id}-{purpose}")


def let_expire(app, writer):
    """Send a record in a writer's transaction, and wait until brokers have ended it."""
    admin, target = open_admin(app.clients.admin()), TopicPartition(app.sink, 0)

    def ended():
        ends, stable = (latest_offsets(admin, [target], committed_only=only)[target] for only in (False, True))
        return stable == ends > 0

    writer.send(target, [(b"k", b"v", 1, NO_HEADERS)])
    writer.flush()
    wait_until(ended, "the coordinator ends the transaction", DEADLINE_S)


def test_a_transaction_that_takes_too_long(app):
    """The error names the setting, and no other backfill."""
    writer = impatient_writer(app)
    with (
        pytest.raises(StreamsTimeoutError, match=r"producer.transaction.timeout.ms \(1,000 ms\)"),
        writer.transaction(),
    ):
        let_expire(app, writer)
        writer.commit(app.id, {TopicPartition(app.source, 0): OffsetAndMetadata(1)})
    writer.close()
    assert app.committed() == {}


def test_a_writer_that_is_fenced_before_it_has_anything_to_write(app):
    """However long it has read what is there, no transaction has expired: there was none for the brokers."""
    writer, other = impatient_writer(app), impatient_writer(app, "other")
    with pytest.raises(TaskMigratedError, match="Another backfill"), writer.transaction():
        with other.transaction():
            let_expire(app, other)
        impatient_writer(app).close()
        writer.send(TopicPartition(app.sink, 0), [(b"k", b"v", 1, NO_HEADERS)])
        writer.commit(app.id, {})
    writer.close()
    other.close()


def test_a_commit_that_is_not_confirmed(app):
    """The reason is what is said, even if brokers have ended the transaction meanwhile."""
    writer = impatient_writer(app)

    def refuse():
        let_expire(app, writer)
        raise TaskMigratedError("the application was reset")

    with pytest.raises(TaskMigratedError, match="the application was reset"), writer.transaction():
        writer.commit(app.id, {}, refuse)
    writer.close()


def test_a_writer_that_is_fenced_while_it_sends(app):
    """It waits for room in its queue when it hears of it; its client is freed."""
    settings = {**app.settings, "producer.queue.buffering.max.messages": "50"}
    clients = backfill_clients(StreamsConfig.of(settings))
    writer = Writer(clients, f"{app.id}-backfill")
    client = weakref.ref(writer._producer.client)
    later = []

    def records():
        for number in range(1_000_000):
            if number == 5_000:
                later.append(Writer(clients, f"{app.id}-backfill"))
            yield b"k", b"v", 1, NO_HEADERS

    with pytest.raises(TaskMigratedError, match="fenced"), writer.transaction():
        writer.send(TopicPartition(app.sink, 0), records())
    writer.close()
    later[0].close()
    del writer
    gc.collect()
    assert client() is None
    assert not app.read(app.sink)


def test_a_record_that_is_too_large(app):
    """The error says which limit of the producer it exceeds."""
    writer = Writer(backfill_clients(app.clients.config), f"{app.id}-backfill")
    with pytest.raises(ProductionError, match=f"send a record to {app.sink}.*too large"), writer.transaction():
        writer.send(TopicPartition(app.sink, 0), [(b"k", bytes(2_000_000), 1, NO_HEADERS)])
    writer.close()


def test_a_transaction_begins_with_its_first_record(app):
    """Until Spark has sorted what comes first, which may take long, no time of the transaction passes."""
    writer = Writer(backfill_clients(app.clients.config), f"{app.id}-backfill")
    with writer.transaction():
        assert not writer._producer.in_transaction
        writer.send(TopicPartition(app.sink, 0), [(b"k", b"v", 1, NO_HEADERS)])
        assert writer._producer.in_transaction
        writer.commit(app.id, {TopicPartition(app.source, 0): OffsetAndMetadata(1)})
    with pytest.raises(TaskMigratedError), writer.transaction():
        Writer(backfill_clients(app.clients.config), f"{app.id}-backfill").close()
        writer.commit(app.id, {TopicPartition(app.source, 0): OffsetAndMetadata(2)})
    writer.close()
    assert app.committed() == {0: 1}


def test_a_driver_that_dies_after_its_last_transaction(spark, app, tmp_path):
    """The next attempt of the same backfill writes the outputs no second time; another backfill does."""
    first = spec(app, outputs=Outputs.ALL, attempt_of="history")

    def die(phase, _ends):
        if phase is Phase.SUCCEEDED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_backfill(spark, first, die)
    app.produce(["k1"])
    result = run_backfill(spark, first)
    assert result.notes == ["An earlier attempt has handed over, so nothing was done again"]
    assert len(app.read(app.sink)) == len(KEYS)
    wait_until(lambda: sum(app.committed().values()) == len(KEYS), "the offsets", DEADLINE_S)
    settings = {**app.settings, "state.dir": str(tmp_path)}
    with KafkaStreams(CountPerKey(app.source, app.sink)(), settings) as streams:
        wait_until(lambda: streams.state is State.RUNNING, "it runs", DEADLINE_S)
        assert run_backfill(spark, first).notes == result.notes
    run_backfill(spark, spec(app, attempt_of="again"))
    wait_until(lambda: sum(app.committed().values()) == len(KEYS) + 1, "the offsets of the other backfill", DEADLINE_S)
    assert app.table(app.changelog) == dict(app.counts)


def test_brokers_tell_the_operator_what_attempts_have_published(spark, kafka, app, monkeypatch):
    """Whose half result there is, and who has handed over: of a driver that is gone nobody else can tell."""
    clusters, served = patient_clusters(monkeypatch), streams_app(kafka.bootstrap_servers, app.id)
    plans = [app.topology().build(app.clients.config).plan()]

    def published(*backfills):
        return [clusters.published(served, Credentials(), backfill, plans) for backfill in backfills]

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Publisher, "_fence_executors", die)
        run_backfill(spark, spec(app, transaction_records=1, attempt_of="b-1"))
    assert published("b-1", "b-2") == ["Parts", "Nothing"]
    run_backfill(spark, spec(app, attempt_of="b-2"))
    assert published("b-1", "b-2") == ["Nothing", "Everything"]
    clusters.close()


def test_a_transaction_that_brokers_do_not_allow(app):
    """The error names the settings of both sides."""
    settings = {**app.settings, "producer.transaction.timeout.ms": "90000000"}
    with pytest.raises(
        ConfigError, match=r"90,000,000 ms.*transaction.max.timeout.ms, or set producer.transaction.tim"
    ):
        Writer(backfill_clients(StreamsConfig.of(settings)), f"{app.id}-backfill")
