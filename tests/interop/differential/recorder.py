"""Runs the Java recorder (`java/differential`) on a folder of cases, all in one JVM."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.java_programs import QUIET, compiled_java

from millrace.dev.jars import Bundle, resolve
from millrace.dev.java import find_java, join_class_path

SOURCES = Path(__file__).parents[1] / "java" / "differential"


class Recorder:
    """The compiled recorder.

    Args:
        directory: For the state of its stores.
    """

    def __init__(self, directory: Path) -> None:
        jars = resolve(Bundle.KAFKA_STREAMS_TEST)
        classes = compiled_java(sorted(SOURCES.glob("*.java")), jars)
        self._class_path = join_class_path([classes, *jars])
        self._state = directory / "state"

    def record(self, folder: Path) -> None:
        """Let Kafka Streams write its results next to the requested cases and descriptions in a folder."""
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", QUIET]
        command = [str(find_java().executable), *options, "-cp", self._class_path]
        result = subprocess.run(
            [*command, "differential.Recorder", str(folder), str(self._state)],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"the recorder failed:\n{result.stdout}{result.stderr}")
