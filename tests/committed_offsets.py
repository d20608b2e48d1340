"""What groups have committed, as somebody outside sees it."""

from __future__ import annotations

from collections.abc import Collection

from tests.waiting import PATIENCE_S

from millrace.config import StreamsConfig
from millrace.dev.kafka import EmbeddedKafka
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.records import TopicPartition


def group_admin(kafka: EmbeddedKafka, group_id: str, timeout_s: float = PATIENCE_S) -> GroupAdmin:
    """Return an administrator of a group; to be closed."""
    config = StreamsConfig.of({"application.id": group_id, "bootstrap.servers": kafka.bootstrap_servers})
    return GroupAdmin(ClientSettings(config, "test"), timeout_s)


def committed(
    kafka: EmbeddedKafka, group_id: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """Return a group's offsets of these partitions, or all, once no transaction is pending on them."""
    with group_admin(kafka, group_id) as group:
        return group.stable_offsets(partitions)


def committed_offset(kafka: EmbeddedKafka, group_id: str, topic: str) -> int | None:
    """Return a group's offset of partition 0 of a topic, or None."""
    partition = TopicPartition(topic, 0)
    return committed(kafka, group_id, [partition]).get(partition)
