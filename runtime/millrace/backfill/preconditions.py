"""What must still be as it was when the history was fixed, whenever a backfill commits offsets of its application.

An application that ran meanwhile, and was stopped again, has processed records that the result lacks; its offsets tell. What was
read from a topic that was deleted and created again means nothing in the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.backfill.kafka_history import KafkaHistory, check_unchanged
from millrace.errors import ActiveGroupError, StreamsError
from millrace.kafka.group_admin import GroupAdmin
from millrace.plan.backfill_marks import are_marked
from millrace.records import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["HALF_WRITTEN", "NOTHING_WRITTEN", "Preconditions", "check_group_is_empty"]

NOTHING_WRITTEN: Final = "nothing has been written"
HALF_WRITTEN: Final = "it has not ended, and the application refuses to start until it has"


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What must be so at every commit of offsets."""

    group: GroupAdmin
    """The application's, which must have no members."""
    admin: AdminClient
    """Client of the cluster."""
    history: KafkaHistory
    """What the result was computed from: its topics must still be the same."""
    offsets: Mapping[TopicPartition, int]
    """What the group has committed: before the history was fixed, or afterwards the backfill itself with its mark."""
    mark: str | None = None
    """The metadata of the backfill's own offsets."""
    marked: Collection[TopicPartition] = frozenset()
    """Where these are; all of them must still have it."""

    def check(self, written: str) -> None:
        """Check that nobody has interfered.

        Args:
            written: what to say about what has been written.

        Raises:
            ActiveGroupError: the application runs.
            StreamsError: it ran, was reset, or got another backfill; or a source topic was deleted, created again or extended.
        """
        check_group_is_empty(self.group, written)
        check_unchanged(self.history, self.admin, written)
        found = self.group.positions()
        offsets = {partition: position.offset for partition, position in found.items()}
        if offsets != self.offsets or not (self.mark is None or are_marked(found, self.marked, self.mark)):
            raise StreamsError(
                f"Application {self.group.group_id} ran during the backfill, was reset, or got another backfill: its group has "
                f"other offsets than before. Stop it, then start the backfill again; {written}"
            )


def check_group_is_empty(group: GroupAdmin, written: str = NOTHING_WRITTEN) -> None:
    """Check that nobody runs the application; brokers would take a stranger's offsets even then.

    Args:
        group: the application's.
        written: what to say about what has been written.

    Raises:
        ActiveGroupError: its group has members.
    """
    members = group.members()
    if members:
        raise ActiveGroupError(
            f"Application {group.group_id} runs: its group has {len(members)} members ({', '.join(map(str, members[:3]))}). Stop "
            f"it, then start the backfill again; {written}"
        )
