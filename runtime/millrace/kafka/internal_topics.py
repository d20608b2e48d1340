"""Creates and checks an application's internal topics: changelogs and repartition topics.

Several members, or the operator and a member, may do so at the same time: a topic that another has created in the meantime is
checked like any existing one. An existing topic that does not fit is never changed: with other partitions, keys would meet the
wrong state; with another clean-up policy, state would be deleted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.deadline import Deadline
from millrace.errors import (
    AuthorizationError,
    MisconfiguredInternalTopicError,
    MissingInternalTopicsError,
    MissingSourceTopicError,
)
from millrace.kafka.admin import (
    TopicToCreate,
    all_topic_partitions,
    create_topics,
    describe_topics,
    topic_configs,
    topic_partitions,
)
from millrace.kafka.offsets import latest_offsets
from millrace.plan.partition_counts import PartitionCounts, resolve_partition_counts
from millrace.plan.topology_plan import TopologyPlan, external_source_topics, repartition_topics
from millrace.records import TopicPartition

log = logging.getLogger("millrace.kafka.internal_topics")


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    """The result of provisioning."""

    created: Mapping[str, int]
    """Internal topics that were created, with their number of partitions."""
    verified: Mapping[str, int]
    """Internal topics that existed and passed the checks."""
    counts: PartitionCounts
    """Partitions and tasks of the whole application."""


def partition_counts(plan: TopologyPlan, admin: AdminClient, timeout_s: float = 60.0) -> PartitionCounts:
    """Return the partition counts of a plan on a cluster, which do not depend on its internal topics.

    Raises:
        MissingSourceTopicError: Input topics do not exist; names them all.
        TopologyError: Topics that must be co-partitioned have different counts.
    """
    named = external_source_topics(plan)
    if any(item.source_patterns for item in plan.subtopologies):
        existing = all_topic_partitions(admin, timeout_s)
    else:
        existing = topic_partitions(admin, named, timeout_s)
    missing = sorted(named - existing.keys())
    if missing:
        raise MissingSourceTopicError(
            f"Application {plan.application_id} reads topics that do not exist: {', '.join(missing)}. Create them (Millrace "
            "never creates input topics), or correct their names"
        )
    return resolve_partition_counts(plan, existing)


def committed_partitions(
    plans: Iterable[TopologyPlan], admin: AdminClient, timeout_s: float = 60.0
) -> set[TopicPartition]:
    """Return the existing partitions that an application's tasks read, and whose offsets its group commits.

    Args:
        plans: The plans of its revisions.
        admin: Client of the cluster.
        timeout_s: How long the brokers are asked.

    Raises:
        AuthorizationError: A topic may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    read = [item for plan in plans for item in plan.subtopologies]
    named = {topic for item in read for topic in item.source_topics}
    patterns = [re.compile(pattern) for item in read for pattern in item.source_patterns]
    if patterns:
        everything = all_topic_partitions(admin, timeout_s)
        users = everything.keys() - {topic.name for item in read for topic in item.changelog_topics}
        matched = {name for name in users if any(pattern.fullmatch(name) for pattern in patterns)}
        existing = {name: everything[name] for name in everything.keys() & (named | matched)}
    else:
        existing = topic_partitions(admin, named, timeout_s)
    return {TopicPartition(topic, number) for topic, count in existing.items() for number in range(count)}


def provision(
    plan: TopologyPlan,
    admin: AdminClient,
    config: StreamsConfig | None = None,
    *,
    create: bool = True,
    only: Collection[str] | None = None,
    timeout_s: float = 60.0,
) -> ProvisionReport:
    """Create the internal topics that are missing and check those that exist.

    Args:
        plan: What the application needs; topic configurations (with `topic.` overrides) are part of it.
        admin: Client of the cluster.
        config: For its `replication.factor`; the broker's default if not given.
        create: Whether missing topics may be created.
        only: The internal topics to provision; all if not given. Names that are not in the plan are ignored.
        timeout_s: How long everything may take.

    Raises:
        MissingSourceTopicError: Input topics do not exist.
        MissingInternalTopicsError: Internal topics do not exist and `create` is False.
        MisconfiguredInternalTopicError: An internal topic exists with another partition count or clean-up policy.
        TopologyError: Topics that must be co-partitioned have different counts.
        AuthorizationError: The principal may not describe or create topics.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)
    counts = partition_counts(plan, admin, timeout_s)
    wanted = _wanted(plan, counts, -1 if config is None else config.replication_factor)
    if only is not None:
        wanted = {name: topic for name, topic in wanted.items() if name in only}
    found = topic_partitions(admin, wanted, deadline.left_s(at_least=1.0))
    missing = {name: topic for name, topic in wanted.items() if name not in found}
    if missing and not create:
        raise MissingInternalTopicsError(
            f"Internal topics of {plan.application_id} do not exist: {', '.join(sorted(missing))}. Create them with "
            "`millrace plan` and the operator, or let the application create them"
        )
    raced: frozenset[str] = frozenset()
    if missing:
        log.info("Creating internal topics %s", ", ".join(f"{n} ({t.partitions})" for n, t in sorted(missing.items())))
        raced = create_topics(admin, missing, deadline.left_s(at_least=1.0))
        found |= topic_partitions(admin, raced, deadline.left_s(at_least=1.0))
    _check(plan, wanted, found, admin, deadline.left_s(at_least=1.0))
    created = {name: topic.partitions for name, topic in missing.items() if name not in raced}
    return ProvisionReport(created, found, counts)


class LeaderCluster:
    """The leader's requests to the cluster while it assigns: internal topics and offsets."""

    def __init__(
        self,
        plan: TopologyPlan,
        admin: AdminClient,
        config: StreamsConfig,
        committed_offsets: Callable[[Collection[TopicPartition], float], Mapping[TopicPartition, int]],
        *,
        create_topics: bool = True,
        offsets_timeout_s: float = 10.0,
    ) -> None:
        """Use an admin client of the cluster.

        Args:
            plan: What the application needs.
            admin: Client of the cluster.
            config: The application's settings.
            committed_offsets: Returns the group's offsets of some partitions within a number of seconds.
            create_topics: Whether missing internal topics are created, or reported as missing.
            offsets_timeout_s: How long the leader waits for offsets; without them, tasks stay where they are.
        """
        self._plan = plan
        self._admin = admin
        self._config = config
        self._committed_offsets = committed_offsets
        self._create_topics = create_topics
        self._offsets_timeout_s = offsets_timeout_s

    def provision(self) -> PartitionCounts:
        """Create and check the internal topics; return all partition counts."""
        return provision(self._plan, self._admin, self._config, create=self._create_topics).counts

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets of changelog partitions."""
        return latest_offsets(self._admin, partitions, self._offsets_timeout_s)

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's committed offsets."""
        return self._committed_offsets(partitions, self._offsets_timeout_s)

    def racks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, frozenset[str]]:
        """Return the racks of partitions' replicas, except partitions with a replica whose rack is unknown."""
        described = describe_topics(self._admin, {topic for topic, _ in partitions}, self._offsets_timeout_s)
        return {
            TopicPartition(topic, number): found.racks[number]
            for topic, number in partitions
            if (found := described.get(topic)) is not None and number in found.racks
        }


def _wanted(plan: TopologyPlan, counts: PartitionCounts, replication_factor: int) -> dict[str, TopicToCreate]:
    wanted = {
        name: TopicToCreate(counts.topics[name], topic.config, replication_factor)
        for name, topic in repartition_topics(plan).items()
        if counts.topics.get(name)
    }
    for item in plan.subtopologies:
        for changelog in item.changelog_topics:
            if changelog.name in counts.changelogs:
                partitions = counts.changelogs[changelog.name]
                wanted[changelog.name] = TopicToCreate(partitions, changelog.config, replication_factor)
    return wanted


def _check(
    plan: TopologyPlan,
    wanted: Mapping[str, TopicToCreate],
    found: Mapping[str, int],
    admin: AdminClient,
    timeout_s: float,
) -> None:
    wrong = {name: count for name, count in found.items() if count != wanted[name].partitions}
    if wrong:
        shown = "; ".join(f"{n} has {c} partitions but needs {wanted[n].partitions}" for n, c in sorted(wrong.items()))
        raise MisconfiguredInternalTopicError(
            f"Internal topics of {plan.application_id} do not fit its input topics: {shown}. Were partitions added to an input "
            "topic? Use a new topic with the former number of partitions, or reset the application (`millrace reset`), which "
            "deletes its internal topics and state, or use another application.id"
        )
    try:
        configs = topic_configs(admin, found, timeout_s)
    except AuthorizationError as error:
        log.warning("The clean-up policies of internal topics are not checked: %s", error)
        return
    for name, actual in configs.items():
        _check_policy(name, wanted[name].config, actual)


def _check_policy(name: str, wanted: Mapping[str, str], actual: Mapping[str, str]) -> None:
    needs = _policies(wanted.get("cleanup.policy", "delete"))
    has = _policies(actual.get("cleanup.policy", "delete"))
    if needs != has:
        consequence = "records that are still needed would be deleted" if has - needs else "it would grow without limit"
        raise MisconfiguredInternalTopicError(
            f"Internal topic {name} has cleanup.policy={','.join(sorted(has))} but needs {','.join(sorted(needs))}: "
            f"{consequence}. Run kafka-configs --alter --topic {name} --add-config cleanup.policy=[{','.join(sorted(needs))}]"
        )
    retention, kept = int(wanted.get("retention.ms", "0")), int(actual.get("retention.ms", "-1"))
    if "delete" in needs and kept != -1 and (retention == -1 or kept < retention):
        log.warning(
            "Internal topic %s keeps records for retention.ms=%d but %d is needed: records may be lost",
            name,
            kept,
            retention,
        )


def _policies(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.strip("[]").split(",") if part.strip())
