"""Wire formats of a member: the envelope of our user data in JoinGroup and SyncGroup, and consumer group metadata.

The envelope is ConsumerProtocol's Subscription and Assignment in version 3, as Java's consumer writes them: with the owned
partitions, their generation, and the rack.

librdkafka's producer takes consumer group metadata in `send_offsets_to_transaction`, as opaque bytes from confluent-kafka's own
consumer. Our members are not such consumers, so the bytes are written here. Once per process, before anything depends on it, the
layout is compared with librdkafka's own.

Layout (CGMDv2): `CGMDv2:` ‖ generation int32, native endian ‖ group id ‖ 00 ‖ member id ‖ 00 ‖ (01 | 00 ‖ instance id ‖ 00).
"""

from __future__ import annotations

import functools
import struct
from collections import defaultdict
from collections.abc import Iterable

from confluent_kafka import Consumer
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from millrace.assignment.protocol import MemberAssignment, MemberSubscription
from millrace.errors import UnsupportedFeatureError
from millrace.records import TopicPartition

_PROTOCOL_VERSION = 3
_METADATA_MAGIC = b"CGMDv2:"


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """Encode a subscription."""
    item = ConsumerProtocolSubscription.TopicPartition
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[item(topic=t, partitions=p) for t, p in _by_topic(subscription.owned)],
        generation_id=subscription.generation,
        rack_id=subscription.rack_id,
    )
    return bytes(message.encode(version=_PROTOCOL_VERSION))


def decode_subscription(data: bytes, instance_id: str | None = None) -> MemberSubscription:
    """Decode a subscription of any version (0 to 3; later versions append fields)."""
    message = ConsumerProtocolSubscription.decode(bytes(data))
    return MemberSubscription(
        topics=tuple(message.topics),
        user_data=bytes(message.user_data or b""),
        owned=frozenset(
            TopicPartition(item.topic, number) for item in message.owned_partitions or () for number in item.partitions
        ),
        generation=-1 if message.generation_id is None else message.generation_id,
        instance_id=instance_id,
        rack_id=message.rack_id,
    )


def encode_assignment(assignment: MemberAssignment) -> bytes:
    """Encode an assignment."""
    item = ConsumerProtocolAssignment.TopicPartition
    message = ConsumerProtocolAssignment(
        assigned_partitions=[item(topic=t, partitions=p) for t, p in _by_topic(assignment.partitions)],
        user_data=assignment.user_data,
    )
    return bytes(message.encode(version=_PROTOCOL_VERSION))


def decode_assignment(data: bytes) -> MemberAssignment:
    """Decode an assignment; empty bytes mean that nothing was assigned to the member."""
    if not data:
        return MemberAssignment(())
    message = ConsumerProtocolAssignment.decode(bytes(data))
    partitions = sorted(TopicPartition(i.topic, number) for i in message.assigned_partitions for number in i.partitions)
    return MemberAssignment(tuple(partitions), bytes(message.user_data or b""))


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        grouped[topic].append(number)
    return list(grouped.items())


def encode_group_metadata(group_id: str, generation: int, member_id: str, instance_id: str | None = None) -> bytes:
    r"""Encode group metadata for `Producer.send_offsets_to_transaction`.

    >>> encode_group_metadata("g", 7, "m")[-6:]
    b'\x00g\x00m\x00\x01'
    """
    instance = b"\1" if instance_id is None else b"\0" + instance_id.encode() + b"\0"
    return (
        _METADATA_MAGIC
        + struct.pack("=i", generation)
        + group_id.encode()
        + b"\0"
        + member_id.encode()
        + b"\0"
        + instance
    )


@functools.cache
def check_group_metadata() -> None:
    """Compare our layout of group metadata with this process's librdkafka.

    Raises:
        UnsupportedFeatureError: They differ, so transactions could commit offsets for no member or for the wrong one.
    """
    for instance in (None, "instance"):
        settings = {"group.id": "millrace-layout", "bootstrap.servers": "127.0.0.1:9", "log_level": 0}
        if instance is not None:
            settings["group.instance.id"] = instance
        consumer = Consumer(settings)
        try:
            theirs = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        if theirs != encode_group_metadata("millrace-layout", -1, "", instance):
            raise UnsupportedFeatureError(
                "This version of confluent-kafka writes consumer group metadata in an unknown layout, so offsets cannot be "
                "committed safely: install the version that Millrace requires"
            )
