"""What a backfill computes, and from what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from millrace.backfill.collector import Outputs
from millrace.records import RawRecord, TopicPartition
from millrace.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class History(Protocol):
    """Where the records of the user's topics come from; it is pickled into the executors."""

    @property
    def shuffled(self) -> Mapping[str, int | None]:
        """Topics of which records come as `rows`, before those that `read` returns.

        Each with the instant before which all of the former are and none of the latter; None if they are all.
        """

    def partition_counts(self) -> Mapping[str, int]:
        """Return the partitions of every topic that exists."""

    def read(self, partition: TopicPartition) -> Iterator[Sequence[RawRecord]]:
        """Read one partition from its beginning to where the history ends, in offset order."""

    def size(self, partition: TopicPartition) -> int | None:
        """Return about how many records one partition has; None if nobody knows."""

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """Return records of `shuffled` topics as `ROWS_DDL` has them, with an empty `task`.

        `reached` is the largest timestamp of the partition so far, and `number` the record's place in it.
        """


@dataclass(frozen=True, slots=True)
class Backfill:
    """What is to be computed; it is pickled into the executors.

    Args:
        topology: returns the application's topology.
        config: the application's settings.
        history: where records come from.
        outputs: which records of output topics to keep.
        side_effects: run `peek`, `foreach` and `print`, for every record of history and perhaps more than once.
        wall_clock_punctuators: let wall-clock punctuators pass; they are never called.
        limit_bytes: memory of a task for the last records of each changelog or output topic; what is more goes to disk.
    """

    topology: Callable[[], Topology]
    config: Mapping[str, object]
    history: History
    outputs: Outputs = Outputs.NONE
    side_effects: bool = False
    wall_clock_punctuators: bool = False
    limit_bytes: int = 64 * 1024 * 1024
