"""How far the loop of a stream thread is, for others to look at: when it last got on, and whether it waits for a broker.

A loop that does not get on is stuck in user code, unless it waits for a broker: every such wait has a limit of its own
(`task.timeout.ms`), and restarting the process would not end it. So the two are told apart. The thread writes plain attributes
and others read them, without a lock.

Who ends the thread sets a limit to all that it still waits for, `give_up_in`: closing takes no longer because brokers are away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["LoopProgress"]


class LoopProgress:
    """The progress of one thread's loop; written by that thread only, except for when it gives up.

    >>> progress = LoopProgress()
    >>> with progress.waiting_for("the group"):
    ...     progress.waits_for
    'the group'
    >>> progress.waits_for is None, progress.age_ms() < 60_000
    (True, True)
    """

    def __init__(self) -> None:
        self._since = self._began = time.monotonic()
        self._ended: float | None = None
        self.waited_s = 0.0
        """Time in which the thread waited for records, with nothing to do."""
        self.waits_for: str | None = None
        """What the thread asked a broker for and has no answer to yet; None while it does not wait."""
        self.committed_s: float | None = None
        """When everything processed was committed last, by `time.monotonic`; None = not yet."""
        self.gives_up_s = math.inf
        """Until when it waits for brokers, by `time.monotonic`."""

    def give_up_in(self, seconds: float) -> None:
        """Have the thread wait for brokers no longer than this in all; an earlier limit stays. For any thread."""
        self.gives_up_s = min(self.gives_up_s, time.monotonic() + seconds)

    @property
    def given_up(self) -> bool:
        """Whether the thread waits for brokers no more."""
        return time.monotonic() >= self.gives_up_s

    def touch(self) -> None:
        """Note that the loop got on."""
        self._since = time.monotonic()

    def committed(self) -> None:
        """Note that everything processed is committed."""
        self.committed_s = time.monotonic()

    def ended(self) -> None:
        """Note that the thread has ended: it lives no longer."""
        self._ended = time.monotonic()

    def lived_s(self) -> float:
        """Return how long the thread has lived, in seconds."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    def age_ms(self) -> int:
        """Return how long ago the loop got on, in ms."""
        return int((time.monotonic() - self._since) * 1000)

    def commit_age_ms(self) -> int | None:
        """Return how long ago everything was committed, in ms; None = not yet."""
        return None if self.committed_s is None else int((time.monotonic() - self.committed_s) * 1000)

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Wait for a broker in this block: its end counts as getting on."""
        outer, self.waits_for = self.waits_for, what
        try:
            yield
        finally:
            self._since = time.monotonic()
            self.waits_for = outer
