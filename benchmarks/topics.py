"""Topics of the benchmarks: creating, writing, reading and deleting them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.engine.partitioner import partition_for_key

PARTITIONS = 4
_BATCH = 1_000
_TIMEOUT_S = 600.0
_WARNINGS = 4
"""Not the client's remarks when it is closed."""

Row = tuple[bytes, bytes, int]
"""Key, value, timestamp."""


@dataclass(slots=True)
class Digest:
    """Records, in no order: how many, and the sum of their checksums."""

    records: int = 0
    checksum: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Add one."""
        self.records += 1
        self.checksum += zlib.crc32(value, zlib.crc32(key))


def create_topics(servers: str, *topics: str, partitions: int = PARTITIONS) -> None:
    """Create topics."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": _WARNINGS})
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(60)


def delete_topics(servers: str, part: str) -> None:
    """Delete all topics whose name contains this."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": _WARNINGS})
    found = [topic for topic in admin.list_topics(timeout=60).topics if part in topic]
    for future in admin.delete_topics(found).values() if found else ():
        future.result(60)


def by_key(key: bytes, partitions: int = PARTITIONS) -> int:
    """Return the partition that Kafka's own partitioner chooses."""
    return partition_for_key(key, partitions)


def write(
    servers: str,
    topic: str,
    rows: Iterator[Row],
    advance: Callable[[int], None],
    partition_of: Callable[[bytes], int] = by_key,
) -> None:
    """Write records.

    Args:
        servers: the brokers.
        topic: where.
        rows: what.
        advance: told how many more records are written.
        partition_of: the partition for a key.
    """
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "enable.idempotence": True, "queue.buffering.max.messages": 0}
        | {"queue.buffering.max.kbytes": 65_536}
    )
    for batch in iter(lambda: list(itertools.islice(rows, _BATCH)), []):
        for key, value, at in batch:
            partition = partition_of(key)
            while True:
                try:
                    producer.produce(topic, value, key, partition, timestamp=at)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        advance(len(batch))
    if producer.flush(_TIMEOUT_S):
        raise SystemExit(f"{topic} could not be written within {_TIMEOUT_S:.0f} s")


def read(servers: str, topic: str) -> Iterator[tuple[bytes, bytes]]:
    """Return keys and values of all committed records; those of a partition in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    left = len(partitions)
    while left:
        messages = consumer.consume(10_000, 1.0)
        for message in messages:
            if message.error() is not None:
                left -= 1
            else:
                yield message.key() or b"", message.value() or b""
    consumer.close()
