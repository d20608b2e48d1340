"""`GlobalStateTask`: keeps the global stores of one instance up to date, from all partitions of their topics.

Every instance runs one. It has no producer, commits nothing to the group, and its stores have no changelog: they are restored
from the topics themselves, always through their processors, so that a store has the same contents after a restart.

Each topic feeds one store, which keeps the offsets of that topic: whether a store is complete does not depend on the others.
Stream threads read the stores while this task writes them, so they are opened as shared stores.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millrace.config import StreamsConfig
from millrace.dropped_records import DroppedRecords, DropReason
from millrace.engine.compile import CompiledTopology, compile_topology
from millrace.engine.error_handling import ErrorHandling
from millrace.engine.node_runtime import CompileEnv
from millrace.engine.record_queue import RecordQueue, default_timestamp_extractor
from millrace.engine.task_state import IllegalTaskStateError, TaskCounters, TaskTimes
from millrace.errors import TopologyError
from millrace.processor.api import Cancellable, PunctuationType, Punctuator
from millrace.records import Headers, RawRecord, RecordContext, TaskId, TopicPartition
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.api import LogChange, StateStore, StoreContext, close_all
from millrace.state.rocksdb import explain
from millrace.topology.physical_topology import Subtopology

_log = logging.getLogger(__name__)

GLOBAL_TASK_ID = TaskId(-1, -1)
_TRASH = ".deleted"
"""The suffix of a store's directory while it is being deleted."""


class GlobalStateTask:
    """The global stores of one instance and the processors that fill them.

    Args:
        subtopology: `BuiltTopology.global_subtopology`.
        config: the application's settings.
        state_dir: `<state.dir>/<application.id>/global`.
        clock: the wall clock (ms).
        dropped: counts dropped records by node and reason, and logs them; None: the task has its own.
    """

    def __init__(
        self,
        subtopology: Subtopology,
        config: StreamsConfig,
        *,
        state_dir: Path,
        clock: Callable[[], int],
        dropped: DroppedRecords | None = None,
    ) -> None:
        self.subtopology = subtopology
        self.config = config
        self.record = RecordContext()
        self.times = TaskTimes(system_time=clock())
        self.counters = TaskCounters()
        self.dropped = DroppedRecords() if dropped is None else dropped
        self._builders = {builder.name: builder for builder in subtopology.store_builders}
        self._store_of = {topic: store for store, topic in subtopology.changelog_topics.items()}
        self._stores: dict[str, StateStore] = {}
        self._state_dir = state_dir
        self._clock = clock
        self._failures = ErrorHandling(
            GLOBAL_TASK_ID, config, self.record, None, self._drop_record, of_global_stores=True
        )
        self._topology: CompiledTopology | None = None
        self._queues: dict[TopicPartition, RecordQueue] = {}

    def __repr__(self) -> str:
        return f"<GlobalStateTask of {', '.join(self._builders) or 'no stores'}>"

    @property
    def stores(self) -> Mapping[str, StateStore]:
        """The stores by name; empty before `open_stores`."""
        return self._stores

    def open_stores(self) -> None:
        """Open the stores, so that their offsets can be read.

        Raises:
            ProcessorStateError: one cannot be opened.
        """
        for trash in self._state_dir.glob(f"*{_TRASH}"):
            shutil.rmtree(trash, ignore_errors=True)
        for name in self._builders:
            self._open(name)

    def _open(self, name: str) -> None:
        store = self._stores[name] = self._builders[name].build()
        store.init(
            StoreContext(
                application_id=self.config.application_id,
                task_id=GLOBAL_TASK_ID,
                config=self.config,
                state_dir=self._state_dir,
                record=self.record,
                cache=None,
                changelog_topics={},
                send_change=_no_changelog,
                now_ms=self._clock,
                drop_record=self._drop_record,
                source_topics=self.subtopology.changelog_topics,
                shared=True,
            )
        )

    def wipe(self, topic: str) -> None:
        """Empty the store that a topic feeds, so that it is filled from the topic's beginning; call it before `initialize`.

        Raises:
            ProcessorStateError: its files cannot be deleted.
        """
        name = self._store_of[topic]
        self._stores[name].close()
        self.delete_files(topic)
        self._open(name)

    def delete_files(self, topic: str) -> None:
        """Delete the files of the store that a topic feeds, once it is closed.

        Raises:
            ProcessorStateError: its files cannot be deleted.
        """
        name = self._store_of[topic]
        for directory in (self._state_dir / "rocksdb" / name, self._state_dir / name):
            if not directory.exists():
                continue
            trash = self._state_dir / f"{name}{_TRASH}"
            try:  # rename first: a crash then leaves the store either complete or out of sight
                directory.rename(trash)
                shutil.rmtree(trash)
            except OSError as error:
                raise explain(error, directory) from error

    def initialize(self) -> None:
        """Start the processors; call it when the stores are open."""
        self._topology = compile_topology(
            self.subtopology.nodes,
            CompileEnv(
                task_id=GLOBAL_TASK_ID,
                config=self.config,
                state_dir=self._state_dir,
                record=self.record,
                times=self.times,
                collector=None,
                failures=self._failures,
                stores=self._stores,
                global_stores=self._stores,
                schedule=_no_schedules,
                drop_record=self._drop_record,
                request_commit=_nothing,
                default_key_serde=default_key_serde(self.config),
                default_value_serde=default_value_serde(self.config),
            ),
        )
        self._topology.init()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of a partition's last record that is on disk in the store it feeds, or None."""
        store = self._stores[self._store_of[partition.topic]]
        return store.committed_offset(partition) if store.persistent else None

    def update(self, partition: TopicPartition, records: Sequence[RawRecord]) -> None:
        """Process records of one partition, as bytes, in offset order.

        Raises:
            SerializationError: a record cannot be read and the deserialisation handler said FAIL.
            FailedProcessingError: a processor raised, and the processing handler said FAIL or was not to be asked
                (`processing.exception.handler.global.enabled`, KIP-1270).
        """
        queue = self._queue(partition)
        self.times.system_time = self._clock()
        queue.raw.extend(records)
        self.counters.records_processed += queue.drain(len(queue))

    def uncommitted_bytes(self) -> int:
        """Return approximately how much memory is held by writes that wait for `commit`."""
        return sum(store.uncommitted_bytes() for store in self._stores.values())

    def commit(self) -> None:
        """Write each store to disk with the offsets of its topic."""
        reached: dict[str, dict[TopicPartition, int]] = {name: {} for name in self._stores}
        for partition, queue in self._queues.items():
            if queue.position is not None:
                reached[self._store_of[partition.topic]][partition] = queue.position - 1
        if self.dropped.summary_due_ms <= (now_ms := self._clock()):
            self.dropped.summarize(now_ms)
        for name, store in self._stores.items():
            store.flush()
            store.commit(reached[name])

    def close(self) -> None:
        """Close processors and stores; writes since the last `commit` are discarded."""
        topology, self._topology = self._topology, None
        try:
            if topology is not None:
                topology.close()
        finally:
            self.dropped.summarize()
            close_all(self._stores.values())

    def _queue(self, partition: TopicPartition) -> RecordQueue:
        queue = self._queues.get(partition)
        if queue is None:
            if self._topology is None:
                raise IllegalTaskStateError("the global task is not initialised")
            source = self._topology.source_for(partition.topic)
            queue = self._queues[partition] = RecordQueue(
                partition,
                source,
                source.timestamp_extractor or default_timestamp_extractor(self.config),
                current=self.record,
                times=self.times,
                failures=self._failures,
                drop_record=self._drop_record,
            )
        return queue

    def _drop_record(self, node: str, reason: DropReason, late_ms: int = 0, allowed_ms: int = 0) -> None:
        self.counters.dropped_records += 1
        place, now_ms = self.subtopology.places.get(node, ""), self.times.system_time
        self.dropped.add(node, reason, now_ms, place=place, late_ms=late_ms, allowed_ms=allowed_ms)


def _no_changelog(partition: TopicPartition) -> LogChange:
    def discard(_key: bytes, _value: bytes | None, _timestamp: int | None, _headers: Headers) -> None:
        _log.debug("Change of a global store for %s is not logged", partition)

    return discard


def _no_schedules(
    node: str, _interval_ms: int, _kind: PunctuationType, _punctuator: Punctuator, _start_ms: int | None
) -> Cancellable:
    raise TopologyError(f"Node {node} updates a global store and cannot schedule punctuators: nothing would drive them")


def _nothing() -> None:
    pass


__all__ = ["GLOBAL_TASK_ID", "GlobalStateTask"]
