"""The process of `millrace run`: one instance with telemetry, until a signal arrives or its host ends."""

from __future__ import annotations

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
from millrace.instance.kafka_streams import KafkaStreams
from millrace.telemetry import configure
from millrace.topology import Topology

STOP_TIMEOUT_WITHOUT_HOST_S = 10.0
_POLL_S = 0.5


def run_until_stopped(
    topology: Topology,
    config: StreamsConfig,
    *,
    status_file: Path | None = None,
    drain_file: Path | None = None,
    stop_with_parent: bool = False,
    verbose: bool = False,
) -> int:
    """Run an instance until SIGTERM or SIGINT and return the exit code; call it in the main thread.

    Args:
        topology: What to run.
        config: The settings.
        status_file: Rewritten every second with the instance's status.
        drain_file: The instance drains once this file is not empty.
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

    def show(error: StreamsError) -> int:
        return report(error, verbose=verbose)

    def observe(streams: KafkaStreams) -> None:
        if telemetry is not None:
            telemetry.observe(streams)
        if drain_file is not None:
            threading.Thread(
                target=_drain_on_request, args=(streams, drain_file), name="millrace-drain-file", daemon=True
            ).start()

    try:
        return run(
            topology,
            config,
            instrumentation=telemetry.tracing if telemetry else None,
            metrics_page=telemetry.metrics_page if telemetry else None,
            on_started=observe,
            report=show,
        )
    finally:
        if telemetry is not None:
            telemetry.shutdown()


def _drain_on_request(streams: KafkaStreams, file: Path) -> None:
    """Drain once the file is not empty.

    In a pod the file contains the value of an annotation, and is empty until somebody annotates the pod. So only those who may
    write pods can drain one.
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
