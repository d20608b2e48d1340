"""Plans a reset: the steps to run an application from scratch, given what was observed on the cluster.

Nothing is changed here. Offsets are set before anything is deleted, because brokers refuse to set them while the group has
members: so an application that starts between observation and execution loses nothing. Repeating a reset that failed
half-way completes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from millrace.errors import ActiveGroupError
from millrace.plan.topology_plan import TopologyPlan, changelog_topics, repartition_topics
from millrace.records import TopicPartition

__all__ = [
    "ActiveMember",
    "ObservedApplication",
    "OffsetTarget",
    "ResetActions",
    "Start",
    "input_topics",
    "internal_topics",
    "looks_internal",
    "plan_reset",
]

_INTERNAL_NAME = re.compile(
    r".*-(?:changelog|repartition|subscription-registration-topic|subscription-response-topic"
    r"|KTABLE-FK-JOIN-SUBSCRIPTION-(?:REGISTRATION|RESPONSE)-\d+-topic)",
    re.DOTALL,
)


class Start(Enum):
    """Where the offsets of input topics are set to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP_MS = "datetime"
    SHIFT = "shift"


@dataclass(frozen=True, slots=True)
class OffsetTarget:
    """Where an application starts; `value` is an offset, milliseconds since the epoch, or a number of records."""

    start: Start = Start.EARLIEST
    value: int = 0


@dataclass(frozen=True, slots=True)
class ActiveMember:
    """An active member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str

    def __str__(self) -> str:
        """Return its client id and host, with its instance id if it is static."""
        static = f", static {self.instance_id}" if self.instance_id else ""
        return f"{self.client_id} ({self.host.removeprefix('/')}{static})"


@dataclass(frozen=True, slots=True)
class ObservedApplication:
    """What was observed of an application on a cluster."""

    topics: Mapping[str, int]
    """Partitions of every visible topic."""
    groups: frozenset[str] = frozenset()
    """The names of the cluster's groups."""
    members: tuple[ActiveMember, ...] = ()
    committed: Mapping[TopicPartition, int] | None = None
    """The offsets that the application's group has committed."""
    earliest: Mapping[TopicPartition, int] | None = None
    latest: Mapping[TopicPartition, int] | None = None
    """First and next offsets of the input topics' partitions."""
    at_time: Mapping[TopicPartition, int] | None = None
    """Offsets of the first records that are not older than the target's time."""


@dataclass(frozen=True, slots=True)
class ResetActions:
    """What a reset does, in this order."""

    application_id: str
    remove_members: tuple[ActiveMember, ...]
    delete_topics: tuple[str, ...]
    set_offsets: Mapping[TopicPartition, int]
    notes: tuple[str, ...] = ()
    """Resources that are left alone, where this may surprise the user."""


def looks_internal(topic: str, application_id: str) -> bool:
    """Return whether a topic is named like an internal topic of an application.

    >>> looks_internal("app-counts-changelog", "app"), looks_internal("app-orders", "app")
    (True, False)
    """
    return topic.startswith(f"{application_id}-") and _INTERNAL_NAME.fullmatch(topic) is not None


def internal_topics(application_id: str, observed: ObservedApplication, plan: TopologyPlan | None) -> tuple[str, ...]:
    """Return the plan's internal topics that exist or, without a plan, all topics that are named like internal ones.

    By name, `shop-eu-counts-changelog` could also belong to an application `shop`; it is left out if there is a group `shop-eu`.
    """
    if plan is not None:
        return tuple(sorted(_internal(plan) & observed.topics.keys()))
    named = _named_like_internal(application_id, observed)
    return tuple(topic for topic in named if _other_owner(topic, application_id, observed.groups) is None)


def input_topics(
    application_id: str, observed: ObservedApplication, plan: TopologyPlan | None, named: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the existing topics whose offsets are reset.

    These are the topics given by name and the topics that the plan reads or, without a plan, all topics with committed
    offsets of the group. Topics of global stores have no offsets in the group.
    """
    wanted = set(named)
    if plan is not None:
        patterns = [re.compile(pattern) for item in plan.subtopologies for pattern in item.source_patterns]
        matched = {name for name in observed.topics if any(pattern.fullmatch(name) for pattern in patterns)}
        wanted |= (matched | {name for item in plan.subtopologies for name in item.source_topics}) - _internal(plan)
    else:
        committed = {partition.topic for partition in observed.committed or {}}
        wanted |= {topic for topic in committed if not looks_internal(topic, application_id)}
    return tuple(sorted(wanted & observed.topics.keys()))


def _internal(plan: TopologyPlan) -> set[str]:
    return repartition_topics(plan).keys() | changelog_topics(plan).keys()


def plan_reset(
    application_id: str,
    observed: ObservedApplication,
    plan: TopologyPlan | None = None,
    *,
    target: OffsetTarget | None = None,
    inputs: Collection[str] = (),
    force: bool = False,
    has_ended: Callable[[ActiveMember], bool] = lambda _: False,
) -> ResetActions:
    """Plan a reset.

    Args:
        application_id: The application whose state is discarded.
        observed: What was observed, with the offsets of all `input_topics`.
        plan: What the application needs, if known.
        target: Where it starts; at the earliest records if not given.
        inputs: Input topics in addition to the plan's.
        force: Whether to remove members that are still in the group.
        has_ended: Returns whether a member's process is known to have ended; such members are always removed.

    Raises:
        ActiveGroupError: The group has other members, and `force` is False.
    """
    running = [member for member in observed.members if not has_ended(member)]
    if running and not force:
        shown = sorted(map(str, running))
        more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
        raise ActiveGroupError(
            f"Application {application_id} is still running: its group has {len(shown)} active "
            f"member{'s' if len(shown) > 1 else ''}, {', '.join(shown[:5])}{more}. Stop it first; killed members "
            "leave after their session.timeout.ms, or at once with --force (force: true in a StreamsReset)"
        )
    topics = input_topics(application_id, observed, plan, inputs)
    offsets = _offsets(topics, observed, target or OffsetTarget())
    internal = internal_topics(application_id, observed, plan)
    notes = tuple(_notes(application_id, observed, plan, internal, sorted(set(inputs) - observed.topics.keys())))
    return ResetActions(application_id, observed.members, internal, offsets, notes)


def _offsets(topics: Iterable[str], observed: ObservedApplication, target: OffsetTarget) -> dict[TopicPartition, int]:
    earliest, latest = observed.earliest or {}, observed.latest or {}
    result = {}
    for partition in (TopicPartition(topic, n) for topic in topics for n in range(observed.topics[topic])):
        first, end = earliest[partition], latest[partition]
        match target.start:
            case Start.EARLIEST:
                wanted = first
            case Start.LATEST:
                wanted = end
            case Start.OFFSET:
                wanted = target.value
            case Start.TIMESTAMP_MS:
                wanted = (observed.at_time or {})[partition]
            case Start.SHIFT:
                wanted = (observed.committed or {}).get(partition, first) + target.value
        result[partition] = min(max(wanted, first), end)
    return result


def _named_like_internal(application_id: str, observed: ObservedApplication) -> tuple[str, ...]:
    return tuple(sorted(topic for topic in observed.topics if looks_internal(topic, application_id)))


def _other_owner(topic: str, application_id: str, groups: Iterable[str]) -> str | None:
    """Return the group whose name is the longest prefix of the topic's name that is longer than the application's id."""
    longer = [group for group in groups if len(group) > len(application_id) and topic.startswith(f"{group}-")]
    return max(longer, key=len, default=None)


def _notes(
    application_id: str,
    observed: ObservedApplication,
    plan: TopologyPlan | None,
    internal: Collection[str],
    missing: Collection[str],
) -> Iterable[str]:
    if missing:
        yield f"Topics that do not exist: {', '.join(missing)}"
    for topic in _named_like_internal(application_id, observed):
        if topic in internal:
            continue
        owner = _other_owner(topic, application_id, observed.groups)
        if owner is not None:
            yield f"Not deleted: {topic}, as it belongs to application {owner}"
        elif plan is not None:
            yield f"Not deleted: {topic}, which is not in this topology but may be from an older one"
