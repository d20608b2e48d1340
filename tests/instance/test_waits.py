"""Whatever a stream thread waits for: the rows of the table in docs/architecture.md, each with a broker that does not answer."""

from __future__ import annotations

import re
import struct
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition
from tests.instance.support import TEXT, last_counts, produce, read_all, settings, word_count
from tests.proxy import HOST, BrokerProxy, api_key, read_request
from tests.waiting import PATIENCE_S, wait_until

from millrace.assignment import AssignedTasks
from millrace.config import StreamsConfig
from millrace.dev._ports import free_ports
from millrace.errors import StreamsTimeoutError, TransactionAbortedError
from millrace.instance import KafkaStreams, State
from millrace.instance.producer import StreamsProducer
from millrace.instance.record_collector import KafkaRecordCollector
from millrace.kafka.client_settings import ClientSettings
from millrace.records import NO_HEADERS, TopicPartition
from millrace.topology import Topology

pytestmark = pytest.mark.broker
PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 11, 12, 13, 14, 22, 32
ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT, STREAMS_GROUP_HEARTBEAT = 25, 26, 28, 88


class SilentProxy(BrokerProxy):
    """A broker that stops answering requests of some kinds, until it goes on; other connections are not held up.

    Clients are told that the broker is here: its port is replaced in what it answers.

    Args:
        port: where it listens.
        broker: the broker's port.
    """

    def __init__(self, port, broker):
        super().__init__(port)
        self.port, self.broker = port, broker
        self._addresses = [HOST.encode() + struct.pack(">i", each) for each in (broker, port)]
        self._silent = frozenset()
        self._changed = threading.Condition()
        self.held = 0
        """How many requests were held back so far."""

    def silence(self, *kinds):
        """Do not answer requests of these kinds any more."""
        with self._changed:
            self._silent, self.held = frozenset(kinds), 0

    def go_on(self):
        """Answer again, also what was held back."""
        with self._changed:
            self._silent = frozenset()
            self._changed.notify_all()

    def pass_requests(self, client, server):
        """Hold back what is not to be answered, and what follows it on the same connection."""
        while True:
            request = read_request(client)
            with self._changed:
                if api_key(request) in self._silent:
                    self.held += 1
                    self._changed.wait_for(lambda: not self._silent)
            server.sendall(request)

    def pass_answers(self, client, server):
        """Have clients come here."""
        while True:
            client.sendall(read_request(server).replace(*self._addresses))


@pytest.fixture
def proxy(kafka):
    """Yield a proxy of the shared broker."""
    [port] = free_ports(1, HOST)
    broker = int(kafka.bootstrap_servers.rpartition(":")[2])
    proxy = SilentProxy(port, broker)
    yield proxy
    proxy.go_on()
    proxy.close()


@pytest.fixture
def started(kafka, proxy, topic_factory, app, tmp_path):
    """Return a function that starts an instance behind the proxy; it is closed at the end."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    with ExitStack() as stack:

        def start(topology=word_count, *, wait=True, **others):
            config = settings(f"{HOST}:{proxy.port}", app, tmp_path, **{"task_timeout_ms": 3_600_000, **others})
            streams = KafkaStreams(topology(source, sink), config)
            stack.callback(streams.close, PATIENCE_S)
            stack.callback(proxy.go_on)
            streams.start()
            if wait:
                wait_until(lambda: streams.state is State.RUNNING or streams.error, "RUNNING")
                assert streams.error is None
            return streams

        yield start, source, sink


ROOT = Path(__file__).parents[2]
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once_v2"


def test_proofs_of_the_table_exist():
    """Each row names its proofs, or says that there is none."""
    chapter = (ROOT / "docs" / "architecture.md").read_text().partition("### What a stream thread waits for")[2]
    rows = [line.split("|") for line in chapter.partition("\n### ")[0].splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for *_, proof, _ in rows:
        names = re.findall(r"`(\w+)`", proof)
        [file] = re.findall(r"`(test_\w+\.py)`", proof) or [Path(__file__).name]
        tests = re.findall(r"^def (test_\w+)", Path(__file__).with_name(file).read_text(), re.MULTILINE)
        assert names or proof.strip() == "none"
        assert [name for name in names if not any(name in test for test in tests)] == []


def copied(source, sink):
    """Return a topology without state."""
    topology = Topology().add_source("in", source, key_serde=TEXT, value_serde=TEXT)
    return topology.add_sink("out", sink, "in", key_serde=TEXT, value_serde=TEXT)


def by_length(source, sink):
    """Return a topology whose sink has to know how many partitions its topic has."""
    topology = Topology().add_source("in", source, key_serde=TEXT, value_serde=TEXT)
    return topology.add_sink(
        *("out", sink, "in"),
        key_serde=TEXT,
        value_serde=TEXT,
        partitioner=lambda _topic, _key, value, partitions: len(value) % partitions,
    )


def goes_on(thread):
    """Wait until a thread has made some more rounds."""
    rounds = thread.rounds_total
    wait_until(lambda: thread.rounds_total > rounds + 3, lambda: f"the thread goes on, {thread.error}")


def values(kafka, sink):
    """Return the committed values in a topic of two partitions."""
    return sorted(value for _, value, _ in read_all(kafka, sink, partitions=2))


# What does not hold up the thread


@pytest.mark.parametrize("silent", [OFFSET_FETCH, LIST_OFFSETS])
def test_thread_does_not_wait_for_offsets_of_its_tasks(started, kafka, proxy, silent):
    """Committed offsets, where to start without them, and where changelogs end are asked for between rounds."""
    start, source, sink = started
    produce(kafka, source, ["a", "b"], partitions=2)
    proxy.silence(silent)
    streams = start(wait=False)
    wait_until(lambda: proxy.held, "it asks")
    goes_on(streams.threads[0])
    assert streams.state is State.REBALANCING
    proxy.go_on()
    wait_until(lambda: last_counts(kafka, sink, partitions=2) == {"a": 1, "b": 1}, "counted")


@pytest.mark.parametrize(
    ("protocol", "silent"),
    [("classic", HEARTBEAT), ("classic", JOIN_GROUP), ("classic", SYNC_GROUP), ("streams", STREAMS_GROUP_HEARTBEAT)],
)
def test_thread_does_not_wait_for_its_group(started, proxy, protocol, silent):
    """Heartbeats and joining are the IO thread's business."""
    start, *_ = started
    [thread] = start(copied, group_protocol=protocol).threads
    proxy.silence(silent)
    if silent in {JOIN_GROUP, SYNC_GROUP}:
        thread.resources.member.client.request_rejoin("the test wants it")
    wait_until(lambda: proxy.held, "it asks")
    goes_on(thread)


def test_thread_does_not_wait_for_records(started, kafka, proxy):
    """It polls for `poll.ms`, and goes round."""
    start, source, sink = started
    streams = start(copied)
    proxy.silence(FETCH)
    wait_until(lambda: proxy.held, "it fetches")
    goes_on(streams.threads[0])
    proxy.go_on()
    produce(kafka, source, ["a", "b"], partitions=2)
    wait_until(lambda: values(kafka, sink) == [b"a", b"b"], "copied")


def test_thread_does_not_wait_for_where_to_go_on_after_a_lost_offset(started, kafka, proxy):
    """A partition whose log was truncated is read again once that is known; others are read meanwhile."""
    start, source, sink = started
    streams = start(copied)
    produce(kafka, source, ["a", "b"], partitions=2)
    wait_until(lambda: values(kafka, sink) == [b"a", b"b"], "copied")
    thread = streams.threads[0]
    proxy.silence(LIST_OFFSETS)
    poll = thread.resources.consumer.poll

    def lost(*args):
        thread.resources.consumer.poll = poll
        thread.resources.consumer._client.seek(ClientTopicPartition(source, 0, 500))
        return poll(*args)

    thread.resources.consumer.poll = lost
    wait_until(lambda: proxy.held, "it asks where to go on")
    produce(kafka, source, ["c", "d"], partitions=2)
    wait_until(lambda: b"d" in values(kafka, sink), "the other partition is read")
    assert thread.resources.consumer.lost == {TopicPartition(source, 0)}
    proxy.go_on()
    wait_until(lambda: values(kafka, sink) == [b"a", b"a", b"b", b"c", b"d"], "read from the beginning")
    assert thread.resources.consumer.lost == set()


def test_hand_over_does_not_wait_for_a_commit_that_is_not_necessary(started, kafka, proxy):
    """Under exactly-once only the metadata without its zero byte is committed outside of a transaction."""
    start, source, sink = started
    streams = start(processing_guarantee=EXACTLY_ONCE)
    produce(kafka, source, ["a", "b"], partitions=2)
    wait_until(lambda: last_counts(kafka, sink, partitions=2) == {"a": 1, "b": 1}, "counted")
    proxy.silence(OFFSET_COMMIT)
    tasks = streams.threads[0].tasks
    tasks.assign(AssignedTasks(active={}, standby={}))
    wait_until(lambda: not tasks.task_ids, "the tasks are closed")
    assert proxy.held
    assert streams.threads[0].is_alive


# What the thread waits for, until its own time is up


@pytest.mark.parametrize(
    ("silent", "names"), [(OFFSET_COMMIT, "could not be committed|stopped waiting"), (LIST_OFFSETS, "list offsets of")]
)
def test_commit_ends_after_the_task_timeout(started, kafka, proxy, silent, names):
    """Under at-least-once, the thread ends with an error that says what was not answered."""
    start, source, _ = started
    streams = start(task_timeout_ms=1500)
    proxy.silence(silent)
    produce(kafka, source, ["a", "b"], partitions=2)
    with pytest.raises(StreamsTimeoutError, match=names):
        streams.wait(PATIENCE_S)
    assert proxy.held


@pytest.mark.parametrize(
    "silent",
    [
        PRODUCE,
        LIST_OFFSETS,
        pytest.param(ADD_OFFSETS_TO_TXN, marks=pytest.mark.thorough),
        pytest.param(TXN_OFFSET_COMMIT, marks=pytest.mark.thorough),
        END_TXN,
    ],
)
def test_wait_in_a_transaction_ends_with_it(started, kafka, proxy, silent):
    """The thread lives, and takes part in its group; the records are processed again, whatever `task.timeout.ms` is."""
    start, source, sink = started
    [thread] = start(processing_guarantee=EXACTLY_ONCE, producer_transaction_timeout_ms=2000).threads
    wait_until(lambda: not thread.resources.producer.in_transaction, "what `init` does is committed")
    proxy.silence(silent)
    produce(kafka, source, ["a", "b"], partitions=2)
    wait_until(lambda: proxy.held, "the thread waits")
    goes_on(thread)
    proxy.go_on()
    wait_until(lambda: last_counts(kafka, sink, partitions=2) == {"a": 1, "b": 1}, "counted")
    assert thread.is_alive
    assert thread.error is None


# What ends every wait


@pytest.mark.parametrize(
    ("silent", "guarantee", "topology"),
    [
        (PRODUCE, AT_LEAST_ONCE, word_count),
        (LIST_OFFSETS, AT_LEAST_ONCE, word_count),
        (OFFSET_COMMIT, AT_LEAST_ONCE, word_count),
        (METADATA, AT_LEAST_ONCE, by_length),
        (FETCH, AT_LEAST_ONCE, copied),
        (LEAVE_GROUP, AT_LEAST_ONCE, copied),
        (PRODUCE, EXACTLY_ONCE, word_count),
        (LIST_OFFSETS, EXACTLY_ONCE, word_count),
        (ADD_OFFSETS_TO_TXN, EXACTLY_ONCE, word_count),
        pytest.param(TXN_OFFSET_COMMIT, EXACTLY_ONCE, word_count, marks=pytest.mark.thorough),
        pytest.param(END_TXN, EXACTLY_ONCE, word_count, marks=pytest.mark.thorough),
    ],
)
def test_close_ends_every_wait(started, kafka, proxy, silent, guarantee, topology):
    """What a record, a commit or the end of a thread waits for takes no longer than `close` allows, whatever the timeouts are."""
    start, source, _ = started
    streams = start(topology, processing_guarantee=guarantee)
    proxy.silence(silent)
    produce(kafka, source, ["a", "b"], partitions=2)
    if silent not in {FETCH, LEAVE_GROUP}:
        wait_until(lambda: proxy.held and streams.threads[0].progress.waits_for, "the thread waits, and says so")
    streams.close(2)  # of which half is for brokers
    assert streams.wait(PATIENCE_S)
    assert proxy.held
    assert streams.state is State.NOT_RUNNING


def test_close_ends_the_start_of_a_thread(started, proxy):
    """Under exactly-once it begins with asking for its producer's id."""
    start, *_ = started
    proxy.silence(INIT_PRODUCER_ID)
    streams = start(wait=False, processing_guarantee=EXACTLY_ONCE)
    wait_until(lambda: proxy.held, "the thread waits")
    streams.close(2)
    assert streams.wait(PATIENCE_S)
    assert streams.state is State.NOT_RUNNING


def test_assigning_tasks_holds_nothing_up(started, kafka, proxy):
    """The group's leader, which looks at the internal topics first, processes records meanwhile, and closes."""
    start, source, sink = started
    streams = start()
    proxy.silence(DESCRIBE_CONFIGS)
    streams.threads[0].resources.member.client.request_rejoin("the test wants it")
    wait_until(lambda: proxy.held, "the leader asks")
    produce(kafka, source, ["a", "b"], partitions=2)
    wait_until(lambda: last_counts(kafka, sink) == {"a": 1, "b": 1}, "the words are counted")
    streams.close(2)
    assert streams.wait(PATIENCE_S)
    assert streams.state is State.NOT_RUNNING


def test_close_ends_the_wait_for_room_for_a_record(started, kafka, proxy):
    """A producer whose buffer is full."""
    start, source, _ = started
    streams = start(copied, producer_queue_buffering_max_messages=5)
    proxy.silence(PRODUCE)
    produce(kafka, source, ["a"] * 100, partitions=2)
    wait_until(lambda: streams.threads[0].progress.waits_for == "room in the producer's buffer", "the buffer is full")
    streams.close(2)
    assert streams.wait(PATIENCE_S)
    assert streams.state is State.NOT_RUNNING


def test_record_that_is_sent_carefully_and_not_delivered_in_time_is_processed_again(
    kafka, proxy, topic_factory, app, tmp_path
):
    """At-least-once: after a refused record each one has its own report; one that was not delivered fails the commit too."""
    out = topic_factory("out", config={"max.message.bytes": "500"})
    config = StreamsConfig.of(settings(f"{HOST}:{proxy.port}", app, tmp_path))
    times = {"delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000, "linger.ms": 0}
    producer = StreamsProducer(lambda: ClientSettings(config, "p").producer(1) | times, config.task_timeout_ms)
    collector = KafkaRecordCollector(producer, kafka.admin(), config)
    try:
        for value in b"x" * 5000, b"small":
            collector.send(out, None, value, 1, NO_HEADERS, 0)
            with pytest.raises(TransactionAbortedError, match=r"processed again"):
                collector.flush()
            producer.abort()
            collector.discard()
            proxy.silence(PRODUCE)
    finally:
        proxy.go_on()
        producer.close()
