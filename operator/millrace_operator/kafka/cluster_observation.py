"""Asks an application's brokers about it, within one deadline."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from millrace.config import GroupProtocol
from millrace.deadline import Deadline
from millrace.errors import AuthorizationError
from millrace.kafka.admin import DescribedTopic, all_topic_partitions, describe_cluster, describe_topics, topic_configs
from millrace.kafka.group_settings import group_settings, wrong_group_settings
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.plan.topology_plan import TopologyPlan, external_source_topics, repartition_topics
from millrace.records import TopicPartition
from millrace_operator.kafka.connections import AdminConnection
from millrace_operator.model import ConsumerGroup, ConsumerGroupMember, KafkaState, Topic
from millrace_operator.reconcile.topics import internal_topics

log = logging.getLogger("millrace_operator.kafka")

_ALWAYS = frozenset({"cleanup.policy", "retention.ms", "min.insync.replicas"})
_INSTANCE = re.compile(r"(?P<pod>.+?)(\.[0-9a-z]+)?-\d+")


def observe_cluster(
    connection: AdminConnection,
    application_id: str,
    plans: Sequence[TopologyPlan],
    timeout_s: float,
    also: Collection[str] = (),
    wanted_group: Mapping[str, str | None] | None = None,
) -> KafkaState:
    """Return what the brokers know about an application.

    Args:
        connection: To its brokers.
        application_id: Its consumer group's name.
        plans: What its revisions need, as far as known; the plan that lag is counted for comes first.
        timeout_s: How long all of it may take, plus at most one request.
        also: Internal topics in addition to the plans'.
        wanted_group: The settings that the group should have in the brokers, if these are to assign its tasks.

    Raises:
        AuthorizationError: The principal may not see the topics or the group.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)

    def left() -> float:
        return deadline.left_s(at_least=0.1)

    admin = connection.admin
    internal: dict[str, Mapping[str, str]] = {name: {} for name in also}
    for plan in reversed(plans):
        internal |= internal_topics(plan)
    patterns = any(item.source_patterns for plan in plans for item in plan.subtopologies)
    everything = all_topic_partitions(admin, left()) if patterns else {}
    inputs = {name for item in plans for name in _inputs(item, everything) | external_source_topics(item)}
    described = describe_topics(admin, internal.keys() | inputs, left()) if internal or inputs else {}
    letters = _dead_letter_topics(connection, plans, left())
    described |= {name: topic for name, topic in letters.items() if topic is not None}
    configs = _configs(connection, internal, described.keys() & internal.keys(), left())
    topics = {
        name: Topic(topic.id, topic.partitions, topic.replication_factor, configs.get(name, {}))
        for name, topic in described.items()
    }
    cluster_id, brokers = describe_cluster(admin, left())
    group = connection.groups.of_group(application_id, left())
    found = group.describe()
    brokers_assign, settings_error = None, None
    wrong: Mapping[str, str | None] = {}
    if wanted_group:
        brokers_assign = found.protocol is GroupProtocol.STREAMS or group.brokers_assign()
        wrong, settings_error = _wrong_settings(connection, application_id, wanted_group, left())
    lag = None
    if plans:
        # Repartition topics are read and committed like inputs: records waiting there count as lag, too.
        read = _inputs(plans[0], everything) | repartition_topics(plans[0]).keys()
        partitions = [
            TopicPartition(name, n) for name in read if name in topics for n in range(topics[name].partitions)
        ]
        lag = _lag(connection, partitions, group.committed(), left)
    asked = frozenset(internal.keys() | inputs | letters.keys())
    members = (
        ConsumerGroupMember(
            item.member_id, pod_of(item.instance_id), item.host.removeprefix("/"), item.client_id, item.instance_id
        )
        for item in found.members
    )
    return KafkaState(
        topics=topics,
        internal=frozenset(internal),
        asked=asked,
        brokers=brokers,
        cluster_id=cluster_id,
        group=None
        if found.state == "Dead"
        else ConsumerGroup(found.state, found.protocol.value, tuple(sorted(members, key=lambda item: item.member_id))),
        lag=lag,
        brokers_assign=brokers_assign,
        wrong_group_settings=wrong,
        group_settings_error=settings_error,
    )


def _wrong_settings(
    connection: AdminConnection, group_id: str, wanted: Mapping[str, str | None], timeout_s: float
) -> tuple[Mapping[str, str | None], str | None]:
    """Return the settings that the group does not have, and why they are not known although the manifest has some."""
    try:
        return wrong_group_settings(wanted, group_settings(connection.admin, group_id, timeout_s)), None
    except AuthorizationError as error:
        return {}, str(error) if any(value not in {None, "0"} for value in wanted.values()) else None


def pod_of(instance_id: str | None) -> str | None:
    """Return the pod whose stream thread is a static member: Kafka Streams adds the thread's number to `group.instance.id`.

    >>> pod_of("wordcount-0.1b4e28ba-1"), pod_of("wordcount-0-1")
    ('wordcount-0', 'wordcount-0')
    """
    match = _INSTANCE.fullmatch(instance_id or "")
    return instance_id if match is None else match["pod"]


def _inputs(plan: TopologyPlan, everything: Collection[str]) -> set[str]:
    """Return the input topics whose offsets the group commits: not those of global stores."""
    internal = internal_topics(plan).keys()
    patterns = [re.compile(pattern) for item in plan.subtopologies for pattern in item.source_patterns]
    matched = {name for name in everything if any(pattern.fullmatch(name) for pattern in patterns)}
    named = {name for item in plan.subtopologies for name in item.source_topics}
    return (named | matched) - internal


def _configs(
    connection: AdminConnection, internal: Mapping[str, Mapping[str, str]], names: Collection[str], timeout_s: float
) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    try:
        found = topic_configs(connection.admin, names, timeout_s)
    except AuthorizationError as error:
        log.warning("The settings of internal topics are not checked: %s", error)
        return {}
    return {
        name: {key: value for key, value in config.items() if key in _ALWAYS or key in internal[name]}
        for name, config in found.items()
    }


def _dead_letter_topics(
    connection: AdminConnection, plans: Iterable[TopologyPlan], timeout_s: float
) -> dict[str, DescribedTopic | None]:
    """Return the plans' dead letter topics, None for those that do not exist; empty if the principal may not see them."""
    names = {plan.dead_letter_topic for plan in plans if plan.dead_letter_topic is not None}
    if not names:
        return {}
    try:
        described = describe_topics(connection.admin, names, timeout_s)
    except AuthorizationError as error:
        log.warning("The dead letter topic is not checked: %s", error)
        return {}
    return {name: described.get(name) for name in names}


def _lag(
    connection: AdminConnection,
    partitions: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
    left: Callable[[], float],
) -> int:
    if not partitions:
        return 0
    ends = latest_offsets(connection.admin, partitions, left())
    unread = [partition for partition in partitions if partition not in committed]
    begins = {**committed, **(earliest_offsets(connection.admin, unread, left()) if unread else {})}
    return sum(max(0, ends[partition] - begins[partition]) for partition in partitions)
