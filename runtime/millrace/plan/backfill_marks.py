"""Marks that a backfill leaves in groups' offsets, so that others know how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["UNFINISHED_BACKFILL", "are_marked", "attempts_group", "is_marked", "mark_of", "outputs_group"]

UNFINISHED_BACKFILL: Final = "millrace: unfinished backfill"
"""The start of a mark: the metadata that a backfill with several transactions commits with every offset at first.

The last transaction replaces it."""


def mark_of(backfill: str | None) -> str:
    """Return the start of the marks of all attempts of one backfill; the rest of a mark identifies the attempt.

    Args:
        backfill: the name that its attempts share; None if there is only one attempt.
    """
    return f"{UNFINISHED_BACKFILL} " if backfill is None else f"{UNFINISHED_BACKFILL} {backfill} "


def is_marked(positions: Mapping[TopicPartition, OffsetAndMetadata], mark: str) -> bool:
    """Return whether the metadata of any offset begins with a mark."""
    return any(known.metadata.startswith(mark) for known in positions.values())


def are_marked(
    positions: Mapping[TopicPartition, OffsetAndMetadata], partitions: Collection[TopicPartition], mark: str
) -> bool:
    """Return whether all these partitions' offsets, and at least one offset in all, have the mark.

    A single mark may be left over from a reset, which only sets the offsets of topics that the application reads now.
    """
    everywhere = all(at in positions and positions[at].metadata.startswith(mark) for at in partitions)
    return everywhere and is_marked(positions, mark)


def attempts_group(application_id: str, backfill: str) -> str:
    """Return the group whose offsets show a backfill's attempts that one of them has handed over."""
    return f"{application_id}-backfill-{backfill}"


def outputs_group(application_id: str, backfill: str) -> str:
    """Return the group whose offsets show a backfill's attempts which output partitions are written."""
    return f"{attempts_group(application_id, backfill)}:outputs"
