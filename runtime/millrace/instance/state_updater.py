"""The thread that restores the stores of a stream thread's tasks, and keeps its standbys up to date, while its tasks run.

A task belongs to the updater from `add` until `drain_restored` or `drain_failed` returns it, or until the future of `remove`
is done; in between nobody else may touch it. Requests of the stream thread are handled in order: a removed task was added
before. A standby stays until it is removed. Progress is written to disk every `commit.interval.ms`, but no more often than
every 5 s, and restoration resumes from there after a crash. Changelogs are read by `changelog_reader`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.errors import StreamsError, of_thread
from millrace.instance.activity import user_function
from millrace.instance.changelog_reader import AddedTask, ChangelogReader
from millrace.instance.task_restoration import FailedTask, RestoreListener, StandbyUpdateListener, SuspendReason
from millrace.records import TopicPartition

__all__ = ["StateUpdater"]

_log = logging.getLogger(__name__)
_PAUSE_S = 0.1
_ANSWER_S = 0.01
"""How long to wait before checking again whether the offsets of changelogs are known."""


@dataclass(frozen=True, slots=True)
class _Removal:
    """A task that the stream thread wants back."""

    task: StreamTask
    reason: SuspendReason
    answer: Future[StreamTask | None] = field(default_factory=Future)


class StateUpdater:
    """The restoration thread of one stream thread.

    Args:
        name: the name of the thread.
        open_consumer: opens the restore consumer; called in the updater's thread.
        admin: used for the changelogs' first and last offsets.
        config: the application's.
        listener: notified of restoration progress.
        standby_listener: notified of updates of standbys.
        paused: set while restoration and updates are paused.
    """

    def __init__(
        self,
        name: str,
        open_consumer: Callable[[], Consumer],
        admin: AdminClient,
        config: StreamsConfig,
        listener: RestoreListener | None = None,
        standby_listener: StandbyUpdateListener | None = None,
        paused: threading.Event | None = None,
    ) -> None:
        self._paused = threading.Event() if paused is None else paused
        self._reader = ChangelogReader(open_consumer, admin, config, listener, standby_listener)
        self._condition = threading.Condition()
        self._actions: deque[AddedTask | _Removal | Mapping[TopicPartition, int]] = deque()
        """Requests of the stream thread: to add and remove tasks, and to let standbys follow up to new limits."""
        self._stopping = False
        self._ended = False
        """Whether the thread has stopped taking actions."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Stop the thread; tasks still in it may be closed once it has ended."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
            if timeout_s > 0 and self._thread.is_alive():
                _log.warning("%s has not ended in %.0f s; it is in %s", self._thread.name, timeout_s, self.where)

    def add(self, task: StreamTask, limits: Mapping[TopicPartition, int], *, standby: bool = False) -> None:
        """Hand a task over to be restored, or to be kept up to date.

        Args:
            task: the task, whose stores are open.
            limits: where to stop in changelogs that are source topics.
            standby: whether it is a standby, which is kept up to date until it is removed.
        """
        with self._condition:
            if self._stopping:  # nobody would ever restore it
                self._reader.failed.append(FailedTask(task, StreamsError("The state updater has stopped")))
                return
            self._actions.append(AddedTask(task, limits, standby))
            self._condition.notify_all()

    def limit(self, limits: Mapping[TopicPartition, int]) -> None:
        """Let standbys follow source topics up to these offsets."""
        with self._condition:
            self._actions.append(limits)
            self._condition.notify_all()

    def remove(self, task: StreamTask, reason: SuspendReason = SuspendReason.MIGRATED) -> Future[StreamTask | None]:
        """Take a task back; the future returns it once it is no longer in use, or None if the updater does not have it."""
        removal = _Removal(task, reason)
        with self._condition:
            self._actions.append(removal)
            self._condition.notify_all()
            ended = self._ended
        if ended or not self._thread.is_alive():
            self._take_actions()
        return removal.answer

    def drain_restored(self) -> list[StreamTask]:
        """Return the tasks whose stores are complete, since the last call."""
        with self._condition:  # the updater may be giving one of them back
            return _drain(self._reader.restored)

    def drain_failed(self) -> list[FailedTask]:
        """Return the tasks that cannot be restored, since the last call."""
        with self._condition:
            return _drain(self._reader.failed)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the updater's thread."""
        return self._thread is threading.current_thread()

    @property
    def where(self) -> str | None:
        """The user's function in which its thread is, such as a listener's; None = in none."""
        return user_function(self._thread.ident)

    @property
    def restored_total(self) -> int:
        """Changelog records restored so far, standbys excluded."""
        return self._reader.restored_total

    def tasks(self) -> list[StreamTask]:
        """Return the tasks that it has started and not returned; for its own thread, and for a simulation."""
        return self._reader.tasks

    def remaining(self) -> dict[TopicPartition, int]:
        """Return how many offsets are left per changelog partition, also of standbys; approximate while the thread runs."""
        return {changelog.partition: changelog.remaining for changelog in self._reader.changelogs}

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each changelog partition; approximate while the thread runs."""
        return {changelog.partition: changelog.next_offset for changelog in self._reader.changelogs}

    # The thread

    def _run(self) -> None:
        reader = self._reader
        try:
            while not self._stopping:
                if self.step():
                    continue
                wait_s = _ANSWER_S if reader.asks else _PAUSE_S if reader.has_tasks else None
                with self._condition:
                    if not (self._actions or self._stopping):
                        self._condition.wait(wait_s)
        except BaseException as error:  # a failure of the consumer or of Millrace, not of a single task
            _log.exception("%s failed: its tasks end with it", threading.current_thread().name)
            reader.fail_all(of_thread(error))
        finally:
            with self._condition:
                self._stopping = True
            reader.let_all_go()
            with self._condition:
                self._take_actions()
                self._ended = True
            reader.close()

    def step(self) -> bool:
        """Take the requested actions, then read some records; return whether there may be more to read at once.

        For the updater's thread, and for a simulation in place of that thread.
        """
        reader = self._reader
        self._take_actions()
        reader.take_offsets()
        read = not self._paused.is_set() and reader.read()
        reader.commit_and_log_if_due()
        return read

    def _take_actions(self) -> None:
        while self._actions:  # one by one: if one fails, the others are answered when the thread ends
            with self._condition:
                action = self._actions.popleft()
                # Tasks that were added one after the other begin together: one request asks for the offsets of all.
                added = [action] if isinstance(action, AddedTask) else []
                while added and self._actions and isinstance(following := self._actions[0], AddedTask):
                    added.append(following)
                    self._actions.popleft()
            if isinstance(action, AddedTask):
                self._begin(added)
            elif isinstance(action, _Removal):
                self._give_back(action)
            else:
                self._reader.limit(action)

    def _begin(self, added: list[AddedTask]) -> None:
        if self._stopping:
            stopped = StreamsError("The state updater has stopped")
            self._reader.failed.extend(FailedTask(each.task, stopped) for each in added)
        else:
            self._reader.begin(added)

    def _give_back(self, removal: _Removal) -> None:
        found = False
        try:
            found = self._reader.let_go(removal.task, removal.reason) or self._take_finished(removal.task)
        finally:
            removal.answer.set_result(removal.task if found else None)

    def _take_finished(self, task: StreamTask) -> bool:
        reader = self._reader
        with self._condition:  # the stream thread may be taking them
            failed = [each for each in reader.failed if each.task is task]
            for each in failed:
                reader.failed.remove(each)
            restored = task in reader.restored
            if restored:
                reader.restored.remove(task)
        return restored or bool(failed)


_Item = TypeVar("_Item")


def _drain(queue: deque[_Item]) -> list[_Item]:
    taken: list[_Item] = []
    while queue:
        taken.append(queue.popleft())
    return taken
