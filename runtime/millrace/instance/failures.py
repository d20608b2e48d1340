"""What an instance says and does about a failure: the handler's answer when a thread has died, and an error as one line."""

from __future__ import annotations

import logging

from millrace.errors import StreamsError
from millrace.instance.states import UncaughtExceptionHandler, UncaughtExceptionResponse

__all__ = ["ask_what_to_do", "describe_error"]

_log = logging.getLogger(__name__)


def ask_what_to_do(handler: UncaughtExceptionHandler, thread: str, error: Exception) -> UncaughtExceptionResponse:
    """Ask the user's handler what to do about a thread that has died, and log both.

    A handler that fails shuts the client down.
    """
    try:
        response = handler(error)
    except BaseException:  # user code, in which sys.exit() would end this thread alone
        _log.exception("The uncaught exception handler failed: shutting the client down")
        response = UncaughtExceptionResponse.SHUTDOWN_CLIENT
    unexpected = None if isinstance(error, StreamsError) else error  # a StreamsError's message says what to do
    _log.error("%s died (to do: %s): %s", thread, response.value, error, exc_info=unexpected)
    return response


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
