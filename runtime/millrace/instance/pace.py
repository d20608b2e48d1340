"""How many records a stream thread processes: in one turn of a task, and between two commits.

*Turns* take about 50 ms at the speed measured last.

*Between two commits* there is no limit by number, until a commit fails. What was sent is then processed again, and if it was too
much to be delivered in time, because the brokers are slow or because each record has its own batch, the same amount would fail
again, and so on for ever. So half of it is tried, until commits are quick again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

_TURN_S: Final = 0.05
_FIRST_TURN: Final = 64
_MAX_TURN: Final = 1_000
_UNLIMITED: Final = 1 << 40
_QUICK_S: Final = 1.0
"""A commit that takes no longer leaves time for twice as many records."""


class Pace:
    """The pace of one thread."""

    def __init__(self) -> None:
        self._turn = _FIRST_TURN
        self._limit = _UNLIMITED
        self._uncommitted = 0

    @property
    def next_turn(self) -> int:
        """How many records a task may process now; 0 if the thread has to commit first."""
        return max(0, min(self._turn, self._limit - self._uncommitted))

    def processed(self, records: int, took_s: float) -> None:
        """Note a turn, in which at least one record was processed."""
        self._uncommitted += records
        fitting = int(records * _TURN_S / took_s) if took_s > 0 else _MAX_TURN
        self._turn = max(1, min(_MAX_TURN, fitting, 2 * self._turn))

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
