"""Outputs that are too many for one transaction: each partition is written in one of its own, once by all attempts together.

Nobody can take an output back, so an attempt must neither write a partition that an earlier one has written, nor write one that
does not fit it. Therefore a group of the backfill's own has the ends of the history, from the first transaction on, and whoever
writes a partition commits to that group, in the same transaction, that it is written. An attempt that finds the group computes up
to the same ends, and writes the partitions that are left. The metadata of the group's offsets says what was computed, in figures
that differ if anything was read that is not the same: then it writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from millrace.backfill.refusals import START_ANOTHER
from millrace.errors import ConfigError
from millrace.kafka.admin import may_read
from millrace.plan.backfill_marks import mark_of, outputs_group
from millrace.records import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from millrace.backfill.kafka_history import KafkaHistory
    from millrace.backfill.packing import Size
    from millrace.kafka.group_admin import GroupAdmin

__all__ = [
    "Positions",
    "SplitOutputs",
    "begun_outputs",
    "check_fitting",
    "check_readable",
    "figures",
    "settled_positions",
]

_WRITTEN: Final = " written "
_RECORDS_PER_MS: Final = 100
"""How many records are written at least, about."""
Positions = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class SplitOutputs:
    """Partitions of outputs that are written one by one; pickled into the executors."""

    group_id: str
    """The backfill's group for them."""
    result: str
    """What is computed."""
    ends: Mapping[TopicPartition, int]
    """Offsets at which the history ends."""
    targets: frozenset[TopicPartition]
    """The partitions."""

    def beginning(self, begun: Positions) -> Positions:
        """Return what the group commits before anything is written, if this is what it has.

        It commits again what it has, lest that expire, but for what executors of an earlier attempt may still replace.
        """
        if not begun:
            return {partition: OffsetAndMetadata(end, self.result) for partition, end in self.ends.items()}
        return {at: known for at, known in begun.items() if _WRITTEN in known.metadata or at not in self.targets}

    def writing(self, target: TopicPartition, records: int) -> Positions:
        """Return what the group commits together with the records of one partition, which the application may read, too."""
        return {target: OffsetAndMetadata(self.ends.get(target, 0), f"{self.result}{_WRITTEN}{records}")}

    def has_begun(self, group: GroupAdmin, positions: Positions) -> bool:
        """Return whether the group has what it commits first."""
        return positions.items() <= _positions(group, self.group_id).items()

    def written(self, group: GroupAdmin, target: TopicPartition) -> int | None:
        """Return how many records of a partition are written, or None; once nobody else can write it any more."""
        found = settled_positions(group, self.group_id, [target]).get(target)
        if found is None or _WRITTEN not in found.metadata:
            return None
        return int(found.metadata.rsplit(_WRITTEN, 1)[1])


def figures(
    reports: Sequence[Mapping[str, Any]],
    history: KafkaHistory,
    sizes: Mapping[str, Size],
    records: Mapping[TopicPartition, int],
) -> str:
    """Return what tells one result from another.

    Args:
        reports: what the tasks have processed.
        history: what was read of each partition.
        sizes: how much each topic of outputs gets.
        records: how many records each of its partitions gets.
    """
    read = sorted([*partition, extent.start, extent.end] for partition, extent in history.extents.items())
    processed = sorted([*report["task"], report["processed"], report["dropped"]] for report in reports)
    written = sorted([*target, count] for target, count in records.items()), sorted(sizes.items())
    return f"{crc32(json.dumps([read, processed, written]).encode()):08x}"


def check_fitting(records: Mapping[TopicPartition, int], timeout_ms: int, written: str) -> None:
    """Check that each partition can be written in one transaction.

    Args:
        records: how many records each gets.
        timeout_ms: how long a transaction may take.
        written: what to say about what has been written.

    Raises:
        ConfigError: one has too many.
    """
    most = timeout_ms * _RECORDS_PER_MS
    if large := {target: count for target, count in records.items() if count > most}:
        target, count = max(large.items(), key=itemgetter(1))
        raise ConfigError(
            f"{target} gets {count:,} records, which are too many for one transaction of {timeout_ms:,} ms: set "
            "producer.transaction.timeout.ms higher, up to the brokers' transaction.max.timeout.ms, or, if these are outputs, "
            f"have fewer kept; {written}"
        )


def begun_outputs(group: GroupAdmin, backfill: str, result: str, read: Collection[TopicPartition]) -> Positions:
    """Return what attempts of a backfill have committed about outputs in parts; the offsets are the ends of the history.

    Args:
        group: the application's.
        backfill: what the attempts have in common.
        result: what is computed, as far as that is known.
        read: the partitions whose offsets the application commits.

    Raises:
        ConfigError: they have computed something else, or the application has gone on since.
    """
    found = settled_positions(group, outputs_group(group.group_id, backfill), read)
    if any(not known.metadata.startswith(f"{result} ") for known in found.values()):
        raise ConfigError(
            f"Backfill {backfill} has begun to write outputs of another topology, or with other options: go on with those. Or: "
            f"{START_ANOTHER}"
        )
    for partition, position in group.positions().items():
        ahead = partition in found and partition in read and position.offset > found[partition].offset
        if ahead and not position.metadata.startswith(mark_of(backfill)):
            raise ConfigError(
                f"Application {group.group_id} has gone on since backfill {backfill} has begun to write outputs: it is at offset "
                f"{position.offset} of {partition}, and the history of these ends at {found[partition].offset}. If it is to be "
                f"computed once more: {START_ANOTHER}"
            )
    return found


def check_readable(admin: AdminClient, topics: Collection[str]) -> None:
    """Check that offsets may be committed in topics: by these, attempts know what is written.

    Raises:
        ConfigError: the principal may not read one of them.
    """
    if refused := [topic for topic in sorted(topics) if may_read(admin, topic) is False]:
        raise ConfigError(
            f"The principal may not read {', '.join(refused)}, but has to commit there which outputs are written, as these are "
            "too many for one transaction: grant READ with an ACL; nothing has been written"
        )


def settled_positions(group: GroupAdmin, group_id: str, partitions: Collection[TopicPartition]) -> Positions:
    """Return the offsets of a group of a backfill, once those that were committed in these partitions are there.

    Args:
        group: administers a group of that cluster.
        group_id: the group.
        partitions: where offsets may be pending.
    """
    group.of_group(group_id, group.timeout_s).stable_offsets(partitions or None)
    return _positions(group, group_id)


def _positions(group: GroupAdmin, group_id: str) -> Positions:
    found = group.of_group(group_id, group.timeout_s).positions()
    # librdkafka ends the metadata with a NUL.
    return {at: OffsetAndMetadata(known.offset, known.metadata.rstrip("\0")) for at, known in found.items()}
