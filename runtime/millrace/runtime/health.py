"""Whether an instance is alive, has started and is ready: pure functions of its status, for probes.

* *Live*: every loop gets on. What restarting the process would not help is not unhealthy: restoring, rebalancing, waiting for a
  broker (which has a limit of its own, `task.timeout.ms`), closing.
* *Started*: every thread was given an assignment once, if only an empty one.
* *Ready*: it is live, and every task it was given runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.runtime.states import State, ThreadState
from millrace.runtime.status import StreamsStatus, ThreadStatus

__all__ = ["Verdict", "check_live", "check_ready", "check_started"]

_RUNS = frozenset({State.RUNNING.value, State.REBALANCING.value})
_FAILED = frozenset({State.PENDING_ERROR.value, State.ERROR.value})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a probe: it passes if there is no reason against it."""

    reasons: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the probe is answered with 200."""
        return not self.reasons


def check_live(status: StreamsStatus, max_poll_interval_ms: int) -> Verdict:
    """Return whether the instance should go on, rather than be restarted.

    Args:
        status: a snapshot of it.
        max_poll_interval_ms: how long one round of a loop may take; what takes longer is stuck, as for the group.
    """
    if status.state in _FAILED:
        return Verdict((f"the instance has failed: {status.error or status.state}",))
    if status.state not in _RUNS:
        return Verdict()
    reasons = (_why_stuck(thread, max_poll_interval_ms) for thread in status.threads)
    return Verdict(tuple(reason for reason in reasons if reason is not None))


def _why_stuck(thread: ThreadStatus, limit_ms: int) -> str | None:
    if not thread.alive:
        return None if thread.state == ThreadState.CREATED.value else f"{thread.name} has ended and was not replaced"
    if thread.waits_for is not None or thread.progress_age_ms <= limit_ms:
        return None
    return (
        f"{thread.name} has been in one round for {thread.progress_age_ms} ms, longer than max.poll.interval.ms={limit_ms}: "
        "it is stuck in a processor, punctuator or handler, or these are too slow"
    )


def check_started(status: StreamsStatus) -> Verdict:
    """Return whether the instance has joined its group."""
    if not status.threads:
        return Verdict((f"no thread has been started: {status.state}",))
    return Verdict(
        tuple(
            f"{thread.name} has not been given an assignment: {thread.state}"
            for thread in status.threads
            if not thread.joined
        )
    )


def check_ready(status: StreamsStatus, max_poll_interval_ms: int) -> Verdict:
    """Return whether every task of the instance runs, so that a roll may go on with the next one.

    Args:
        status: a snapshot of it.
        max_poll_interval_ms: as for `check_live`.
    """
    reasons = list(check_live(status, max_poll_interval_ms).reasons)
    reasons += check_started(status).reasons
    if status.state != State.RUNNING.value:
        reasons.append(f"the instance is {status.state}")
    for task in status.tasks:
        if task.state != "RUNNING":
            left = "" if task.remaining is None else f", {task.remaining} changelog records left"
            reasons.append(f"task {task.id} is {task.state}{left}")
    return Verdict(tuple(reasons))
