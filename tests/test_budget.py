"""What tests cost is counted, compared with limits, and decides their order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.budget import __main__ as budget
from tests.budget.order import in_order
from tests.budget.processes import ProcessCounter, kinds_of
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("/usr/bin/java -Xmx1g -cp a.jar kafka.Kafka node.properties", {"brokers"}),
        ("java -cp a.jar org.apache.spark.deploy.SparkSubmit pyspark-shell", {"Spark's Java"}),
        ("java -cp a.jar org.apache.spark.launcher.Main org.apache.spark.deploy.SparkSubmit pyspark-shell", set()),
        ("/usr/bin/java -cp a.jar Compare", {"other Java"}),
        ("/usr/bin/java -version", set()),
        ("/usr/bin/java --list-modules", set()),
        (".venv/bin/python .venv/bin/millrace plan app:topology", {"cold Python"}),
        ("python3.11 -m millrace_operator", {"cold Python", "operator starts"}),
        ("python .venv/bin/mypy --strict a.py", {"cold Python", "type checks"}),
        ("kube-apiserver --etcd-servers=http://127.0.0.1:1", {"control planes"}),
        ("/cache/kubernetes kube-apiserver --etcd-servers=http://127.0.0.1:1", {"control planes"}),
        ("sleep 60", set()),
    ],
)
def test_kinds_of_processes(command, kinds):
    """A process is recognised by its command line."""
    assert set(kinds_of(command.split())) == kinds


@pytest.fixture
def counter() -> Iterator[ProcessCounter]:
    """Count the processes below this one."""
    counter = ProcessCounter()
    counter.start()
    yield counter
    counter.stop()


def test_processes_are_counted_with_the_test_that_started_them(counter, request):
    """A process that starts another counts as two; both name the test."""

    def found():
        return [each.kinds for each in counter.processes if each.test == request.node.nodeid]

    read = "sys.stdin.read()"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import sys; {read}']); {read}"
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE) as process:
        wait_until(lambda: found() == [{"cold Python"}] * 2, lambda: f"both are seen: {counter.processes}")
        process.stdin.close()


def test_test_is_the_one_in_the_environment_with_which_a_program_is_executed(counter, request):
    """Between its fork and its exec, a process has the environment with which its parent was started."""

    def found(test):
        return [each for each in counter.processes if each.test == test]

    child = (
        "import os, sys; pid = os.fork() or (sys.stdin.buffer.raw.read(1), "
        "os.execve(sys.executable, ['python', '-c', 'import sys; sys.stdin.read()'], {'PYTEST_CURRENT_TEST': 'fixture later'})); "
        "os.waitpid(pid, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE) as process:
        wait_until(lambda: len(found(request.node.nodeid)) == 2, lambda: f"both are seen: {counter.processes}")
        process.stdin.write(b"1")
        process.stdin.flush()
        wait_until(lambda: len(found("fixture later")) == 1, lambda: f"the program is seen: {counter.processes}")
        assert len(found(request.node.nodeid)) == 1
        process.stdin.close()


def test_processor_time_of_children_is_counted(counter, request):
    """The time of a process that computes for half a second of processor time is added up."""

    def found():
        return sum(each.cpu_s for each in counter.processes if each.test == request.node.nodeid)

    computing = "import sys, time\nwhile time.process_time() < 0.7: pass\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", computing], stdin=subprocess.PIPE) as process:
        wait_until(lambda: found() >= 0.5, "its time is seen")
        process.stdin.close()


def test_long_files_come_first_and_kinds_alternate():
    """Files without a measurement come first; then computing and waiting files, each from long to short, in proportion."""
    costs = {
        "wait-40": {"s": 40, "cpu_s": 1},
        "wait-20": {"s": 20, "cpu_s": 1},
        "wait-5": {"s": 5, "cpu_s": 1},
        "compute-30": {"s": 30, "cpu_s": 30},
        "compute-10": {"s": 10, "cpu_s": 10},
    }

    ordered = in_order(["new", *costs], costs)

    assert ordered == ["new", "compute-30", "wait-40", "wait-20", "compute-10", "wait-5"]


def record(build: Path, *, brokers: list[str], cpu_s: float = 100.0) -> None:
    """Write a recording of `make test` as the plugin does."""
    recorded = {
        "wall_s": 60.0,
        "cpu_s": cpu_s,
        "loop_s": 0.04,
        "files": {"tests/test_a.py": {"s": 1.0, "cpu_s": cpu_s, "tests": 3}},
        "slowest": {"tests/test_a.py::test_one": 1.0},
        "processes": [["brokers", test] for test in brokers],
    }
    (build / "test.json").write_text(json.dumps(recorded))


ONE, TWO = "tests/test_a.py::test_one", "tests/test_a.py::test_two"


@pytest.fixture
def check(tmp_path) -> Callable[[], int]:
    """Return what compares with limits of one broker and 5,000 loops; a run in which `test_one` had a broker was accepted."""
    limits, accepted = tmp_path / "limits.toml", tmp_path / "accepted.data"
    limits.write_text('[test]\nbrokers = 1\n"CPU in loops" = 5000\n')
    accepted.write_text('{"files": {}, "processes": {}}')
    record(tmp_path, brokers=[ONE])
    budget.refresh(tmp_path, accepted)
    return lambda: budget.check(tmp_path, limits, accepted)


def test_budget_that_is_kept(check, capsys):
    """The counts are printed beside the limits, and nothing is wrong."""
    assert check() == 0
    assert capsys.readouterr().out.split("\n")[1].split() == ["brokers", "1", "1"]


def test_one_more_broker_fails_and_names_the_test(tmp_path, check, capsys):
    """A kind above its limit fails, and the test that has added one is named."""
    record(tmp_path, brokers=[ONE, TWO])

    assert check() == 1
    out = capsys.readouterr().out
    assert f"{TWO}: 1, was 0" in out
    assert ONE not in out


def test_what_workers_share_counts_once(tmp_path, check):
    """The number of workers does not matter to the budget."""
    record(tmp_path, brokers=["fixture kafka"] * 6)

    assert check() == 0


def test_limits_by_file(tmp_path, check, capsys):
    """One more in a file is too many, whatever others have left; a file that is not named may start none."""
    (tmp_path / "limits.toml").write_text('[test.brokers]\nshared = 1\n"tests/test_a.py" = 2\n"tests/test_b.py" = 5\n')
    record(tmp_path, brokers=["fixture kafka", ONE, TWO])
    assert check() == 0
    for one_more in (ONE, "tests/test_c.py::test_one", "fixture other"):
        record(tmp_path, brokers=["fixture kafka", ONE, TWO, one_more])
        assert check() == 1
    assert "tests/test_c.py starts 1 brokers, and may start 0" in capsys.readouterr().out


def test_too_much_processor_time_fails_and_names_the_file(tmp_path, check, capsys):
    """Processor time counts in loops, so that a slower machine has the same limit."""
    record(tmp_path, brokers=[ONE], cpu_s=300.0)

    assert check() == 1
    assert "tests/test_a.py: +200.0 s" in capsys.readouterr().out


def test_budget_without_a_run(tmp_path, check, capsys):
    """Whoever has not run the tests is told to."""
    (tmp_path / "test.json").unlink()

    assert check() == 2
    assert "`make test` has not been run here" in capsys.readouterr().out
