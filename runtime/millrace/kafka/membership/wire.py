"""Wire format of a member: the envelope of our user data in JoinGroup and SyncGroup.

It is ConsumerProtocol's Subscription and Assignment in version 3, as Java's consumer writes them: with the owned partitions,
their generation, and the rack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from millrace.assignment.protocol import MemberAssignment, MemberSubscription
from millrace.records import TopicPartition

_PROTOCOL_VERSION = 3


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
