"""Compiles and runs small Java programs, for tests that compare with Java's Kafka Streams.

Compiling takes seconds of CPU and gives the same classes every time, so they are kept in the user's cache directory, under a
hash of all that they depend on.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from millrace.dev.jars import Bundle, cache_directory, resolve
from millrace.dev.java import MINIMUM_VERSION, find_java, join_class_path

QUIET = "-Dorg.apache.logging.log4j.level=OFF"
"""The JVM's option for a program whose output is read: Kafka logs nothing."""
_ECJ_MAIN = "org.eclipse.jdt.internal.compiler.batch.Main"


class JavaCompileError(Exception):
    """A Java source does not compile; the message is the compiler's."""


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
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


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
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if result.returncode:
        raise JavaCompileError(result.stdout + result.stderr)
    return output


def compiled_java(sources: Sequence[Path], class_path: Sequence[Path]) -> Path:
    """Return the directory of a program's classes, which is shared: they are compiled if nobody has done so before.

    Args:
        sources: The `.java` files.
        class_path: What the sources use.

    Raises:
        JavaCompileError: A source does not compile.
        JavaNotFoundError: There is no Java.
    """
    identity = repr(
        [MINIMUM_VERSION, [str(jar) for jar in class_path], [(file.name, file.read_text()) for file in sources]]
    )
    classes = cache_directory() / "java-classes" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if not classes.exists():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="part-", dir=classes.parent) as part:
            compiled = compile_java(sources, class_path, Path(part) / "classes")
            try:
                compiled.rename(classes)
            except OSError:
                if not classes.exists():  # else another process was faster
                    raise
    return classes


def streams_class_path(*sources: Path) -> str:
    """Compile programs that use Kafka Streams if necessary, and return the class path to run them with.

    Args:
        sources: The `.java` files.
    """
    jars = resolve(Bundle.KAFKA_STREAMS)
    return join_class_path([compiled_java(sources, jars), *jars])
