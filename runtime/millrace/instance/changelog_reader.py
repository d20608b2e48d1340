"""Reads changelogs for tasks that are being restored and for standbys; used by the state updater's thread only.

Restoration ends at the **high watermark taken at the start**, although the consumer reads committed records only: if a
crashed predecessor or a backfill left a transaction open there, the end is reached once it is committed or aborted (after
`transaction.timeout.ms` at the latest), so no committed record can be missed. The last stable offset is not enough: under
at-least-once an application's own records, which have no transaction, may follow the open one. Stores that are copies of a
source topic end at the group's committed offset instead, because what follows has yet to be processed.

Standbys have no end. While any task is being restored they are not read, since nobody waits for them. A task leaves the
reader complete (`restored`), with an error (`failed`), or when it is taken back (`let_go`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.errors import MissingInternalTopicsError, StreamsError, TaskCorruptedError, of_thread
from millrace.instance.background import BackgroundQueries
from millrace.instance.task_restoration import (
    NO_LIMIT,
    ChangelogRestoration,
    FailedTask,
    RestoreListener,
    StandbyUpdate,
    StandbyUpdateListener,
    SuspendReason,
    UpdatedTask,
    begin_changelog,
    begin_update,
)
from millrace.kafka.message_headers import mend_headers
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.records import NO_HEADERS, Headers, TaskId, TopicPartition
from millrace.state.api import ChangelogRecord

__all__ = ["AddedTask", "ChangelogReader"]

_log = logging.getLogger(__name__)
_BATCH: Final = 2_000
_WAIT_S: Final = 0.1
_COMMIT_AT_LEAST_EVERY_S: Final = 5.0
_LOG_EVERY_S: Final = 10.0
_LOG_OPEN_TRANSACTION_EVERY_S: Final = 30.0
_LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
_GONE: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
)


class AddedTask(NamedTuple):
    """A task to restore, or a standby to keep up to date."""

    task: StreamTask
    limits: Mapping[TopicPartition, int]
    """Where to stop in changelogs that are source topics."""
    standby: bool


class ChangelogReader:
    """Restores tasks, and keeps standbys up to date.

    Args:
        open_consumer: opens the restore consumer for the first changelog.
        admin: used for the changelogs' first and last offsets.
        config: the application's.
        listener: notified of restoration progress.
        standby_listener: notified of updates of standbys.
    """

    def __init__(
        self,
        open_consumer: Callable[[], Consumer],
        admin: AdminClient,
        config: StreamsConfig,
        listener: RestoreListener | None = None,
        standby_listener: StandbyUpdateListener | None = None,
    ) -> None:
        self._open_consumer = open_consumer
        self._admin = admin
        self._commit_every_s = max(_COMMIT_AT_LEAST_EVERY_S, config.commit_interval_ms / 1000)
        self._uncommitted_max_bytes = config.uncommitted_max_bytes
        self._listener = listener
        self._standby_listener = standby_listener
        self._consumer: Consumer | None = None
        self._last_commit = self._last_log = time.monotonic()
        self._asked: dict[TaskId, AddedTask] = {}
        """Tasks whose changelog offsets have been requested."""
        self._offsets: BackgroundQueries[TaskId, dict[TopicPartition, range]] = BackgroundQueries(
            self._read_offsets, config.task_timeout_ms / 1000
        )
        self._tasks: dict[TaskId, UpdatedTask] = {}
        self._changelogs: dict[TopicPartition, ChangelogRestoration | StandbyUpdate] = {}
        self._assigned: set[TopicPartition] = set()
        """The changelogs that the consumer reads."""
        self.restored: deque[StreamTask] = deque()
        """Tasks whose stores are complete."""
        self.failed: deque[FailedTask] = deque()
        """Tasks that cannot be restored."""
        self.restored_total = 0
        """Changelog records restored so far, standbys excluded."""

    @property
    def changelogs(self) -> list[ChangelogRestoration | StandbyUpdate]:
        """The changelogs of all tasks; may be called in any thread."""
        return list(self._changelogs.values())

    @property
    def has_tasks(self) -> bool:
        """Whether any task has changelogs to read, now or later."""
        return bool(self._changelogs)

    @property
    def tasks(self) -> list[StreamTask]:
        """The tasks that are being restored or updated, or will be once their changelogs' offsets are known."""
        return [each.task for each in self._asked.values()] + [each.task for each in self._tasks.values()]

    @property
    def asks(self) -> bool:
        """Whether the offsets of some changelogs have been requested and are not yet known."""
        return bool(self._asked)

    # Adding and removing tasks

    def begin(self, added: Collection[AddedTask]) -> None:
        """Begin to restore or update tasks."""
        logged = {each.task.task_id: each for each in added if each.task.changelogs}
        self.restored.extend(each.task for each in added if not each.task.changelogs)
        if logged:
            self._asked.update(logged)
            self._offsets.add(logged)

    def _read_offsets(self, task_ids: list[TaskId], timeout_s: float) -> dict[TopicPartition, range]:
        """Return the offsets in the changelogs of tasks; called in a separate thread."""
        asked = self._asked.copy()
        partitions = [
            partition for task_id in task_ids if task_id in asked for partition in asked[task_id].task.changelogs
        ]
        ends = latest_offsets(self._admin, partitions, timeout_s)
        beginnings = earliest_offsets(self._admin, partitions, timeout_s)
        return {partition: range(beginnings[partition], ends[partition]) for partition in partitions}

    def take_offsets(self) -> None:
        """Begin to read the changelogs whose offsets have become known."""
        for task_id, answer in self._offsets.take():
            task, limits, standby = self._asked.pop(task_id)
            updated = UpdatedTask(task, standby)
            try:
                known = answer.result()
                for partition in task.changelogs:
                    offsets = known[partition]
                    if standby:
                        limit = limits.get(partition, NO_LIMIT)
                        updated.changelogs[partition] = begin_update(
                            task, partition, offsets, limit, self._standby_listener
                        )
                        continue
                    end = min(offsets.stop, limits.get(partition, offsets.stop))
                    restoration = begin_changelog(task, partition, offsets, end, self._listener)
                    if restoration is not None:
                        updated.changelogs[partition] = restoration
            except BaseException as error:  # the brokers, the store or the listener failed, for this task only
                _suspend(updated, SuspendReason.MIGRATED)
                self.failed.append(FailedTask(task, of_thread(error)))
                continue
            self._tasks[task.task_id] = updated
            self._changelogs.update(updated.changelogs)
            self._finish_if_done(updated)

    def limit(self, limits: Mapping[TopicPartition, int]) -> None:
        """Let standbys follow source topics up to these offsets."""
        for partition, limit in limits.items():
            changelog = self._changelogs.get(partition)
            if isinstance(changelog, StandbyUpdate) and changelog.end_offset != NO_LIMIT:
                changelog.end_offset = max(changelog.end_offset, limit)

    def let_go(self, task: StreamTask, reason: SuspendReason = SuspendReason.MIGRATED) -> bool:
        """Stop reading for a task and write the applied records to disk; return whether the task was here."""
        asked, updated = self._asked.get(task.task_id), self._tasks.get(task.task_id)
        if asked is not None and asked.task is task:
            self._offsets.discard(task.task_id)
            del self._asked[task.task_id]
            return True
        if updated is None or updated.task is not task:
            return False
        for changelog in updated.changelogs.values():
            if not changelog.progressed:
                continue
            try:
                changelog.commit()
            except Exception as error:  # it stays in the open store, or else is restored again
                _log.warning("Cannot write store %s of task %s: %s", changelog.store.name, task.task_id, error)
        self._drop(updated, reason)
        return True

    def let_all_go(self) -> None:
        """Stop reading for every task."""
        for task in self.tasks:
            self.let_go(task)

    def fail_all(self, error: Exception) -> None:
        """Give up every task, because the reader cannot continue."""
        tasks = self.tasks
        for updated in self._tasks.values():
            _suspend(updated, SuspendReason.MIGRATED)
        self.failed.extend(FailedTask(task, error) for task in tasks)
        self._asked.clear()
        self._tasks.clear()
        self._changelogs.clear()

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()

    def _drop(self, updated: UpdatedTask, reason: SuspendReason) -> None:
        self._remove(updated)
        _suspend(updated, reason)

    def _remove(self, updated: UpdatedTask) -> None:
        self._tasks.pop(updated.task.task_id, None)
        for partition in updated.changelogs:
            self._changelogs.pop(partition, None)
        self._unassign(self._assigned & updated.changelogs.keys())

    def _finish_if_done(self, updated: UpdatedTask) -> None:
        restorations = [each for each in updated.changelogs.values() if isinstance(each, ChangelogRestoration)]
        if updated.standby or any(each.remaining for each in restorations):
            return
        try:
            for restoration in restorations:
                restoration.finish()
        except BaseException as error:  # the store or the listener failed, for this task only
            self._fail(updated.task.task_id, error)
            return
        self._remove(updated)
        self.restored.append(updated.task)

    def _fail(self, task_id: TaskId, error: BaseException) -> None:
        updated = self._tasks.get(task_id)
        if updated is not None:
            self._drop(updated, SuspendReason.MIGRATED)
            self.failed.append(FailedTask(updated.task, of_thread(error)))

    # Reading

    def _assign(self) -> bool:
        """Assign the changelogs whose turn it is to the consumer; return whether there are any."""
        restoring = any(not each.standby for each in self._tasks.values())
        wanted = {
            partition: changelog
            for partition, changelog in self._changelogs.items()
            if changelog.next_offset < changelog.end_offset and not (restoring and isinstance(changelog, StandbyUpdate))
        }
        self._unassign(self._assigned - wanted.keys())
        new = [
            ClientTopicPartition(*partition, changelog.next_offset)
            for partition, changelog in wanted.items()
            if partition not in self._assigned
        ]
        if new:
            if self._consumer is None:
                self._consumer = self._open_consumer()
            self._consumer.incremental_assign(new)
            self._assigned = set(wanted)
        return bool(wanted)

    def _unassign(self, partitions: Collection[TopicPartition]) -> None:
        if partitions and self._consumer is not None:
            self._assigned.difference_update(partitions)
            try:
                self._consumer.incremental_unassign([ClientTopicPartition(*partition) for partition in partitions])
            except KafkaException as error:
                _log.warning("Cannot give up changelogs: %s", error)

    def read(self) -> bool:
        """Read and apply some records, waiting a moment for them; return whether there is anything to read."""
        if not self._assign():
            return False
        assert self._consumer is not None
        messages = self._consumer.consume(_BATCH, 0)
        if not messages:
            first = self._consumer.poll(_WAIT_S)
            messages = [] if first is None else [first, *self._consumer.consume(_BATCH - 1, 0)]
        for partition, records in self._sort(messages).items():
            self._apply(partition, records)
        # The consumer may be beyond an end, and a standby's end may move before the next call.
        ended = {each.partition for each in self.changelogs if each.next_offset >= each.end_offset}
        self._unassign(self._assigned & ended)
        for updated in list(self._tasks.values()):
            if not updated.standby:
                self._finish_if_done(updated)
        return True

    def _sort(self, messages: list[Message]) -> dict[TopicPartition, list[ChangelogRecord]]:
        batches: dict[TopicPartition, list[ChangelogRecord]] = {}
        changelog: ChangelogRestoration | StandbyUpdate | None = None
        topic, number, end = "", -1, 0
        append: Callable[[ChangelogRecord], None] = list[ChangelogRecord]().append
        new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
        some_headers = mend_headers(messages)
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_error(error, message)
                changelog = None  # its end may have moved
                continue
            if message.partition() != number or message.topic() != topic or changelog is None:
                topic, number = message.topic(), message.partition()  # type: ignore[assignment]
                changelog = self._changelogs.get((topic, number))  # type: ignore[call-overload]
                if changelog is None:
                    continue
                end = changelog.end_offset
                append = batches.setdefault(changelog.partition, []).append
            offset: int = message.offset()  # type: ignore[assignment]
            if offset >= end:
                changelog.skip_to(offset)
                continue
            changelog.next_offset = offset + 1
            key = message.key()
            if key is not None:
                append(
                    new(
                        ChangelogRecord,
                        (
                            key,
                            message.value(),
                            message.timestamp()[1],
                            offset,
                            new(Headers, message.headers())  # type: ignore[arg-type]
                            if some_headers and message.headers()
                            else NO_HEADERS,
                        ),
                    )
                )
        return batches

    def _apply(self, partition: TopicPartition, records: list[ChangelogRecord]) -> None:
        changelog = self._changelogs.get(partition)
        if changelog is None or not records:
            return
        try:
            if isinstance(changelog, StandbyUpdate):
                self._note_end(changelog)
            changelog.apply(records, self._uncommitted_max_bytes)
        except BaseException as error:  # as above
            self._fail(changelog.task.task_id, error)
        else:
            if isinstance(changelog, ChangelogRestoration):
                self.restored_total += len(records)

    def _note_end(self, changelog: StandbyUpdate) -> None:
        assert self._consumer is not None
        _, end = self._consumer.get_watermark_offsets(ClientTopicPartition(*changelog.partition), cached=True)
        changelog.log_end = max(changelog.log_end, changelog.next_offset, end)

    def _on_error(self, error: KafkaError, message: Message) -> None:
        topic, number = message.topic(), message.partition()
        changelog = None
        if topic is not None and number is not None:
            changelog = self._changelogs.get(TopicPartition(topic, number))
        if changelog is None:
            _log.debug("Restore consumer: %s", error)
            return
        task_id = changelog.task.task_id
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # Everything below has been read; this also skips control records and aborted ones.
            changelog.skip_to(message.offset() or 0)
            if isinstance(changelog, StandbyUpdate):
                self._note_end(changelog)
            elif changelog.remaining:
                changelog.committed_end = changelog.next_offset, time.monotonic()
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

    def commit_and_log_if_due(self) -> None:
        """Write progress to disk, and log it, when due."""
        now = time.monotonic()
        if now - self._last_commit >= self._commit_every_s:
            self._last_commit = now
            for changelog in self.changelogs:
                if changelog.progressed:
                    try:
                        changelog.commit()
                    except BaseException as error:  # as above
                        self._fail(changelog.task.task_id, error)
        restoring = [each for each in self.changelogs if isinstance(each, ChangelogRestoration)]
        if restoring and now - self._last_log >= _LOG_EVERY_S:
            self._last_log = now
            left = sum(changelog.remaining for changelog in restoring)
            _log.info("Restoring: %d records left in %d changelogs", left, len(restoring))
        self._log_open_transactions(restoring, now)

    def _log_open_transactions(self, restoring: Collection[ChangelogRestoration], now: float) -> None:
        for changelog in restoring:
            offset, since = changelog.committed_end or (-1, now)
            if offset == changelog.next_offset and now - since >= _LOG_OPEN_TRANSACTION_EVERY_S:
                changelog.committed_end = offset, now
                _log.warning(
                    "Restoring %s waits at offset %d, %d before the end: a transaction that began there is still open. It ends "
                    "after its producer's transaction.timeout.ms at the latest",
                    changelog.partition,
                    offset,
                    changelog.remaining,
                )


def _suspend(updated: UpdatedTask, reason: SuspendReason) -> None:
    """Tell the listeners that a task's restoration or updates have stopped."""
    for changelog in updated.changelogs.values():
        changelog.suspend(reason)
