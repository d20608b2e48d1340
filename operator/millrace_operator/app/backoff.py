"""When a resource is worked on again after a failure, and what kinds of failures there are.

A pass fails because of something that may go away by itself (`TransientError`), or because of something that somebody has to fix
(`FailedError`). Either way its resource waits, longer with every failure in a row; `queue` does the waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.errors import StreamsError, StreamsTimeoutError
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError

STALE_SECONDS: Final = 0.5
"""How soon to look again when the pass acted on something that has since changed."""
TRANSIENT_FAILURES: Final = 4
"""How many times in a row something temporary may fail before it is reported to the user."""
FIRST_FOLLOW_UP_SECONDS: Final = 0.05
"""How soon a pass that has acted is first followed by another."""
LONGEST_FOLLOW_UP_SECONDS: Final = 5.0
REFUSED_SECONDS: Final = 5.0
"""The earliest retry of something that was refused while everything else continues."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a key waits after failures: exponentially longer, with jitter so that many do not return at once."""

    first_seconds: float = 0.5
    most_seconds: float = 120.0
    jitter: float = 0.2
    """The fraction of the delay that may be added to it at random."""

    def seconds(self, failures: int, chance: float) -> float:
        """Return the delay.

        Args:
            failures: How often the key has failed in a row, at least 1.
            chance: A random number from 0 to 1.
        """
        delay = self.first_seconds * 2.0 ** min(failures - 1, 30)
        return min(delay, self.most_seconds) * (1 + self.jitter * chance)


class TransientError(Exception):
    """A pass failed because of something that may go away by itself."""


class FailedError(Exception):
    """A pass failed because of something that its user, or Millrace's developers, must fix.

    Args:
        reason: One CamelCase word.
        message: For the user.
        again_after: Seconds after which to run another, where only something minor failed; None for exponential back-off.
    """

    def __init__(self, reason: str, message: str, again_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.again_after = again_after


def failure_of(error: Exception) -> TransientError | FailedError:
    """Return what an error means for the pass in which it occurred."""
    match error:
        case FailedError() | TransientError():
            return error
        case ApiError(status=status) if status in {0, 409, 429} or status >= 500:
            return TransientError(str(error))
        case ApiError():
            return FailedError("RefusedByApiServer", str(error))
        case NotAllowedToWriteError() | StreamsTimeoutError():
            return TransientError(str(error))
        case StreamsError():
            return FailedError("RefusedByKafka", str(error))
    return FailedError(
        "OperatorError", f"The operator failed because of a bug of its own: {type(error).__name__}: {error}"
    )
