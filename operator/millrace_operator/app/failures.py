"""How passes fail: by what may pass by itself, or by what somebody must mend."""

from __future__ import annotations

from millrace.errors import StreamsError, StreamsTimeoutError
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError


class TransientError(Exception):
    """A pass failed by what may pass by itself."""


class FailedError(Exception):
    """A pass failed by what its user, or Millrace's developers, must mend.

    Args:
        reason: In one CamelCase word.
        message: In words.
        again_after: Seconds after which to make another, where only something minor failed; None for later and later.
    """

    def __init__(self, reason: str, message: str, again_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.again_after = again_after


def failure_of(error: Exception) -> TransientError | FailedError:
    """Return what an error means for the pass that met it."""
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
    return FailedError("OperatorError", f"The operator failed by its own fault: {type(error).__name__}: {error}")
