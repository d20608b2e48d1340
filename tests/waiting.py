"""Waiting for a condition with a deadline, instead of sleeping; for all tests, those in `e2e` included."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from millrace.deadline import Deadline

Found = TypeVar("Found")

PATIENCE_S = 120.0
"""How long a test waits for anything that is to happen: at least ten times what it takes on an idle machine.

It ends a test that hangs and proves nothing, so one value does for all. pytest's own `timeout` is longer.
"""


def wait_until(
    condition: Callable[[], Found],
    what: str | Callable[[], str],
    timeout_s: float = PATIENCE_S,
    *,
    meanwhile: Callable[[], object] = lambda: None,
    poll_s: float = 0.02,
    error: Callable[[str], Exception] = AssertionError,
) -> Found:
    """Wait until a condition is true and return its value.

    Args:
        condition: Evaluated again and again, the last time after the timeout.
        what: Describes the condition, for the error; or a function that also describes the state of things then.
        timeout_s: How long to wait.
        meanwhile: Called before each further attempt: keeps something going, or fails because waiting is pointless.
        poll_s: The pause between two attempts, up to ten times as long if an attempt takes that long; 0 if `meanwhile` takes
            long enough.
        error: Makes the error to raise if the condition does not become true in time.
    """
    deadline = Deadline(timeout_s)
    while True:
        late = deadline.passed
        began = time.monotonic()
        found = condition()
        took_s = time.monotonic() - began
        if found:
            return found
        if late:
            raise error(f"not within {timeout_s:.0f} s: {what() if callable(what) else what}")
        meanwhile()
        time.sleep(max(poll_s, min(took_s, 10 * poll_s)))
