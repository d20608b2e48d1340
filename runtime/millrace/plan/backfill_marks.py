"""What a backfill leaves in the offsets of groups, from which others know how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["UNFINISHED_BACKFILL", "are_marked", "attempts_group", "is_marked", "mark_of", "outputs_group"]

UNFINISHED_BACKFILL: Final = "millrace: unfinished backfill"
"""How the metadata begins that a backfill which needs several transactions commits with every offset before the first of them;
the last replaces it."""


def mark_of(backfill: str | None) -> str:
    """Return how that metadata begins for all attempts of one backfill; what follows identifies the attempt.

    Args:
        backfill: what its attempts have in common; None if there is only one.
    """
    return f"{UNFINISHED_BACKFILL} " if backfill is None else f"{UNFINISHED_BACKFILL} {backfill} "


def is_marked(positions: Mapping[TopicPartition, OffsetAndMetadata], mark: str) -> bool:
    """Return whether the metadata of any offset begins with a mark."""
    return any(known.metadata.startswith(mark) for known in positions.values())


def are_marked(
    positions: Mapping[TopicPartition, OffsetAndMetadata], partitions: Collection[TopicPartition], mark: str
) -> bool:
    """Return whether the metadata of all these partitions' offsets begins with a mark, and that of any offset.

    One mark alone may be what a reset has left: it sets the offsets of the topics that the application reads now.
    """
    everywhere = all(at in positions and positions[at].metadata.startswith(mark) for at in partitions)
    return everywhere and is_marked(positions, mark)


def attempts_group(application_id: str, backfill: str) -> str:
    """Return the group whose offsets tell the attempts of a backfill that one of them has handed over."""
    return f"{application_id}-backfill-{backfill}"


def outputs_group(application_id: str, backfill: str) -> str:
    """Return the group whose offsets tell the attempts of a backfill which partitions of outputs are written."""
    return f"{attempts_group(application_id, backfill)}:outputs"
