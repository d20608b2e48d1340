"""Where a task starts reading a partition: at the committed offset, or else where the source's reset policy says (KIP-1106).

Policies are always resolved to offsets, so the consumer itself never resets. Repartition topics start at the earliest record
regardless of the default, because every record in them must be processed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from datetime import timedelta

from confluent_kafka.admin import AdminClient

from millrace.errors import ConfigError, StreamsError
from millrace.kafka.offsets import earliest_offsets, latest_offsets, offsets_for_time
from millrace.records import TopicPartition
from millrace.topology.physical_topology import BuiltTopology, SourceNode

__all__ = ["StartingOffsets", "parse_duration_ms"]

_ISO_DURATION = re.compile(
    r"^P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?$",
    re.IGNORECASE,
)


def parse_duration_ms(text: str) -> int:
    """Parse a duration: milliseconds, or ISO 8601 as in Kafka's `auto.offset.reset=by_duration:PT1H`.

    >>> parse_duration_ms("P1DT2H")
    93600000

    Raises:
        ConfigError: it is neither.
    """
    if text.isdigit():
        return int(text)
    match = _ISO_DURATION.match(text)
    if match is None or not any(match.groups()):
        raise ConfigError(f"auto.offset.reset=by_duration:{text}: not a duration; write ISO 8601, for example PT12H")
    return int(
        timedelta(**{unit: float(value) for unit, value in match.groupdict().items() if value})
        / timedelta(milliseconds=1)
    )


class StartingOffsets:
    """The reset policies of one topology.

    Args:
        topology: the topology, whose sources may have their own policies.
        admin: asked for offsets.
        default_policy: the consumer's `auto.offset.reset`.
    """

    def __init__(self, topology: BuiltTopology, admin: AdminClient, default_policy: str) -> None:
        self._admin = admin
        self._default = default_policy
        self._by_topic: dict[str, str] = {}
        self._by_pattern: list[tuple[re.Pattern[str], str]] = []
        for subtopology in topology.subtopologies:
            for node in subtopology.nodes:
                if isinstance(node, SourceNode) and node.offset_reset is not None:
                    self._by_topic.update(dict.fromkeys(node.topics, node.offset_reset))
                    if node.pattern is not None:
                        self._by_pattern.append((node.pattern, node.offset_reset))
            self._by_topic.update(dict.fromkeys(subtopology.repartition_topics, "earliest"))

    def policy(self, topic: str) -> str:
        """Return the reset policy of a topic."""
        known = self._by_topic.get(topic)
        if known is not None:
            return known
        return next((policy for pattern, policy in self._by_pattern if pattern.fullmatch(topic)), self._default)

    def resolve(self, partitions: Collection[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Return where to start reading partitions that have no committed offset.

        Raises:
            StreamsError: a policy is `none`.
            StreamsTimeoutError: the brokers did not answer in time.
        """
        by_policy: dict[str, list[TopicPartition]] = {}
        for partition in partitions:
            by_policy.setdefault(self.policy(partition.topic), []).append(partition)
        starts: dict[TopicPartition, int] = {}
        for policy, members in by_policy.items():
            starts.update(self.reset(policy, members, timeout_s))
        return starts

    def reset(self, policy: str, partitions: Collection[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Return where to start reading partitions under a policy.

        Raises:
            StreamsError: the policy is `none`.
            StreamsTimeoutError: the brokers did not answer in time.
        """
        if policy == "earliest":
            return earliest_offsets(self._admin, partitions, timeout_s)
        if policy == "latest":
            return latest_offsets(self._admin, partitions, timeout_s)
        if policy.startswith("by_duration:"):
            since = int(time.time() * 1000) - parse_duration_ms(policy.removeprefix("by_duration:"))
            return offsets_for_time(self._admin, partitions, since, timeout_s)
        names = ", ".join(map(str, sorted(partitions)))
        raise StreamsError(
            f"No usable offset for {names}, and auto.offset.reset={policy}: reset the application's offsets "
            "(millrace reset), or give the source a reset policy"
        )
