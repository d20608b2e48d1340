"""The clocks of one task, in one place where closures can read them."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.records import UNKNOWN_TIMESTAMP


@dataclass(slots=True)
class TaskTimes:
    """Stream time and the wall clock as the task's nodes see them (ms)."""

    stream_time: int = UNKNOWN_TIMESTAMP
    """The largest timestamp of a record that processing began for."""
    system_time: int = 0
    """The wall clock, read once per batch or punctuation and fixed for as long as that runs."""


@dataclass(slots=True)
class TaskCounters:
    """What a task has done so far; plain numbers that metrics read on a schedule."""

    records_processed: int = 0
    dropped_records: int = 0
    punctuations: int = 0
    commits: int = 0
    restored_records: int = 0
    enforced_processing: int = 0
    """How often records were processed although an input was empty, because `max.task.idle.ms` had passed."""
