"""The threads that make passes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from millrace_operator.app.brokers import AnswerAwaitedError
from millrace_operator.app.failures import FailedError, TransientError
from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.app.passes import STALE_SECONDS
from millrace_operator.app.queue import WorkQueue
from millrace_operator.app.refs import Ref

log = logging.getLogger(__name__)

Pass = Callable[[Ref, int], float | None]
"""Takes a resource and how often it failed in a row; returns after how many seconds to come again, None for never."""


class Workers:
    """Takes keys off the queue until it is closed; a pass that fails makes its own key wait and no other.

    Args:
        queue: What is to be worked on.
        work: A pass, by the kind of resource.
        count: How many threads.
        metrics: Told of every pass.
    """

    def __init__(self, queue: WorkQueue[Ref], work: dict[str, Pass], *, count: int, metrics: OperatorMetrics) -> None:
        self._queue = queue
        self._work = work
        self._metrics = metrics
        self._busy_since: dict[Ref, float] = {}
        self._threads = [
            threading.Thread(target=self._loop, name=f"worker-{number}", daemon=True) for number in range(count)
        ]

    @property
    def started(self) -> bool:
        """Whether they have begun to work."""
        return self._threads[-1].ident is not None

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for passes to end after the queue was closed, and say whether all have."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def problems(self, stuck_seconds: float) -> list[str]:
        """Return reasons to consider the workers stuck: passes that take longer than this, and threads that have ended.

        Passes that wait for their turn are not among them: with many applications the queue is long, and workers get on.
        """
        now = time.monotonic()
        stuck = [
            f"the pass over {ref} has taken {now - since:.0f} s"
            for ref, since in dict(self._busy_since).items()
            if now - since > stuck_seconds
        ]
        if self.started and not all(thread.is_alive() for thread in self._threads):
            stuck.append("a worker has died")
        return stuck

    def _loop(self) -> None:
        while (ref := self._queue.take()) is not None:
            self._busy_since[ref] = begun = time.monotonic()
            try:
                result = self._pass(ref)
            finally:
                del self._busy_since[ref]
            if result is not None:
                self._metrics.passed(result, time.monotonic() - begun)

    def _pass(self, ref: Ref) -> str | None:
        """Make a pass and return its result, or None if it was put off."""
        try:
            again = self._work[ref.kind](ref, self._queue.failures(ref))
        except AnswerAwaitedError as awaited:
            self._queue.put_off(ref, awaited.seconds)
            return None
        except TransientError as error:
            log.warning("%s: %s; again in %.1f s", ref, error, self._queue.failed(ref))
            return "error"
        except FailedError as error:
            bug = error.reason == "OperatorError"
            delay = error.again_after
            if delay is None:
                delay = self._queue.failed(ref)
            else:
                self._queue.done(ref, again_after=delay)
            log.warning("%s: %s; again in %.1f s", ref, error, delay, exc_info=error.__cause__ if bug else None)
            return "stalled"
        except Exception:
            log.exception("%s: the pass failed; again in %.1f s", ref, self._queue.failed(ref))
            return "error"
        self._queue.done(ref, again_after=again)
        return "stale" if again == STALE_SECONDS else "ok"
