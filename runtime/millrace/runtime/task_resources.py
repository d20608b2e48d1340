"""What the tasks of one stream thread work with: its clients, its state directory, its settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from millrace.config import StreamsConfig
from millrace.kafka.membership.offsets import CommittedOffsets
from millrace.records import OffsetAndMetadata, TopicPartition
from millrace.runtime.input_consumer import InputConsumer
from millrace.runtime.instrumentation import Instrumentation
from millrace.runtime.producer import StreamsProducer
from millrace.runtime.record_collector import KafkaRecordCollector
from millrace.runtime.starting_offsets import StartingOffsets
from millrace.runtime.state_directory import StateDirectory
from millrace.runtime.state_updater import StateUpdater
from millrace.state.api import CacheBudget
from millrace.topology.model import BuiltTopology

__all__ = ["GroupOffsets", "TaskResources"]


class GroupOffsets(Protocol):
    """The part of a group member that reads and commits offsets."""

    def ask_committed(self, partitions: Collection[TopicPartition]) -> CommittedOffsets:
        """Ask for committed offsets, without waiting; each comes once no transaction is pending on it."""

    def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit with the member's generation."""

    def group_metadata(self) -> bytes:
        """Return what `send_offsets_to_transaction` takes."""


@dataclass(frozen=True, slots=True)
class TaskResources:
    """What a thread gives its task manager."""

    thread: str
    config: StreamsConfig
    topology: BuiltTopology
    directory: StateDirectory
    consumer: InputConsumer
    starting_offsets: StartingOffsets
    producer: StreamsProducer
    collector: KafkaRecordCollector
    updater: StateUpdater
    offsets: GroupOffsets
    cache: CacheBudget | None
    clock: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)
    global_stores: Mapping[str, Any] = field(default_factory=dict)
    instrumentation: Instrumentation | None = None
