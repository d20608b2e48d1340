"""Reading topics to their present ends; for all tests, those in `e2e` included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.deadline import Deadline
from millrace.kafka.offsets import latest_offsets
from millrace.records import TopicPartition


def read_to_end(
    consumer: Consumer, admin: AdminClient, starts: Sequence[ClientTopicPartition], timeout_s: float
) -> Iterator[Message]:
    """Read partitions from their offsets up to their present ends, and return the records.

    Transactions without a marker yet are waited for: a producer is told that one is committed before its markers are there.

    Args:
        consumer: with `enable.partition.eof`.
        admin: asks for the ends.
        starts: partitions with the offsets to begin at.
        timeout_s: how long it may take.
    """
    ends = latest_offsets(admin, [TopicPartition(each.topic, each.partition) for each in starts])
    unread = {partition for partition, end in ends.items() if end > 0}
    consumer.assign(list(starts))
    deadline = Deadline(timeout_s)
    while unread:
        assert not deadline.passed, f"cannot read {sorted(unread)} to the end: a transaction may still be open"
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                position = message.offset() + 1
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                position = message.offset()  # before the end as long as a transaction is open
            else:
                continue
            partition = TopicPartition(message.topic(), message.partition())
            if position >= ends[partition]:
                unread.discard(partition)
