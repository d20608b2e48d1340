"""The stages of a task in its stream thread: there is one record for each task, and its stage says who may use the task.

| stage    | its stores | it belongs to | what it waits for |
|---|---|---|---|
| WAITING | closed; open if recycled | the thread | its directory, which another thread of this process may still have |
| ASKED    | the same | the thread | its committed offsets |
| UPDATING | open | the state updater | the rest of its changelogs; a standby stays here |
| RECALLED | open | the state updater, which was asked for it | its return |
| RETURNED | open | the thread | nothing: it is recycled or closed at once |
| RESTORED | open, and complete | the thread | where to start reading inputs that have no committed offset |
| RUNNING  | open, and complete | the thread | records |
| CLOSED   | closed | nobody: the thread no longer has it | |

| from | to | when |
|---|---|---|
| WAITING | ASKED | its directory is this thread's, and it needs committed offsets |
| WAITING, ASKED | UPDATING | the offsets that it needs are known, and its stores are open |
| UPDATING | RESTORED | its stores are complete; never a standby |
| UPDATING | RETURNED | it cannot be restored |
| UPDATING | RECALLED | it has left the target, or its role or its input has changed |
| RECALLED | RETURNED | the updater does not use it any more |
| RESTORED | RUNNING | the offsets where it starts are known, and its processors are initialised |
| WAITING, ASKED, RETURNED, RESTORED, RUNNING | WAITING | its role or its input has changed: it is recycled |
| the same | CLOSED | it has left the target, is lost, or has to start again |

So a task that the updater may use is never closed or recycled, and only tasks with complete stores process records.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from millrace.deadline import Deadline
from millrace.engine.task import StreamTask
from millrace.engine.task_state import IllegalTaskStateError
from millrace.kafka.membership.offsets import CommittedOffsets
from millrace.records import TaskId, TopicPartition

__all__ = ["HeldTask", "Stage", "WantedTask"]

Stage = Enum("Stage", "WAITING ASKED UPDATING RECALLED RETURNED RESTORED RUNNING CLOSED")
"""The stage of a task in its thread; see the module's tables."""

_FROM: Final = {
    Stage.ASKED: {Stage.WAITING},
    Stage.UPDATING: {Stage.WAITING, Stage.ASKED},
    Stage.RESTORED: {Stage.UPDATING},
    Stage.RECALLED: {Stage.UPDATING},
    Stage.RETURNED: {Stage.UPDATING, Stage.RECALLED},
    Stage.RUNNING: {Stage.RESTORED},
    Stage.WAITING: {Stage.WAITING, Stage.ASKED, Stage.RETURNED, Stage.RESTORED, Stage.RUNNING},
    Stage.CLOSED: {Stage.WAITING, Stage.ASKED, Stage.RETURNED, Stage.RESTORED, Stage.RUNNING},
}
"""For each stage, the stages that lead to it."""


class WantedTask(NamedTuple):
    """A task that a thread should have."""

    inputs: frozenset[TopicPartition]
    """Its input partitions."""
    standby: bool = False
    """Whether it is a standby (or a warm-up, which a member cannot tell from a standby)."""


@dataclass(slots=True, eq=False)
class HeldTask:
    """A task that a thread has."""

    task_id: TaskId
    wanted: WantedTask
    stage: Stage = Stage.WAITING
    task: StreamTask | None = None
    """None until its stores are open."""
    committed: CommittedOffsets = field(init=False)
    """The committed offsets it waits for while it is ASKED."""
    answer: Future[StreamTask | None] = field(init=False)
    """The state updater's answer it waits for while it is RECALLED."""
    late: Deadline = field(init=False)
    """When that is late."""

    @property
    def opened(self) -> StreamTask:
        """The task, whose stores are open."""
        assert self.task is not None
        return self.task

    def move(self, stage: Stage) -> None:
        """Move to another stage.

        Raises:
            IllegalTaskStateError: the table does not have this transition.
        """
        if self.stage not in _FROM[stage]:
            raise IllegalTaskStateError(f"task {self.task_id} cannot go from {self.stage.name} to {stage.name}")
        self.stage = stage
