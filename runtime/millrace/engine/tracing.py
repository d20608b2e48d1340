"""Brackets the processing of each record for a tracer, without a word in the path of a task that has none.

A traced task's sources get another closure in front of their children's; untraced tasks compile as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from millrace.engine.compile import CompiledSource
from millrace.records import Headers, RecordContext, TaskId

__all__ = ["TraceRecord", "traced"]

TraceRecord = Callable[[TaskId, str, int, int, Headers], AbstractContextManager[object]]
"""Given task, topic, partition, offset and headers, returns what brackets the processing of that record."""


def traced(source: CompiledSource, task_id: TaskId, current: RecordContext, trace: TraceRecord) -> CompiledSource:
    """Return a source whose children run in the bracket that `trace` gives for the current record."""
    forward = source.forward

    def forward_traced(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        with trace(task_id, current.topic or "", current.partition, current.offset, headers):
            forward(key, value, timestamp, headers)

    return replace(source, forward=forward_traced)
