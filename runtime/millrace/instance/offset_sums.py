"""How current a task's state is, as members report it to the group's leader: one sum of offsets per task (formats §10).

For each changelog the sum counts the offset of the next record to apply, 0 if nothing is known. So the leader gets the number of
records to restore by subtracting the sum of the changelogs' ends, and a complete store has lag 0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from millrace.assignment import UNKNOWN_OFFSET_SUM
from millrace.engine.task import StreamTask
from millrace.errors import StreamsError
from millrace.records import TaskId, TopicPartition
from millrace.state.disk_offsets import offset_on_disk
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["closing_offset_sum", "open_offset_sum", "stored_offset_sum"]

_log = logging.getLogger(__name__)


def open_offset_sum(task: StreamTask) -> int:
    """Return the sum of a task whose stores are open; may be called while another thread restores it."""
    return sum(position or 0 for position in task.changelog_positions.values())


def closing_offset_sum(task: StreamTask) -> int:
    """Return the sum that a task's state on disk will have once it is closed; UNKNOWN_OFFSET_SUM if it cannot be read."""
    try:
        return _sum(
            store.committed_offset(partition) for partition, store in task.changelogs.items() if store.persistent
        )
    except Exception as error:  # the store may be broken, but is about to be closed anyway
        _log.debug("The offsets of task %s cannot be read: %s", task.task_id, error)
        return UNKNOWN_OFFSET_SUM


def stored_offset_sum(topology: BuiltTopology, task_id: TaskId, path: Path, *, exactly_once: bool = False) -> int:
    """Return the sum of a task's state on disk, while it is not open; UNKNOWN_OFFSET_SUM if it cannot be read.

    Args:
        topology: the application's.
        task_id: the task.
        path: its directory.
        exactly_once: whether the application runs with exactly-once.
    """
    try:
        subtopology = topology.subtopology(task_id.subtopology)
        return _sum(
            offset_on_disk(path, name, TopicPartition(topic, task_id.partition), exactly_once=exactly_once)
            for name, topic in subtopology.changelog_topics.items()
        )
    except (KeyError, StreamsError) as error:  # an older program's task, or a damaged store
        _log.info("Cannot tell how current the state of task %s in %s is: %s", task_id, path, error)
        return UNKNOWN_OFFSET_SUM


def _sum(offsets: Iterable[int | None]) -> int:
    return sum(0 if offset is None else offset + 1 for offset in offsets)
