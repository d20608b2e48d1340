"""The process of `millrace run`: one instance with telemetry, until a signal arrives or its host ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from millrace.cli.errors import report
from millrace.config import StreamsConfig
from millrace.errors import StreamsError
from millrace.instance import run
from millrace.instance.failures import describe_error
from millrace.instance.kafka_streams import KafkaStreams
from millrace.manifest.pods import format_last_message
from millrace.telemetry import configure
from millrace.topology import Topology

_log = logging.getLogger(__name__)
STOP_TIMEOUT_WITHOUT_HOST_S = 10.0
_POLL_S = 0.5
_MEMBERS_EVERY_S = 0.2


def run_until_stopped(
    topology: Topology,
    config: StreamsConfig,
    *,
    status_file: Path | None = None,
    drain_file: Path | None = None,
    last_message_file: Path | None = None,
    leave_group: bool | None = None,
    stop_with_parent: bool = False,
    verbose: bool = False,
) -> int:
    """Run an instance until SIGTERM or SIGINT and return the exit code; call it in the main thread.

    Args:
        topology: What to run.
        config: The settings.
        status_file: Rewritten every second with the instance's status.
        drain_file: The instance drains once this file is not empty.
        last_message_file: For the host to read if this process dies: its members of the group, and why it failed.
        leave_group: As for `KafkaStreams.close`, when the process is told to stop.
        stop_with_parent: Whether the end of standard input counts as SIGTERM; otherwise standard input is not read.
        verbose: Whether errors are shown with their traceback.
    """
    if status_file is not None:
        settings = {**config.client_settings, "__status.file__": str(status_file)}
        config = config.model_copy(update={"client_settings": settings})
    if stop_with_parent:
        threading.Thread(target=_stop_at_end_of_input, name="millrace-parent", daemon=True).start()
    telemetry = configure(config)
    if telemetry is not None:
        telemetry.use_globally()
    last_message = _LastMessage(last_message_file)

    def show(error: StreamsError) -> int:
        return report(error, verbose=verbose)

    def observe(streams: KafkaStreams) -> None:
        if telemetry is not None:
            telemetry.observe(streams)
        last_message.follow(streams)
        if drain_file is not None:
            threading.Thread(
                target=_drain_on_request, args=(streams, drain_file), name="millrace-drain-file", daemon=True
            ).start()

    try:
        code = run(
            topology,
            config,
            instrumentation=telemetry.tracing if telemetry else None,
            metrics_page=telemetry.metrics_page if telemetry else None,
            leave_group=leave_group,
            on_started=observe,
            report=show,
        )
        last_message.end(code)
        return code
    finally:
        if telemetry is not None:
            telemetry.shutdown()


class _LastMessage:
    """The file that tells a host which group members die with this process, and why it failed.

    It is written while the instance runs, as a killed process cannot write it.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._streams: KafkaStreams | None = None
        self._written = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace-last-message", daemon=True)

    def follow(self, streams: KafkaStreams) -> None:
        """Keep the file up to date with an instance that has been started."""
        if self._file is not None:
            self._streams = streams
            self._thread.start()

    def end(self, code: int) -> None:
        """Write the file for the last time; it is empty after a requested stop, as static members then keep their place."""
        if self._streams is not None:
            self._ended.set()
            self._thread.join()
            self._write(self._message(self._streams) if code else "")

    def _run(self) -> None:
        while self._streams is not None and not self._ended.wait(_MEMBERS_EVERY_S):
            self._write(self._message(self._streams))

    @staticmethod
    def _message(streams: KafkaStreams) -> str:
        members = [thread.member_id for thread in streams.status().threads if thread.member_id]
        return format_last_message(members, "" if streams.error is None else describe_error(streams.error))

    def _write(self, message: str) -> None:
        if message == self._written or self._file is None:
            return
        self._written = message
        try:
            self._file.write_text(message)  # in place: in a pod it is a mounted file, which cannot be replaced
        except OSError as error:
            _log.warning("Cannot write %s: %s", self._file, error)


def _drain_on_request(streams: KafkaStreams, file: Path) -> None:
    """Drain once the file is not empty.

    In a pod the file contains the value of an annotation, and is empty until somebody annotates the pod. So only someone who
    may change pods can drain one.
    """
    while not streams.state.has_ended:
        try:
            requested = bool(file.read_text().strip())
        except (OSError, ValueError):  # does not exist, or is not readable (yet)
            requested = False
        if requested and streams.drain():
            return
        time.sleep(_POLL_S)


def _stop_at_end_of_input() -> None:
    """Send SIGTERM, then a second one: if the host was killed its Kafka is gone too, and a commit would wait for it."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_TIMEOUT_WITHOUT_HOST_S)
    os.kill(os.getpid(), signal.SIGTERM)
