"""`millrace backfill` as a command: what it prints before, during and after, and its exit codes."""

import json
import os
import subprocess
import sys

import pytest
from tests.backfill.broker_app import App

from millrace.backfill.run import Phase
from millrace.cli.backfill_report import Reporter
from millrace.errors import StreamsError

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def shop(kafka, tmp_path):
    """An application with ten records."""
    app = App(kafka)
    app.produce([f"k{number % 3}" for number in range(10)])
    app.write_project(tmp_path, by_value=True)
    return app


def backfill(folder, *arguments, **environment):
    """Run the command in a process without a terminal."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "millrace.backfill", "-f", "streamsapp.yaml", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_stages_as_a_diagram(shop, tmp_path):
    """`--explain` shows stages, shuffles with their partitions, and stores, and starts no Spark."""
    done = backfill(tmp_path, "--explain", PATH="", JAVA_HOME="")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "flowchart LR"
    assert f'  n1[["{shop.source}<br/>2 partitions"]]' in lines
    assert f'  n2{{{{"shuffle<br/>{shop.id}-by-repartition<br/>2 partitions"}}}}' in lines
    assert "  n0 --> n2" in lines
    assert "  n2 --> n3" in lines
    assert any("counts" in line and "[(" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--sink", "orc:///x"], 2, "--sink orc:///x is not known"),
        (["--from", "missing.yaml"], 2, "Cannot read missing.yaml: No such file or directory"),
        (["--from", "s3://x"], 2, "--from s3://x is not known"),
    ],
)
def test_wrong_options(shop, tmp_path, arguments, code, message):
    """The error comes before Spark is started."""
    done = backfill(tmp_path, *arguments, PATH="")
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_no_java(shop, tmp_path):
    """A machine without Java is told so."""
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-m", "millrace.backfill", "-f", "streamsapp.yaml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer" in done.stderr


def test_progress_and_result_as_json(shop, tmp_path):
    """Each line is an object; the last one has the result, and a refusal has its reason."""
    done = backfill(tmp_path, "--dry-run", "--progress", "json", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line)["backfill"] for line in done.stdout.splitlines() if line.startswith('{"backfill":')]
    assert lines[0]["state"] == "Computing"
    assert sum(end["offset"] for end in lines[0]["ends"]) == 10
    assert lines[-1]["state"] == "Succeeded"
    assert [(store["name"], store["records"]) for store in lines[-1]["stores"]] == [("counts", 3)]
    assert "Dry run: nothing was written" in lines[-1]["message"]

    done = backfill(tmp_path, "--plan-hash", "12", "--progress", "json", "--master", "local[2]")
    assert done.returncode == 2
    refused = json.loads(done.stdout.splitlines()[-1])["backfill"]
    assert refused["state"] == "Refused"
    assert "the application's is 12" in refused["message"]


def test_report_of_a_failure_says_whether_it_had_published(capsys):
    """The last line is enough to know whether there may be half a result, however much was logged before it."""
    for phase, published in ((Phase.COMPUTING, False), (Phase.PUBLISHING, True)):
        reporter = Reporter(as_json=True, bar=False)
        reporter.phase(phase, {})
        reporter.failed(StreamsError("no broker"))
        last = json.loads(capsys.readouterr().out.splitlines()[-1])["backfill"]
        assert (last["state"], last["hasPublished"]) == ("Failed", published)
