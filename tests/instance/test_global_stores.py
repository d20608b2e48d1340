"""Global stores on a real broker: complete before the first record, kept up to date, and reopened from disk."""

from __future__ import annotations

import secrets
import shutil
import threading

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.instance.support import TEXT, produce, read_all, running, settings
from tests.waiting import PATIENCE_S, wait_until

from millrace.dsl import Consumed, Materialized, StreamsBuilder
from millrace.errors import FailedProcessingError, MissingSourceTopicError, ProcessorStateError
from millrace.instance import KafkaStreams, State
from millrace.processor.api import Processor
from millrace.records import Record
from millrace.state import Stores
from millrace.topology import Topology

pytestmark = pytest.mark.broker
CONTINUE = {"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}


class Fill(Processor):
    """Puts each record into the global store."""

    def process(self, record):
        """Put the record."""
        if record.value == "bad":
            raise ValueError("no good name")
        self.context.get_state_store("names").put(record.key, record.value)


class Look(Processor):
    """Replaces each value with the global store's value for it."""

    def process(self, record):
        """Look the value up."""
        name = self.context.get_state_store("names").get(record.value)
        self.context.forward(Record(record.value, name or "unknown", record.timestamp))


def lookup(names, source, sink):
    """Return a topology that looks values up in a global store."""
    builder = Stores.key_value_store_builder(Stores.persistent_key_value_store("names"), TEXT, TEXT)
    return (
        Topology()
        .add_global_store(
            builder.with_logging_disabled(), "names-source", names, "fill", Fill, key_serde=TEXT, value_serde=TEXT
        )
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("look", Look, "in")
        .add_sink("out", sink, "look", key_serde=TEXT, value_serde=TEXT)
    )


def put(kafka, topic, pairs, partitions=3):
    """Write pairs, spread over the partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for number, (key, value) in enumerate(pairs.items()):
        producer.produce(topic, value.encode(), key.encode(), number % partitions)
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_lookups_find_what_was_there_and_what_comes(kafka, topic_factory, tmp_path, guarantee):
    """The store is complete before input is read, follows its topic, and survives a restart."""
    names, source, sink = topic_factory("names", partitions=3), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, processing_guarantee=guarantee)
    put(kafka, names, {f"k{n}": f"v{n}" for n in range(300)})
    produce(kafka, source, [f"k{n}" for n in range(300)])

    def found():
        return {key.decode(): value.decode() for key, value, _ in read_all(kafka, sink)}

    with running(lookup(names, source, sink), config):
        wait_until(lambda: len(read_all(kafka, sink)) == 300, "all looked up")
        assert found() == {f"k{n}": f"v{n}" for n in range(300)}
        put(kafka, names, {"late": "here"})

        def late():
            produce(kafka, source, ["late"])
            return found().get("late") == "here"

        wait_until(late, "the late name")
    with running(lookup(names, source, sink), config):
        produce(kafka, source, ["k7", "missing"])
        wait_until(lambda: found().get("missing") == "unknown", "looked up after the restart")
        assert found()["k7"] == "v7"


class FillingNoted:
    """Notes what a restore listener is told."""

    def __init__(self):
        self.started, self.restored, self.ended = {}, {}, {}

    def on_restore_start(self, partition, store, start_offset, end_offset):
        """Note where."""
        self.started[partition.partition] = (store, start_offset, end_offset)

    def on_batch_restored(self, partition, store, batch_end_offset, restored):
        """Add up the records, and note the last offset."""
        _, _, so_far = self.restored.get(partition.partition, (store, 0, 0))
        self.restored[partition.partition] = (store, batch_end_offset, so_far + restored)

    def on_restore_end(self, partition, store, total_restored):
        """Note how many."""
        self.ended[partition.partition] = (store, total_restored)

    def on_restore_suspended(self, partition, store, total_restored):
        """Fail: it is not called for global stores."""
        raise AssertionError


def test_the_restore_listener_is_told_of_global_stores(kafka, topic_factory, tmp_path):
    """For each partition: what is to be read, every batch, and the end; after a restart nothing is left."""
    names, source, sink = topic_factory("names", partitions=3), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    put(kafka, names, {f"k{n}": f"v{n}" for n in range(200)}, partitions=2)

    def filled():
        noted = FillingNoted()
        streams = KafkaStreams(lookup(names, source, sink), config)
        streams.set_restore_listener(noted)
        streams.start()
        assert streams.close(60)
        return noted

    first, again = filled(), filled()
    assert first.started == {0: ("names", 0, 100), 1: ("names", 0, 100), 2: ("names", 0, 0)}
    assert first.restored == {0: ("names", 99, 100), 1: ("names", 99, 100)}
    assert first.ended == {0: ("names", 100), 1: ("names", 100), 2: ("names", 0)}
    assert again.started == {0: ("names", 100, 100), 1: ("names", 100, 100), 2: ("names", 0, 0)}
    assert again.restored == {}
    assert again.ended == {0: ("names", 0), 1: ("names", 0), 2: ("names", 0)}


def test_the_restore_listener_is_not_told_of_records_after_the_end(kafka, topic_factory, tmp_path):
    """A partition that is read to its end may get new records while another is still read: they are not restoration."""
    names, source, sink = topic_factory("names", partitions=2), topic_factory("in"), topic_factory("out")
    config = settings(
        kafka,
        f"app-{secrets.token_hex(4)}",
        tmp_path,
        **{"global.consumer.max.partition.fetch.bytes": 5_000, "global.consumer.queued.min.messages": 1},
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(20_000):
        producer.produce(names, f"k{n}", f"v{n}", partition=1 if n else 0)
    assert producer.flush(PATIENCE_S) == 0

    class Writes(FillingNoted):
        """Writes to a partition that has ended, and notes batches of it."""

        def __init__(self):
            super().__init__()
            self.late = []

        def on_batch_restored(self, partition, store, batch_end_offset, restored):
            """Note what comes after the end."""
            super().on_batch_restored(partition, store, batch_end_offset, restored)
            if partition.partition in self.ended:
                self.late.append((partition.partition, batch_end_offset, restored))

        def on_restore_end(self, partition, store, total_restored):
            """Write a record that is read before the other partition ends."""
            super().on_restore_end(partition, store, total_restored)
            if len(self.ended) == 1:
                producer.produce(names, "new", "value", partition=partition.partition)
                assert producer.flush(PATIENCE_S) == 0

    noted = Writes()
    streams = KafkaStreams(lookup(names, source, sink), config)
    streams.set_restore_listener(noted)
    streams.start()
    assert streams.close(60)
    assert noted.ended == {0: ("names", 1), 1: ("names", 19_999)}
    assert noted.late == []


def test_missing_topic_of_a_global_store_is_named(kafka, topic_factory, tmp_path):
    """Starting without a global store's topic fails, and the error names the topic."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    with pytest.raises(MissingSourceTopicError, match="no-names"):
        KafkaStreams(lookup("no-names", source, sink), config).start()


@pytest.mark.parametrize("when", ["before the start", "while running"])
def test_failing_global_processor_ends_the_instance(kafka, topic_factory, tmp_path, when):
    """Without processing.exception.handler.global.enabled the processing handler is not asked, and the client ends in ERROR."""
    names, source, sink = topic_factory("names"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path) | CONTINUE
    streams = KafkaStreams(lookup(names, source, sink), config)
    if when == "before the start":
        put(kafka, names, {"a": "bad"}, partitions=1)
        with pytest.raises(FailedProcessingError, match="no good name"):
            streams.start()
        return
    streams.start()
    wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
    put(kafka, names, {"a": "bad"}, partitions=1)
    with pytest.raises(FailedProcessingError, match="fill failed on the record at offset 0") as raised:
        streams.wait(PATIENCE_S)
    assert streams.state is State.ERROR
    assert "processing.exception.handler.global.enabled=true" in str(raised.value)


def test_stores_stay_open_while_stream_threads_end_after_a_failure(kafka, topic_factory, tmp_path, monkeypatch):
    """Lookups keep finding values until threads end; in a closed store they would find nothing, and that would be committed."""
    names, source, sink = topic_factory("names"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    put(kafka, names, {f"k{n}": "v" for n in range(10)}, partitions=1)
    streams = KafkaStreams(lookup(names, source, sink), config)
    look, closed = Look.process, threading.Event()

    def look_after_the_failure(self, record):
        if record.value == "k0":
            put(kafka, names, {"k0": "bad"}, partitions=1)
            wait_until(lambda: streams.state is State.PENDING_ERROR, "the failure of the global stores")
            closed.wait(2)  # times out; the stores would be closed by then if nobody waited for this thread
        look(self, record)

    monkeypatch.setattr(Look, "process", look_after_the_failure)
    streams.start()
    task = streams._global_thread._task
    close = task.close
    task.close = lambda: (close(), closed.set())
    produce(kafka, source, [f"k{n}" for n in range(10)])
    with pytest.raises(FailedProcessingError, match="fill failed on the record at offset 10"):
        streams.wait(PATIENCE_S)
    assert closed.is_set()
    assert streams.close(PATIENCE_S)
    monkeypatch.undo()
    config |= CONTINUE | {"processing.exception.handler.global.enabled": True}
    with running(lookup(names, source, sink), config):
        produce(kafka, source, ["last"])
        wait_until(lambda: (b"last", b"unknown", 0) in read_all(kafka, sink), "the last record")
    found = {key: value for key, value, _ in read_all(kafka, sink)}
    assert found == {b"k%d" % n: b"v" for n in range(10)} | {b"last": b"unknown"}


def test_processing_handler_may_skip_records_of_global_stores(kafka, topic_factory, tmp_path):
    """With processing.exception.handler.global.enabled the handler may skip records, and updates continue."""
    names, source, sink = topic_factory("names"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path) | CONTINUE
    config |= {"processing.exception.handler.global.enabled": True}
    put(kafka, names, {"a": "bad", "b": "good"}, partitions=1)
    with running(lookup(names, source, sink), config):
        produce(kafka, source, ["a", "b"])
        wait_until(lambda: len(read_all(kafka, sink)) == 2, "both looked up")
    assert {key: value for key, value, _ in read_all(kafka, sink)} == {b"a": b"unknown", b"b": b"good"}


def tables(topics, source, sink):
    """Return a topology with global tables (store -> topic) that copies its input to the sink."""
    builder = StreamsBuilder()
    for store, topic in topics.items():
        materialized = Materialized.as_(store if isinstance(store, str) else store())
        builder.global_table(topic, materialized, consumed=Consumed.with_(TEXT, TEXT))
    builder.stream(source, Consumed.with_(TEXT, TEXT)).to(sink)
    return builder.build()


def keys(streams):
    """Return the keys in each global store, in order."""
    return {name: [pair.key for pair in store.all()] for name, store in streams._global_thread.stores.items()}


def delete_records(kafka, topic, before):
    """Delete the records below an offset from a topic's only partition."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([ClientTopicPartition(topic, 0, before)]).values():
        future.result(PATIENCE_S)


def create_again(kafka, topic):
    """Delete a topic and create it again."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_topics([topic]).values():
        future.result(PATIENCE_S)

    def created():
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
        except KafkaException:  # the deletion has not finished
            return False
        return True

    wait_until(created, f"{topic} created again")


def test_renamed_global_store_is_filled(kafka, topic_factory, tmp_path):
    """A store without offsets is filled from the beginning, even if another table's store has some."""
    first, second, source, sink = topic_factory("a"), topic_factory("b"), topic_factory("in"), topic_factory("out")
    application = f"app-{secrets.token_hex(4)}"
    config = settings(kafka, application, tmp_path)
    put(kafka, first, {"a1": "x", "a2": "x"}, partitions=1)
    put(kafka, second, {"b1": "x"}, partitions=1)
    with running(tables({"one": first, "two": second}, source, sink), config) as streams:
        assert keys(streams) == {"one": ["a1", "a2"], "two": ["b1"]}
    with running(tables({"one": first, "other": second}, source, sink), config) as streams:
        assert keys(streams) == {"one": ["a1", "a2"], "other": ["b1"]}
    shutil.rmtree(tmp_path / application / "global" / "rocksdb" / "other")
    with running(tables({"one": first, "other": second}, source, sink), config) as streams:
        assert keys(streams) == {"one": ["a1", "a2"], "other": ["b1"]}


def test_global_store_on_disk_continues_next_to_one_in_memory(kafka, topic_factory, tmp_path, caplog):
    """An in-memory store is filled at each start, while another table's store on disk continues from its offset."""
    first, second, source, sink = topic_factory("a"), topic_factory("b"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    put(kafka, first, {"a1": "x", "a2": "x"}, partitions=1)
    put(kafka, second, {"b1": "x"}, partitions=1)
    in_memory = Stores.in_memory_key_value_store("two")
    for filled in (3, 1):
        caplog.clear()
        with (
            caplog.at_level("INFO", "millrace.instance.global_thread"),
            running(tables({"one": first, lambda: in_memory: second}, source, sink), config) as streams,
        ):
            assert keys(streams) == {"one": ["a1", "a2"], "two": ["b1"]}
        assert f"Filling global stores one, two: {filled} records" in caplog.text


def test_store_that_missed_deleted_records_is_filled_again(kafka, topic_factory, tmp_path, caplog):
    """If records from the next offset on are gone, the store is emptied first, as there may have been deletions among them."""
    names, other, source, sink = topic_factory("a"), topic_factory("b"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    topology = tables({"names": names, "other": other}, source, sink)
    put(kafka, names, {"old": "x"}, partitions=1)
    put(kafka, other, {"kept": "x"}, partitions=1)
    with running(topology, config) as streams:
        assert keys(streams) == {"names": ["old"], "other": ["kept"]}
    put(kafka, names, {"missed": "x", "new": "x"}, partitions=1)
    delete_records(kafka, names, 2)
    delete_records(kafka, other, 1)
    with running(tables({"names": names, "other": other}, source, sink), config) as streams:
        assert keys(streams) == {"names": ["new"], "other": ["kept"]}
    assert f"Unread records of {names}-0 were deleted: offset 1 is next" in caplog.text
    assert other not in caplog.text


@pytest.mark.parametrize("records", [1, 2, 3], ids=["shorter", "as long", "longer"])
def test_store_of_a_topic_that_was_created_again_is_filled_again(kafka, topic_factory, tmp_path, caplog, records):
    """A recreated topic is another topic, however many records it has: nothing from the old one remains."""
    names, source, sink = topic_factory("a"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    put(kafka, names, {"old1": "x", "old2": "x"}, partitions=1)
    with running(tables({"names": names}, source, sink), config) as streams:
        assert keys(streams) == {"names": ["old1", "old2"]}
    create_again(kafka, names)
    put(kafka, names, {f"new{number}": "x" for number in range(records)}, partitions=1)
    expected = {"names": [f"new{number}" for number in range(records)]}
    with running(tables({"names": names}, source, sink), config) as streams:
        assert keys(streams) == expected
    assert f"Topic {names} was deleted and created again: its global store is emptied" in caplog.text
    caplog.clear()
    with running(tables({"names": names}, source, sink), config) as streams:
        assert keys(streams) == expected
    assert "emptied" not in caplog.text


def test_records_that_vanish_while_the_store_is_read_end_the_instance(kafka, topic_factory, tmp_path):
    """The instance fails and says why; the store is emptied, so after a restart it matches the topic."""
    names, source, sink = topic_factory("a"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    put(kafka, names, {"old1": "x", "old2": "x"}, partitions=1)
    streams = KafkaStreams(tables({"names": names}, source, sink), config)
    streams.start()
    wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
    consumer = streams._global_thread._consumer
    poll, behind = consumer.poll, []

    def fall_behind(*args):
        if not behind:  # in the consumer's own thread
            behind.append(True)
            delete_records(kafka, names, 1)
            consumer._client.seek(ClientTopicPartition(names, 0, 0))
        return poll(*args)

    consumer.poll = fall_behind
    expected = f"{names}-0 does not have the record that its global store was to read next"
    with pytest.raises(ProcessorStateError, match=expected) as raised:
        streams.wait(PATIENCE_S)
    assert streams.state is State.ERROR
    assert "a restart fills it" in str(raised.value)
    with running(tables({"names": names}, source, sink), config) as again:
        assert keys(again) == {"names": ["old2"]}


def test_open_transaction_does_not_hold_up_the_start(kafka, topic_factory, tmp_path):
    """Exactly-once reads committed records, and does not wait for those of an open transaction in the table's topic."""
    names, source, sink = topic_factory("a"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, processing_guarantee="exactly_once_v2")
    put(kafka, names, {"k1": "x"}, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": secrets.token_hex(4)})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(names, b"x", b"k2")
    assert producer.flush(PATIENCE_S) == 0
    with running(tables({"names": names}, source, sink), config | {"task.timeout.ms": 20_000}) as streams:
        assert keys(streams) == {"names": ["k1"]}
        producer.commit_transaction(PATIENCE_S)
        wait_until(lambda: keys(streams) == {"names": ["k1", "k2"]}, "the transaction's record")
