"""Closing an instance from anywhere: from its own threads, from its listeners, and while it is starting."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time

import pytest
from tests.brokers import new_topic
from tests.instance.support import TEXT, last_counts, produce, running, settings, word_count
from tests.instance.test_global_stores import Look, put
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.errors import FailedProcessingError, StreamsError
from millrace.instance import KafkaStreams, State, UncaughtExceptionResponse
from millrace.instance.input_consumer import InputConsumer
from millrace.instance.process import EXIT_OK, run
from millrace.instance.state_directory import StateDirectory
from millrace.instance.task_restoration import RestoreListener
from millrace.processor.api import Processor, PunctuationType
from millrace.state import Stores
from millrace.topology import Topology

pytestmark = pytest.mark.broker


def instance(kafka, topic_factory, tmp_path, processor=None, **others):
    """Return an instance that uses the given processor, or counts words, and its input topic."""
    source = topic_factory("in")
    topology = word_count(source, topic_factory("out"))
    if processor is not None:
        topology = Topology().add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        topology.add_processor("p", processor, "in")
    return KafkaStreams(topology, settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, **others)), source


def with_names(names, source, sink, fill):
    """Return a topology that looks values up in a global store, which the given processor fills."""
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("names"), TEXT, TEXT)
    topology = Topology()
    topology.add_global_store(
        store.with_logging_disabled(), "names-source", names, "fill", fill, key_serde=TEXT, value_serde=TEXT
    )
    topology.add_source("in", source, key_serde=TEXT, value_serde=TEXT).add_processor("look", Look, "in")
    return topology.add_sink("out", sink, "look", key_serde=TEXT, value_serde=TEXT)


class Closer:
    """Closes an instance once, and keeps the result of `close`."""

    def __init__(self):
        self.streams = None
        self.returned = []
        self._called = False

    def __call__(self, *_args):
        if not self._called:
            self._called = True
            self.returned.append((self.streams.close(), self.streams.wait()))

    def check(self, expected=(False, False), end=State.NOT_RUNNING):
        """Wait until the instance has ended, and check that the call has returned too."""
        assert self.streams.wait(PATIENCE_S)
        wait_until(lambda: self.returned, "close() returned")
        assert self.returned == [expected]
        assert self.streams.state is end
        assert not any(thread.is_alive for thread in self.streams.threads)


@pytest.fixture
def closer():
    """Yield a closer, and close its instance at the end of the test in any case."""
    closer = Closer()
    yield closer
    if closer.streams is not None:
        closer.streams.close(PATIENCE_S)


def test_close_in_a_processor_begins_the_end(kafka, topic_factory, tmp_path, closer):
    """`close` called in a processor returns False at once, because the instance cannot end before the processor returns."""

    class Close(Processor):
        def process(self, record):
            closer()

    closer.streams, source = instance(kafka, topic_factory, tmp_path, Close)
    closer.streams.start()
    produce(kafka, source, ["x"])
    closer.check()


def test_close_in_a_punctuator_begins_the_end(kafka, topic_factory, tmp_path, closer):
    """Punctuators run in a stream thread, as processors do."""

    class Close(Processor):
        def init(self, context):
            context.schedule(50, PunctuationType.WALL_CLOCK_TIME, closer)

    closer.streams, _ = instance(kafka, topic_factory, tmp_path, Close)
    closer.streams.start()
    closer.check()


def test_close_in_an_exception_handler_begins_the_end(kafka, topic_factory, tmp_path, closer):
    """Whatever the handler then returns, the instance ends as closed."""

    class Fail(Processor):
        def process(self, record):
            raise ValueError("no")

    def handle(_error):
        closer()
        return UncaughtExceptionResponse.REPLACE_THREAD

    closer.streams, source = instance(kafka, topic_factory, tmp_path, Fail)
    closer.streams.set_uncaught_exception_handler(handle)
    closer.streams.start()
    produce(kafka, source, ["x"])
    closer.check()


def test_close_in_a_restore_listener_begins_the_end(kafka, topic_factory, tmp_path, closer):
    """The listener runs in the state updater, which the stream thread waits for."""

    class Listener(RestoreListener):
        def on_restore_start(self, *args):
            closer()

    closer.streams, _ = instance(kafka, topic_factory, tmp_path)
    closer.streams.set_restore_listener(Listener())
    closer.streams.start()
    closer.check()


@pytest.mark.parametrize("at", [State.REBALANCING, State.RUNNING])
def test_close_in_a_state_listener_begins_the_end(kafka, topic_factory, tmp_path, closer, at):
    """The listener runs in the thread that starts the instance, or in a stream thread."""
    seen = []

    def listen(new, old):
        seen.append((old, new))
        if new is at:
            closer()

    closer.streams, _ = instance(kafka, topic_factory, tmp_path)
    closer.streams.set_state_listener(listen)
    closer.streams.start()
    closer.check()
    wait_until(lambda: seen[-1][1] is State.NOT_RUNNING, "told of the end")
    assert [old for old, _ in seen] == [State.CREATED, *(new for _, new in seen[:-1])]


def test_close_in_a_state_listener_during_close(kafka, topic_factory, tmp_path, closer):
    """In a user's thread `close` waits, even if the listener that calls it was itself called by `close`."""
    closer.streams, _ = instance(kafka, topic_factory, tmp_path)
    closer.streams.set_state_listener(lambda new, _: closer() if new is State.PENDING_SHUTDOWN else None)
    closer.streams.start()
    closing = threading.Thread(target=closer.streams.close, daemon=True)
    closing.start()
    closer.check(expected=(True, True))
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def test_state_listener_may_wait_for_another_thread_that_closes(kafka, topic_factory, tmp_path, closer):
    """The listener holds no lock, so other threads can use the client meanwhile."""
    done = []

    def listen(new, _):
        if new is State.RUNNING:
            other = threading.Thread(target=lambda: done.append((closer.streams.close(0), closer.streams.drain())))
            other.daemon = True
            other.start()
            other.join(PATIENCE_S)
            done.append(other.is_alive())

    closer.streams, _ = instance(kafka, topic_factory, tmp_path)
    closer.streams.set_state_listener(listen)
    closer.streams.start()
    wait_until(lambda: len(done) == 2, "the listener returned")
    assert done == [(False, False), False]
    assert closer.streams.wait(PATIENCE_S)


@pytest.mark.parametrize("when", ["while starting", "while running"])
def test_close_in_the_processor_of_a_global_store_begins_the_end(kafka, topic_factory, tmp_path, closer, when):
    """The processor runs in the thread that starts the instance, and later in a thread for global stores."""

    class Fill(Processor):
        def process(self, record):
            closer()

    names = topic_factory("names")
    topology = with_names(names, topic_factory("in"), topic_factory("out"), Fill)
    closer.streams = KafkaStreams(topology, settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path))
    if when == "while starting":
        put(kafka, names, {"a": "b"}, partitions=1)
        with pytest.raises(StreamsError, match="closed while its global stores were filled"):
            closer.streams.start()
    else:
        closer.streams.start()
        put(kafka, names, {"a": "b"}, partitions=1)
    closer.check()


def test_thread_removed_in_a_restore_listener_is_not_waited_for(kafka, topic_factory, tmp_path):
    """A stream thread that ends waits for its state updater, in which the listener runs."""
    removed = []

    class Listener(RestoreListener):
        def on_restore_start(self, *args):
            removed.append(streams.remove_stream_thread())

    streams, _ = instance(kafka, topic_factory, tmp_path)
    streams.set_restore_listener(Listener())
    streams.start()
    try:
        name = wait_until(lambda: removed, "removed")[0]
        assert name is not None
        wait_until(lambda: not streams.threads, "it has ended")
    finally:
        assert streams.close(PATIENCE_S)


def starting(streams):
    """Start an instance in another thread; return it, and a list for what `start` raises."""
    raised = []

    def start():
        try:
            streams.start()
        except StreamsError as error:
            raised.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    return thread, raised


def check_closes_while_starting(streams, thread, raised, config):
    """Close an instance while it starts: `start` raises an error, and nothing keeps running."""
    assert thread.is_alive()
    assert streams.state is State.CREATED
    assert streams.close(PATIENCE_S)
    assert streams.state is State.NOT_RUNNING
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert "closed while" in str(raised[0])
    assert streams.threads == ()
    directory = StateDirectory(StreamsConfig.of(config))
    directory.lock()
    directory.unlock()


def test_close_while_global_stores_are_filled(kafka, topic_factory, tmp_path, monkeypatch, caplog):
    """`close` does not wait until the stores are full; their content is on disk, and the next start continues from there."""
    names = topic_factory("names")
    put(kafka, names, {f"k{number}": "x" for number in range(10)}, partitions=1)

    class Fill(Processor):
        def process(self, record):
            self.context.get_state_store("names").put(record.key, record.value)

    topology = with_names(names, topic_factory("in"), topic_factory("out"), Fill)
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    poll, polled = InputConsumer.poll, []

    def poll_one(self, _max_records, timeout_s):
        found = {} if polled else poll(self, 1, timeout_s)
        polled.extend(found.values())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(InputConsumer, "poll", poll_one)
        streams = KafkaStreams(topology, config)
        thread, raised = starting(streams)
        wait_until(lambda: polled, "the first record")
        check_closes_while_starting(streams, thread, raised, config)
    with caplog.at_level("INFO", "millrace.instance.global_thread"), running(topology, config) as again:
        assert len(list(again._global_thread.stores["names"].all())) == 10
    assert "Filling global stores names: " in caplog.text
    assert "names: 10 records" not in caplog.text


def test_close_while_a_broker_is_waited_for(silent_broker, tmp_path):
    """`close` does not wait for a broker that does not answer either."""
    address, connected = silent_broker
    config = settings(address, f"app-{secrets.token_hex(4)}", tmp_path)
    streams = KafkaStreams(word_count("in", "out"), config)
    thread, raised = starting(streams)
    assert connected.wait(PATIENCE_S)
    check_closes_while_starting(streams, thread, raised, config)


def test_signal_while_starting_ends_the_process_cleanly(silent_broker, tmp_path):
    """A SIGTERM before the instance has started is handled, and is not a failure."""
    address, connected = silent_broker
    ended = threading.Event()

    def terminate():
        if connected.wait(PATIENCE_S) and not ended.is_set():  # by then the signal is handled
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    config = settings(address, f"app-{secrets.token_hex(4)}", tmp_path)
    assert run(word_count("in", "out"), config) == EXIT_OK
    ended.set()


@pytest.mark.parametrize("guarantee", [pytest.param("at_least_once", marks=pytest.mark.thorough), "exactly_once_v2"])
@pytest.mark.parametrize("begun", ["before the commit", "in the middle of a commit"])
def test_close_without_brokers_ends(breakable_kafka, tmp_path, guarantee, begun):
    """The instance stops waiting for brokers long before task.timeout.ms; uncommitted records are processed again."""
    kafka = breakable_kafka
    source, sink = new_topic(kafka, "in"), new_topic(kafka, "out")
    topology, application = word_count(source, sink), f"app-{secrets.token_hex(4)}"
    config = settings(kafka, application, tmp_path, processing_guarantee=guarantee, task_timeout_ms=3_600_000)
    config["session.timeout.ms"] = 6_000  # leaving the group is impossible
    if guarantee == "exactly_once_v2":
        config["producer.transaction.timeout.ms"] = 600_000
    streams = KafkaStreams(topology, config | {"commit.interval.ms": 600_000})
    streams.start()
    try:
        wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
        produce(kafka, source, ["a b"] * 10)
        wait_until(lambda: streams.status().processing.records == 10, "processed")
        kafka.pause()
        try:
            if begun == "in the middle of a commit":
                task = next(iter(streams.threads[0].tasks.running.values()))
                prepare, begins = task.prepare_commit, threading.Event()
                task.prepare_commit = lambda: (begins.set(), prepare())[1]
                task.commit_requested = True
                assert begins.wait(PATIENCE_S)
            streams.close(2)  # of which half is for brokers
            assert streams.wait(PATIENCE_S)
        finally:
            kafka.resume()
        assert streams.state is State.NOT_RUNNING
        assert streams.error is None
    finally:
        streams.close(PATIENCE_S)
    with running(topology, config):
        produce(kafka, source, ["a b"])
        again = {11} if guarantee == "exactly_once_v2" else {11, 21}
        wait_until(lambda: last_counts(kafka, sink).get("b") in again, lambda: f"counted: {last_counts(kafka, sink)}")


def test_longer_time_out_of_close_is_patience_with_brokers(kafka, topic_factory, tmp_path):
    """`close` waits for brokers until 5 seconds before its timeout, even if that is longer than the default."""
    streams, _ = instance(kafka, topic_factory, tmp_path)
    streams.start()
    wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
    began = time.monotonic()
    assert streams.close(600)
    assert streams.threads[0].progress.gives_up_s >= began + 595


@pytest.mark.parametrize(
    "response", [UncaughtExceptionResponse.REPLACE_THREAD, UncaughtExceptionResponse.SHUTDOWN_CLIENT]
)
def test_failure_that_ended_the_instance_is_its_error(kafka, topic_factory, tmp_path, response):
    """A thread that fails while the instance is ending changes nothing, whatever the handler returns."""
    source = topic_factory("in", partitions=2)
    both = threading.Barrier(2)

    class Fail(Processor):
        def process(self, record):
            both.wait(PATIENCE_S)
            if record.value == "second":
                wait_until(lambda: streams.state is State.PENDING_ERROR, "the first failure")
            raise ValueError(record.value)

    topology = Topology().add_source("in", source, key_serde=TEXT, value_serde=TEXT).add_processor("p", Fail, "in")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, num_stream_threads=2)
    streams = KafkaStreams(topology, config)
    streams.set_uncaught_exception_handler(
        lambda error: response if "second" in str(error) else UncaughtExceptionResponse.SHUTDOWN_CLIENT
    )
    streams.start()
    wait_until(lambda: all(thread.tasks and thread.tasks.running for thread in streams.threads), "a task for each")
    produce(kafka, source, ["first", "second"], partitions=2)
    with pytest.raises(FailedProcessingError, match="ValueError: first"):
        streams.wait(PATIENCE_S)
    assert streams.state is State.ERROR
    assert streams.close(PATIENCE_S)
    with pytest.raises(FailedProcessingError, match="ValueError: first"):
        streams.wait()  # closing does not make it a success
