"""Applying a changelog to a task's store: restoring an active task's store up to an end, or keeping a standby's up to date.

Both begin after the offset that the store has. If the changelog does not have that offset (it was truncated or recreated), the
store cannot be completed: `TaskCorruptedError`, upon which the state is wiped and restored from the beginning. Nothing here
reads or waits: records are passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from millrace.engine.task import StreamTask
from millrace.errors import TaskCorruptedError
from millrace.records import TaskId, TopicPartition
from millrace.state.api import ChangelogRecord, StateStore

__all__ = [
    "NO_LIMIT",
    "ChangelogRestoration",
    "FailedTask",
    "RestoreListener",
    "StandbyUpdate",
    "StandbyUpdateListener",
    "SuspendReason",
    "UpdatedTask",
    "begin_changelog",
    "begin_update",
]

_log = logging.getLogger(__name__)

NO_LIMIT: Final = 2**63 - 1
"""The limit of a standby that may apply everything in its changelog."""


class RestoreListener(Protocol):
    """Notified of restoration progress (Kafka Streams' StateRestoreListener).

    Called in the updaters' threads; for global stores in the thread that calls `KafkaStreams.start`.
    """

    def on_restore_start(self, partition: TopicPartition, store: str, start_offset: int, end_offset: int) -> None:
        """Restoration of a store begins at `start_offset` and will end before `end_offset`."""

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        """A batch of records was applied; its last offset is `batch_end_offset`."""

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """A store is complete."""

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """Restoration stopped before the end, because the task moved away or failed."""


class SuspendReason(Enum):
    """Why a standby is no longer updated."""

    MIGRATED = "MIGRATED"
    """It leaves this thread, or it is paused, closed or wiped."""
    PROMOTED = "PROMOTED"
    """It becomes the active task."""


class StandbyUpdateListener(Protocol):
    """Notified of updates of standbys (KIP-988); called in the updater's thread."""

    def on_update_start(self, partition: TopicPartition, store: str, starting_offset: int) -> None:
        """A standby's store is updated from `starting_offset` on."""

    def on_batch_loaded(
        self,
        partition: TopicPartition,
        store: str,
        task_id: TaskId,
        batch_end_offset: int,
        batch_size: int,
        current_end_offset: int,
    ) -> None:
        """A batch of records was applied, the last at `batch_end_offset`; the changelog ends at `current_end_offset`."""

    def on_update_suspended(
        self, partition: TopicPartition, store: str, store_offset: int, current_end_offset: int, reason: SuspendReason
    ) -> None:
        """The store is no longer updated; `store_offset` is the last record's, or one less than the start if none was read."""


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that cannot be restored or updated, and why."""

    task: StreamTask
    error: Exception


@dataclass(slots=True)
class _ChangelogProgress:
    """How far one changelog partition has been read into its store."""

    task: StreamTask
    partition: TopicPartition
    store: StateStore
    next_offset: int
    end_offset: int
    """Where reading stops; for a standby for now: at the committed offset of a source topic, or else `NO_LIMIT`."""
    uncommitted: bool = field(default=False, kw_only=True)
    """Whether some applied records are not yet on disk."""

    @property
    def progressed(self) -> bool:
        """Whether the store has not yet noted the offset reached, even if there was no record in between."""
        return self.uncommitted or self.next_offset > (self.task.changelog_positions[self.partition] or 0)

    def skip_to(self, offset: int) -> None:
        """Note that no record before the end is left below an offset."""
        self.next_offset = max(self.next_offset, min(offset, self.end_offset))

    def _put(self, records: Sequence[ChangelogRecord], uncommitted_max_bytes: int) -> None:
        """Put records into the store, and commit it once it holds more than `uncommitted_max_bytes` in memory."""
        self.task.restore(self.partition, records)
        self.uncommitted = True
        if self.store.uncommitted_bytes() > uncommitted_max_bytes:
            self.commit()

    def commit(self) -> None:
        """Write the applied records to disk, with the offset reached, from which a restart continues."""
        self.store.commit({self.partition: self.next_offset - 1})
        self.task.changelog_positions[self.partition] = self.next_offset
        self.uncommitted = False


@dataclass(slots=True)
class ChangelogRestoration(_ChangelogProgress):
    """One changelog partition that is being restored."""

    listener: RestoreListener | None = None
    restored: int = 0
    committed_end: tuple[int, float] | None = None
    """The end of committed records when all had been read, and since when none is known to have followed."""

    @property
    def remaining(self) -> int:
        """How many offsets are left; some of them may have no record."""
        return max(0, self.end_offset - self.next_offset)

    def apply(self, records: Sequence[ChangelogRecord], uncommitted_max_bytes: int) -> None:
        """Put records into the store, and tell the listener."""
        self._put(records, uncommitted_max_bytes)
        self.restored += len(records)
        if self.listener is not None:
            self.listener.on_batch_restored(self.partition, self.store.name, records[-1].offset, len(records))

    def finish(self) -> None:
        """Write the complete store to disk."""
        self.commit()
        _log.info("Restored store %s of task %s: %d records", self.store.name, self.task.task_id, self.restored)
        if self.listener is not None:
            self.listener.on_restore_end(self.partition, self.store.name, self.restored)

    def suspend(self, _reason: SuspendReason) -> None:
        """Tell the listener that the rest will not be restored here."""
        if self.listener is not None:
            try:
                self.listener.on_restore_suspended(self.partition, self.store.name, self.restored)
            except BaseException:  # the task is already leaving, perhaps because the listener has failed before
                _log.exception("The restore listener failed")


@dataclass(slots=True)
class StandbyUpdate(_ChangelogProgress):
    """One changelog partition from which a standby is kept up to date; it has no end."""

    log_end: int
    """Where the changelog ended when it was last read."""
    listener: StandbyUpdateListener | None = None

    @property
    def remaining(self) -> int:
        """How many offsets the store is behind its present limit."""
        return max(0, min(self.end_offset, self.log_end) - self.next_offset)

    def apply(self, records: Sequence[ChangelogRecord], uncommitted_max_bytes: int) -> None:
        """Put records into the store, and tell the listener."""
        self._put(records, uncommitted_max_bytes)
        if self.listener is not None:
            self.listener.on_batch_loaded(
                self.partition, self.store.name, self.task.task_id, records[-1].offset, len(records), self.log_end
            )

    def suspend(self, reason: SuspendReason) -> None:
        """Tell the listener that the store is no longer updated."""
        if self.listener is not None:
            try:
                self.listener.on_update_suspended(
                    self.partition, self.store.name, self.next_offset - 1, self.log_end, reason
                )
            except BaseException:  # the task is already leaving, perhaps because the listener has failed before
                _log.exception("The standby update listener failed")


@dataclass(slots=True)
class UpdatedTask:
    """A task whose changelogs are being read."""

    task: StreamTask
    standby: bool
    changelogs: dict[TopicPartition, ChangelogRestoration | StandbyUpdate] = field(default_factory=dict)


def _start(task: StreamTask, partition: TopicPartition, offsets: range) -> int:
    """Return the offset of the first record that a store lacks."""
    store = task.changelogs[partition]
    position = task.changelog_positions[partition]
    start = offsets.start if position is None else position
    if not offsets.start <= start <= offsets.stop:
        raise TaskCorruptedError(
            frozenset({task.task_id}),
            f"Store {store.name} of task {task.task_id} is at offset {start} of {partition}, which has offsets "
            f"{offsets.start} to {offsets.stop} only: its state is wiped and restored from the beginning",
        )
    return start


def begin_changelog(
    task: StreamTask,
    partition: TopicPartition,
    offsets: range,
    end: int,
    listener: RestoreListener | None,
) -> ChangelogRestoration | None:
    """Begin to restore one of a task's stores; return None if it is complete.

    Args:
        task: The task, whose stores are open.
        partition: The partition of one of its changelogs.
        offsets: The offsets that the changelog has.
        end: Where to stop: the end of `offsets`, or before it.
        listener: Notified of the beginning and, if there is nothing to do, immediately of the end.

    Raises:
        TaskCorruptedError: The store is at an offset that the changelog does not have.
    """
    store, start = task.changelogs[partition], _start(task, partition, offsets)
    if listener is not None:
        listener.on_restore_start(partition, store.name, start, end)
    if start >= end:
        if listener is not None:  # as Java also does for complete stores
            listener.on_restore_end(partition, store.name, 0)
        return None
    _log.info(
        "Restoring store %s of task %s from %s, offsets %d to %d", store.name, task.task_id, partition, start, end
    )
    return ChangelogRestoration(task, partition, store, start, end, listener)


def begin_update(
    task: StreamTask, partition: TopicPartition, offsets: range, limit: int, listener: StandbyUpdateListener | None
) -> StandbyUpdate:
    """Begin to keep one of a standby's stores up to date.

    Args:
        task: The standby, whose stores are open.
        partition: The partition of one of its changelogs.
        offsets: The offsets that the changelog has.
        limit: Where to stop for now; `NO_LIMIT` for no limit.
        listener: Notified of the beginning.

    Raises:
        TaskCorruptedError: The store is at an offset that the changelog does not have.
    """
    store, start = task.changelogs[partition], _start(task, partition, offsets)
    if listener is not None:
        listener.on_update_start(partition, store.name, start)
    return StandbyUpdate(task, partition, store, start, limit, offsets.stop, listener)
