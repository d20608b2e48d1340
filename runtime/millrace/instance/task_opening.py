"""Opens a task: creates it with its thread's shared resources, and opens its stores, which may have to be wiped first."""

from __future__ import annotations

import logging

from millrace.engine.task import StreamTask
from millrace.errors import StreamsError, TaskCorruptedError
from millrace.instance.resources import ThreadResources
from millrace.records import TaskId, TopicPartition

__all__ = ["open_task", "source_changelogs"]

_log = logging.getLogger(__name__)


def source_changelogs(resources: ThreadResources, task_id: TaskId) -> frozenset[TopicPartition]:
    """Return the source-topic partitions from which a task's stores are restored, up to the committed offset."""
    subtopology = resources.context.topology.subtopology(task_id.subtopology)
    return frozenset(
        TopicPartition(subtopology.changelog_topics[name], task_id.partition) for name in subtopology.source_changelogs
    )


def open_task(resources: ThreadResources, task_id: TaskId, inputs: frozenset[TopicPartition]) -> StreamTask:
    """Return a new task with its stores open; if that fails, its directory is released.

    Raises:
        StreamsError: the stores cannot be opened, even after their state was wiped.
    """
    directory = resources.context.directory
    for attempt in range(2):
        task = _new_task(resources, task_id, inputs)
        try:
            task.open_stores()
        except TaskCorruptedError as error:
            task.close_dirty()
            if attempt:
                directory.disown_task(task_id, resources.thread)
                raise StreamsError(
                    f"The state of task {task_id} was wiped and still cannot be opened: {error}"
                ) from error
            _log.warning("%s", error)
            directory.wipe_task(task_id)
        except BaseException:
            task.close_dirty()
            directory.disown_task(task_id, resources.thread)
            raise
        else:
            break
    return task


def _new_task(resources: ThreadResources, task_id: TaskId, inputs: frozenset[TopicPartition]) -> StreamTask:
    context = resources.context
    return StreamTask(
        task_id,
        context.topology.subtopology(task_id.subtopology),
        context.config,
        resources.collector,
        state_dir=context.directory.task_path(task_id),
        cache=resources.cache,
        clock=context.clock,
        input_partitions=inputs,
        global_stores=context.global_stores,
        trace_record=None if context.instrumentation is None else context.instrumentation.record,
        dropped=context.dropped,
    )
