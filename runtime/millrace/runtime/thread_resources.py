"""What a stream thread works with: what it shares with the client's other threads, and the clients it opens for itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.failures import resolve_handler
from millrace.kafka.clients import ClientSettings, open_consumer
from millrace.kafka.membership.api import GroupEvent
from millrace.processor.handlers import DefaultProductionExceptionHandler
from millrace.records import OffsetAndMetadata, TopicPartition
from millrace.runtime.input_consumer import InputConsumer
from millrace.runtime.instrumentation import Instrumentation
from millrace.runtime.producer import StreamsProducer
from millrace.runtime.record_collector import KafkaRecordCollector
from millrace.runtime.starting_offsets import StartingOffsets
from millrace.runtime.state_directory import StateDirectory
from millrace.runtime.state_updater import RestoreListener, StateUpdater
from millrace.runtime.task_inputs import TaskInputs
from millrace.runtime.task_manager import TaskManager, TaskResources
from millrace.state.cache import RecordCache
from millrace.topology.built import BuiltTopology

__all__ = ["Member", "ThreadContext", "ThreadResources", "open_resources"]


class Member(Protocol):
    """A stream thread's membership in the group, whatever the protocol."""

    def start(self) -> None:
        """Begin to join."""

    def poll(self) -> Sequence[GroupEvent]:
        """Return what happened in the group since the last call; does not wait."""

    @property
    def rebalancing(self) -> bool:
        """Whether the group is between generations: commits wait."""

    @property
    def instance_id(self) -> str | None:
        """The id of a static member."""

    @property
    def is_leader(self) -> bool:
        """Whether this member assigns for the group."""

    def reset(self, reason: str, *, keep_member_id: bool) -> None:
        """Join anew, owning nothing: the thread has dropped its tasks."""

    def close(self, *, leave_group: bool | None = None) -> None:
        """End the membership; a member that does not leave keeps its place until its session times out."""

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets, once no transaction is pending on them."""

    def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets with the member's generation."""

    def group_metadata(self) -> bytes:
        """Return what `send_offsets_to_transaction` takes."""


@dataclass(frozen=True, slots=True)
class ThreadContext:
    """What the threads of a client share."""

    topology: BuiltTopology
    config: StreamsConfig
    settings: ClientSettings
    directory: StateDirectory
    admin: AdminClient
    new_member: Callable[[int], Member]
    """Makes the group member of a thread, by its number."""
    cache_max_bytes: int
    """A thread's share of `statestore.cache.max.bytes`."""
    instrumentation: Instrumentation | None = None
    restore_listener: RestoreListener | None = None
    global_stores: Mapping[str, Any] = field(default_factory=dict)
    clock: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class ThreadResources:
    """What one thread has for itself."""

    consumer: InputConsumer
    producer: StreamsProducer
    collector: KafkaRecordCollector
    updater: StateUpdater
    member: Member
    tasks: TaskManager


def open_resources(number: int, context: ThreadContext) -> ThreadResources:
    """Open a thread's clients; nothing is joined or restored yet.

    Raises:
        ConfigError: a client does not take its settings.
    """
    config, settings, admin = context.config, context.settings, context.admin
    timeout_s = config.task_timeout_ms / 1000
    starting = StartingOffsets(context.topology, admin, settings.auto_offset_reset(), timeout_s)
    consumer = InputConsumer(
        open_consumer(settings.main_consumer(number)),
        lambda partition: starting.reset(starting.policy(partition.topic), [partition])[partition],
    )
    handler = resolve_handler(
        config.production_exception_handler or config.default_production_exception_handler,
        DefaultProductionExceptionHandler,
        "production.exception.handler",
        config,
    )
    producer = StreamsProducer(settings.producer(number), config.task_timeout_ms)
    collector = KafkaRecordCollector(producer, admin, config, handler, context.instrumentation)
    updater = StateUpdater(
        settings.thread_name(number).replace("StreamThread", "StateUpdater"),
        lambda: open_consumer(settings.restore_consumer(number)),
        admin,
        config,
        context.restore_listener,
    )
    member = context.new_member(number)
    tasks = TaskManager(
        TaskResources(
            thread=settings.thread_name(number),
            config=config,
            inputs=TaskInputs(context.topology),
            directory=context.directory,
            consumer=consumer,
            starting_offsets=starting,
            producer=producer,
            collector=collector,
            updater=updater,
            offsets=member,
            cache=RecordCache(context.cache_max_bytes) if context.cache_max_bytes > 0 else None,
            clock=context.clock,
            global_stores=context.global_stores,
            instrumentation=context.instrumentation,
        )
    )
    return ThreadResources(consumer, producer, collector, updater, member, tasks)
