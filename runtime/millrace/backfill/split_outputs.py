"""Outputs that are too many for one transaction: each partition is written in one of its own, once by all attempts together.

Nobody can take an output back, so an attempt must neither write a partition that an earlier one has written, nor write one that
does not fit it. Therefore a group of the backfill's own has the ends of the history, from the first transaction on, and whoever
writes a partition commits to that group, in the same transaction, that it is written. An attempt that finds the group computes up
to the same ends, which gives the same records, and writes the partitions that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.errors import ConfigError, StreamsError
from millrace.plan.backfill_marks import mark_of, outputs_group
from millrace.records import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from millrace.kafka.group_admin import GroupAdmin

__all__ = ["SplitOutputs", "ends_of_earlier"]

_WRITTEN: Final = " written"
_ANOTHER: Final = "start another backfill (another name, or another StreamsBackfill), which writes all outputs again"


@dataclass(frozen=True, slots=True)
class SplitOutputs:
    """Partitions of outputs that are written one by one; pickled into the executors."""

    group_id: str
    """The backfill's group for them."""
    result: str
    """What is computed: metadata of the group's offsets, by which another result under the same name is noticed."""
    ends: Mapping[TopicPartition, int]
    """Offsets at which the history ends."""
    targets: frozenset[TopicPartition]
    """The partitions."""

    def beginning(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group commits before anything is written."""
        return {partition: OffsetAndMetadata(end, self.result) for partition, end in self.ends.items()}

    def writing(self, target: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group commits together with the records of one partition, which the application may read, too."""
        return {target: OffsetAndMetadata(self.ends.get(target, 0), self.result + _WRITTEN)}

    def is_begun(self, group: GroupAdmin) -> bool:
        """Return whether the group has what it commits first."""
        return _positions(group, self.group_id).keys() >= self.ends.keys()

    def is_written(self, group: GroupAdmin, target: TopicPartition) -> bool:
        """Return whether a partition is written, once nobody else can write it any more."""
        found = _positions(group, self.group_id).get(target)
        return found is not None and found.metadata.endswith(_WRITTEN)


def ends_of_earlier(group: GroupAdmin, backfill: str, result: str) -> dict[TopicPartition, int]:
    """Return where the history ends for all attempts of a backfill; empty if none of them has begun to write outputs one by one.

    Args:
        group: the application's.
        backfill: what the attempts have in common.
        result: what is computed.

    Raises:
        ConfigError: they have computed something else.
        StreamsError: the application has gone on since.
    """
    found = _positions(group, outputs_group(group.group_id, backfill))
    if any(known.metadata.removesuffix(_WRITTEN) != result for known in found.values()):
        raise ConfigError(
            f"Backfill {backfill} has begun to write outputs of another topology, or with other options. Go on with those, or "
            f"{_ANOTHER}"
        )
    for partition, position in group.positions().items():
        ahead = partition in found and position.offset > found[partition].offset
        if ahead and not position.metadata.startswith(mark_of(backfill)):
            raise StreamsError(
                f"Application {group.group_id} has gone on since backfill {backfill} has begun to write outputs: it is at offset "
                f"{position.offset} of {partition}, and the history of these ends at {found[partition].offset}. If it is to be "
                f"computed once more, {_ANOTHER}"
            )
    return {partition: known.offset for partition, known in found.items()}


def _positions(group: GroupAdmin, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    found = group.of_group(group_id, group.timeout_s).positions()
    # librdkafka ends the metadata with a NUL.
    return {at: OffsetAndMetadata(known.offset, known.metadata.rstrip("\0")) for at, known in found.items()}
