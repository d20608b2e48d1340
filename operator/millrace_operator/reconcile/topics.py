"""Topics: whether those that a plan needs exist with the right settings, and which have to be created.

The operator creates internal topics that never existed, and never changes existing ones. If a topic whose id it has remembered is
gone, or has another id now, records were lost that nobody can bring back: that is reported and never fixed silently. Ids are
remembered once pods may be started on the topics, so a topic that was never used may come and go. Deviations that make results
wrong or writes impossible hold back what would be started; others are only reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.errors import TopologyError
from millrace.manifest import StreamsAppSpec
from millrace.manifest.streamsapp_status import InternalTopicStatus
from millrace.plan.partition_counts import PartitionCounts, resolve_partition_counts
from millrace.plan.topology_plan import TopologyPlan, external_source_topics, repartition_topics
from millrace_operator.children.naming import ACCEPT_LOSS_ANNOTATION
from millrace_operator.model import KafkaState, Topic
from millrace_operator.reconcile.condition_reason import ConditionReason

_DELETE: Final = "delete"


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """One way in which topics are not as they should be."""

    topic: str
    reason: ConditionReason
    message: str

    @property
    def blocks(self) -> bool:
        """Whether nothing may be started before it is fixed."""
        return self.reason not in {ConditionReason.TOPIC_DIFFERS, ConditionReason.DEAD_LETTER_TOPIC_MISSING}

    @property
    def is_unfit(self) -> bool:
        """Whether somebody has to fix a topic that the operator does not touch."""
        return self.reason in {
            ConditionReason.TOPIC_MISCONFIGURED,
            ConditionReason.CHANGELOG_LOST,
            ConditionReason.REPARTITION_TOPIC_LOST,
        }


@dataclass(frozen=True, slots=True)
class TopicReport:
    """What a plan's topics are like."""

    findings: tuple[TopicProblem, ...] = ()
    """The most important first."""
    create: tuple[str, ...] = ()
    statuses: tuple[InternalTopicStatus, ...] = ()
    tasks: int | None = None

    @property
    def ready(self) -> bool:
        """Whether pods may be started on them."""
        return not self.create and not any(item.blocks for item in self.findings)


_ORDER: Final = (
    ConditionReason.CHANGELOG_LOST,
    ConditionReason.REPARTITION_TOPIC_LOST,
    ConditionReason.TOPIC_MISCONFIGURED,
    ConditionReason.INPUT_TOPIC_MISSING,
    ConditionReason.PARTITIONS_DISAGREE,
    ConditionReason.INTERNAL_TOPIC_MISSING,
    ConditionReason.TOO_FEW_BROKERS,
    ConditionReason.DEAD_LETTER_TOPIC_MISSING,
    ConditionReason.TOPIC_DIFFERS,
)


def internal_topics(plan: TopologyPlan) -> dict[str, Mapping[str, str]]:
    """Return the wanted settings of a plan's internal topics, by name."""
    changelogs = {topic.name: topic.config for item in plan.subtopologies for topic in item.changelog_topics}
    return {**{name: topic.config for name, topic in repartition_topics(plan).items()}, **changelogs}


def needed_topics(plan: TopologyPlan) -> frozenset[str]:
    """Return the topics that a plan names."""
    return external_source_topics(plan) | internal_topics(plan).keys()


def examine(
    plan: TopologyPlan, spec: StreamsAppSpec, kafka: KafkaState, known: Mapping[str, str], accepted: frozenset[str]
) -> TopicReport | None:
    """Compare topics with what a plan needs; None if the brokers have not been asked about all of them yet.

    Args:
        plan: The plan.
        spec: The spec of the plan's revision.
        kafka: What the brokers say; they must have answered.
        known: Ids of internal topics that were seen before, by name.
        accepted: Ids of topics whose loss the user has accepted.
    """
    if kafka.asked is not None and not needed_topics(plan) <= kafka.asked:
        return None
    existing = {name: topic.partitions for name, topic in kafka.topics.items()}
    missing = sorted(external_source_topics(plan) - existing.keys())
    if missing:
        topics = f"Input topic {missing[0]} does" if len(missing) == 1 else f"Input topics {', '.join(missing)} do"
        problem = TopicProblem(
            missing[0],
            ConditionReason.INPUT_TOPIC_MISSING,
            f"{topics} not exist. Create what is missing, or correct its name.",
        )
    else:
        try:
            counts = resolve_partition_counts(plan, existing)
        except TopologyError as error:
            problem = TopicProblem("", ConditionReason.PARTITIONS_DISAGREE, str(error))
        else:
            return _Examination(plan, spec, kafka, known, accepted, counts).result()
    unexamined = (
        InternalTopicStatus(name=name, topic_id=known.get(name), ok=False, message="Not examined yet.")
        if (topic := kafka.topics.get(name)) is None
        else _status(name, topic, known.get(name), None)
        for name in sorted(internal_topics(plan))
    )
    return TopicReport((problem,), statuses=tuple(unexamined))


def _status(name: str, topic: Topic, topic_id: str | None, message: str | None) -> InternalTopicStatus:
    return InternalTopicStatus(
        name=name,
        topic_id=topic_id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        ok=message is None,
        message=message,
    )


@dataclass(frozen=True, slots=True)
class _Examination:
    plan: TopologyPlan
    spec: StreamsAppSpec
    kafka: KafkaState
    known: Mapping[str, str]
    accepted: frozenset[str]
    counts: PartitionCounts

    def result(self) -> TopicReport:
        wanted_counts = {
            **self.counts.changelogs,
            **{n: self.counts.topics.get(n, 0) for n in repartition_topics(self.plan)},
        }
        findings: list[TopicProblem] = []
        messages: dict[str, str | None] = {}
        create: list[str] = []
        for name, config in sorted(internal_topics(self.plan).items()):
            if not wanted_counts.get(name):
                continue
            found = [*self._of(name, wanted_counts[name], config)]
            if name not in self.kafka.topics and not found:
                create.append(name)
                continue
            findings += found
            messages[name] = " ".join(item.message for item in found)[:1024] or None
        if create and (few := self._too_few_brokers()):
            findings.append(few)
            create = []
        findings += self._of_dead_letters()
        findings.sort(key=lambda item: _ORDER.index(item.reason))
        topics = TopicReport(tuple(findings), tuple(create), tasks=sum(self.counts.tasks.values()))
        statuses = tuple(self._status(name, message, remember=topics.ready) for name, message in messages.items())
        return replace(topics, statuses=statuses)

    def _of_dead_letters(self) -> Iterator[TopicProblem]:
        """Yield what is wrong with the dead letter topic; the brokers may not have been asked about it."""
        name, asked = self.plan.dead_letter_topic, self.kafka.asked
        if name is not None and (asked is None or name in asked) and name not in self.kafka.topics:
            yield TopicProblem(
                name,
                ConditionReason.DEAD_LETTER_TOPIC_MISSING,
                f"The dead letter topic {name} (processing.deadLetterTopic) does not exist. Create it, or correct its name.",
            )

    def _status(self, name: str, message: str | None, *, remember: bool) -> InternalTopicStatus:
        topic, known = self.kafka.topics.get(name), self._known(name)
        if topic is None:
            return InternalTopicStatus(name=name, topic_id=known, ok=False, message=message)
        return _status(name, topic, known or (topic.id if remember else None), message)

    def _known(self, name: str) -> str | None:
        known = self.known.get(name)
        return None if known in self.accepted else known

    def _of(self, name: str, partitions: int, config: Mapping[str, str]) -> Iterator[TopicProblem]:
        topic, known = self.kafka.topics.get(name), self._known(name)
        if known is not None and (topic is None or topic.id != known):
            yield self._lost(name, known, topic)
        elif topic is not None:
            yield from self._unfit(name, topic, partitions, config)
            yield from self._differing(name, topic, config)
        elif self.spec.internal_topics.management == "VerifyOnly":
            settings = ", ".join(f"{key}={value}" for key, value in sorted(config.items()))
            yield TopicProblem(
                name,
                ConditionReason.INTERNAL_TOPIC_MISSING,
                f"Internal topic {name} does not exist. Create it with {partitions} partitions and {settings}.",
            )

    def _lost(self, name: str, known: str, topic: Topic | None) -> TopicProblem:
        is_repartition = name in repartition_topics(self.plan)
        what = "Repartition topic" if is_repartition else "Changelog"
        fate = (
            f"is gone (its id was {known})"
            if topic is None
            else f"was recreated: its id was {known} and is now {topic.id}"
        )
        loss = "records in transit" if is_repartition else "the state that it backs, also on volumes,"
        return TopicProblem(
            name,
            ConditionReason.REPARTITION_TOPIC_LOST if is_repartition else ConditionReason.CHANGELOG_LOST,
            f"{what} {name} {fate}; with it {loss} may be lost. Reset the application with a StreamsReset, or accept the loss: "
            f"kubectl annotate streamsapp NAME --overwrite {ACCEPT_LOSS_ANNOTATION}={known}",
        )

    def _unfit(self, name: str, topic: Topic, partitions: int, config: Mapping[str, str]) -> Iterator[TopicProblem]:
        if topic.partitions != partitions:
            yield TopicProblem(
                name,
                ConditionReason.TOPIC_MISCONFIGURED,
                f"Internal topic {name} has {topic.partitions} partitions but needs {partitions}. Was an input topic given more "
                "partitions? Use an input with as many as before, or reset the application with a StreamsReset.",
            )
        needs, has = _policies(config.get("cleanup.policy", _DELETE)), _policies(topic.config.get("cleanup.policy"))
        if has and has != needs:
            consequence = "records that are still needed would be removed" if has - needs else "it would grow forever"
            yield TopicProblem(
                name,
                ConditionReason.TOPIC_MISCONFIGURED,
                f"Internal topic {name} has cleanup.policy={','.join(sorted(has))} but needs {','.join(sorted(needs))}: "
                f"{consequence}. Alter it with kafka-configs.",
            )
        least = _number(topic.config.get("min.insync.replicas"))
        if least is not None and topic.replication_factor < least:
            yield TopicProblem(
                name,
                ConditionReason.TOPIC_MISCONFIGURED,
                f"Internal topic {name} has {topic.replication_factor} replicas but min.insync.replicas={least}: nothing can be "
                "written to it. Add replicas with kafka-reassign-partitions, or lower the setting with kafka-configs.",
            )

    def _differing(self, name: str, topic: Topic, config: Mapping[str, str]) -> Iterator[TopicProblem]:
        wanted = self.spec.internal_topics.replication_factor
        if wanted is not None and topic.replication_factor < wanted:
            yield TopicProblem(
                name,
                ConditionReason.TOPIC_DIFFERS,
                f"Internal topic {name} has {topic.replication_factor} replicas, {wanted} are wanted: "
                "add some with kafka-reassign-partitions.",
            )
        least, has = self.spec.internal_topics.min_insync_replicas, _number(topic.config.get("min.insync.replicas"))
        if least is not None and has is not None and least != has:
            yield TopicProblem(
                name,
                ConditionReason.TOPIC_DIFFERS,
                f"Internal topic {name} has min.insync.replicas={has}, {least} is wanted: alter it with kafka-configs.",
            )
        retention, kept = _number(config.get("retention.ms")), _number(topic.config.get("retention.ms"))
        if (
            _DELETE in _policies(topic.config.get("cleanup.policy"))
            and retention is not None
            and kept not in {None, -1}
        ):
            assert kept is not None
            if retention == -1 or kept < retention:
                yield TopicProblem(
                    name,
                    ConditionReason.TOPIC_DIFFERS,
                    f"Internal topic {name} keeps records for retention.ms={kept}, {retention} is needed: records may be lost. "
                    "Alter it with kafka-configs.",
                )

    def _too_few_brokers(self) -> TopicProblem | None:
        wanted, brokers = self.spec.internal_topics.replication_factor, self.kafka.brokers
        if wanted is None or not brokers or wanted <= brokers:
            return None
        return TopicProblem(
            "",
            ConditionReason.TOO_FEW_BROKERS,
            f"internalTopics.replicationFactor is {wanted}, but there are {brokers} brokers: internal topics cannot be created. "
            "Add brokers, or lower it.",
        )


def _policies(text: str | None) -> frozenset[str]:
    return frozenset(part.strip() for part in (text or "").strip("[]").split(",") if part.strip())


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
