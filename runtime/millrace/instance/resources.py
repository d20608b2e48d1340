"""The resources of a stream thread: those shared with the client's other threads, and its own Kafka clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient

from millrace.assignment import AssignedTasks
from millrace.config import StreamsConfig
from millrace.dropped_records import DroppedRecords
from millrace.engine.error_handling import resolve_handler
from millrace.instance.activity import LoopProgress
from millrace.instance.input_consumer import InputConsumer
from millrace.instance.instrumentation import Instrumentation
from millrace.instance.membership import GroupMembership, TaskOffsetSums
from millrace.instance.producer import StreamsProducer
from millrace.instance.record_collector import KafkaRecordCollector
from millrace.instance.starting_offsets import StartingOffsets
from millrace.instance.state_directory import StateDirectory
from millrace.instance.state_updater import StateUpdater
from millrace.instance.task_restoration import RestoreListener, StandbyUpdateListener
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.client_supplier import client_supplier
from millrace.processor.handlers import DefaultProductionExceptionHandler
from millrace.state.api import StateStore
from millrace.state.cache import RecordCache
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["ThreadContext", "ThreadResources", "open_resources"]


@dataclass(frozen=True, slots=True)
class ThreadContext:
    """The resources that the threads of a client share."""

    topology: BuiltTopology
    config: StreamsConfig
    settings: ClientSettings
    directory: StateDirectory
    admin: AdminClient
    new_membership: Callable[[int, TaskOffsetSums, LoopProgress], GroupMembership]
    """Creates the membership of a thread, given its number."""
    on_shutdown_requested: Callable[[], None]
    """Called, in a stream thread, when a member has requested that the whole application stop."""
    cache_max_bytes: Callable[[], int]
    """Returns a thread's current share of `statestore.cache.max.bytes`."""
    on_assigned: Callable[[int, AssignedTasks], None] = lambda _generation, _assigned: None
    """Called, in a stream thread, with each assignment and its generation."""
    dropped: DroppedRecords = field(default_factory=DroppedRecords)
    """What the client's tasks drop."""
    instrumentation: Instrumentation | None = None
    restore_listener: RestoreListener | None = None
    standby_listener: StandbyUpdateListener | None = None
    global_stores: Mapping[str, StateStore] = field(default_factory=dict)
    clock: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)
    paused: threading.Event = field(default_factory=threading.Event)
    """Set while processing and restoring are paused (KIP-834)."""


@dataclass(frozen=True, slots=True)
class ThreadResources:
    """The clients and the record cache of one thread."""

    thread: str
    """Its name."""
    context: ThreadContext
    consumer: InputConsumer
    starting_offsets: StartingOffsets
    producer: StreamsProducer
    collector: KafkaRecordCollector
    updater: StateUpdater
    member: GroupMembership
    cache: RecordCache | None


def open_resources(
    number: int, context: ThreadContext, progress: LoopProgress, offset_sums: TaskOffsetSums
) -> ThreadResources:
    """Open a thread's clients; nothing is joined or restored yet.

    Args:
        number: the thread's, from 1.
        context: the resources shared with the client's other threads.
        progress: the thread's; records waits for a broker.
        offset_sums: returns the local state; called each time the member joins.

    Raises:
        ConfigError: a client does not take its settings.
    """
    config, settings, admin = context.config, context.settings, context.admin
    clients, starting = client_supplier(config), StartingOffsets(context.topology, admin, settings.auto_offset_reset())
    with ExitStack() as opened:  # closes what is open if something else cannot be opened
        consumer = InputConsumer(clients.consumer(settings.main_consumer(number)))
        opened.callback(consumer.close)
        handler = resolve_handler(
            config.production_exception_handler or config.default_production_exception_handler,
            DefaultProductionExceptionHandler,
            "production.exception.handler",
            config,
        )
        producer = StreamsProducer(
            lambda: settings.producer(number), config.task_timeout_ms, progress, clients.producer
        )
        opened.callback(producer.close)
        collector = KafkaRecordCollector(producer, admin, config, handler, context.instrumentation)
        updater = StateUpdater(
            settings.thread_name(number).replace("StreamThread", "StateUpdater"),
            lambda: clients.restore_consumer(settings.restore_consumer(number)),
            admin,
            config,
            context.restore_listener,
            context.standby_listener,
            context.paused,
        )
        cache = RecordCache(context.cache_max_bytes()) if config.statestore_cache_max_bytes > 0 else None
        member = context.new_membership(number, offset_sums, progress)
        opened.pop_all()
    thread = settings.thread_name(number)
    return ThreadResources(thread, context, consumer, starting, producer, collector, updater, member, cache)
