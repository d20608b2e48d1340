"""What tests cost is counted, compared with limits, and decides their order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
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
        ("/usr/bin/java -cp a.jar Compare", {"other Java"}),
        (".venv/bin/python .venv/bin/millrace plan app:topology", {"cold Python"}),
        ("python3.11 -m millrace_operator", {"cold Python", "operator starts"}),
        ("python .venv/bin/mypy --strict a.py", {"cold Python", "type checks"}),
        ("kube-apiserver --etcd-servers=http://127.0.0.1:1", {"control planes"}),
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


def recorded(path: Path, *, brokers: list[str], cpu_s: float = 100.0) -> Path:
    """Write a recording as the plugin does."""
    path.write_text(
        json.dumps(
            {
                "wall_s": 60.0,
                "cpu_s": cpu_s,
                "loop_s": 0.04,
                "files": {"tests/test_a.py": {"s": 1.0, "cpu_s": 1.0, "tests": 3}},
                "slowest": {"tests/test_a.py::test_one": 1.0},
                "processes": [["brokers", test] for test in brokers],
            }
        )
    )
    return path


@pytest.fixture
def limits(tmp_path) -> Path:
    """Return limits of one broker and 5,000 loops, met by a run in which `test_one` has started a broker."""
    path = tmp_path / "limits.toml"
    path.write_text('brokers = 1\n"CPU in loops" = 5000\n')
    return path


@pytest.fixture
def accepted(tmp_path) -> Path:
    """Return the measurements of a run in which `test_one` started a broker."""
    path = tmp_path / "files.json"
    budget.refresh(recorded(tmp_path / "before.json", brokers=["tests/test_a.py::test_one"]), path)
    return path


def test_budget_that_is_kept(tmp_path, limits, accepted, capsys):
    """The counts are printed beside the limits, and nothing is wrong."""
    found = budget.check(recorded(tmp_path / "run.json", brokers=["tests/test_a.py::test_one"]), limits, accepted)

    assert found == 0
    assert capsys.readouterr().out.split("\n")[1].split() == ["brokers", "1", "1"]


def test_one_more_broker_fails_and_names_the_test(tmp_path, limits, accepted, capsys):
    """A kind above its limit fails, and the test that has added one is named."""
    run = recorded(tmp_path / "run.json", brokers=["tests/test_a.py::test_one", "tests/test_a.py::test_two"])

    assert budget.check(run, limits, accepted) == 1
    assert "tests/test_a.py::test_two: 1, was 0" in capsys.readouterr().out


def test_too_much_processor_time_fails(tmp_path, limits, accepted, capsys):
    """Processor time counts in loops, so that a slower machine has the same limit."""
    run = recorded(tmp_path / "run.json", brokers=["tests/test_a.py::test_one"], cpu_s=300.0)

    assert budget.check(run, limits, accepted) == 1
    assert "CPU in loops" in capsys.readouterr().out


def test_budget_without_a_run(tmp_path, limits, accepted, capsys):
    """Whoever has not run the tests is told to."""
    assert budget.check(tmp_path / "none.json", limits, accepted) == 2
    assert "make test" in capsys.readouterr().out
