"""How much a stream thread processes: in one turn of a task, and between two commits.

*Turns* take 50 ms, or one record that takes longer: the clock is checked between records (`TimedTurn`).

*Between two commits* the number of records has no limit until a commit fails. Then they are processed again, and if they
were too many to be delivered in time, because the brokers are slow or each record has its own batch, the same number would
fail again and again. So it is halved until commits are quick.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Final

from millrace.engine.record_queue import Turn
from millrace.engine.task import StreamTask
from millrace.errors import SlowRecordError

__all__ = ["Pace", "SlowRecords", "TimedTurn"]

_log = logging.getLogger(__name__)

_TURN_S: Final = 0.05
_LOOK_EVERY_S: Final = 0.005
_MAX_TURN: Final = 1_000
_UNLIMITED: Final = 1 << 40
_QUICK_S: Final = 1.0
"""A commit that takes no longer leaves time for twice as many records."""


class TimedTurn(Turn):
    """A turn that ends after a while, or when the thread has something else to do; used again and again by one thread.

    Args:
        interrupted: returns whether the thread has something else to do.
    """

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self.clock = time.perf_counter
        self._interrupted = interrupted
        self._ends_at = self._looked_at = self.look_at = self.clock()

    def begin(self) -> None:
        """Begin a turn."""
        self._looked_at = self.clock()
        self._ends_at = self._looked_at + _TURN_S
        self.look_at = self._looked_at + _LOOK_EVERY_S

    def over(self) -> bool:
        """Return whether the time is up, or the thread has something else to do."""
        now = self.clock()
        if now >= self._ends_at or self._interrupted():
            self._ends_at = -math.inf
            return True
        self._looked_at, self.look_at = now, now + _LOOK_EVERY_S
        return False

    def last_record_s(self) -> float:
        """Return how long the last record has taken so far: exact if it is slow, otherwise a few milliseconds at most."""
        return self.clock() - self._looked_at


class Pace:
    """The pace of one thread."""

    def __init__(self) -> None:
        self._limit = _UNLIMITED
        self._uncommitted = 0

    @property
    def uncommitted(self) -> int:
        """How many records were processed since the last commit."""
        return self._uncommitted

    @property
    def next_turn(self) -> int:
        """How many records a task may process now; 0 if the thread has to commit first."""
        return max(0, min(_MAX_TURN, self._limit - self._uncommitted))

    def processed(self, records: int) -> None:
        """Note how many records a turn has processed."""
        self._uncommitted += records

    def committed(self, took_s: float) -> None:
        """Note a commit, and how long it has taken."""
        if took_s < _QUICK_S and self._uncommitted:
            self._limit = min(_UNLIMITED, 2 * self._limit)
        self._uncommitted = 0

    def aborted(self) -> None:
        """Note that everything since the last commit is processed again."""
        if self._uncommitted:
            self._limit = max(1, self._uncommitted // 2)
        self._uncommitted = 0


class SlowRecords:
    """Finds the record that is too slow to be committed.

    Args:
        limits: setting → how long it allows a record to take, in seconds.
    """

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._setting, self._limit_s = min(limits.items(), key=lambda limit: limit[1])
        self._seen = self._suspect = ""
        self._text = ""

    def note(self, task: StreamTask, took_s: float, where: str | None) -> None:
        """Note how long a task's last record has taken.

        Args:
            task: whose record it was.
            took_s: how long it took.
            where: the user's function in which it was seen; None = unknown.
        """
        if took_s < self._limit_s:
            return
        record = task.record
        self._seen = f"offset {record.offset} of {record.topic}-{record.partition}"
        source = task.source_name(record.topic) if record.topic else "unknown"
        self._text = (
            f"The record at {self._seen} takes {took_s:.1f} s in task {task.task_id} (source {source}"
            f"{f', in {where}' if where else ''}), longer than {self._setting} ({self._limit_s:.0f} s) allows"
        )

    def committed(self) -> None:
        """Note that everything processed is committed."""
        self._seen = ""

    def failed(self, records: int) -> SlowRecordError | None:
        """Note that the work since the last commit is void; return an error if one slow record was to blame twice.

        Args:
            records: how many were processed since then. If there were others, the slow record may only have come too late.
        """
        seen, self._seen = self._seen, ""
        if not seen or records > 1:
            return None
        before, self._suspect = self._suspect, seen
        if seen == before:
            return SlowRecordError(
                f"{self._text}, and has been processed in vain twice: raise {self._setting}, or make it quicker"
            )
        _log.warning("%s: it is processed again", self._text)
        return None
