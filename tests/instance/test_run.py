"""An application as a program of its own: `millrace.run`, and `KafkaStreams.wait` for programs with more to do."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from tests import forked
from tests.instance.support import produce, read_all, settings
from tests.instance.test_errors import failing
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import FailedProcessingError
from millrace.instance import KafkaStreams, State

pytestmark = pytest.mark.broker

PROGRAM = """\
import logging
import sys
import threading

from millrace import StreamsBuilder, run


def shout(line):
    if line == "bad":
        raise ValueError("a bad line")
    if line == "slow":
        print("slow", flush=True)
        threading.Event().wait()
    return line.upper()


def listen(streams):
    streams.set_state_listener(lambda new, old: print(f"now {new.name}\\n", end="", flush=True))


if __name__ == "__main__":
    source, sink, *settings = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    builder = StreamsBuilder()
    builder.stream(source).map_values(shout).to(sink)
    sys.exit(run(builder.build(), dict(each.split("=", 1) for each in settings), prepare=listen))
"""


PROCESSOR = """\
from millrace import Processor


class Check(Processor):
    def process(self, record):
        if record.value == "bad":
            raise ValueError


def topology(builder):
    builder.stream("{source}").process(Check, named="check")
"""
SERDES = {"default_key_serde": "string", "default_value_serde": "string"}


class Program:
    """The program above as a process."""

    def __init__(self, kafka, app, directory, source="in", sink="out"):
        path = directory / "shout.py"
        path.write_text(PROGRAM)
        config = settings(kafka, app, directory / "state", **SERDES)
        self._log = directory / "log"
        with self._log.open("w") as log:
            self._process = forked.Popen(
                [sys.executable, path, source, sink, *(f"{key}={value}" for key, value in config.items())],
                stdout=log,
                stderr=log,
            )

    @property
    def log(self):
        """What it has printed."""
        return self._log.read_text()

    def signal(self, number):
        """Send a signal."""
        self._process.send_signal(number)

    def code(self):
        """Return its exit code, once it has ended."""
        return self._process.wait(PATIENCE_S)

    def end(self):
        """Kill it if it still runs."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def start(request, app, tmp_path):
    """Return a function that starts the program."""

    def start(kafka, *topics):
        program = Program(kafka, app, tmp_path, *topics)
        request.addfinalizer(program.end)
        return program

    return start


def test_program_that_fails_says_why_and_exits_with_one(kafka, topic_factory, start):
    """The log has the traceback of the user's function, and a line with the task, the node, the record and the error."""
    source, sink = topic_factory("in"), topic_factory("out")
    produce(kafka, source, ["good", "bad"])
    program = start(kafka, source, sink)
    assert program.code() == 1
    last = [line for line in program.log.splitlines() if line.startswith("ERROR:millrace:Failed: ")]
    assert len(last) == 1, program.log
    assert (
        f"KSTREAM-MAPVALUES-0000000001 failed on the record at offset 1 of {source}-0: ValueError: a bad line"
        in last[0]
    )
    assert "Task 0_0" in last[0]
    line = PROGRAM.splitlines().index('        raise ValueError("a bad line")') + 1
    assert f'shout.py", line {line}, in shout\n' in program.log


def test_json_log_has_the_traceback_of_a_processor(kafka, topic_factory, app, tmp_path):
    """`millrace run` logs it in the record about the thread's death, beside the task, the node and the input record."""
    source = topic_factory("in")
    produce(kafka, source, ["good", "bad"])
    (tmp_path / "check.py").write_text(PROCESSOR.format(source=source))
    command = [sys.executable, "-m", "millrace.cli", "run", "check.py:topology", "--log-format", "json"]
    for key, value in settings(kafka, app, tmp_path / "state", **SERDES).items():
        command += ["-c", f"{key}={value}"]
    done = forked.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    (died,) = (line for line in map(json.loads, done.stderr.splitlines()) if " died " in line["message"])
    assert f"Task 0_0: node check failed on the record at offset 1 of {source}-0: ValueError" in died["message"]
    line = PROCESSOR.splitlines().index("            raise ValueError") + 1
    assert f'check.py", line {line}, in process\n' in died["error"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_a_running_program(kafka, topic_factory, start, number):
    """Ctrl-C and SIGTERM commit and close; listeners that were set before the start hear of both."""
    source, sink = topic_factory("in"), topic_factory("out")
    program = start(kafka, source, sink)
    produce(kafka, source, ["a"])
    wait_until(lambda: read_all(kafka, sink), lambda: program.log)
    program.signal(number)
    assert program.code() == 0, program.log
    assert "Traceback" not in program.log
    told = [line.removeprefix("now ") for line in program.log.splitlines() if line.startswith("now ")]
    assert told[0] == "REBALANCING"
    assert "PENDING_SHUTDOWN" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_a_program_that_is_starting(silent_broker, start, number):
    """A signal before the brokers have answered is no failure and shows no traceback."""
    address, connected = silent_broker
    program = start(address)
    assert connected.wait(PATIENCE_S)
    program.signal(number)
    assert program.code() == 0, program.log
    assert "Traceback" not in program.log


def test_second_signal_ends_a_program_at_once(kafka, topic_factory, start):
    """If the first Ctrl-C waits for a record that takes too long, a second one does not, and shows no traceback either."""
    source, sink = topic_factory("in"), topic_factory("out")
    program = start(kafka, source, sink)
    produce(kafka, source, ["a", "slow"])
    wait_until(lambda: "slow\n" in program.log, lambda: program.log)
    program.signal(signal.SIGINT)
    wait_until(lambda: "now PENDING_SHUTDOWN" in program.log, lambda: program.log)
    program.signal(signal.SIGINT)
    assert program.code() == 128 + signal.SIGINT
    assert "Traceback" not in program.log


def test_waiting_raises_what_ended_the_application(kafka, topic_factory, app, tmp_path):
    """`wait` returns False while the application runs, and raises its error once it has failed, out of a `with` statement too."""
    source, sink = topic_factory("in"), topic_factory("out")
    with (
        pytest.raises(FailedProcessingError, match="this word is bad"),
        KafkaStreams(failing(source, sink), settings(kafka, app, tmp_path)) as streams,
    ):
        assert streams.wait(0.1) is False
        produce(kafka, source, ["bad"])
        streams.wait(PATIENCE_S)
    assert streams.state is State.NOT_RUNNING
