"""The commands from the outside: their output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from tests import forked

MANIFEST = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata: {name: shop}
spec:
  applicationId: shop-v1
  image: shop:1
  app: {entrypoint: "shop:topology", config: {input: orders}}
  kafka: {bootstrapServers: ["kafka:9092"]}
"""

PROGRAM = '''\
from millrace.topology import Topology


def topology(config):
    """Pass records on."""
    result = Topology()
    result.add_source("source", config.get("input", "lines"))
    result.add_sink("sink", "out<&>", "source")
    return result
'''


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a program and its manifest."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "streamsapp.yaml").write_text(MANIFEST)
    return tmp_path


def millrace(*arguments: str, folder=None, cold: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, in a process."""
    command = [sys.executable, "-m", "millrace.cli", *arguments]
    return forked.run(command, cold=cold, capture_output=True, text=True, cwd=folder, timeout=120)


def test_help_lists_the_commands():
    """`--help` names every command."""
    result = millrace("--help")
    assert result.returncode == 0
    assert all(f" {name} " in result.stdout for name in ("init", "run", "plan", "describe", "reset", "explain", "dev"))


def test_help_imports_no_engine():
    """Help is fast because the commands are defined without importing the engine."""
    slow = ["confluent_kafka", "rocksdict", "pydantic", "yaml", "kubernetes", "kopf"]
    code = f"import sys, millrace.cli.app; print([name for name in {slow} if name in sys.modules])"
    result = forked.run([sys.executable, "-c", code], cold="it asks what is imported", capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("init", "run", "plan", "describe", "reset", "explain", "top", "dev kafka", "dev up", "dev down"),
        *("dev status", "dev logs", "dev topics", "dev produce", "dev consume", "dev reset"),
    ],
)
def test_every_command_has_help_with_an_example(command):
    """Each command shows how it is used."""
    result = millrace(*command.split(), "--help")
    assert result.returncode == 0
    assert f"millrace {command}" in result.stdout


def test_plan_prints_json(folder):
    """`plan --json` prints only the plan, with camelCase names."""
    result = millrace("plan", "-f", "streamsapp.yaml", "--json", folder=folder)
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["applicationId"] == "shop-v1"
    assert plan["subtopologies"][0]["sourceTopics"] == ["orders"]
    assert len(plan["hash"]) == 64


def test_plan_shows_where_dead_letters_go(folder):
    """The manifest's dead-letter topic is listed among the topics that the application needs."""
    (folder / "streamsapp.yaml").write_text(MANIFEST + "  processing: {deadLetterTopic: orders-failed}\n")
    result = millrace("plan", "-f", "streamsapp.yaml", folder=folder)
    assert result.returncode == 0, result.stderr
    assert "sends dead letters to orders-failed" in result.stdout


def test_plan_shows_what_is_set_for_the_group(folder):
    """Where brokers assign the tasks, the manifest's standbys are a setting of the group, which members would refuse."""
    manifest = MANIFEST.replace(
        '{bootstrapServers: ["kafka:9092"]}', '{bootstrapServers: ["k:9092"], groupProtocol: streams}'
    )
    (folder / "streamsapp.yaml").write_text(manifest + "  standby: {replicas: 2}\n")
    result = millrace("plan", "-f", "streamsapp.yaml", folder=folder)
    assert result.returncode == 0, result.stderr
    assert "sets streams.num.standby.replicas=2 for the group" in result.stdout


def test_program_is_looked_for_next_to_the_manifest(folder):
    """A manifest can be used from any directory: its program is also looked for in the manifest's folder."""
    result = millrace("plan", "-f", str(folder / "streamsapp.yaml"), folder="/")
    assert result.returncode == 0, result.stderr
    assert "reads orders" in result.stdout


def test_command_line_takes_precedence_over_the_manifest(folder):
    """Options and settings override the manifest."""
    result = millrace(
        "plan", "-f", "streamsapp.yaml", "--application-id", "other", "-c", "num.stream.threads=2", folder=folder
    )
    assert "other" in result.stdout


def test_describe_as_text(folder):
    """The text has Kafka Streams' format."""
    result = millrace("describe", "shop.py", folder=folder)
    assert result.stdout == (
        "Topologies:\n   Sub-topology: 0\n    Source: source (topics: [lines])\n      --> sink\n"
        "    Sink: sink (topic: out<&>)\n      <-- source\n\n"
    )


def test_describe_as_mermaid(folder):
    """Mermaid shows nodes and topics, with special characters escaped."""
    result = millrace("describe", "shop:topology", "--format", "mermaid", folder=folder)
    assert result.stdout.startswith("flowchart TD\n")
    assert '[["lines"]]' in result.stdout
    assert '[["out#lt;&#gt;"]]' in result.stdout


def test_describe_as_svg(folder):
    """SVG is well-formed and has a box for each node and topic."""
    result = millrace("describe", "shop:topology", "--format", "svg", "-o", "shop.svg", folder=folder)
    assert result.returncode == 0, result.stderr
    root = ET.parse(folder / "shop.svg").getroot()
    labels = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert labels == ["Sub-topology 0", "lines", "source", "sink", "out<&>"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("plan",), "Error: Say what to run: give an entrypoint"),
        (("plan", "shop.py"), "Error: The application has no id: give --application-id ID"),
        (("plan", "shop:topologi", "--application-id", "a"), "did you mean `topology`?"),
        (("plan", "shop.py", "--application-id", "a", "-c", "x"), "Error: `x` is not a setting: write KEY=VALUE"),
        (("plan", "shop.py", "--application-id", "a", "-c", "poll.ms=x"), "Error: Invalid configuration: poll.ms"),
        (("plan", "-f", "none.yaml"), "Error: Cannot read the manifest none.yaml: No such file or directory"),
        (("run", "shop.py", "--replica", "1"), "Error: --replica is the number of a replica of a manifest"),
        (
            ("dev", "up", "-f", "streamsapp.yaml", "--topic", "a:x"),
            "Error: `a:x` is not a topic: write NAME or NAME:PARTITIONS",
        ),
        (("dev", "up", "-f", "none.yaml"), "Error: Cannot read the manifest"),
        (("plan", "--what"), "No such option"),
        (("dev", "up", "--port", "9092", "--bootstrap", "k:1"), "Error: --port is for the embedded Kafka"),
        (("dev", "up", "--port", "99999"), "equal to 65535"),
        (("dev", "kafka", "--port", "99999"), "equal to 65535"),
        (
            ("dev", "kafka", "--port", "65535", "--brokers", "2"),
            "Error: 2 brokers from port 65535 would need ports above",
        ),
        (("dev", "kafka", "--log-level", "LOUD"), "Invalid value for '--log-level'"),
        (
            ("describe", "shop.py", "-o", "none/shop.txt"),
            "Error: Cannot write none/shop.txt: No such file or directory",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(folder, arguments, expected):
    """The user's mistake is reported on one line, without a traceback, with exit code 2."""
    result = millrace(*arguments, folder=folder)
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


def test_verbose_shows_the_traceback(folder):
    """With --verbose the traceback is shown too, with its causes."""
    (folder / "shop.py").write_text("1 / 0")
    result = millrace("--verbose", "plan", "shop.py", "--application-id", "a", folder=folder)
    assert result.returncode == 2
    assert "ZeroDivisionError: division by zero\n" in result.stderr
    assert "Traceback" in result.stderr
    assert "Error: shop.py: importing `shop` raised ZeroDivisionError: division by zero at" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "shop.py", "--application-id", "a", "-v"),
        ("dev", "topics", "--bootstrap", "127.0.0.1:1", "-v"),
        ("dev", "up", "--verbose"),
    ],
)
def test_verbose_may_follow_the_command(folder, arguments):
    """`-v` after a command is the same as before it."""
    (folder / "shop.py").write_text("1 / 0")
    (folder / "streamsapp.yaml").write_text(MANIFEST.replace("image: shop:1", "image: ''"))
    result = millrace(*arguments, folder=folder)
    assert result.returncode != 0
    assert "Traceback" in result.stderr
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("dev", "kafka"), ("dev", "up"), ("dev", "up", "--detach"), ("dev", "reset", "--bootstrap", "127.0.0.1:1")],
)
def test_folder_that_cannot_be_used(folder, arguments):
    """A file in the way of the data's folder is an error in one line."""
    (folder / "file").write_text("")
    result = millrace(*arguments, "--dir", "file/data", folder=folder)
    assert result.returncode == 1
    assert f"{folder}/file/data: Not a directory. Choose another one" in result.stderr
    assert "Traceback" not in result.stderr


def test_reset_of_what_has_not_run(folder):
    """There is nothing to do, and no folder is made for it."""
    result = millrace("dev", "reset", "--dir", "data", folder=folder)
    assert (result.returncode, result.stdout) == (0, f"Nothing to do: shop has not run in {folder}/data\n")
    assert not (folder / "data").exists()
    (folder / "data" / "shop-0" / "state" / "shop-v1").mkdir(parents=True)
    result = millrace("dev", "reset", "--dir", "data", folder=folder)
    assert result.returncode == 2
    assert "name them with --bootstrap" in result.stderr


def test_status_and_down_if_nothing_is_running(folder):
    """`dev status` says so with exit code 1; `dev down` succeeds."""
    result = millrace("dev", "status", "-f", "streamsapp.yaml", "--dir", "data", folder=folder)
    assert (result.returncode, result.stdout) == (1, "shop is not running\n")
    result = millrace("dev", "status", "-f", "streamsapp.yaml", "--dir", "data", "--json", folder=folder)
    assert json.loads(result.stdout) == {
        "name": "shop",
        "running": False,
        "directory": str(folder / "data"),
        "replicas": [],
    }
    result = millrace("dev", "down", "-f", "streamsapp.yaml", "--dir", "data", folder=folder)
    assert (result.returncode, result.stdout) == (0, "shop is not running\n")


def test_interrupt_while_the_command_is_loaded_shows_no_traceback():
    """Ctrl-C ends the command with 130 even before it knows what it is to do."""
    program = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where the tests run in the background
        "sys.meta_path.insert(0, Interrupts())\n"
        "from millrace.cli import main\n"
        "main()\n"
    )
    ran = forked.run([sys.executable, "-c", program], cold="signal while it imports", capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (130, "")


def test_version():
    """`--version` prints the version."""
    result = millrace("--version", cold="all others are forked")
    assert result.returncode == 0
    assert result.stdout.startswith("millrace 0.")


@pytest.mark.broker
def test_dev_kafka_serves_until_sigterm():
    """`dev kafka` prints its address, and ends cleanly on SIGTERM."""
    command = [sys.executable, "-m", "millrace.cli", "dev", "kafka", "--port", "0"]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        process.terminate()
        rest = process.stdout.read()
    assert line.startswith("Kafka serves at 127.0.0.1:")
    assert (process.returncode, rest) == (0, "")


@pytest.mark.slow
def test_run_without_a_broker_says_so_with_a_hint(folder):
    """If brokers do not answer, a retry may succeed (exit code 1), and the error says what can be done."""
    result = millrace(
        "run", "-f", "streamsapp.yaml", "--bootstrap", "127.0.0.1:1", "--state-dir", "state", folder=folder
    )
    assert result.returncode == 1
    assert "Error: " in result.stderr
    assert "127.0.0.1:1" in result.stderr
    assert "Hint: Check the address, or start Kafka on this machine with `millrace dev kafka`." in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("plan", "streamsapp.yaml"), "streamsapp.yaml is a manifest, not a program: give it with -f streamsapp.yaml"),
        (("plan", ".", "--application-id", "a"), "for example `wordcount:topology`"),
        (("plan", "shop:topolgy", "--application-id", "a"), "has no `topolgy`; did you mean `topology`?"),
        (("init", "shop.py"), "shop.py is a file: name a folder, which is created if it does not exist"),
        (("plan", "shop.py", "--application-id", "a", "-c", "num.stream.threads=x"), "(got 'x')\n"),
    ],
)
def test_wrong_command_lines(folder, arguments, told):
    """Exit code 2, and what to write instead."""
    result = millrace(*arguments, folder=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_logs_of_an_application_that_has_not_run(folder):
    """It is told how to start it."""
    result = millrace("dev", "logs", "--dir", "data", folder=folder)
    assert result.returncode == 0
    assert "shop has no logs in" in result.stderr
    assert "start it with `millrace dev up`" in result.stderr


@pytest.mark.slow
def test_brokers_that_do_not_answer(folder):
    """The message says what to check, in words."""
    result = millrace("dev", "topics", "--bootstrap", "127.0.0.1:1", folder=folder)
    assert result.returncode == 1
    assert "Check that the brokers are running, and that host and port are right" in result.stderr
    assert "KafkaError" not in result.stderr
