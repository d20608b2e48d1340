"""How an instance reports a failure and asks the user's handler; `kafka_streams` does what that says.

What a thread survives (a migrated or corrupted task, an aborted transaction) is handled in `stream_thread`.

The message of a `StreamsError` says what is wrong, where and what to do, so it needs no traceback. An exception of the user's
code does: its traceback ends at the line that raised it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.checks import shown
from millrace.errors import FailedProcessingError, StreamsError
from millrace.instance.states import UncaughtExceptionResponse
from millrace.loading import raised_by_user

__all__ = ["ask_what_to_do", "describe_error", "to_be_traced"]

_log = logging.getLogger(__name__)


def ask_what_to_do(handler: Callable[[Exception], object], thread: str, error: Exception) -> UncaughtExceptionResponse:
    """Ask the user's handler what to do about a thread that has died, and log both.

    If the handler fails, or returns anything but a response, the client is shut down.
    """
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    try:
        response = handler(error)
    except BaseException:  # user code, in which sys.exit() would end this thread alone
        _log.exception("The uncaught exception handler %s failed: shutting the client down", name)
        response = UncaughtExceptionResponse.SHUTDOWN_CLIENT
    if not isinstance(response, UncaughtExceptionResponse):
        _log.error(
            "The uncaught exception handler %s returned %s, which is not an UncaughtExceptionResponse: shutting the client down",
            *(name, shown(response)),
        )
        response = UncaughtExceptionResponse.SHUTDOWN_CLIENT
    _log.error("%s died (to do: %s): %s", thread, response.value, error, exc_info=to_be_traced(error))
    return response


def to_be_traced(error: Exception) -> BaseException | None:
    """Return the exception whose traceback belongs in the log: from the user's code, or unexpected; None if neither.

    >>> to_be_traced(StreamsError("cannot commit")) is None
    True
    """
    if not isinstance(error, StreamsError):
        return error
    cause = error.__cause__
    if cause is None or not (isinstance(error, FailedProcessingError) or raised_by_user(cause)):
        return None
    return cause


def describe_error(error: BaseException) -> str:
    """Return an error and its cause in one line.

    >>> try:
    ...     raise StreamsError("cannot commit") from OSError("disk full")
    ... except StreamsError as error:
    ...     print(describe_error(error))
    StreamsError: cannot commit (caused by OSError: disk full)
    """
    text = f"{type(error).__name__}: {error}"
    if error.__cause__ is not None:
        cause = describe_error(error.__cause__)
        if str(error.__cause__) not in str(error):
            text += f" (caused by {cause})"
    return text
