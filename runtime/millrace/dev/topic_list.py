"""The topics of an application, and how many records they have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.config import StreamsConfig
from millrace.dev._readiness import quiet_admin
from millrace.kafka.admin import all_topic_partitions
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.plan.topology_plan import TopologyPlan, changelog_topics, repartition_topics
from millrace.records import TopicPartition

__all__ = ["TopicView", "topic_views"]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic at one moment; None where it does not exist, and for the lag of a topic that the group does not read."""

    name: str
    kinds: tuple[str, ...]
    """Its role in the application: input, global store, repartition, changelog, output, dead letters."""
    partitions: int | None = None
    records: int | None = None
    """From the first retained offset to the end; includes compacted records and transaction markers."""
    lag: int | None = None
    """How far the group's committed offsets are from the ends."""


def topic_views(bootstrap_servers: str, plan: TopologyPlan) -> tuple[TopicView, ...]:
    """Return the topics that an application reads, writes and owns, inputs first.

    Raises:
        AuthorizationError: A topic or the group may not be described.
        BrokerUnreachableError: No broker answered.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    admin = quiet_admin(bootstrap_servers)
    config = StreamsConfig.of({"application.id": plan.application_id, "bootstrap.servers": bootstrap_servers})
    existing = all_topic_partitions(admin)
    kinds = _kinds(plan, existing)
    partitions = [
        TopicPartition(name, number) for name in kinds if name in existing for number in range(existing[name])
    ]
    first, ends = earliest_offsets(admin, partitions), latest_offsets(admin, partitions)
    with GroupAdmin(ClientSettings(config, "topics")) as group:
        committed = group.stable_offsets()

    def view(name: str) -> TopicView:
        if name not in existing:
            return TopicView(name, kinds[name])
        own = [partition for partition in partitions if partition.topic == name]
        lag = sum(max(0, ends[partition] - committed.get(partition, first[partition])) for partition in own)
        return TopicView(
            name,
            kinds[name],
            existing[name],
            sum(ends[partition] - first[partition] for partition in own),
            lag if {"input", "repartition"} & set(kinds[name]) else None,
        )

    return tuple(view(name) for name in kinds)


def _kinds(plan: TopologyPlan, existing: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    repartition, changelogs = repartition_topics(plan).keys(), changelog_topics(plan).keys()
    internal = repartition | changelogs
    patterns = [re.compile(pattern) for item in plan.subtopologies for pattern in item.source_patterns]
    matched = {name for name in existing.keys() - internal if any(pattern.fullmatch(name) for pattern in patterns)}
    read = {name for item in plan.subtopologies for name in item.source_topics} | matched
    written = {name for item in plan.subtopologies for name in item.sink_topics}
    groups: dict[str, set[str]] = {
        "input": read - internal,
        "global store": {store.topic for store in plan.global_stores},
        "repartition": set(repartition),
        "changelog": set(changelogs),
        "output": written - internal,
        "dead letters": set() if plan.dead_letter_topic is None else {plan.dead_letter_topic},
    }
    found: dict[str, tuple[str, ...]] = {}
    for kind, names in groups.items():
        for name in sorted(names):
            found[name] = (*found.get(name, ()), kind)
    return found
