"""Topics, groups and the cluster, administered with librdkafka's admin client; each function has a deadline.

Offsets are in `millrace.kafka.offsets`, retries in `millrace.kafka.admin_requests`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigEntry,
    ConfigResource,
    DescribeClusterResult,
    TopicDescription,
)
from confluent_kafka.cimpl import NewTopic

from millrace.deadline import Deadline
from millrace.kafka.admin_requests import FORBIDDEN, REQUEST_TIMEOUT_S, ask, forbidden, pause, request_timeout

__all__ = [
    "DescribedTopic",
    "TopicToCreate",
    "all_topic_partitions",
    "appears_on_demand",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_topics",
    "group_names",
    "may_read",
    "may_write",
    "topic_configs",
    "topic_partitions",
    "wait_for_topics",
]

_ABSENT: Final[Mapping[int, None]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: None,
    KafkaError._UNKNOWN_TOPIC: None,  # noqa: SLF001 (librdkafka's local codes have no other name)
}
_PAUSE_S: Final = 0.1
_URL_SAFE_BASE64: Final = str.maketrans("+/", "-_")


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    """A topic to create; a replication factor of -1 is the broker's default."""

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic as the brokers describe it; its id distinguishes it from a deleted topic of the same name."""

    id: str
    """In the form that Kafka's tools print."""
    partitions: int
    replication_factor: int
    """The smallest number of replicas of any partition."""
    racks: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Partition → racks of its replicas, unless one of their brokers has no `broker.rack`."""


def describe_topics(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> dict[str, DescribedTopic]:
    """Describe topics; those that do not exist are left out. Never creates one.

    Raises:
        AuthorizationError: A topic may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)

    def request(names: Collection[str]) -> Mapping[str, Future[TopicDescription | None]]:
        return admin.describe_topics(TopicCollection(list(names)), request_timeout=request_timeout(deadline))

    described = ask("describe topics", request, topics, timeout_s, final=_ABSENT)
    return {
        name: DescribedTopic(
            str(topic.topic_id).translate(_URL_SAFE_BASE64),
            len(topic.partitions),
            min((len(p.replicas) for p in topic.partitions), default=0),
            {
                p.id: frozenset(racks)
                for p in topic.partitions
                if len(racks := [node.rack for node in p.replicas if node.rack]) == len(p.replicas)
            },
        )
        for name, topic in described.items()
        if topic is not None
    }


def topic_partitions(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> dict[str, int]:
    """Return the partition counts of topics; those that do not exist are left out. Never creates one.

    Raises:
        AuthorizationError: A topic may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    return {name: topic.partitions for name, topic in describe_topics(admin, topics, timeout_s).items()}


def may_write(admin: AdminClient, topic: str, timeout_s: float = 30.0) -> bool | None:
    """Return whether this principal may write to a topic, or None if it does not exist. Never creates it.

    Raises:
        AuthorizationError: The principal has no ACL for the topic at all.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    return _may(AclOperation.WRITE, admin, topic, timeout_s)


def may_read(admin: AdminClient, topic: str, timeout_s: float = 30.0) -> bool | None:
    """Return whether this principal may read a topic, and commit offsets in it; else as `may_write`."""
    return _may(AclOperation.READ, admin, topic, timeout_s)


def _may(operation: AclOperation, admin: AdminClient, topic: str, timeout_s: float) -> bool | None:
    deadline = Deadline(timeout_s)

    def request(names: Collection[str]) -> Mapping[str, Future[TopicDescription | None]]:
        return admin.describe_topics(
            TopicCollection(list(names)),
            include_authorized_operations=True,
            request_timeout=request_timeout(deadline),
        )

    described = ask("describe topics", request, [topic], timeout_s, final=_ABSENT)[topic]
    if described is None:
        return None
    allowed = described.authorized_operations
    return allowed is None or operation in allowed


def appears_on_demand(admin: AdminClient, topic: str, timeout_s: float = 5.0) -> bool:
    """Request a topic as a producer does, and return whether it then exists: brokers may create topics on demand.

    Raises:
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)
    while True:
        try:
            problem = admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].error
        except KafkaException as error:
            pause(deadline, f"look for topic {topic}", error.args[0])
            continue
        if problem is None or problem.code() == KafkaError.LEADER_NOT_AVAILABLE:
            return True
        if deadline.passed:
            return False
        time.sleep(_PAUSE_S)


def describe_cluster(admin: AdminClient, timeout_s: float = 30.0) -> tuple[str | None, int]:
    """Return the cluster's id and its number of running brokers.

    Raises:
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)

    def request(_: Collection[str]) -> Mapping[str, Future[DescribeClusterResult]]:
        return {"cluster": admin.describe_cluster(request_timeout=request_timeout(deadline))}

    found = ask("describe the", request, ["cluster"], timeout_s)["cluster"]
    return found.cluster_id, len(found.nodes)


def all_topic_partitions(admin: AdminClient, timeout_s: float = 30.0) -> dict[str, int]:
    """Return the partition counts of all topics that this principal may see, except Kafka's own (`__…`).

    Raises:
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)
    while True:
        try:
            metadata = admin.list_topics(timeout=request_timeout(deadline))
        except KafkaException as error:
            pause(deadline, "list topics", error.args[0])
        else:
            topics = metadata.topics.items()
            return {name: len(t.partitions) for name, t in topics if t.error is None and not name.startswith("__")}


def group_names(admin: AdminClient, timeout_s: float = 30.0) -> frozenset[str]:
    """Return the names of the groups that this principal may see.

    Raises:
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)
    while True:
        try:
            listed = admin.list_consumer_groups(request_timeout=request_timeout(deadline)).result()
        except KafkaException as error:
            pause(deadline, "list groups", error.args[0])
        else:
            if not listed.errors:
                return frozenset(group.group_id for group in listed.valid)
            pause(deadline, "list all groups", listed.errors[0])  # a broker did not answer, so its groups are missing


def topic_configs(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> dict[str, dict[str, str]]:
    """Return the effective configuration of topics; those that do not exist are left out.

    Raises:
        AuthorizationError: A topic's configuration may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)

    def request(names: Collection[str]) -> Mapping[str, Future[dict[str, ConfigEntry] | None]]:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        futures = admin.describe_configs(resources, request_timeout=request_timeout(deadline))
        return {resource.name: future for resource, future in futures.items()}

    found = ask(
        "describe the configuration of", request, topics, timeout_s, final={KafkaError.UNKNOWN_TOPIC_OR_PART: None}
    )
    return {
        name: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        for name, entries in found.items()
        if entries is not None
    }


def create_topics(admin: AdminClient, topics: Mapping[str, TopicToCreate], timeout_s: float = 30.0) -> frozenset[str]:
    """Create topics and wait until all partitions have leaders; returns the topics that already existed.

    Raises:
        AuthorizationError: Topics may not be created.
        StreamsError: The brokers refused a configuration, replication factor or name; the message says which and why.
        StreamsTimeoutError: The topics were not created in time.
    """
    deadline = Deadline(timeout_s)

    def request(names: Collection[str]) -> Mapping[str, Future[bool | None]]:
        new = [
            NewTopic(
                name,
                num_partitions=topics[name].partitions,
                replication_factor=topics[name].replication_factor,
                config=dict(topics[name].config),
            )
            for name in names
        ]
        return admin.create_topics(new, request_timeout=request_timeout(deadline))

    existing: Mapping[int, bool | None] = {KafkaError.TOPIC_ALREADY_EXISTS: False}
    answers = ask("create topics", request, topics, timeout_s, final=existing)
    wait_for_topics(admin, topics, deadline.left_s(at_least=1.0))
    return frozenset(name for name, answer in answers.items() if answer is False)


def delete_topics(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> None:
    """Delete topics and wait until they are gone; idempotent: succeeds if they do not exist.

    Raises:
        AuthorizationError: Topics may not be deleted.
        StreamsError: The brokers refused: deletion is turned off (`delete.topic.enable`).
        StreamsTimeoutError: The topics were not deleted in time.
    """
    deadline = Deadline(timeout_s)

    def request(names: Collection[str]) -> Mapping[str, Future[None]]:
        return admin.delete_topics(list(names), request_timeout=request_timeout(deadline))

    ask("delete topics", request, topics, timeout_s, final={KafkaError.UNKNOWN_TOPIC_OR_PART: None})
    while left := topic_partitions(admin, topics, deadline.left_s(at_least=1.0)):
        pause(deadline, f"delete topics {', '.join(sorted(left))}", "the brokers still have them")


def wait_for_topics(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> None:
    """Wait until the brokers' metadata has the topics, with a leader for each partition.

    Raises:
        StreamsTimeoutError: It does not have them in time.
    """
    deadline = Deadline(timeout_s)
    waiting = set(topics)
    while waiting:
        futures = admin.describe_topics(TopicCollection(sorted(waiting)), request_timeout=request_timeout(deadline))
        for name, future in futures.items():
            try:
                described = future.result()
            except KafkaException as error:
                if error.args[0].code() in FORBIDDEN:
                    raise forbidden("describe topics", name, error) from error
                continue
            if described.partitions and all(p.leader is not None and p.leader.id >= 0 for p in described.partitions):
                waiting.discard(name)
        if waiting:
            pause(deadline, f"see leaders of topics {', '.join(sorted(waiting))}", "their metadata is not complete")
