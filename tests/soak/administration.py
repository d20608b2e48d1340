"""What an administrator does to a cluster under load: moves leaders, denies access, truncates a changelog."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import KafkaError

from millrace.dev.kafka import EmbeddedKafka

_USER, _PASSWORD = "soak", "soak"
BROKERS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.proxied.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{_USER}="{_PASSWORD}";',
}
"""Broker settings: who comes through a proxy is a user, to whom everything is allowed until it is denied."""
CLIENTS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": _USER,
    "sasl.password": _PASSWORD,
}
"""The settings of that user's clients."""
_TRIES = 5
_PREFERRED = 0


def move_leaders(kafka: EmbeddedKafka, application: str, chance: random.Random) -> int:
    """Give all partitions of an application, and the coordinators', another order of replicas, and elect the first ones."""
    topics = kafka.admin().list_topics(timeout=30).topics
    moved = {}
    for name, topic in topics.items():
        if name.startswith((application, "__")):
            for number, partition in topic.partitions.items():
                moved[KafkaPythonPartition(name, number)] = chance.sample(partition.replicas, len(partition.replicas))
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers.split(","), request_timeout_ms=30_000)
    try:
        admin.alter_partition_reassignments(moved)
        by_topic = {name: [each.partition for each in moved if each.topic == name] for name, _ in moved}
        admin.elect_leaders(_PREFERRED, by_topic, raise_errors=False)
    except KafkaError:  # a broker may be down: then those that were moved are moved
        return 0
    finally:
        admin.close()
    return len(moved)


def deny(kafka: EmbeddedKafka, kind: ResourceType, name: str, operation: AclOperation) -> Callable[[], None]:
    """Deny the instances' user an operation, and return a function that allows it again."""
    admin = kafka.admin()

    def binding(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{_USER}", "*", operation, permission)

    rules = [binding(AclOperation.ALL, AclPermissionType.ALLOW), binding(operation, AclPermissionType.DENY)]
    anything = AclBindingFilter(
        kind, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    _insist(lambda: [future.result(30) for future in admin.create_acls(rules).values()])
    return lambda: _insist(lambda: [future.result(30) for future in admin.delete_acls([anything]).values()])


def first_since(kafka: EmbeddedKafka, changelog: str, partition: int, since_ms: int) -> int:
    """Return the offset of a changelog's first record that is not older than `since_ms`, or -1 if there is none."""
    admin, where = kafka.admin(), TopicPartition(changelog, partition)
    answer = admin.list_offsets({where: OffsetSpec.for_timestamp(since_ms)}, request_timeout=20)[where]
    return int(answer.result(30).offset)


def truncate(kafka: EmbeddedKafka, changelog: str, partition: int, before: int) -> None:
    """Delete a changelog's records before an offset."""
    admin = kafka.admin()
    [future] = admin.delete_records([TopicPartition(changelog, partition, before)], request_timeout=20).values()
    future.result(30)


def set_topic(admin: AdminClient, name: str, setting: str, value: str, operation: AlterConfigOpType) -> None:
    """Change a topic's setting; a broker may be down, but a change must not stay."""
    entry = ConfigEntry(setting, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    _insist(lambda: [future.result(30) for future in admin.incremental_alter_configs([resource]).values()])


def _insist(call: Callable[[], Any]) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            call()
            return
        except (KafkaException, TimeoutError):
            if not tries_left:
                raise
