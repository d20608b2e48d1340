"""A word count in the Processor API, and helpers to run it against a real broker, in this process or in others."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from tests import forked
from tests.reading import read_to_end
from tests.waiting import PATIENCE_S, wait_until

from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.state_directory import PROCESS_FILE
from millrace.instance.states import State
from millrace.processor.api import Processor, ProcessorContext
from millrace.records import Record, TaskId
from millrace.serdes import LongSerde, StringSerde
from millrace.state import Stores
from millrace.topology import Topology
from millrace.topology.physical_topology import RepartitionTopic

TEXT, NUMBER = StringSerde(), LongSerde()
ROOT = Path(__file__).parents[2]


class CountWords(Processor[str, str, str, int]):
    """Counts the words of each line, in a store, and forwards each new count."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        """Get the store."""
        super().init(context)
        self.store = context.get_state_store("counts")

    def process(self, record: Record[str, str]) -> None:
        """Count each word."""
        for word in record.value.split():
            count = (self.store.get(word) or 0) + 1
            self.store.put(word, count)
            self.context.forward(Record(word, count, record.timestamp))


class SplitWords(Processor[str, str, str, str]):
    """Splits lines and forwards each word, keyed by itself."""

    def process(self, record: Record[str, str]) -> None:
        """Split the line."""
        for word in record.value.split():
            self.context.forward(Record(word, word, record.timestamp))


def counts_builder(
    *, caching: bool = False, log_config: Mapping[str, str] | None = None, persistent: bool = True
) -> Any:
    """Return the builder of the store `counts`."""
    supplier = Stores.persistent_key_value_store if persistent else Stores.in_memory_key_value_store
    builder = Stores.key_value_store_builder(supplier("counts"), TEXT, NUMBER)
    builder.with_logging_enabled(log_config)
    return builder.with_caching_enabled() if caching else builder


def word_count(
    source: str,
    sink: str,
    *,
    caching: bool = False,
    log_config: Mapping[str, str] | None = None,
    persistent: bool = True,
) -> Topology:
    """Count words that are already keyed, so that equal words meet: one sub-topology."""
    counts = counts_builder(caching=caching, log_config=log_config, persistent=persistent)
    return counting_with(CountWords, source, sink, counts)


def counting_with(processor: Any, source: str, sink: str, counts: Any = None) -> Topology:
    """Return a word count with another processor, and with the store of counts that is given."""
    return (
        Topology()
        .add_source("lines", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", processor, "lines")
        .add_state_store(counts or counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )


def two_step_word_count(source: str, sink: str, *, name: str = "words") -> Topology:
    """Count words of unkeyed lines: a second sub-topology behind a repartition topic."""
    topology = (
        Topology()
        .add_source("lines", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("split", SplitWords, "lines")
        .add_sink("to-words", name, "split", key_serde=TEXT, value_serde=TEXT)
        .add_source("words", name, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", CountWords, "words")
        .add_state_store(counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )
    topology._builder.add_internal_topic(RepartitionTopic(name))
    return topology


def settings(kafka: Any, application_id: str, state_dir: Path, **others: Any) -> dict[str, Any]:
    """Return settings for a quick test instance; underscores in `others` stand for dots."""
    return {
        "application.id": application_id,
        "bootstrap.servers": kafka if isinstance(kafka, str) else kafka.bootstrap_servers,
        "state.dir": str(state_dir),
        "commit.interval.ms": 100,
        "heartbeat.interval.ms": 200,
        "session.timeout.ms": 30_000,
        "producer.linger.ms": 5,
        "fetch.max.wait.ms": 20,
        **{key.replace("_", "."): value for key, value in others.items()},
    }


@contextlib.contextmanager
def running(topology: Topology, config: Mapping[str, Any], **options: Any) -> Iterator[KafkaStreams]:
    """Run an instance, wait until it is RUNNING, and close it at the end."""
    streams = KafkaStreams(topology, config, **options)
    streams.start()
    try:
        wait_until(lambda: streams.state is State.RUNNING or streams.error, "RUNNING")
        if streams.error is not None:
            raise streams.error
        yield streams
    finally:
        closed = streams.close(PATIENCE_S)
    assert closed, "the instance does not end"


def produce(kafka: Any, topic: str, lines: list[str], *, partitions: int = 1, start_ms: int | None = None) -> None:
    """Write lines, the n-th to partition n % partitions with timestamp start (default: now) + n ms."""
    start_ms = int(time.time() * 1000) if start_ms is None else start_ms
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,  # with more, librdkafka may lose its first batch
            "linger.ms": 5,
            "queue.buffering.max.messages": 0,
        }
    )
    for number, line in enumerate(lines):
        producer.produce(topic, line.encode(), None, number % partitions, timestamp=start_ms + number)
    assert producer.flush(PATIENCE_S) == 0


def has_failed(client: Any) -> bool:
    """Whether the transaction of a producer, which is in one, has failed; takes no report of a record."""
    try:
        client.begin_transaction()
    except KafkaException as error:
        return bool(error.args[0].txn_requires_abort())
    return False


class Feeder:
    """Writes lines in the background until stopped; survives a broker's restart.

    Args:
        kafka: the broker.
        topic: where it writes.
        lines: yields partitions and lines.
        rate: lines per second.
    """

    def __init__(self, kafka: Any, topic: str, lines: Iterator[tuple[int, str]], rate: int = 400) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 1,  # with more, librdkafka may lose its first batch
                "linger.ms": 5,
                "log_level": 0,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._stop = threading.Event()
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._run, args=(topic, lines, rate), daemon=True)
        self._thread.start()

    def _run(self, topic: str, lines: Iterator[tuple[int, str]], rate: int) -> None:
        while not self._stop.wait(0.05):
            for partition, line in itertools.islice(lines, rate // 20):
                self._producer.produce(topic, line.encode(), None, partition)
                self.lines.append(line)
            self._producer.poll(0)

    def stop(self) -> list[str]:
        """Stop, wait until everything is acknowledged, and return the lines."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0
        return self.lines


def read_messages(kafka: Any, topic: str, *, partitions: int = 1, committed: bool = True) -> list[Message]:
    """Return everything currently in a topic, in order within each partition.

    If only committed records are wanted, transactions that are open now are waited for, because what follows them, although
    committed, cannot be read before they end.
    """
    admin = kafka.admin()  # without a reference to it the answers never come
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    starts = [TopicPartition(topic, number, 0) for number in range(partitions)]
    try:
        return list(read_to_end(consumer, admin, starts, PATIENCE_S))
    finally:
        consumer.close()


def read_all(kafka: Any, topic: str, *, partitions: int = 1, committed: bool = True) -> list[tuple[Any, Any, int]]:
    """Return (key, value, partition) of what `read_messages` returns."""
    found = read_messages(kafka, topic, partitions=partitions, committed=committed)
    return [(message.key(), message.value(), message.partition()) for message in found]


def last_counts(kafka: Any, topic: str, *, partitions: int = 1) -> dict[str, int]:
    """Return the last count that a word count has written for each word."""
    counts: dict[str, int] = {}
    for key, value, _ in read_all(kafka, topic, partitions=partitions):
        counts[key.decode()] = int.from_bytes(value, "big", signed=True)
    return counts


def expected_counts(lines: list[str]) -> dict[str, int]:
    """Return how often each word occurs."""
    return dict(Counter(word for line in lines for word in line.split()))


class Changed:
    """A librdkafka producer with one call replaced."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)


class Replica:
    """The word count in a separate process, which a test can kill or stop."""

    def __init__(self, config: Mapping[str, Any], source: str, sink: str, directory: Path, name: str) -> None:
        self._spec = {
            "config": {**config, "__status.file__": str(directory / f"{name}.status")},
            "source": source,
            "sink": sink,
        }
        self._log = directory / f"{name}.log"
        self.name = name
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, cold: str = "") -> Replica:
        """Start the process, as a new interpreter if `cold` says why."""
        self.starts += 1
        with self._log.open("ab") as log:
            self.process = forked.Popen(
                [sys.executable, str(Path(__file__).with_name("replica.py")), json.dumps(self._spec)],
                cold=cold,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"},
            )
        return self

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, like a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop it with SIGTERM as soon as it can handle the signal; return its exit code."""
        assert self.process is not None
        wait_until(
            lambda: self.process.poll() is not None or self.status().get("pid") == self.process.pid,
            lambda: f"{self.name} starts: {self.log()[-3000:]}",
        )
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop: {self.log()[-3000:]}") from None

    def status(self) -> dict[str, Any]:
        """Return its last status, or an empty one."""
        try:
            return json.loads(Path(self._spec["config"]["__status.file__"]).read_text())
        except (FileNotFoundError, ValueError):
            return {}

    def records(self) -> int:
        """Return how many records it has processed."""
        return self.status().get("processing", {}).get("records", 0)

    def log(self) -> str:
        """Return what it has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


GUARANTEES = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


class Restored:
    """Notes what a restore listener is told, and counts restored records, by changelog."""

    def __init__(self):
        self.records = Counter()
        self.started = set()
        self.ended = []
        self.suspended = set()

    def on_restore_start(self, partition, store, start_offset, end_offset):
        """Note the partition."""
        self.started.add(partition)

    def on_batch_restored(self, partition, store, batch_end_offset, restored):
        """Count."""
        self.records[partition] += restored

    def on_restore_end(self, partition, store, total_restored):
        """Note the partition."""
        self.ended.append(partition)

    def on_restore_suspended(self, partition, store, total_restored):
        """Note the partition."""
        self.suspended.add(partition)


class Updated:
    """Notes what a standby listener is told."""

    def __init__(self):
        self.starts = []
        self.batches = []
        self.suspended = []

    def on_update_start(self, partition, store, starting_offset):
        """Note it."""
        self.starts.append((partition, store, starting_offset))

    def on_batch_loaded(self, partition, store, task_id, batch_end_offset, batch_size, current_end_offset):
        """Note it."""
        self.batches.append((partition, store, task_id, batch_end_offset, batch_size, current_end_offset))

    def on_update_suspended(self, partition, store, store_offset, current_end_offset, reason):
        """Note it."""
        self.suspended.append((partition, store_offset, current_end_offset, reason))


class HeldAtStart(Updated):
    """Keeps standbys and warm-ups from being updated until the test has looked."""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()

    def on_update_start(self, partition, store, starting_offset):
        """Note it, and wait."""
        super().on_update_start(partition, store, starting_offset)
        self.go_on.wait(PATIENCE_S)


class Instance:
    """An instance with both listeners, and its client id as its name."""

    def __init__(self, stack, topology, config, updated=None):
        self.restored, self.updated = Restored(), updated or Updated()
        self.streams = KafkaStreams(topology, config)
        self.streams.set_restore_listener(self.restored)
        self.streams.set_standby_update_listener(self.updated)
        self.streams.start()
        stack.callback(self.streams.close, 60)

    def running(self):
        """Return the instance once it is RUNNING."""
        wait_until(lambda: self.streams.state is State.RUNNING or self.streams.error, "RUNNING")
        assert self.streams.error is None
        return self

    @property
    def manager(self):
        """The tasks of its first thread."""
        return self.streams.threads[0].tasks

    def tasks(self, role):
        """Return the ids of the open tasks with a role."""
        return {
            str(TaskId.parse(each.id))
            for each in self.streams.status().tasks
            if each.role == role and each.state == "RUNNING"
        }

    def position(self, partition):
        """Return the offset that a standby's store has reached."""
        task = self.manager.standby.get(TaskId(0, partition.partition))
        return None if task is None else task.changelog_positions[partition]

    def counts(self, task):
        """Return the counts in the store of a standby, or of a task that does not process anything now."""
        held = {**self.manager.running, **self.manager.standby}.get(TaskId.parse(task))
        return {} if held is None else {pair.key: pair.value for pair in held.stores["counts"].all()}


def same_counts(one, other, task):
    """Return whether two instances have the same counts in a task's store, if any."""
    return one.counts(task) == other.counts(task) != {}


def words(count, *, of=10):
    """Return lines of one word."""
    return [f"w{number % of}" for number in range(count)]


def replicated(kafka, app, directory, **others):
    """Return settings with one standby; see `own_settings`."""
    return own_settings(kafka, app, directory, num_standby_replicas=1, **others)


def own_settings(kafka, app, directory, **others):
    """Return settings for an instance in a directory `a` or `b`: if there is one task, it goes to `a`."""
    path = directory / app
    path.mkdir(parents=True, exist_ok=True)
    (path / PROCESS_FILE).write_text(json.dumps({"processId": str(UUID(int=ord(directory.name)))}))
    return settings(kafka, app, directory, **others)
