"""What an application asks of the brokers' administration: topics, their configuration, offsets; each with a deadline.

confluent-kafka's AdminClient answers each item with a future that fails for what may pass (a leader moves, a controller is
elected) as for what does not. These functions repeat the former until their deadline and raise the latter with the item's name.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from millrace.errors import AuthorizationError, StreamsError, StreamsTimeoutError
from millrace.records import TopicPartition

_SPEC: Any = OffsetSpec  # its factories carry no types
_REQUEST_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.1
_PASSING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._NOENT,  # noqa: SLF001 (no leader is known yet)
    }
)
_FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    """A topic to create; a replication factor of -1 is the broker's default."""

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


def topic_partitions(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> dict[str, int]:
    """Return how many partitions topics have; those that do not exist are left out, and none is created by asking.

    Raises:
        AuthorizationError: A topic may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
    """

    def ask(names: Collection[str]) -> Mapping[str, Any]:
        futures: Mapping[str, Any] = admin.describe_topics(
            TopicCollection(list(names)), request_timeout=_REQUEST_TIMEOUT_S
        )
        return futures

    absent = KafkaError.UNKNOWN_TOPIC_OR_PART
    described = _ask("describe topics", ask, topics, timeout_s, final={absent: None, KafkaError._UNKNOWN_TOPIC: None})  # noqa: SLF001
    return {name: len(topic.partitions) for name, topic in described.items() if topic is not None}


def all_topic_partitions(admin: AdminClient, timeout_s: float = 30.0) -> dict[str, int]:
    """Return how many partitions every topic has that this principal may see, Kafka's own (`__…`) left out.

    Raises:
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            metadata = admin.list_topics(timeout=_REQUEST_TIMEOUT_S)
        except KafkaException as error:
            _pause(deadline, "list topics", error.args[0])
        else:
            topics = metadata.topics.items()
            return {name: len(t.partitions) for name, t in topics if t.error is None and not name.startswith("__")}


def topic_configs(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> dict[str, dict[str, str]]:
    """Return the effective configuration of topics; those that do not exist are left out.

    Raises:
        AuthorizationError: A topic's configuration may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
    """

    def ask(names: Collection[str]) -> Mapping[str, Any]:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        futures = admin.describe_configs(resources, request_timeout=_REQUEST_TIMEOUT_S)
        return {resource.name: future for resource, future in futures.items()}

    found = _ask(
        "describe the configuration of", ask, topics, timeout_s, final={KafkaError.UNKNOWN_TOPIC_OR_PART: None}
    )
    return {
        name: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        for name, entries in found.items()
        if entries is not None
    }


def create_topics(admin: AdminClient, topics: Mapping[str, TopicToCreate], timeout_s: float = 30.0) -> frozenset[str]:
    """Create topics and wait until every one has leaders; returns those that someone else had created already.

    Raises:
        AuthorizationError: Topics may not be created.
        StreamsError: The brokers refuse a configuration, replication factor or name; says which and why.
        StreamsTimeoutError: The topics did not come to be in time.
    """
    deadline = time.monotonic() + timeout_s

    def ask(names: Collection[str]) -> Mapping[str, Any]:
        new = [
            NewTopic(
                name,
                num_partitions=topics[name].partitions,
                replication_factor=topics[name].replication_factor,
                config=dict(topics[name].config),
            )
            for name in names
        ]
        futures: Mapping[str, Any] = admin.create_topics(new, request_timeout=_REQUEST_TIMEOUT_S)
        return futures

    answers = _ask("create topics", ask, topics, timeout_s, final={KafkaError.TOPIC_ALREADY_EXISTS: False})
    wait_for_topics(admin, topics, max(1.0, deadline - time.monotonic()))
    return frozenset(name for name, answer in answers.items() if answer is False)


def wait_for_topics(admin: AdminClient, topics: Collection[str], timeout_s: float = 30.0) -> None:
    """Wait until the brokers' metadata has topics, with a leader for each partition.

    Raises:
        StreamsTimeoutError: It had not in time.
    """
    deadline = time.monotonic() + timeout_s
    waiting = set(topics)
    while waiting:
        futures = admin.describe_topics(TopicCollection(sorted(waiting)), request_timeout=_REQUEST_TIMEOUT_S)
        for name, future in futures.items():
            try:
                described = future.result()
            except KafkaException as error:
                if error.args[0].code() in _FORBIDDEN:
                    raise _forbidden("describe topics", name, error) from error
                continue
            if described.partitions and all(p.leader is not None and p.leader.id >= 0 for p in described.partitions):
                waiting.discard(name)
        if waiting:
            _pause(deadline, f"see leaders of topics {', '.join(sorted(waiting))}", "their metadata is not complete")


def delete_records(admin: AdminClient, offsets: Mapping[TopicPartition, int], timeout_s: float = 30.0) -> None:
    """Delete the records of partitions up to an offset (exclusive), as repartition topics are purged.

    Raises:
        AuthorizationError: Records may not be deleted.
        StreamsTimeoutError: The brokers did not do it in time.
    """

    def ask(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Any]:
        request = [ClientTopicPartition(tp.topic, tp.partition, offsets[tp]) for tp in partitions]
        return _by_partition(admin.delete_records(request, request_timeout=_REQUEST_TIMEOUT_S))

    _ask("delete records of", ask, offsets, timeout_s)


def earliest_offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], timeout_s: float = 30.0
) -> dict[TopicPartition, int]:
    """Return the first offset of partitions.

    Raises:
        StreamsTimeoutError: The brokers did not answer in time.
    """
    return _offsets(admin, partitions, _SPEC.earliest(), timeout_s, committed_only=False)


def latest_offsets(
    admin: AdminClient,
    partitions: Collection[TopicPartition],
    timeout_s: float = 30.0,
    *,
    committed_only: bool = False,
) -> dict[TopicPartition, int]:
    """Return the end of partitions: the next record's offset, or with `committed_only` the last stable offset.

    Raises:
        StreamsTimeoutError: The brokers did not answer in time.
    """
    return _offsets(admin, partitions, _SPEC.latest(), timeout_s, committed_only=committed_only)


def _offsets(
    admin: AdminClient,
    partitions: Collection[TopicPartition],
    spec: Any,
    timeout_s: float,
    *,
    committed_only: bool,
) -> dict[TopicPartition, int]:
    isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED

    asked = False

    def ask(wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, Any]:
        nonlocal asked
        if asked:  # librdkafka's admin client asks the leaders it knows of and does not look for new ones by itself
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=_REQUEST_TIMEOUT_S)
        asked = True
        request = {ClientTopicPartition(tp.topic, tp.partition): spec for tp in wanted}
        return _by_partition(admin.list_offsets(request, isolation_level=isolation, request_timeout=_REQUEST_TIMEOUT_S))

    return {tp: answer.offset for tp, answer in _ask("list offsets of", ask, partitions, timeout_s).items()}


def group_offsets(
    admin: AdminClient, group_id: str, partitions: Collection[TopicPartition] | None = None, timeout_s: float = 30.0
) -> dict[TopicPartition, int]:
    """Return a group's committed offsets once no transaction is pending on them; for those that are not members.

    Without the metadata strings: librdkafka's admin client reads them beyond their end. Members read them with
    `GroupMember.committed`.

    Raises:
        AuthorizationError: The group may not be described.
        StreamsTimeoutError: The coordinator did not answer in time.
    """

    def ask(groups: Collection[str]) -> Mapping[str, Any]:
        wanted = None if partitions is None else [ClientTopicPartition(tp.topic, tp.partition) for tp in partitions]
        requests = [ConsumerGroupTopicPartitions(group, wanted) for group in groups]
        futures: Mapping[str, Any] = admin.list_consumer_group_offsets(
            requests, require_stable=True, request_timeout=_REQUEST_TIMEOUT_S
        )
        return futures

    answer = _ask("read the offsets of group", ask, [group_id], timeout_s)[group_id]
    return {
        TopicPartition(tp.topic, tp.partition): tp.offset
        for tp in answer.topic_partitions
        if tp.error is None and tp.offset >= 0
    }


def _by_partition(futures: Mapping[ClientTopicPartition, Any]) -> dict[TopicPartition, Any]:
    return {TopicPartition(tp.topic, tp.partition): future for tp, future in futures.items()}


def _ask(
    what: str,
    ask: Callable[[Collection[_Item]], Mapping[_Item, Future[Any]]],
    items: Collection[_Item],
    timeout_s: float,
    final: Mapping[int, Any] | None = None,
) -> dict[_Item, Any]:
    """Ask about items, again for those whose error may pass; error codes in `final` are answers."""
    deadline = time.monotonic() + timeout_s
    answers: dict[_Item, Any] = {}
    left = list(items)
    while left:
        problem: KafkaError | None = None
        for item, future in ask(left).items():
            try:
                answers[item] = future.result()
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                code = reason.code()
                if final is not None and code in final:
                    answers[item] = final[code]
                elif code in _FORBIDDEN:
                    raise _forbidden(what, item, error) from error
                elif code in _PASSING or reason.retriable():
                    problem = reason
                else:
                    raise StreamsError(f"The brokers refuse to {what} {item}: {reason.str()}") from error
        left = [item for item in left if item not in answers]
        if left:
            _pause(deadline, f"{what} {', '.join(map(str, left[:3]))}", problem)
    return answers


def _pause(deadline: float, what: str, problem: object) -> None:
    if time.monotonic() >= deadline:
        raise StreamsTimeoutError(f"Cannot {what} in time: {problem}")
    time.sleep(_PAUSE_S)


def _forbidden(what: str, item: object, error: KafkaException) -> AuthorizationError:
    return AuthorizationError(f"The principal may not {what} {item}: {error.args[0].str()}; grant it by an ACL")
