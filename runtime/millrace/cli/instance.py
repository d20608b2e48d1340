"""The process of `millrace run`: an instance with telemetry from the environment, ended by a signal or by the end of its host."""

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
from millrace.runtime import run
from millrace.runtime.kafka_streams import KafkaStreams
from millrace.telemetry import configure
from millrace.topology import Topology

PATIENCE_WITHOUT_HOST_S = 10.0
_LOOK_EVERY_S = 0.5


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
        status_file: Rewritten every second with what the instance does.
        drain_file: Has the instance drained once there is something in it.
        stop_with_parent: Whether the end of standard input counts as SIGTERM; nothing is read from it otherwise.
        verbose: Whether errors come with their traceback.
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
                target=_drain_when_told, args=(streams, drain_file), name="millrace-drain-file", daemon=True
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


def _drain_when_told(streams: KafkaStreams, file: Path) -> None:
    """Drain once the file has something in it.

    In a pod it holds the value of an annotation, which is empty as long as nobody has annotated the pod. So whoever may write
    pods decides, and nobody else.
    """
    while not streams.state.has_ended:
        if _has_content(file) and streams.drain():
            return
        time.sleep(_LOOK_EVERY_S)


def _has_content(file: Path) -> bool:
    try:
        return bool(file.read_text().strip())
    except (OSError, ValueError):  # not there, or not readable (yet)
        return False


def _stop_at_end_of_input() -> None:
    """Ask for an end, then demand it: the Kafka of a host that was killed is gone as well, and a commit would wait for it."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_WITHOUT_HOST_S)
    os.kill(os.getpid(), signal.SIGTERM)
