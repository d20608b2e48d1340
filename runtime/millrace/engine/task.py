"""`StreamTask`: one sub-topology over one partition of its inputs, with its state.

It is deterministic: records, time and the output's collector are passed in, and nothing here depends on a broker, a thread or a
clock. A standby is a task that stays in RESTORING; `initialize` makes it active, and `recycle` makes an active task a standby,
both with the stores open.

A host calls `open_stores` → `restore` until caught up → `initialize` → (`add_records`, `process`, punctuate)* →
`prepare_commit`, commits the offsets it returns, `post_commit` → … → `suspend` → `close_clean`; `close_dirty` at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from millrace.config import StreamsConfig
from millrace.dropped_records import DroppedRecords, DropReason
from millrace.engine.compile import CompiledTopology, TraceRecord, compile_topology, traced
from millrace.engine.error_handling import ErrorHandling
from millrace.engine.node_runtime import CompileEnv
from millrace.engine.offset_metadata import decode_metadata, encode_metadata, merge_processor_metadata
from millrace.engine.partition_group import PartitionGroup
from millrace.engine.punctuation import PunctuationQueue, PunctuationSchedule, TaskSchedules
from millrace.engine.record_collector_protocol import RecordCollector
from millrace.engine.record_queue import ENDLESS, RecordQueue, Turn, default_timestamp_extractor
from millrace.engine.task_state import IllegalTaskStateError, TaskCounters, TaskState, TaskTimes, check_transition
from millrace.errors import StreamsError
from millrace.records import (
    NO_HEADERS,
    UNKNOWN_TIMESTAMP,
    OffsetAndMetadata,
    RawRecord,
    RecordContext,
    TaskId,
    TopicPartition,
)
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.api import CacheBudget, ChangelogRecord, StateStore, StoreContext, close_all
from millrace.state.layered_store import LayeredStore, flush_stores, read_only
from millrace.topology.physical_topology import SinkNode, Subtopology

_log = logging.getLogger(__name__)


class StreamTask:
    """One task: its input partitions, compiled nodes, stores and clocks.

    Args:
        task_id: `<subtopology>_<partition>`.
        subtopology: the nodes and stores it runs.
        config: the application's settings.
        collector: takes its output.
        state_dir: the task's own directory, `<state.dir>/<application.id>/<task id>`.
        cache: the thread's record-cache budget; None switches caching off.
        clock: the wall clock (ms), for stores; nodes see the time given to `process` and `punctuate_wall_clock`.
        input_partitions: the partitions it reads.
        global_stores: name → global store, shared by all tasks of the instance.
        trace_record: traces the processing of each record; None costs nothing.
        punctuated_in_time: whether `process` returns once a stream-time punctuator is due, so that the host can call it after the
            same record whatever `process` is given; otherwise, it is called after all of them.
        dropped: counts dropped records by node and reason, and logs them; None: the task has its own.
    """

    def __init__(
        self,
        task_id: TaskId,
        subtopology: Subtopology,
        config: StreamsConfig,
        collector: RecordCollector,
        *,
        state_dir: Path,
        cache: CacheBudget | None,
        clock: Callable[[], int],
        input_partitions: frozenset[TopicPartition],
        global_stores: Mapping[str, StateStore] = MappingProxyType({}),
        trace_record: TraceRecord | None = None,
        punctuated_in_time: bool = False,
        dropped: DroppedRecords | None = None,
    ) -> None:
        self.task_id = task_id
        self.subtopology = subtopology
        self.config = config
        self.input_partitions = input_partitions
        self.state = TaskState.CREATED
        self._worked = False
        """Whether something has happened since the last commit that positions do not show: `init`, a punctuation, a failure."""
        self.commit_requested = False
        """Whether a processor has requested a commit."""
        self.counters = TaskCounters()
        self.dropped = DroppedRecords() if dropped is None else dropped
        self.record = RecordContext()
        self.times = TaskTimes(system_time=clock())
        self.stores: Mapping[str, StateStore] = {
            builder.name: builder.build() for builder in subtopology.store_builders
        }
        self.changelogs: Mapping[TopicPartition, StateStore] = {
            TopicPartition(topic, task_id.partition): self.stores[name]
            for name, topic in subtopology.changelog_topics.items()
        }
        self.changelog_positions: dict[TopicPartition, int | None] = {}
        """Changelog → offset of the next record to apply, None = from the beginning; known once the stores are open. Other
        threads may read it."""
        self.sensors: dict[tuple[str, str], tuple[int, float]] = {}
        """(node, sensor) → (number of events, sum)."""
        self._collector = collector
        self._state_dir = state_dir
        self._cache = cache
        self._clock = clock
        self._global_stores = {name: read_only(store) for name, store in global_stores.items()}
        self._trace_record = trace_record
        self.schedules = TaskSchedules(clock)
        self._awaited = self.schedules.stream_time if punctuated_in_time else None
        """The punctuations that `process` returns for."""
        self._failures: ErrorHandling | None = None
        self._topology: CompiledTopology | None = None
        self._group: PartitionGroup | None = None
        self._metadata: dict[str, int] = {}
        self._committed_metadata: dict[str, int] = {}
        self._stores_open = False

    def __repr__(self) -> str:
        return f"<StreamTask {self.task_id} {self.state.value}>"

    # State and restoration

    def open_stores(self) -> None:
        """Open every store; CREATED → RESTORING.

        Raises:
            StateDirectoryError: the directory cannot be used.
            TaskCorruptedError: what is on disk must be wiped and restored.
        """
        self._move_to(TaskState.RESTORING)
        logged = dict(self.subtopology.changelog_topics)
        copied = {name: logged.pop(name) for name in self.subtopology.source_changelogs}
        context = StoreContext(
            application_id=self.config.application_id,
            task_id=self.task_id,
            config=self.config,
            state_dir=self._state_dir,
            record=self.record,
            cache=self._cache,
            changelog_topics=logged,
            send_change=self._collector.change_sender,
            now_ms=self._clock,
            drop_record=self._drop_record,
            source_topics=copied,
        )
        self._stores_open = True
        for store in self.stores.values():
            store.init(context)
        for partition, store in self.changelogs.items():
            offset = store.committed_offset(partition)
            self.changelog_positions[partition] = None if offset is None else offset + 1

    def restore(self, partition: TopicPartition, records: Sequence[ChangelogRecord]) -> None:
        """Apply records of a changelog: restoration, and a standby's updates."""
        self._require(TaskState.RESTORING)
        self.changelogs[partition].restore(records)
        if records:
            self.changelog_positions[partition] = records[-1].offset + 1
        self.counters.restored_records += len(records)

    def initialize(self, committed: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})) -> None:
        """Compile the nodes and start them; RESTORING → RUNNING.

        Args:
            committed: the group's committed offsets, whose metadata has the partition times.
        """
        self._require(TaskState.RESTORING)
        failures = ErrorHandling(self.task_id, self.config, self.record, self._collector, self._drop_record)
        known = {partition: decode_metadata(committed[partition].metadata) for partition in committed}
        self._metadata = merge_processor_metadata(list(known.values()))
        self._committed_metadata = dict(self._metadata)
        self._failures = failures
        self._topology = topology = compile_topology(self.subtopology.nodes, self._environment(failures))
        queues = [self._new_queue(topology, partition) for partition in self.input_partitions]
        for queue in queues:
            if queue.partition in known:
                queue.partition_time = known[queue.partition].partition_time
                self.times.stream_time = max(self.times.stream_time, queue.partition_time)
        self._group = self._new_group(queues)
        self.times.system_time = self._clock()
        self._worked = True  # a processor's `init` may write to stores, forward, and ask for a commit
        topology.init()
        self._move_to(TaskState.RUNNING)

    def update_input_partitions(self, partitions: frozenset[TopicPartition]) -> None:
        """Change the input partitions when topics that match a pattern come or go; buffered records stay."""
        self.input_partitions = partitions
        if self._group is None or self._topology is None:
            return
        old = self._group.queues
        queues = [
            old[partition] if partition in old else self._new_queue(self._topology, partition)
            for partition in partitions
        ]
        self._group = self._new_group(queues)

    # Processing

    def add_records(self, partition: TopicPartition, records: Sequence[RawRecord]) -> None:
        """Append records of one input partition, as bytes, in offset order."""
        self._running_group().add(partition, records)

    def buffered(self, partition: TopicPartition | None = None) -> int:
        """Return how many records are waiting, in one partition or in all."""
        group = self._running_group()
        return group.buffered() if partition is None else len(group.queues[partition])

    def set_lag(self, partition: TopicPartition, lag: int | None) -> None:
        """Set how many records of a partition are on the broker but not fetched yet (`max.task.idle.ms`)."""
        self._running_group().set_lag(partition, lag)

    def set_position(self, partition: TopicPartition, offset: int) -> None:
        """Set where the consumer has found the partition's end, to be committed when every record before it is processed.

        It is beyond the last record if transaction markers follow, and before it if the topic was recreated.
        """
        queue = self._running_group().queues[partition]
        if queue.position is not None and not queue:
            queue.position = offset

    def ready(self, now_ms: int) -> bool:
        """Return whether a record can be processed now."""
        return self._running_group().ready(now_ms)

    def next_timestamp(self) -> int | None:
        """Return the smallest timestamp among the partitions' next records, or None if nothing valid is waiting."""
        return self._running_group().next_timestamp()

    def process(self, now_ms: int, max_records: int = 1, turn: Turn = ENDLESS) -> int:
        """Process at most this many records, until the turn is over; return how many were taken from the input.

        Raises:
            FailedProcessingError: a node failed and the processing handler said so.
            SerializationError: a record cannot be read and the deserialisation handler said so.
            InvalidTimestampError: a record's timestamp is negative and the extractor refuses it.
        """
        group = self._group
        if group is None or self.state is not TaskState.RUNNING:
            raise self._not_running()
        self.times.system_time = now_ms
        try:
            done = group.process(now_ms, max_records, turn)
        except BaseException:
            self._worked = True
            raise
        if done:
            self.counters.records_processed += done
        return done

    def punctuate_stream_time(self) -> int:
        """Call the punctuators that stream time has made due; return how many."""
        stream_time = self.times.stream_time
        if stream_time < self.schedules.stream_time.next_ms:
            return 0
        self.times.system_time = self._clock()
        return self._punctuate(self.schedules.stream_time, stream_time)

    def punctuate_wall_clock(self, now_ms: int) -> int:
        """Call the punctuators that the wall clock has made due, and log dropped records if that is due; return how many."""
        if now_ms >= self.dropped.summary_due_ms:
            self.dropped.summarize(now_ms)
        if now_ms < self.schedules.wall_clock.next_ms:
            return 0
        self.times.system_time = now_ms
        return self._punctuate(self.schedules.wall_clock, now_ms)

    # Commits

    @property
    def commit_needed(self) -> bool:
        """Whether anything has happened since the last commit: records were consumed (perhaps dropped), or nodes were called."""
        return self._worked or (self._group is not None and self._group.moved())

    def prepare_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Flush record caches and buffers, and return the offsets to commit for what was processed.

        The collector is not flushed: the host does that once for all the tasks that it commits together.
        """
        self._require(TaskState.RUNNING, TaskState.SUSPENDED)
        if not self.commit_needed:
            return {}
        flush_stores(list(self.stores.values()))
        metadata_changed = self._metadata != self._committed_metadata
        group = self._running_group()
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, queue in group.queues.items():
            if queue.position is None and not metadata_changed:
                continue
            head = queue.head_offset()
            offset = head if head is not None else queue.position
            if offset is not None:
                offsets[partition] = OffsetAndMetadata(offset, encode_metadata(queue.partition_time, self._metadata))
        return offsets

    def post_commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        """Write the stores to disk with the changelog offsets they correspond to; call it when the commit has succeeded.

        Args:
            changelog_offsets: offset of the last acknowledged record per changelog partition.
        """
        offsets = dict(changelog_offsets)
        for name in self.subtopology.source_changelogs:
            partition = TopicPartition(self.subtopology.changelog_topics[name], self.task_id.partition)
            queue = None if self._group is None else self._group.queues.get(partition)
            if queue is not None and queue.position is not None:
                offsets[partition] = queue.position - 1
        own: dict[str, dict[TopicPartition, int]] = {}
        for partition, store in self.changelogs.items():
            if partition in offsets:
                own.setdefault(store.name, {})[partition] = offsets[partition]
        for name, store in self.stores.items():
            store.commit(own.get(name, {}))
            self.changelog_positions.update({partition: offset + 1 for partition, offset in own.get(name, {}).items()})
        self._committed_metadata = dict(self._metadata)
        self._worked = False
        self.commit_requested = False
        if self._group is not None:
            self._group.committed()
        self.counters.commits += 1

    def uncommitted_bytes(self) -> int:
        """Return how much memory is held by state writes that wait for a commit."""
        return sum(store.uncommitted_bytes() for store in self.stores.values())

    # The end

    def suspend(self) -> None:
        """Stop processing; caches are flushed by the `prepare_commit` that follows. Buffered records stay."""
        if self.state is not TaskState.SUSPENDED:
            self._move_to(TaskState.SUSPENDED)

    def recycle(self, input_partitions: frozenset[TopicPartition]) -> None:
        """Stop the nodes but keep the stores open, to continue as a standby or with other inputs; → RESTORING. Commit first.

        Args:
            input_partitions: what the task reads from now on.
        """
        self.input_partitions = input_partitions
        if self.state is TaskState.RESTORING:
            return
        self.suspend()
        self._close_topology()
        for store in self.stores.values():
            if isinstance(store, LayeredStore):
                store.clear_cache()  # the cache's memory belongs to the thread, and restored rows bypass the cache
        self.commit_requested = False
        self._move_to(TaskState.RESTORING)

    def close_clean(self) -> None:
        """Close after a commit; SUSPENDED or CREATED → CLOSED.

        Raises:
            IllegalTaskStateError: processed records are not committed.
        """
        if self.state is TaskState.CLOSED:
            return
        if self.commit_needed:
            raise IllegalTaskStateError(f"task {self.task_id} has uncommitted work: commit, or close it dirty")
        self._require(TaskState.CREATED, TaskState.RESTORING, TaskState.SUSPENDED)
        try:
            self._close_topology()
        finally:
            self._close_stores()
            self._move_to(TaskState.CLOSED)

    def close_dirty(self) -> None:
        """Discard everything since the last commit and close, in any state; failures are logged, never raised."""
        if self.state is TaskState.CLOSED:
            return
        for step in (self._close_topology, self._close_stores):
            try:
                step()
            except StreamsError as error:  # the message says what is wrong, for example that the disk is full
                _log.warning("Task %s: closing failed, but it counts as closed: %s", self.task_id, error)
            except Exception:
                _log.exception("Task %s: closing failed, but it counts as closed", self.task_id)
        self._worked = False
        self._move_to(TaskState.CLOSED)

    # For hosts to inspect

    @property
    def stream_time(self) -> int:
        """The task's stream time (ms, -1 before the first record)."""
        return self.times.stream_time

    def source_name(self, topic: str) -> str:
        """Return the name of the source that reads a topic."""
        assert self._topology is not None
        return self._topology.source_for(topic).name

    def partition_time(self, partition: TopicPartition) -> int:
        """Return the largest timestamp processed from a partition (ms; -1 = unknown)."""
        return self._running_group().queues[partition].partition_time

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the partition's next record to process; None if none has been processed yet."""
        queue = self._running_group().queues[partition]
        head = queue.head_offset()
        return head if head is not None else queue.position

    # Inside

    def _new_queue(self, topology: CompiledTopology, partition: TopicPartition) -> RecordQueue:
        assert self._failures is not None
        source = topology.source_for(partition.topic)
        if self._trace_record is not None:
            source = traced(source, self.task_id, self.record, self._trace_record)
        return RecordQueue(
            partition,
            source,
            source.timestamp_extractor or default_timestamp_extractor(self.config),
            current=self.record,
            times=self.times,
            failures=self._failures,
            drop_record=self._drop_record,
            punctuations=self._awaited,
        )

    def _new_group(self, queues: Sequence[RecordQueue]) -> PartitionGroup:
        return PartitionGroup(queues, self.config.max_task_idle_ms, self.counters, self.times, self._awaited)

    def _environment(self, failures: ErrorHandling) -> CompileEnv:
        return CompileEnv(
            task_id=self.task_id,
            config=self.config,
            state_dir=self._state_dir,
            record=self.record,
            times=self.times,
            collector=self._collector,
            failures=failures,
            stores=self.stores,
            global_stores=self._global_stores,
            schedule=self.schedules.schedule,
            drop_record=self._drop_record,
            request_commit=self._request_commit,
            default_key_serde=default_key_serde(self.config),
            default_value_serde=default_value_serde(self.config),
            metadata=self._metadata,
            sensors=self.sensors,
        )

    def _punctuate(self, schedules: PunctuationQueue, now_ms: int) -> int:
        if self.state is not TaskState.RUNNING:
            raise self._not_running()
        called = schedules.punctuate(now_ms, self._call_punctuator)
        if called:
            self._worked = True
            self.counters.punctuations += called
        return called

    def _call_punctuator(self, schedule: PunctuationSchedule, now_ms: int) -> None:
        record = self.record
        record.topic = None
        record.partition = record.offset = -1
        record.timestamp = now_ms
        record.headers = NO_HEADERS
        record.raw_key = record.raw_value = None
        try:
            schedule.punctuator(now_ms)
        except Exception as error:
            assert self._failures is not None
            self._failures.punctuation_failed(schedule.node, error, now_ms)

    def _drop_record(self, node: str, reason: DropReason, late_ms: int = 0, allowed_ms: int = 0) -> None:
        self.counters.dropped_records += 1
        place, now_ms = self.subtopology.places.get(node, ""), self.times.system_time
        self.dropped.add(node, reason, now_ms, place=place, late_ms=late_ms, allowed_ms=allowed_ms)

    def refused(self, topic: str) -> None:
        """Count an output record that the brokers refused and the production handler dropped, at the node that sent it."""
        senders = (node.name for node in self.subtopology.nodes if isinstance(node, SinkNode) and node.topic == topic)
        stores = (store for store, changelog in self.subtopology.changelog_topics.items() if changelog == topic)
        self._drop_record((*senders, *stores, topic)[0], DropReason.REFUSED)

    def _request_commit(self) -> None:
        self.commit_requested = True

    def _close_topology(self) -> None:
        topology, self._topology, self._group = self._topology, None, None
        self.schedules.clear()
        self.times.stream_time = UNKNOWN_TIMESTAMP
        if topology is not None:
            try:
                topology.close()
            finally:
                self.dropped.summarize()

    def _close_stores(self) -> None:
        if self._stores_open:
            self._stores_open = False
            close_all(self.stores.values())

    def _running_group(self) -> PartitionGroup:
        if self._group is None:
            raise self._not_running()
        return self._group

    def _require(self, *states: TaskState) -> None:
        if self.state not in states:
            allowed = " or ".join(state.value for state in states)
            raise IllegalTaskStateError(f"task {self.task_id} is {self.state.value}; this needs {allowed}")

    def _not_running(self) -> IllegalTaskStateError:
        return IllegalTaskStateError(f"task {self.task_id} is {self.state.value}, not RUNNING")

    def _move_to(self, state: TaskState) -> None:
        check_transition(self.task_id, self.state, state)
        self.state = state
