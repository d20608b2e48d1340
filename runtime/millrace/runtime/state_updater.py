"""Restores the stores of tasks from their changelogs, in a thread of its own, so that running tasks go on meanwhile.

A task belongs to the updater from `add` until it comes out of `drain_restored` or `drain_failed`, or until the future of
`remove` is done; in between nobody else may touch it. Restoration begins after the offset the store has on disk and ends
at the **high watermark taken at the start**, also under EOS, where the consumer reads committed records only: if a crashed
predecessor left a transaction open there, the end is reached once that is committed or aborted (at most
`transaction.timeout.ms`), and so nothing that is committed can be missed. Stores that are copies of a source topic end at
the group's committed offset instead, because what follows has yet to be processed.

Progress is put on disk every `commit.interval.ms` (at least 5 s), so a crash resumes. An offset that the
changelog does not have (truncated, or created anew) means the store cannot be completed: `TaskCorruptedError`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.errors import MissingInternalTopicsError, StreamsError, TaskCorruptedError
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.records import NO_HEADERS, Headers, TaskId, TopicPartition
from millrace.state.api import ChangelogRecord, StateStore

__all__ = ["FailedTask", "RestoreListener", "StateUpdater"]

_log = logging.getLogger(__name__)
_BATCH: Final = 2_000
_WAIT_S: Final = 0.1
_COMMIT_AT_LEAST_EVERY_S: Final = 5.0
_LOG_EVERY_S: Final = 10.0


class RestoreListener(Protocol):
    """Told how restoration goes (Kafka Streams' StateRestoreListener); called from the updater's thread."""

    def on_restore_start(self, partition: TopicPartition, store: str, start_offset: int, end_offset: int) -> None:
        """Restoration of a store begins at an offset and will end before another."""

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        """A batch of records was applied; its last offset is `batch_end_offset`."""

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """A store is complete."""

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """Restoration stopped before the end, because the task went elsewhere or failed."""


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that cannot be restored, and why."""

    task: StreamTask
    error: Exception


@dataclass(slots=True)
class _Changelog:
    """One changelog partition on its way to its end."""

    task: StreamTask
    partition: TopicPartition
    store: StateStore
    next_offset: int
    end_offset: int
    restored: int = 0
    uncommitted: bool = False

    @property
    def remaining(self) -> int:
        return max(0, self.end_offset - self.next_offset)


@dataclass(slots=True)
class _Restoring:
    """A task and what is left of its changelogs."""

    task: StreamTask
    changelogs: dict[TopicPartition, _Changelog] = field(default_factory=dict)


class StateUpdater:
    """The restoration thread of one stream thread.

    Args:
        name: of the thread.
        open_consumer: opens the restore consumer; called in the updater's thread.
        admin: used for the changelogs' first and last offsets.
        config: the application's.
        listener: told how restoration goes.
    """

    def __init__(
        self,
        name: str,
        open_consumer: Callable[[], Consumer],
        admin: AdminClient,
        config: StreamsConfig,
        listener: RestoreListener | None = None,
    ) -> None:
        self._open_consumer = open_consumer
        self._admin = admin
        self._timeout_s = config.task_timeout_ms / 1000
        self._commit_every_s = max(_COMMIT_AT_LEAST_EVERY_S, config.commit_interval_ms / 1000)
        self._uncommitted_max_bytes = config.uncommitted_max_bytes
        self._listener = listener
        self._condition = threading.Condition()
        self._added: deque[tuple[StreamTask, Mapping[TopicPartition, int]]] = deque()
        self._removals: deque[tuple[TaskId, Future[StreamTask | None]]] = deque()
        self._restored: deque[StreamTask] = deque()
        self._failed: deque[FailedTask] = deque()
        self._tasks: dict[TaskId, _Restoring] = {}
        self._active: dict[TopicPartition, _Changelog] = {}
        self._stopping = False
        self._consumer: Consumer | None = None
        self._last_commit = self._last_log = time.monotonic()
        self.restored_total = 0
        """Changelog records applied so far."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Stop the thread; tasks still in it may be closed afterwards."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def add(self, task: StreamTask, limits: Mapping[TopicPartition, int]) -> None:
        """Hand a task over to be restored.

        Args:
            task: its stores are open.
            limits: where to stop instead of the end, for changelogs that are source topics.
        """
        with self._condition:
            self._added.append((task, limits))
            self._condition.notify_all()

    def remove(self, task_id: TaskId) -> Future[StreamTask | None]:
        """Take a task back; the future gives it once it is no longer touched, or None if the updater has it not."""
        future: Future[StreamTask | None] = Future()
        with self._condition:
            self._removals.append((task_id, future))
            self._condition.notify_all()
        if not self._thread.is_alive():
            self._take_actions()
        return future

    def drain_restored(self) -> list[StreamTask]:
        """Return the tasks whose stores are complete, since the last call."""
        return _drain(self._restored)

    def drain_failed(self) -> list[FailedTask]:
        """Return the tasks that cannot be restored, since the last call."""
        return _drain(self._failed)

    def remaining(self) -> dict[TopicPartition, int]:
        """Return how many offsets are left per changelog partition; approximate while the thread runs."""
        return {changelog.partition: changelog.remaining for changelog in list(self._active.values())}

    def progress(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return (next offset, end offset) of each changelog partition that is being restored."""
        return {item.partition: (item.next_offset, item.end_offset) for item in list(self._active.values())}

    @property
    def idle(self) -> bool:
        """Whether nothing is being restored and nothing waits to be."""
        return not (self._added or self._tasks or self._restored or self._failed)

    # The thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_actions()
                if self._active:
                    self._restore_some()
                    self._commit_and_log_if_due()
                else:
                    with self._condition:
                        if not (self._added or self._removals or self._stopping):
                            self._condition.wait()
        except Exception as error:
            _log.exception("%s failed", threading.current_thread().name)
            self._fail_all(error)
        finally:
            self._stopping = True
            for restoring in list(self._tasks.values()):
                self._let_go(restoring, suspended=True)
            self._take_actions()
            if self._consumer is not None:
                self._consumer.close()

    def _take_actions(self) -> None:
        with self._condition:
            added, removals = _drain(self._added), _drain(self._removals)
        if added and not self._stopping:
            self._begin(added)
        elif added:
            self._failed.extend(FailedTask(task, StreamsError("The state updater is stopped")) for task, _ in added)
        for task_id, future in removals:
            restoring = self._tasks.get(task_id)
            task = None
            if restoring is not None:
                task = restoring.task
                self._let_go(restoring, suspended=True)
            else:
                task = self._take_finished(task_id)
            future.set_result(task)

    def _take_finished(self, task_id: TaskId) -> StreamTask | None:
        for task in list(self._restored):
            if task.task_id == task_id:
                self._restored.remove(task)
                return task
        for failed in list(self._failed):
            if failed.task.task_id == task_id:
                self._failed.remove(failed)
                return failed.task
        return None

    def _begin(self, added: list[tuple[StreamTask, Mapping[TopicPartition, int]]]) -> None:
        partitions = [partition for task, _ in added for partition in task.changelogs]
        try:
            ends = latest_offsets(self._admin, partitions, self._timeout_s) if partitions else {}
            beginnings = earliest_offsets(self._admin, partitions, self._timeout_s) if partitions else {}
        except StreamsError as error:
            self._failed.extend(FailedTask(task, error) for task, _ in added)
            return
        begun: list[ClientTopicPartition] = []
        for task, limits in added:
            restoring = _Restoring(task)
            try:
                for partition, store in task.changelogs.items():
                    end = min(ends[partition], limits.get(partition, ends[partition]))
                    self._begin_changelog(restoring, partition, store, beginnings[partition], end, ends[partition])
            except StreamsError as error:
                self._failed.append(FailedTask(task, error))
                continue
            self._tasks[task.task_id] = restoring
            for changelog in restoring.changelogs.values():
                self._active[changelog.partition] = changelog
                begun.append(
                    ClientTopicPartition(
                        changelog.partition.topic, changelog.partition.partition, changelog.next_offset
                    )
                )
            self._finish_if_done(restoring)
        if begun:
            if self._consumer is None:
                self._consumer = self._open_consumer()
            self._consumer.incremental_assign(begun)

    def _begin_changelog(
        self,
        restoring: _Restoring,
        partition: TopicPartition,
        store: StateStore,
        beginning: int,
        end: int,
        log_end: int,
    ) -> None:
        committed = store.committed_offset(partition)
        start = beginning if committed is None else committed + 1
        if start < beginning or start > log_end:
            raise TaskCorruptedError(
                frozenset({restoring.task.task_id}),
                f"Store {store.name} of task {restoring.task.task_id} is at offset {start} of {partition}, which has "
                f"offsets {beginning} to {log_end} only: its state is wiped and restored from the beginning",
            )
        if start >= end:
            if self._listener is not None:  # Java tells of complete stores too
                self._listener.on_restore_start(partition, store.name, start, end)
                self._listener.on_restore_end(partition, store.name, 0)
            return
        restoring.changelogs[partition] = _Changelog(restoring.task, partition, store, start, end)
        _log.info(
            "Restoring store %s of task %s from %s, offsets %d to %d",
            store.name,
            restoring.task.task_id,
            partition,
            start,
            end,
        )
        if self._listener is not None:
            self._listener.on_restore_start(partition, store.name, start, end)

    def _restore_some(self) -> None:
        assert self._consumer is not None
        messages = self._consumer.consume(_BATCH, 0)
        if not messages:
            message = self._consumer.poll(_WAIT_S)
            messages = [] if message is None else [message]
        batches: dict[TopicPartition, list[ChangelogRecord]] = {}
        last: _Changelog | None = None
        batch: list[ChangelogRecord] = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_error(error, message)
                continue
            topic, number, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert number is not None
            assert offset is not None
            if last is None or last.partition.partition != number or last.partition.topic != topic:
                last = self._active.get(TopicPartition(topic, number))
                if last is None:
                    continue
                batch = batches.setdefault(last.partition, [])
            if offset >= last.end_offset:
                last.next_offset = max(last.next_offset, last.end_offset)
                continue
            last.next_offset = offset + 1
            key = message.key()
            if key is not None:
                headers = message.headers()
                batch.append(
                    ChangelogRecord(
                        key,
                        message.value(),
                        message.timestamp()[1],
                        offset,
                        Headers(headers) if headers else NO_HEADERS,  # type: ignore[arg-type]
                    )
                )
        for partition, records in batches.items():
            self._apply(partition, records)
        for restoring in {
            changelog.task.task_id: changelog.task for changelog in self._active.values() if not changelog.remaining
        }:
            self._finish_if_done(self._tasks[restoring])

    def _apply(self, partition: TopicPartition, records: list[ChangelogRecord]) -> None:
        changelog = self._active.get(partition)
        if changelog is None or not records:
            return
        try:
            changelog.store.restore(records)
            changelog.restored += len(records)
            changelog.uncommitted = True
            self.restored_total += len(records)
            if changelog.store.uncommitted_bytes() > self._uncommitted_max_bytes:
                self._commit(changelog)
            if self._listener is not None:
                self._listener.on_batch_restored(partition, changelog.store.name, records[-1].offset, len(records))
        except Exception as error:
            self._fail(changelog.task.task_id, error)

    def _on_error(self, error: KafkaError, message: Message) -> None:
        topic, number = message.topic(), message.partition()
        changelog = None
        if topic is not None and number is not None:
            changelog = self._active.get(TopicPartition(topic, number))
        if changelog is None:
            _log.debug("Restore consumer: %s", error)
            return
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # Everything below is read; this also passes control records and aborted ones.
            changelog.next_offset = max(changelog.next_offset, message.offset() or 0)
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
            ids = frozenset[object]({changelog.task.task_id})
            text = (
                f"{changelog.partition} no longer has offset {changelog.next_offset}: the state of task "
                f"{changelog.task.task_id} is wiped and restored from the beginning"
            )
            self._fail(changelog.task.task_id, TaskCorruptedError(ids, text))
        elif code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):  # noqa: SLF001
            text = f"Changelog {changelog.partition} is gone ({error.str()}): was the topic deleted while the application ran?"
            self._fail(changelog.task.task_id, MissingInternalTopicsError(text))
        elif error.retriable() or not error.fatal():
            _log.warning("Restoring %s: %s; trying again", changelog.partition, error)
        else:
            self._fail(changelog.task.task_id, StreamsError(f"Cannot restore {changelog.partition}: {error.str()}"))

    def _finish_if_done(self, restoring: _Restoring) -> None:
        if any(changelog.remaining for changelog in restoring.changelogs.values()):
            return
        try:
            for changelog in restoring.changelogs.values():
                self._commit(changelog)
                _log.info(
                    "Restored store %s of task %s: %d records",
                    changelog.store.name,
                    restoring.task.task_id,
                    changelog.restored,
                )
                if self._listener is not None:
                    self._listener.on_restore_end(changelog.partition, changelog.store.name, changelog.restored)
        except Exception as error:
            self._fail(restoring.task.task_id, error)
            return
        self._let_go(restoring, suspended=False)
        self._restored.append(restoring.task)

    def _commit(self, changelog: _Changelog) -> None:
        changelog.store.commit({changelog.partition: changelog.next_offset - 1})
        changelog.uncommitted = False

    def _commit_and_log_if_due(self) -> None:
        now = time.monotonic()
        if now - self._last_commit >= self._commit_every_s:
            self._last_commit = now
            for changelog in list(self._active.values()):
                if changelog.uncommitted:
                    try:
                        self._commit(changelog)
                    except Exception as error:
                        self._fail(changelog.task.task_id, error)
        if now - self._last_log >= _LOG_EVERY_S:
            self._last_log = now
            left = sum(changelog.remaining for changelog in self._active.values())
            _log.info("Restoring %d tasks: %d records left in %d changelogs", len(self._tasks), left, len(self._active))

    def _fail(self, task_id: TaskId, error: Exception) -> None:
        restoring = self._tasks.get(task_id)
        if restoring is not None:
            self._let_go(restoring, suspended=True)
            self._failed.append(FailedTask(restoring.task, error))

    def _fail_all(self, error: Exception) -> None:
        for task_id in list(self._tasks):
            restoring = self._tasks.pop(task_id)
            self._failed.append(FailedTask(restoring.task, error))
        self._active.clear()

    def _let_go(self, restoring: _Restoring, *, suspended: bool) -> None:
        self._tasks.pop(restoring.task.task_id, None)
        partitions = [partition for partition in restoring.changelogs if self._active.pop(partition, None) is not None]
        if suspended and self._listener is not None:
            for changelog in restoring.changelogs.values():
                self._listener.on_restore_suspended(changelog.partition, changelog.store.name, changelog.restored)
        if partitions and self._consumer is not None:
            try:
                assigned = {(tp.topic, tp.partition) for tp in self._consumer.assignment()}
                gone = [ClientTopicPartition(*partition) for partition in partitions if partition in assigned]
                if gone:
                    self._consumer.incremental_unassign(gone)
            except KafkaException as error:
                _log.warning("Cannot give up changelogs: %s", error)


_Item = TypeVar("_Item")


def _drain(queue: deque[_Item]) -> list[_Item]:
    taken: list[_Item] = []
    while queue:
        taken.append(queue.popleft())
    return taken
