"""Runs one instance of an application as a process, until it is told to stop or fails.

`millrace run`, and so every pod, runs an instance with this function too. Signals only set a flag, because a handler that
took a lock could wait for the very code that it interrupts. The last line says why it failed; the traceback of the user's
code comes before it, from the dead thread. The process belongs to the instance, so Python's garbage collector is set for it
(`rarely_collected`), which a library may not do to a program that starts `KafkaStreams` itself.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from millrace.config import StreamsConfig
from millrace.errors import StreamsError
from millrace.garbage import rarely_collected
from millrace.instance.failures import describe_error, to_be_traced
from millrace.instance.health import Page
from millrace.instance.instrumentation import Instrumentation
from millrace.instance.kafka_streams import KafkaStreams
from millrace.topology import Topology

__all__ = ["EXIT_FAILED", "EXIT_NOT_STARTED", "EXIT_OK", "run"]

_log = logging.getLogger("millrace")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_NOT_STARTED: Final = 2
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@rarely_collected()
def run(
    topology: Topology,
    config: StreamsConfig | Mapping[str, object],
    *,
    instrumentation: Instrumentation | None = None,
    metrics_page: Callable[[], Page] | None = None,
    leave_group: bool | None = None,
    close_timeout_s: float | None = None,
    prepare: Callable[[KafkaStreams], None] | None = None,
    on_started: Callable[[KafkaStreams], None] | None = None,
    report: Callable[[StreamsError], int] | None = None,
) -> int:
    """Run an instance as a program: until SIGTERM or Ctrl-C, or until it fails. Return the exit code.

    A signal, also while it is starting, closes the instance gracefully: it commits and closes its tasks, and static members keep
    their place in the group. A second signal ends the process at once. Errors are logged, with the standard library's `logging`.
    Call it in the main thread, which receives signals.

    Args:
        topology: what to run.
        config: the settings.
        instrumentation: traces the threads.
        metrics_page: as for `KafkaStreams`.
        leave_group: as for `KafkaStreams.close`.
        close_timeout_s: how long a graceful stop may take; None = as long as it takes.
        prepare: called with the instance before it is started: set listeners and handlers here.
        on_started: called when the threads have been started.
        report: shows one of Millrace's own errors and returns the exit code, instead of logging it.

    Returns:
        0 after a signal, 1 if the running application failed, 2 if it could not start.

    Example::

        import logging, sys
        from millrace import StreamsBuilder, run

        if __name__ == "__main__":
            logging.basicConfig(level=logging.INFO)
            builder = StreamsBuilder()
            builder.stream("lines").map_values(str.upper).to("shouts")
            settings = {"application.id": "shout", "bootstrap.servers": "broker:9092"}
            serdes = {"default.key.serde": "string", "default.value.serde": "string"}
            sys.exit(run(builder.build(), settings | serdes))
    """
    stop = threading.Event()
    previous = {number: signal.signal(number, _stopper(stop)) for number in _SIGNALS}
    try:
        try:
            streams = KafkaStreams(topology, config, instrumentation=instrumentation, metrics_page=metrics_page)
            if prepare is not None:
                prepare(streams)
            _start(streams, stop, leave_group=leave_group)
        except StreamsError as error:
            if (raised := to_be_traced(error)) is not None:
                _log.error("The application's own code failed:", exc_info=raised)
            return _reported(error, report, "Cannot start", EXIT_NOT_STARTED)
        if on_started is not None and not stop.is_set():
            on_started(streams)
        try:
            while not stop.is_set() and not streams.wait(0.2):
                pass
            if stop.is_set():
                _log.info("Stopping: committing and closing tasks")
                if not streams.close(close_timeout_s, leave_group=leave_group):
                    _log.error(
                        "Not closed within %s s; records since the last commit are processed again", close_timeout_s
                    )
                    return EXIT_FAILED
                streams.wait()
        except Exception as error:  # the error that ended the instance
            return _reported(error, report, "Failed", EXIT_FAILED)
        return EXIT_OK
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start(streams: KafkaStreams, stop: threading.Event, *, leave_group: bool | None) -> None:
    """Start an instance, or return as soon as it is told to stop, as filling global stores may take long."""
    over = threading.Event()

    def close_if_told() -> None:
        while not over.wait(0.1):
            if stop.is_set():
                streams.close(0, leave_group=leave_group)
                return

    threading.Thread(target=close_if_told, name="millrace-signals", daemon=True).start()
    try:
        streams.start()
    except StreamsError:
        if not stop.is_set():
            raise
    finally:
        over.set()


def _reported(error: Exception, report: Callable[[StreamsError], int] | None, what: str, code: int) -> int:
    if report is not None and isinstance(error, StreamsError):
        return report(error)
    _log.error("%s: %s", what, describe_error(error))
    return code


def _stopper(stop: threading.Event) -> Callable[[int, FrameType | None], None]:
    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    return on_signal
