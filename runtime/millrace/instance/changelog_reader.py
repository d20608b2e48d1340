"""Reads changelogs for the tasks that are being restored; used by the state updater's thread only.

Restoration ends at the **high watermark taken at the start**, even under EOS, where the consumer reads committed records only: if
a crashed predecessor left a transaction open there, the end is reached once it is committed or aborted (after
`transaction.timeout.ms` at the latest), so nothing that is committed can be missed. Stores that are copies of a source topic end
at the group's committed offset instead, because what follows has yet to be processed.

A task leaves the reader complete (`restored`), with an error (`failed`), or because it is taken back (`let_go`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.errors import MissingInternalTopicsError, StreamsError, TaskCorruptedError, of_thread
from millrace.instance.background import BackgroundQueries
from millrace.instance.restoration import (
    ChangelogRestoration,
    FailedTask,
    RestoreListener,
    TaskRestoration,
    begin_changelog,
)
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.records import NO_HEADERS, Headers, TaskId, TopicPartition
from millrace.state.api import ChangelogRecord

__all__ = ["ChangelogReader"]

_log = logging.getLogger(__name__)
_BATCH: Final = 2_000
_WAIT_S: Final = 0.1
_COMMIT_AT_LEAST_EVERY_S: Final = 5.0
_LOG_EVERY_S: Final = 10.0
_LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
_GONE: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
)


class ChangelogReader:
    """Restores tasks.

    Args:
        open_consumer: opens the restore consumer when the first changelog is to be read.
        admin: used for the changelogs' first and last offsets.
        config: the application's.
        listener: notified of restoration progress.
    """

    def __init__(
        self,
        open_consumer: Callable[[], Consumer],
        admin: AdminClient,
        config: StreamsConfig,
        listener: RestoreListener | None = None,
    ) -> None:
        self._open_consumer = open_consumer
        self._admin = admin
        self._commit_every_s = max(_COMMIT_AT_LEAST_EVERY_S, config.commit_interval_ms / 1000)
        self._uncommitted_max_bytes = config.uncommitted_max_bytes
        self._listener = listener
        self._consumer: Consumer | None = None
        self._last_commit = self._last_log = time.monotonic()
        self._asked: dict[TaskId, tuple[StreamTask, Mapping[TopicPartition, int]]] = {}
        """Tasks whose changelog offsets have been requested, with where to stop."""
        self._offsets: BackgroundQueries[TaskId, dict[TopicPartition, range]] = BackgroundQueries(
            self._read_offsets, config.task_timeout_ms / 1000
        )
        self._tasks: dict[TaskId, TaskRestoration] = {}
        self._active: dict[TopicPartition, ChangelogRestoration] = {}
        self.restored: deque[StreamTask] = deque()
        """Tasks whose stores are complete."""
        self.failed: deque[FailedTask] = deque()
        """Tasks that cannot be restored."""
        self.restored_total = 0
        """Changelog records applied so far."""

    @property
    def changelogs(self) -> list[ChangelogRestoration]:
        """The changelogs that are being read; may be called in any thread."""
        return list(self._active.values())

    @property
    def has_work(self) -> bool:
        """Whether any changelog is being read."""
        return bool(self._active)

    @property
    def asks(self) -> bool:
        """Whether the offsets of some changelogs have been requested and are not yet known."""
        return bool(self._asked)

    # Adding and removing tasks

    def begin(self, added: Collection[tuple[StreamTask, Mapping[TopicPartition, int]]]) -> None:
        """Begin to restore tasks, each with the offsets at which to stop early in changelogs that are source topics."""
        logged = {task.task_id: (task, limits) for task, limits in added if task.changelogs}
        self.restored.extend(task for task, _ in added if not task.changelogs)
        if logged:
            self._asked.update(logged)
            self._offsets.add(logged)

    def _read_offsets(self, task_ids: list[TaskId], timeout_s: float) -> dict[TopicPartition, range]:
        """Return the offsets in the changelogs of tasks; called in a separate thread."""
        asked = self._asked.copy()
        partitions = [
            partition for task_id in task_ids if task_id in asked for partition in asked[task_id][0].changelogs
        ]
        ends = latest_offsets(self._admin, partitions, timeout_s)
        beginnings = earliest_offsets(self._admin, partitions, timeout_s)
        return {partition: range(beginnings[partition], ends[partition]) for partition in partitions}

    def take_offsets(self) -> None:
        """Begin to read the changelogs whose offsets have become known."""
        begun: list[ClientTopicPartition] = []
        for task_id, answer in self._offsets.take():
            task, limits = self._asked.pop(task_id)
            restoration = TaskRestoration(task)
            try:
                known = answer.result()
                for partition in task.changelogs:
                    offsets = known[partition]
                    end = min(offsets.stop, limits.get(partition, offsets.stop))
                    changelog = begin_changelog(task, partition, offsets, end, self._listener)
                    if changelog is not None:
                        restoration.changelogs[partition] = changelog
            except BaseException as error:  # the brokers, the store or the listener failed, for this task only
                self.failed.append(FailedTask(task, of_thread(error)))
                continue
            self._tasks[task.task_id] = restoration
            self._active.update(restoration.changelogs)
            begun += [
                ClientTopicPartition(*partition, changelog.next_offset)
                for partition, changelog in restoration.changelogs.items()
            ]
            self._finish_if_done(restoration)
        if begun:
            if self._consumer is None:
                self._consumer = self._open_consumer()
            self._consumer.incremental_assign(begun)

    def let_go(self, task_id: TaskId) -> StreamTask | None:
        """Stop restoring a task and return it; None if it is not being restored."""
        if task_id in self._asked:
            self._offsets.discard(task_id)
            return self._asked.pop(task_id)[0]
        restoration = self._tasks.get(task_id)
        if restoration is None:
            return None
        self._remove(restoration)
        for changelog in restoration.changelogs.values():
            changelog.suspend()
        return restoration.task

    def let_all_go(self) -> None:
        """Stop restoring every task."""
        for task_id in [*self._asked, *self._tasks]:
            self.let_go(task_id)

    def fail_all(self, error: Exception) -> None:
        """Give up every task, because the reader cannot continue."""
        tasks = [task for task, _ in self._asked.values()] + [restoration.task for restoration in self._tasks.values()]
        self.failed.extend(FailedTask(task, error) for task in tasks)
        self._asked.clear()
        self._tasks.clear()
        self._active.clear()

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()

    def _remove(self, restoration: TaskRestoration) -> None:
        self._tasks.pop(restoration.task.task_id, None)
        partitions = [
            partition for partition in restoration.changelogs if self._active.pop(partition, None) is not None
        ]
        if partitions and self._consumer is not None:
            try:
                assigned = {(tp.topic, tp.partition) for tp in self._consumer.assignment()}
                gone = [ClientTopicPartition(*partition) for partition in partitions if partition in assigned]
                if gone:
                    self._consumer.incremental_unassign(gone)
            except KafkaException as error:
                _log.warning("Cannot give up changelogs: %s", error)

    def _finish_if_done(self, restoration: TaskRestoration) -> None:
        if any(changelog.remaining for changelog in restoration.changelogs.values()):
            return
        try:
            for changelog in restoration.changelogs.values():
                changelog.finish()
        except BaseException as error:  # the store or the listener failed, for this task only
            self._fail(restoration.task.task_id, error)
            return
        self._remove(restoration)
        self.restored.append(restoration.task)

    def _fail(self, task_id: TaskId, error: BaseException) -> None:
        task = self.let_go(task_id)
        if task is not None:
            self.failed.append(FailedTask(task, of_thread(error)))

    # Reading

    def read(self) -> None:
        """Read and apply some records, waiting a moment for them; write progress to disk when that is due."""
        assert self._consumer is not None
        messages = self._consumer.consume(_BATCH, 0)
        if not messages:
            first = self._consumer.poll(_WAIT_S)
            messages = [] if first is None else [first, *self._consumer.consume(_BATCH - 1, 0)]
        for partition, records in self._sort(messages).items():
            self._apply(partition, records)
        for task_id in {changelog.task.task_id for changelog in self._active.values() if not changelog.remaining}:
            self._finish_if_done(self._tasks[task_id])
        self._commit_and_log_if_due()

    def _sort(self, messages: list[Message]) -> dict[TopicPartition, list[ChangelogRecord]]:
        batches: dict[TopicPartition, list[ChangelogRecord]] = {}
        last: ChangelogRestoration | None = None
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
                last.skip_to(last.end_offset)
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
        return batches

    def _apply(self, partition: TopicPartition, records: list[ChangelogRecord]) -> None:
        changelog = self._active.get(partition)
        if changelog is None or not records:
            return
        try:
            changelog.apply(records, self._uncommitted_max_bytes)
        except BaseException as error:  # as above
            self._fail(changelog.task.task_id, error)
        else:
            self.restored_total += len(records)

    def _on_error(self, error: KafkaError, message: Message) -> None:
        topic, number = message.topic(), message.partition()
        changelog = None
        if topic is not None and number is not None:
            changelog = self._active.get(TopicPartition(topic, number))
        if changelog is None:
            _log.debug("Restore consumer: %s", error)
            return
        task_id = changelog.task.task_id
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # Everything below has been read; this also skips control records and aborted ones.
            changelog.skip_to(message.offset() or 0)
        elif error.code() in _LOST:
            text = (
                f"{changelog.partition} no longer has offset {changelog.next_offset}: the state of task {task_id} is wiped "
                "and restored from the beginning"
            )
            self._fail(task_id, TaskCorruptedError(frozenset({task_id}), text))
        elif error.code() in _GONE:
            text = f"Changelog {changelog.partition} is gone ({error.str()}): was the topic deleted while the application ran?"
            self._fail(task_id, MissingInternalTopicsError(text))
        elif error.retriable() or not error.fatal():
            _log.warning("Restoring %s: %s; trying again", changelog.partition, error)
        else:
            self._fail(task_id, StreamsError(f"Cannot restore {changelog.partition}: {error.str()}"))

    def _commit_and_log_if_due(self) -> None:
        now = time.monotonic()
        if now - self._last_commit >= self._commit_every_s:
            self._last_commit = now
            for changelog in self.changelogs:
                if changelog.uncommitted:
                    try:
                        changelog.commit()
                    except BaseException as error:  # as above
                        self._fail(changelog.task.task_id, error)
        if now - self._last_log >= _LOG_EVERY_S:
            self._last_log = now
            left = sum(changelog.remaining for changelog in self._active.values())
            _log.info("Restoring %d tasks: %d records left in %d changelogs", len(self._tasks), left, len(self._active))
