"""State for the benchmarks' application (a changelog that is written before it starts), changes of it, and its output."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.engine.partitioner import partition_for_key

STORE = "table"
_BATCH = 1_000
_TIMEOUT_S = 300.0
_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Written:
    """What a changelog holds."""

    records: int
    checksum: int
    """The sum of the CRC-32 of each key and value."""
    bytes: int


def topics(application: str) -> tuple[str, str, str]:
    """Return the names of an application's input, output and changelog."""
    return f"{application}-in", f"{application}-out", f"{application}-{STORE}-changelog"


def create_topics(servers: str, application: str, partitions: int) -> None:
    """Create an application's topics. The changelog is not compacted meanwhile, so that every run reads the same."""
    source, sink, changelog = topics(application)
    compact = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(_DAY_MS)}
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = [
        NewTopic(source, partitions, 1),
        NewTopic(sink, partitions, 1),
        NewTopic(changelog, partitions, 1, config=compact),
    ]
    for future in admin.create_topics(wanted).values():
        future.result(60)


def delete_topics(servers: str, application: str) -> None:
    """Delete an application's topics, and their records on disk soon after."""
    admin = AdminClient({"bootstrap.servers": servers})  # without a reference to it the answers never come
    for future in admin.delete_topics(list(topics(application))).values():
        future.result(60)


def key_of(number: int) -> bytes:
    """Return the n-th key."""
    return b"key-%010d" % number


def write_state(
    servers: str, application: str, keys: int, value_bytes: int, partitions: int, advance: Callable[[int], None]
) -> Written:
    """Write a changelog with one record per key; values do not compress.

    Args:
        servers: the brokers.
        application: whose changelog.
        keys: how many.
        value_bytes: the size of a value.
        partitions: of the changelog.
        advance: told how many more records are written.
    """
    _, _, changelog = topics(application)
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True, "queue.buffering.max.messages": 0}
        | {"queue.buffering.max.kbytes": 65_536}
    )
    filler, checksum, size = b"x" * (value_bytes - 10), 0, 0
    for first in range(0, keys, _BATCH):
        batch = []
        for number in range(first, min(keys, first + _BATCH)):
            key, value = key_of(number), b"%010d" % number + filler
            checksum += zlib.crc32(value, zlib.crc32(key))
            size += len(key) + len(value)
            partition = partition_for_key(key, partitions)
            batch.append({"key": key, "value": value, "partition": partition})
        while batch:
            producer.produce_batch(changelog, batch)
            batch = [message for message in batch if "_error" in message]  # the queue is full
            for message in batch:
                del message["_error"]
            producer.poll(0.05 if batch else 0)
        advance(min(keys, first + _BATCH) - first)
    if producer.flush(_TIMEOUT_S):
        raise SystemExit(f"{changelog} could not be written within {_TIMEOUT_S:.0f} s")
    return Written(keys, checksum, size)


class Changes:
    """Changes keys of an application one after the other until the `with` block ends, in a thread.

    Args:
        servers: the brokers.
        application: whose input is written.
        keys: the number of keys that exist.
        value_bytes: the size of a value.
        per_second: how many changes.
        partitions: of the input.
    """

    _TICKS_PER_S = 50

    def __init__(
        self, servers: str, application: str, keys: int, value_bytes: int, per_second: int, partitions: int
    ) -> None:
        self._source, _, _ = topics(application)
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
        self._keys, self._value, self._partitions = keys, b"y" * value_bytes, partitions
        self._per_tick = max(1, per_second // self._TICKS_PER_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number, due = 0, time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += 1 / self._TICKS_PER_S
            for _ in range(self._per_tick):
                key = key_of(number * 7919 % self._keys)
                self._producer.produce(self._source, self._value, key, partition_for_key(key, self._partitions))
                number += 1
            self._producer.poll(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)


@dataclass(slots=True)
class Outputs:
    """Notes when each output record arrives, and which instance wrote it, in a thread until the `with` block ends."""

    servers: str
    application: str
    partitions: int
    seen: list[tuple[float, int, str]] = field(default_factory=list)
    """(Monotonic time, partition, instance)."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(default_factory=threading.Thread)

    def _run(self) -> None:
        _, sink, _ = topics(self.application)
        settings = {
            "bootstrap.servers": self.servers,
            "group.id": "outputs",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed",
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(sink, number, 0) for number in range(self.partitions)])
        while not self._stop.is_set():
            messages = consumer.consume(1_000, 0.01)
            now = time.monotonic()
            for message in messages:
                partition, value = message.partition(), message.value()
                if message.error() is None and partition is not None and value is not None:
                    self.seen.append((now, partition, value.decode()))
        consumer.close()

    def first(self, partition: int, instance: str, after: float) -> float | None:
        """Return the time of an instance's first output in a partition after some time."""
        found = (at for at, number, name in list(self.seen) if at > after and (number, name) == (partition, instance))
        return next(found, None)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
