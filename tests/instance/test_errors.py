"""What an instance does when something is refused, missing or fails, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from tests.instance.support import (
    NUMBER,
    TEXT,
    Changed,
    CountWords,
    Replica,
    counting_with,
    counts_builder,
    expected_counts,
    has_failed,
    last_counts,
    produce,
    read_all,
    running,
    settings,
    word_count,
)
from tests.kafka.support import create_acl
from tests.waiting import PATIENCE_S, wait_until

from millrace.assignment import AssignedTasks, AssignmentConfig, GroupLeader, MemberProtocol
from millrace.assignment.protocol import Assigned, MemberSubscription
from millrace.config import StreamsConfig
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import (
    AuthorizationError,
    BrokerUnreachableError,
    ConfigError,
    FailedProcessingError,
    LockError,
    MisconfiguredInternalTopicError,
    MissingInternalTopicsError,
    MissingSinkTopicError,
    MissingSourceTopicError,
    ProductionError,
    StateDirectoryError,
    StreamsError,
    TopologyError,
)
from millrace.instance import KafkaStreams, State, UncaughtExceptionResponse, run
from millrace.instance.activity import LoopProgress
from millrace.instance.membership import ClassicMembership, may_create_topics
from millrace.instance.producer import StreamsProducer
from millrace.instance.record_collector import KafkaRecordCollector
from millrace.instance.task_restoration import RestoreListener
from millrace.instance_status import write_status
from millrace.kafka.admin import appears_on_demand
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.client_supplier import KafkaClientSupplier
from millrace.kafka.connection_check import check_connection
from millrace.plan.topology_plan import PlannedSubtopology, TopologyPlan
from millrace.processor.api import Processor
from millrace.processor.handlers import HandlerResponse
from millrace.records import NO_HEADERS
from millrace.state import Stores
from millrace.topology import Topology

pytestmark = pytest.mark.broker
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


def committed_offset(kafka, app, topic):
    """Return the group's committed offset of partition 0, or -1001 if there is none."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": app})
    try:
        return consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset
    finally:
        consumer.close()


def copy(source, sink):
    """Return a topology that copies records."""
    return (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_sink("out", sink, "in", key_serde=TEXT, value_serde=TEXT)
    )


@BOTH
def test_refused_record_keeps_its_offset_from_being_committed(kafka, topic_factory, app, tmp_path, guarantee):
    """A record that the broker refuses ends the instance with an error that names it, and is not skipped."""
    source, sink = topic_factory("in"), topic_factory("out", config={"max.message.bytes": "500"})
    produce(kafka, source, ["small", "x" * 5000, "after"])
    streams = KafkaStreams(copy(source, sink), settings(kafka, app, tmp_path, processing_guarantee=guarantee))
    streams.start()
    with pytest.raises(ProductionError, match=r"max\.message\.bytes") as raised:
        streams.wait(PATIENCE_S)
    assert streams.state is State.ERROR
    assert sink in str(raised.value)
    assert committed_offset(kafka, app, source) < 2
    streams.close()


class Forgive:
    """Skips refused records."""

    def __init__(self):
        self.seen = []

    def handle_error(self, context, record, exception):
        """Answer RESUME."""
        self.seen.append((record.topic, len(record.value)))
        return HandlerResponse.resume()

    def handle_serialization_error(self, context, topic, record, exception):
        """Answer FAIL."""
        return HandlerResponse.fail()


def test_production_handler_may_let_refused_records_go(kafka, topic_factory, app, tmp_path):
    """If the handler returns RESUME, the offset of a refused record is committed, and the following records are written."""
    source, sink = topic_factory("in"), topic_factory("out", config={"max.message.bytes": "500"})
    handler = Forgive()
    config = settings(kafka, app, tmp_path) | {"production.exception.handler": handler, "producer.linger.ms": 0}
    with running(copy(source, sink), config) as streams:
        produce(kafka, source, ["x" * 5000])
        wait_until(lambda: handler.seen, "the handler was asked")
        produce(kafka, source, ["after"])
        wait_until(lambda: read_all(kafka, sink), "the record after it")
        wait_until(lambda: committed_offset(kafka, app, source) == 2, "both committed")
        assert streams.state is State.RUNNING
    assert handler.seen == [(sink, 5000)]
    assert [value for _, value, _ in read_all(kafka, sink)] == [b"after"]


def test_record_too_large_for_the_producer_is_refused_at_once(kafka, topic_factory, app, tmp_path):
    """For a record above the producer's own limit the handler is asked before it is sent, also under exactly-once."""
    source, sink = topic_factory("in"), topic_factory("out")
    handler = Forgive()
    config = settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2") | {
        "production.exception.handler": handler,
        "producer.message.max.bytes": 1000,
    }
    produce(kafka, source, ["x" * 5000, "after"])
    with running(copy(source, sink), config):
        wait_until(lambda: read_all(kafka, sink), "the record after it")
    assert handler.seen == [(sink, 5000)]


def test_missing_source_topic_is_named(kafka, app, tmp_path):
    """Starting without an input topic fails at once, and the error names the topic."""
    with pytest.raises(MissingSourceTopicError, match="no-such-topic"):
        KafkaStreams(word_count("no-such-topic", "out"), settings(kafka, app, tmp_path)).start()


def with_dead_letters(kafka, app, tmp_path, topic):
    """Return settings that send dead letters to a topic."""
    return settings(kafka, app, tmp_path) | {"errors.dead.letter.queue.topic.name": topic}


def test_missing_dead_letter_topic_is_named(kafka, topic_factory, app, tmp_path, monkeypatch):
    """The topic is checked at the start, not when the first record fails, and the error names the setting."""
    monkeypatch.setattr(appears_on_demand, "__defaults__", (0.5,))  # seconds in which brokers may create it
    config = with_dead_letters(kafka, app, tmp_path, "no-such-letters")
    with pytest.raises(MissingSinkTopicError, match=r"errors\.dead\.letter\.queue\.topic\.name=no-such-letters"):
        KafkaStreams(copy(topic_factory("in"), topic_factory("out")), config).start()


def test_dead_letter_topic_that_is_there(kafka, topic_factory, app, tmp_path):
    """With its dead-letter topic an application starts, and sends there what it cannot read."""
    source, sink, failed = topic_factory("in"), topic_factory("out"), topic_factory("failed")
    produce(kafka, source, ["short", "12345678"])
    topology = (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=NUMBER)
        .add_sink("out", sink, "in", key_serde=TEXT, value_serde=NUMBER)
    )
    config = with_dead_letters(kafka, app, tmp_path, failed) | {
        "deserialization.exception.handler": "LogAndContinueExceptionHandler"
    }
    with running(topology, config):
        wait_until(lambda: read_all(kafka, failed), "the dead letter")
    assert [value for _, value, _ in read_all(kafka, failed)] == [b"short"]


def test_dead_letter_topic_that_brokers_make_on_demand(own_kafka, app, tmp_path):
    """If brokers create topics on first use, they are given the chance to."""
    kafka = own_kafka(config={"auto.create.topics.enable": "true"})
    kafka.create_topics("in")
    kafka.create_topics("out")
    with running(copy("in", "out"), with_dead_letters(kafka, app, tmp_path, "failed")):
        assert "failed" in kafka.admin().list_topics(timeout=PATIENCE_S).topics


@pytest.fixture(scope="module")
def guarded():
    """A broker with topics that everybody may read and write, and two that nobody may write: one may be read."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedKafka(config=config) as kafka:
        kafka.create_topics("in", "out", "failed", "secret")
        for topic, operation in (("failed", AclOperation.READ), ("secret", AclOperation.ALL)):
            allowed = AclPermissionType.DENY if topic == "secret" else AclPermissionType.ALLOW
            resource = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
            create_acl(kafka.admin(), AclBinding(*resource, "User:ANONYMOUS", "*", operation, allowed))
        yield kafka


@pytest.mark.parametrize("topic", ["failed", "secret"])
def test_dead_letter_topic_that_may_not_be_written(guarded, app, tmp_path, topic):
    """Without permission to write to the topic the application does not start, and the error names the permission."""
    config = with_dead_letters(guarded, app, tmp_path, topic)
    with pytest.raises(AuthorizationError, match=rf"errors\.dead\.letter\.queue\.topic\.name={topic}.*WRITE"):
        KafkaStreams(copy("in", "out"), config).start()


class SkipAll:
    """Skips whatever it is asked about."""

    def handle_error(self, context, record, exception):
        """Answer RESUME."""
        return HandlerResponse.resume()


@BOTH
def test_topic_that_may_not_be_written(guarded, app, tmp_path, guarantee):
    """The instance ends and says so, also where partitions are refused before any record is sent; no handler may skip records."""
    source = f"{app}-in"
    guarded.create_topics(source)
    produce(guarded, source, ["a", "b"])
    config = settings(guarded, app, tmp_path, processing_guarantee=guarantee)
    config["production.exception.handler"] = SkipAll()
    with contextlib.closing(KafkaStreams(copy(source, "failed"), config)) as streams:
        streams.start()
        with pytest.raises(ProductionError, match=r"failed.* WRITE on the topic"):
            streams.wait(PATIENCE_S)
    assert committed_offset(guarded, app, source) < 2


@pytest.mark.parametrize("buffer", ["free", "full"])
def test_what_is_sent_when_a_topic_was_refused_says_so(guarded, app, tmp_path, buffer):
    """A transaction that failed without the report of a record is not begun again, whether or not the record had to wait."""
    config = StreamsConfig.of(settings(guarded, app, tmp_path, processing_guarantee="exactly_once_v2"))
    producer = StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms)
    collector = KafkaRecordCollector(producer, guarded.admin(), config)
    producer.start()
    try:
        collector.send("failed", None, b"first", 1, NO_HEADERS, 0)
        wait_until(lambda: has_failed(producer.client), "the broker's refusal")
        if buffer == "full":
            producer.client = FullOnce(producer.client)
        with pytest.raises(ProductionError, match=r"TOPIC_AUTHORIZATION_FAILED.*failed.* WRITE"):
            collector.send("out", None, b"second", 1, NO_HEADERS, 0)
    finally:
        producer.close()


class FullOnce(Changed):
    """Has no room for a record when it is asked first."""

    full = True

    def produce(self, *record):
        """Send a record."""
        if self.full:
            self.full = False
            raise BufferError
        self._client.produce(*record)


def test_internal_topic_with_wrong_partitions_is_refused(kafka, topic_factory, app, tmp_path):
    """A changelog is refused if its partition count is not its sub-topology's number of tasks."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")
    kafka.create_topics(f"{app}-counts-changelog", partitions=3, config={"cleanup.policy": "compact"})
    with pytest.raises(MisconfiguredInternalTopicError, match="3 partitions but needs 2"):
        KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path)).start()


def test_internal_topics_may_be_the_operators_business(kafka, topic_factory, app, tmp_path):
    """With __internal.topics.create__=false, a missing changelog is an error."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path) | {"__internal.topics.create__": "false"}
    with pytest.raises(MissingInternalTopicsError, match=f"{app}-counts-changelog"):
        KafkaStreams(word_count(source, sink), config).start()


@pytest.mark.parametrize(
    ("sources", "may"), [({"source_topics": ("in",)}, False), ({"source_patterns": ("in-.*",)}, True)]
)
def test_topics_of_patterns_are_the_applications_own_business(app, tmp_path, sources, may):
    """Topics needed because of topics that match a pattern are created by the application, as nobody else can do so in time."""
    plan = TopologyPlan(application_id=app, hash="0", subtopologies=(PlannedSubtopology(id=0, **sources),))
    config = settings("127.0.0.1:9", app, tmp_path) | {"__internal.topics.create__": "false"}
    assert may_create_topics(plan, StreamsConfig.of(config)) is may


def test_unreachable_brokers_are_said_to_be(app, tmp_path, monkeypatch):
    """If no broker answers, the start fails and the error has the address."""
    monkeypatch.setattr(check_connection, "__defaults__", (1.0,))
    config = settings("127.0.0.1:9", app, tmp_path)
    with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:9"):
        KafkaStreams(word_count("in", "out"), config).start()


def test_transaction_shorter_than_the_commit_interval_is_refused(app, tmp_path):
    """Under exactly-once the commit interval must be shorter than the transaction timeout."""
    config = settings("127.0.0.1:9", app, tmp_path, processing_guarantee="exactly_once_v2", commit_interval_ms=30_000)
    with pytest.raises(ConfigError, match=r"transaction\.timeout\.ms"):
        KafkaStreams(word_count("in", "out"), config)


def test_locked_state_directory_is_refused(kafka, topic_factory, app, tmp_path):
    """A second instance on the same directory does not start and names the holder; the first is not affected."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path)
    with running(word_count(source, sink), config) as first:
        with pytest.raises(LockError, match=str(tmp_path / app)):
            KafkaStreams(word_count(source, sink), config).start()
        assert first.state is State.RUNNING


def test_full_volume_ends_the_instance_with_advice(kafka, topic_factory, app, tmp_path):
    """If the volume fills up while state is written, the instance ends and says that the volume is full."""
    target = tmp_path / "small"
    target.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", target], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs privileges")
    try:
        source, sink = topic_factory("in"), topic_factory("out")
        streams = KafkaStreams(word_count(source, sink), settings(kafka, app, target))
        try:
            with pytest.raises(StateDirectoryError, match=r"full|space"):
                streams.start()
                for batch in range(40):  # 160 MB; the volume is full after the first memtable
                    produce(kafka, source, [f"{batch}-{n}-{'y' * 40_000}" for n in range(100)])
                    streams.wait(0.5)
                streams.wait(PATIENCE_S)
        finally:
            streams.close()
    finally:
        subprocess.run(["umount", "-l", target], check=True)


class FailOnce(CountWords):
    """Fails on the word `bad`, once."""

    failed = False

    def process(self, record):
        """Count, or fail."""
        if record.value == "bad" and not FailOnce.failed:
            FailOnce.failed = True
            raise RuntimeError("this word is bad")
        super().process(record)


def failing(source, sink):
    """Return a word count that fails once."""
    FailOnce.failed = False
    return counting_with(FailOnce, source, sink)


@BOTH
def test_failed_thread_is_replaced_when_the_handler_says_so(kafka, topic_factory, app, tmp_path, guarantee):
    """REPLACE_THREAD: a new thread takes over the tasks from their last commit."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    errors = []

    def handler(error):
        errors.append(error)
        return UncaughtExceptionResponse.REPLACE_THREAD

    lines = ["good"] * 5 + ["bad"] + ["good"] * 5
    produce(kafka, source, lines)
    streams = KafkaStreams(failing(source, sink), config)
    streams.set_uncaught_exception_handler(handler)
    with streams:
        wait_until(
            lambda: last_counts(kafka, sink).get("good", 0) >= 10 and streams.state is State.RUNNING, "all counted"
        )
    assert len(errors) == 1
    assert "bad" in str(errors[0].__cause__)
    if guarantee == "exactly_once_v2":
        assert last_counts(kafka, sink) == expected_counts(lines)


class KeepsConsumers(KafkaClientSupplier):
    """Keeps the consumers of stream threads for the test."""

    opened: ClassVar[list[Consumer]] = []

    def consumer(self, settings):
        """Open one, and keep it."""
        self.opened.append(super().consumer(settings))
        return self.opened[-1]


def test_consumer_of_a_thread_that_gets_no_producer_is_closed(kafka, topic_factory, app, tmp_path):
    """A thread that is replaced again and again because its clients cannot all be opened leaves none of them behind."""
    source, sink = topic_factory("in"), topic_factory("out")
    KeepsConsumers.opened.clear()
    others = {"default.client.supplier": KeepsConsumers, "producer.compression.type": "none such"}
    deaths = []

    def handler(error):
        deaths.append(error)
        last = len(deaths) == 3
        return UncaughtExceptionResponse.SHUTDOWN_CLIENT if last else UncaughtExceptionResponse.REPLACE_THREAD

    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path) | others)
    streams.set_uncaught_exception_handler(handler)
    streams.start()
    with pytest.raises(ConfigError, match="compression"):
        streams.wait(PATIENCE_S)
    assert len(KeepsConsumers.opened) == len(deaths) == 3
    for consumer in KeepsConsumers.opened:
        with pytest.raises(RuntimeError, match="closed"):
            consumer.assignment()


def test_failed_thread_ends_the_client_by_default(kafka, topic_factory, app, tmp_path, caplog):
    """By default (SHUTDOWN_CLIENT) the client ends in ERROR, and `run` logs one clear line and returns 1."""
    source, sink = topic_factory("in"), topic_factory("out")
    produce(kafka, source, ["good", "bad"])
    with caplog.at_level(logging.ERROR):
        assert run(failing(source, sink), settings(kafka, app, tmp_path)) == 1
    lines = [record.getMessage() for record in caplog.records if record.name == "millrace"]
    assert any("Failed: FailedProcessingError" in line and "this word is bad" in line for line in lines)


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("where", ["processor", "global processor", "restore listener"])
def test_what_would_end_a_thread_silently_ends_the_client(kafka, topic_factory, app, tmp_path, raised, where):
    """Python ignores `sys.exit()` in a thread; here the client ends in ERROR, and the record is not lost."""
    source, names = topic_factory("in"), topic_factory("names")
    config = settings(kafka, app, tmp_path)
    seen, failing = [], True

    class Take(Processor):
        def process(self, record):
            if failing and record.value == where:
                raise raised
            seen.append(record.value)

    class Listen(RestoreListener):
        def on_restore_start(self, _, store, *__):
            if failing and where == "restore listener" and store != "names":  # `start` itself fills global stores
                raise raised

    def instance():
        topology = Topology().add_source("in", source, key_serde=TEXT, value_serde=TEXT).add_processor("p", Take, "in")
        topology.add_state_store(counts_builder(), "p")
        store = Stores.key_value_store_builder(Stores.persistent_key_value_store("names"), TEXT, TEXT)
        topology.add_global_store(
            store.with_logging_disabled(), "names-source", names, "fill", Take, key_serde=TEXT, value_serde=TEXT
        )
        streams = KafkaStreams(topology, config)
        streams.set_restore_listener(Listen())
        return streams

    streams = instance()
    streams.start()
    if where != "restore listener":
        wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
    produce(kafka, names if where == "global processor" else source, [where])
    try:
        wait_until(lambda: streams.state is State.ERROR, "ERROR")
        assert repr(raised) in str(streams.error)
        assert streams.error.__cause__ is raised
    finally:
        assert streams.close(60)
    failing = False
    again = instance()
    again.start()
    wait_until(lambda: where in seen, "the record")
    assert again.close(60)


def exits(_):
    """Fail as a handler should not."""
    sys.exit(1)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (exits, "exits failed"),
        (print, "print returned None"),
        (lambda _: "replace thread", "<lambda> returned 'replace"),
    ],
)
def test_exception_handler_that_gives_no_answer_ends_the_client(
    kafka, topic_factory, app, tmp_path, caplog, handler, said
):
    """A handler that fails, even by `sys.exit()`, or returns no response shuts the client down, and the log names it."""
    source, sink = topic_factory("in"), topic_factory("out")
    produce(kafka, source, ["bad"])
    streams = KafkaStreams(failing(source, sink), settings(kafka, app, tmp_path))
    streams.set_uncaught_exception_handler(handler)
    streams.start()
    try:
        with caplog.at_level(logging.ERROR), pytest.raises(FailedProcessingError, match="this word is bad"):
            streams.wait(PATIENCE_S)
        assert streams.state is State.ERROR
        assert said in caplog.text
    finally:
        assert streams.close(60)


def test_exception_handler_must_be_a_function(app, tmp_path):
    """What cannot be called is refused when it is set, not when a thread has died."""
    streams = KafkaStreams(word_count("in", "out"), settings("127.0.0.1:9", app, tmp_path))
    with pytest.raises(TopologyError, match=r"set_uncaught_exception_handler: handler must be .*REPLACE_THREAD"):
        streams.set_uncaught_exception_handler(UncaughtExceptionResponse.REPLACE_THREAD)


@pytest.mark.parametrize("what", ["processor", "store", "state listener"])
def test_exit_where_a_thread_ends_does_not_hide_its_end(kafka, topic_factory, app, tmp_path, what):
    """A `close` or a state listener that calls `sys.exit()` does not keep a failed thread from being replaced."""
    source, sink = topic_factory("in"), topic_factory("out")
    counts = counts_builder()

    class Exits(FailOnce):
        def close(self):
            if what == "processor":
                sys.exit(1)

    def listen(new, old):
        if what == "state listener" and threading.current_thread() is not threading.main_thread():
            sys.exit(1)

    def build():
        store = type(counts).build(counts)
        close = store.close

        def close_and_exit():
            close()
            sys.exit(1)

        store.close = close_and_exit
        return store

    if what == "store":
        counts.build = build
    FailOnce.failed = False
    produce(kafka, source, ["good", "bad", "good"])
    streams = KafkaStreams(counting_with(Exits, source, sink, counts), settings(kafka, app, tmp_path))
    streams.set_uncaught_exception_handler(lambda _: UncaughtExceptionResponse.REPLACE_THREAD)
    streams.set_state_listener(listen)
    streams.start()
    try:
        wait_until(
            lambda: last_counts(kafka, sink).get("good", 0) >= 2 and streams.state is State.RUNNING, "all counted"
        )
    finally:
        assert streams.close(60)
    assert streams.state is State.NOT_RUNNING


@pytest.mark.parametrize("response", UncaughtExceptionResponse)
def test_exception_handler_is_asked_about_global_stores(kafka, topic_factory, app, tmp_path, caplog, response):
    """A failure of the global stores' thread is the handler's too; that thread is not replaced, so the client ends."""
    source, names = topic_factory("in"), topic_factory("names")

    class Ignore(Processor):
        def process(self, record):
            pass

    class Fail(Processor):
        def process(self, record):
            raise ValueError(record.value)

    def instance(directory, fill):
        topology = Topology().add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        topology.add_processor("p", Processor, "in")
        store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("names"), TEXT, TEXT)
        topology.add_global_store(
            store.with_logging_disabled(), "names-source", names, "fill", fill, key_serde=TEXT, value_serde=TEXT
        )
        streams = KafkaStreams(topology, settings(kafka, app, tmp_path / directory))
        streams.set_uncaught_exception_handler(lambda error: asked.append(error) or response)
        return streams

    asked: list[Exception] = []
    streams, other = instance("here", Fail), instance("there", Ignore)
    streams.start()
    other.start()
    try:
        wait_until(lambda: streams.state is State.RUNNING is other.state, "RUNNING")
        produce(kafka, names, ["wrong name"])
        with pytest.raises(FailedProcessingError, match="wrong name"):
            streams.wait(PATIENCE_S)
        assert streams.state is State.ERROR
        assert asked == [streams.error]
        assert ("cannot be replaced" in caplog.text) == (response is UncaughtExceptionResponse.REPLACE_THREAD)
        if response is UncaughtExceptionResponse.SHUTDOWN_APPLICATION:
            with pytest.raises(StreamsError, match="whole application to stop"):
                other.wait(PATIENCE_S)
        else:
            assert other.state.is_running_or_rebalancing
    finally:
        assert streams.close(60)
        assert other.close(60)


def test_run_returns_two_when_it_cannot_start(kafka, app, tmp_path, caplog):
    """If an instance cannot start, `run` returns 2 and logs one line with the reason."""
    with caplog.at_level(logging.ERROR):
        assert run(word_count("no-such-topic", "out"), settings(kafka, app, tmp_path)) == 2
    lines = [record.getMessage() for record in caplog.records if record.name == "millrace"]
    assert len(lines) == 1
    assert "no-such-topic" in lines[0]


def test_one_thread_may_end_the_whole_application(kafka, topic_factory, app, tmp_path):
    """SHUTDOWN_APPLICATION ends instances in other processes too."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")
    other = Replica(settings(kafka, app, tmp_path / "other"), source, sink, tmp_path, "other").start()
    try:
        wait_until(lambda: other.status().get("state") == "RUNNING", "the other runs")
        streams = KafkaStreams(failing(source, sink), settings(kafka, app, tmp_path / "here"))
        streams.set_uncaught_exception_handler(lambda _: UncaughtExceptionResponse.SHUTDOWN_APPLICATION)
        streams.start()
        wait_until(
            lambda: streams.state is State.RUNNING and len(streams.status().tasks) == 1 == len(other.status()["tasks"]),
            "a task each",
        )
        produce(kafka, source, ["good", "good"], partitions=2)
        produce(kafka, source, ["bad", "bad"], partitions=2)
        FailOnce.failed = False
        with pytest.raises(FailedProcessingError, match="this word is bad"):
            streams.wait(PATIENCE_S)
        assert other.process is not None
        assert other.process.wait(PATIENCE_S) == 1
        assert "whole application to stop" in other.log()
    finally:
        if other.process is not None and other.process.poll() is None:
            other.kill()


def test_asking_all_to_stop_waits_until_the_others_had_time_to_rejoin(monkeypatch):
    """The request would be lost if the requesting member left the group before the rebalance has ended."""
    clock = itertools.count()
    now = next(clock)

    def poll(_):
        nonlocal now
        now = next(clock)
        return [Assigned((), frozenset(), b"", 2)] if now == 290 else []

    member = SimpleNamespace(instance_id=None, poll=poll, request_rejoin=lambda _: None)
    protocol = SimpleNamespace(accept=lambda _: SimpleNamespace(shutdown_requested=True))
    monkeypatch.setattr("millrace.deadline.time", SimpleNamespace(monotonic=lambda: now))
    membership = ClassicMembership(
        member, protocol, None, LoopProgress(), SimpleNamespace(changed=False), timeout_s=60, rebalance_s=300
    )
    membership.request_shutdown_of_all()
    assert now == 290


class FailOrWait(CountWords):
    """Counts words; fails at the word `bad`, and waits at the word `wait`."""

    waits, gate = threading.Event(), threading.Event()

    def process(self, record):
        """Fail, wait or count."""
        if record.value == "bad":
            raise ValueError("this word is bad")
        if record.value == "wait":
            self.waits.set()
            assert self.gate.wait(PATIENCE_S)
        super().process(record)


def test_client_that_has_asked_all_to_stop_can_be_closed_before_they_know(kafka, topic_factory, app, tmp_path):
    """Its other threads end at once, and its `close` ends the wait for a member that is busy with a slow record."""
    source, sink = topic_factory("in", partitions=3), topic_factory("out")
    topology = counting_with(FailOrWait, source, sink)
    FailOrWait.waits.clear()
    FailOrWait.gate.clear()

    def partition(thread):
        [task] = thread.tasks.running or [None]
        return None if task is None else task.partition

    with running(topology, settings(kafka, app, tmp_path / "other")) as other:
        here = KafkaStreams(topology, settings(kafka, app, tmp_path / "here", num_stream_threads=2))
        here.set_uncaught_exception_handler(lambda _: UncaughtExceptionResponse.SHUTDOWN_APPLICATION)
        here.start()
        try:
            threads = (*other.threads, *here.threads)
            wait_until(
                lambda: all(thread.tasks and len(thread.tasks.running) == 1 for thread in threads), "a task each"
            )
            busy, failing_one, idle = threads
            words = {partition(busy): "wait", partition(failing_one): "bad", partition(idle): "good"}
            produce(kafka, source, ["wait" if words[number] == "wait" else "good" for number in range(3)], partitions=3)
            assert FailOrWait.waits.wait(PATIENCE_S)
            produce(
                kafka, source, [{"wait": "good"}.get(words[number], words[number]) for number in range(3)], partitions=3
            )
            wait_until(lambda: not idle.is_alive, "the other thread ends")
            assert failing_one.is_alive
            assert here.close(4), "half of it is for brokers"
            assert here.state is State.ERROR
        finally:
            FailOrWait.gate.set()
            here.close(PATIENCE_S)


@pytest.mark.parametrize("leads", [True, False])
def test_leader_learns_together_with_the_others_that_tasks_cannot_be_assigned(leads):
    """Its error ends no thread if another member leads by then; otherwise it says more than the code that all are given."""

    def provision():
        raise MissingSourceTopicError("Topic in is missing")

    plan = TopologyPlan(application_id="app", hash="", subtopologies=(PlannedSubtopology(id=0, source_topics=("in",)),))
    leader = GroupLeader(plan, UUID(int=1), SimpleNamespace(provision=provision), AssignmentConfig())
    protocol = MemberProtocol(UUID(int=1))
    membership = ClassicMembership(
        *(SimpleNamespace(instance_id=None, poll=list, is_leader=leads), protocol, leader, LoopProgress()),
        SimpleNamespace(changed=False),
        timeout_s=60,
        rebalance_s=300,
    )
    told = leader({"me": MemberSubscription(("in",), protocol.user_data({}), frozenset(), -1)})["me"]
    assert membership.poll() == []
    with pytest.raises(MissingSourceTopicError, match="Topic in is missing" if leads else "its log names them"):
        membership.accept(Assigned((), frozenset(), told.user_data, 2))


def test_follow_up_rebalance_does_not_wait_for_a_clock_that_was_set_back(monkeypatch):
    """The leader says by the wall clock when it is due; a member measures how long that is by a clock that nobody sets."""
    wall_s, passed_s, reasons = 1_000_000, 0.0, []
    clocks = SimpleNamespace(time_ns=lambda: wall_s * 10**9, monotonic=lambda: passed_s)
    monkeypatch.setattr("millrace.deadline.time", clocks)
    monkeypatch.setattr("millrace.instance.membership.time", clocks)
    member = SimpleNamespace(instance_id=None, poll=list, request_rejoin=reasons.append)
    tasks = AssignedTasks(active={}, standby={}, next_rebalance_ms=(wall_s + 600) * 1000)
    membership = ClassicMembership(
        *(member, SimpleNamespace(accept=lambda _: tasks), SimpleNamespace(error=None), LoopProgress()),
        SimpleNamespace(changed=False, keep=lambda: None),
        timeout_s=60,
        rebalance_s=300,
    )
    membership.accept(Assigned((), frozenset(), b"", 2))
    wall_s -= 3600
    passed_s = 599.0
    membership.poll()
    assert reasons == []
    passed_s = 601.0
    membership.poll()
    membership.poll()
    assert reasons == ["a follow-up rebalance is due"]


def test_status_file_shows_what_the_instance_does(kafka, topic_factory, app, tmp_path):
    """The status file has the state, threads, tasks, counts and lags, and the final state after the end."""
    source, sink = topic_factory("in"), topic_factory("out")
    path = Path(tmp_path / "status.json")
    produce(kafka, source, ["a b"] * 10)
    with running(word_count(source, sink), settings(kafka, app, tmp_path) | {"__status.file__": str(path)}):
        status = wait_until(
            lambda: (
                path.exists()
                and (found := json.loads(path.read_text()))["processing"]["records"] == 10
                and found["lag"]["partitions"] == {f"{source}-0": 0}
                and found
            ),
            "all counted, and no lag",
        )
    assert status["state"] == "RUNNING"
    assert [task["id"] for task in status["tasks"]] == ["0_0"]
    assert json.loads(path.read_text())["state"] == "NOT_RUNNING"


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_is_written_over_the_last_status(app, tmp_path, monkeypatch, when):
    """Whatever the housekeeping thread is about to write when an instance ends, the status file keeps the final state."""
    path = tmp_path / "status.json"
    config = settings("127.0.0.1:9", app, tmp_path) | {"__status.file__": str(path)}
    housekeeping = KafkaStreams(word_count("in", "out"), config)._housekeeping
    end = threading.Thread(target=housekeeping.write_status, args=(State.NOT_RUNNING,))

    def end_meanwhile(status, path):
        if not end.ident:
            end.start()
            end.join(0.5)
        write_status(status, path)

    if when == "before":
        monkeypatch.setattr("millrace.instance.housekeeping.write_status", end_meanwhile)
    else:
        end.start()
        end.join()
    housekeeping.write_status()
    end.join()
    assert json.loads(path.read_text())["state"] == "NOT_RUNNING"


def test_status_file_that_cannot_be_written_is_logged_once(app, tmp_path, caplog):
    """The status file is written every second, but a failure is logged only once."""
    config = settings("127.0.0.1:9", app, tmp_path) | {"__status.file__": str(tmp_path / "no-such" / "status.json")}
    streams = KafkaStreams(word_count("in", "out"), config)
    streams._housekeeping.write_status()
    streams._housekeeping.write_status()
    [told] = [record.getMessage() for record in caplog.records if "status file" in record.getMessage()]
    assert told.startswith(f"Cannot write the status file {tmp_path}/no-such/status.json: [Errno 2] No such file")


@pytest.mark.broker
def test_member_that_lost_its_tasks_while_it_asked_all_to_stop_does_not_commit_them(
    kafka, topic_factory, app, tmp_path
):
    """It is in the group again by then, so the brokers would accept offsets of what others may have processed since."""
    source, sink = topic_factory("in"), topic_factory("out")
    produce(kafka, source, ["word"])
    config = settings(kafka, app, tmp_path, commit_interval_ms=3_600_000)
    with running(word_count(source, sink), config) as streams:
        [thread] = streams.threads
        wait_until(lambda: thread.totals.records == 1, "the record is processed")
        client = thread.resources.member.client
        rejoin = client.request_rejoin

        def removed(reason):
            client.reset("test: as if the group had removed it", keep_member_id=False)
            rejoin(reason)

        client.request_rejoin = removed
        thread.shuts_down_all = True
    assert committed_offset(kafka, app, source) == -1001
