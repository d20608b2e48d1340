"""ConsumerProtocol's Subscription and Assignment: the frames around our user data in JoinGroup and SyncGroup.

Version 3, as Java's consumer writes: owned partitions, the generation they are from, and the rack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from millrace.assignment.protocol import MemberAssignment, MemberSubscription
from millrace.records import TopicPartition

_VERSION = 3


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """Return a subscription's bytes."""
    item = ConsumerProtocolSubscription.TopicPartition
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[item(topic=t, partitions=p) for t, p in _by_topic(subscription.owned)],
        generation_id=subscription.generation,
        rack_id=subscription.rack_id,
    )
    return bytes(message.encode(version=_VERSION))


def decode_subscription(data: bytes, instance_id: str | None = None) -> MemberSubscription:
    """Read a subscription of any version (0 to 3; later ones add fields at the end)."""
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
    """Return an assignment's bytes."""
    item = ConsumerProtocolAssignment.TopicPartition
    message = ConsumerProtocolAssignment(
        assigned_partitions=[item(topic=t, partitions=p) for t, p in _by_topic(assignment.partitions)],
        user_data=assignment.user_data,
    )
    return bytes(message.encode(version=_VERSION))


def decode_assignment(data: bytes) -> MemberAssignment:
    """Read an assignment; an empty one is what a member gets that nothing was assigned to."""
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
