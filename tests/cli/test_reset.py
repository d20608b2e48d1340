"""`millrace reset` as a command: what it prints, asks and changes, and its exit codes."""

from __future__ import annotations

import os
import pty
import secrets
import subprocess
import sys

import pytest
from tests import forked
from tests.kafka.support import Group

from millrace.config import StreamsConfig
from millrace.kafka.admin import all_topic_partitions
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.records import TopicPartition

PROGRAM = """\
def topology(builder, config):
    builder.stream(config["input"]).group_by_key().count("counts").to_stream().to("out")
"""
MANIFEST = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata: {{name: shop}}
spec:
  applicationId: {app}
  image: shop:1
  app: {{entrypoint: "shop:topology", config: {{input: {topic}}}}}
  kafka: {{bootstrapServers: ["{servers}"]}}
"""


def millrace(folder, *arguments, **options):
    """Run a command as a user would, in a process without a terminal."""
    command = [sys.executable, "-m", "millrace.cli", *arguments]
    options = {"stdin": subprocess.DEVNULL, **options}
    return forked.run(command, capture_output=True, text=True, cwd=folder, timeout=90, **options)


@pytest.fixture
def app():
    """Return a new application id."""
    return f"app-{secrets.token_hex(4)}"


@pytest.fixture
def shop(kafka, topic_factory, tmp_path, app):
    """Return an application that has run: it has an input, a changelog, a committed offset, and state on disk."""
    topic = topic_factory("in")
    kafka.create_topics(f"{app}-counts-changelog")
    (tmp_path / "shop.py").write_text(PROGRAM)
    manifest = MANIFEST.format(app=app, topic=topic, servers=kafka.bootstrap_servers)
    (tmp_path / "streamsapp.yaml").write_text(manifest)
    (tmp_path / "state" / app / "0_0").mkdir(parents=True)
    (tmp_path / "state" / app / "0_0" / "file").write_text("state")
    with GroupAdmin(client_settings(kafka, app)) as group:
        group.commit({TopicPartition(topic, 0): 7})
    return topic


def client_settings(kafka, app):
    """Return settings for observing an application."""
    config = StreamsConfig.of({"application.id": app, "bootstrap.servers": kafka.bootstrap_servers})
    return ClientSettings(config, "test")


def left(kafka, app):
    """Return the application's remaining internal topics and committed offsets."""
    with GroupAdmin(client_settings(kafka, app)) as group:
        topics = {name for name in all_topic_partitions(kafka.admin()) if name.startswith(f"{app}-")}
        return topics, list(group.committed().values())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Error: Say which application to reset: a manifest (-f FILE), or --application-id ID"),
        (("--application-id", "a"), "Error: bootstrap.servers is missing"),
        (
            ("--application-id", "a", "--to-earliest", "--shift-by", "2"),
            "--to-earliest and --shift-by contradict each other",
        ),
        (
            ("--application-id", "a", "--to-datetime", "noon"),
            "Error: `noon` is not a time: write it like 2026-01-31T12:00:00",
        ),
        (("--application-id", "a", "--by-duration", "1 day"), "Error: `1 day` is not a duration: write it in ISO 8601"),
        (("--application-id", "a", "-c", "x"), "Error: `x` is not a setting: write KEY=VALUE"),
    ],
)
def test_wrong_command_lines(tmp_path, arguments, expected):
    """The user's mistake is reported on one line, without connecting to a broker, with code 2."""
    result = millrace(tmp_path, "reset", *arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.broker
def test_dry_run_changes_nothing(kafka, shop, app, tmp_path):
    """A dry run prints every action, and leaves topics, offsets and files."""
    before = left(kafka, app)
    result = millrace(tmp_path, "reset", "-f", "streamsapp.yaml", "--state-dir", "state", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        f"Reset of {app}:\n  set offset of {shop}-0 to 0\n  delete topic {app}-counts-changelog\n"
        f"  delete state in {tmp_path}/state/{app}\nDry run: nothing was changed\n"
    )
    assert left(kafka, app) == before == ({f"{app}-counts-changelog"}, [7])
    assert (tmp_path / "state" / app / "0_0" / "file").exists()


@pytest.mark.broker
def test_without_a_terminal_yes_is_required(kafka, shop, app, tmp_path):
    """A script must pass --yes; without it the actions are shown, nothing is changed, and the code is 2."""
    result = millrace(tmp_path, "reset", "-f", "streamsapp.yaml")
    assert result.returncode == 2
    assert "Nothing was changed, as there is no terminal to ask for confirmation: give --yes" in result.stderr
    assert f"delete topic {app}-counts-changelog" in result.stdout
    assert left(kafka, app) == ({f"{app}-counts-changelog"}, [7])


@pytest.mark.broker
def test_reset_by_manifest(kafka, shop, app, tmp_path):
    """With --yes the reset is done; files are only deleted if a directory is given, as in the second reset."""
    result = millrace(tmp_path, "reset", "-f", "streamsapp.yaml", "--yes")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(f"{app} is reset\n")
    assert left(kafka, app) == (set(), [0])
    assert (tmp_path / "state" / app / "0_0" / "file").exists()
    result = millrace(tmp_path, "reset", "-f", "streamsapp.yaml", "--state-dir", "state", "--yes")
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "state" / app / "0_0").exists()


@pytest.mark.broker
def test_reset_by_id(kafka, shop, app, tmp_path):
    """Without a manifest, topics are found by name and inputs by the group's offsets."""
    named = ("--application-id", app, "--bootstrap-servers", kafka.bootstrap_servers)
    result = millrace(tmp_path, "reset", *named, "--yes")
    assert result.returncode == 0, result.stderr
    assert left(kafka, app) == (set(), [0])
    result = millrace(tmp_path, "reset", "--application-id", f"{app}-none", *named[2:], "--yes")
    assert (result.returncode, result.stdout) == (0, f"Reset of {app}-none:\nNothing to do\n")


@pytest.mark.broker
@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_question_on_a_terminal(kafka, shop, app, tmp_path, answer, code):
    """On a terminal the user is asked, and only `y` continues."""
    controller, terminal = pty.openpty()
    os.write(controller, f"{answer}\n".encode())
    try:
        result = millrace(tmp_path, "reset", "-f", "streamsapp.yaml", stdin=terminal)
    finally:
        os.close(controller)
        os.close(terminal)
    assert result.returncode == code, result.stderr
    assert "Go ahead?" in result.stdout
    assert bool(left(kafka, app)[0]) is bool(code)


@pytest.mark.broker
def test_application_that_runs(kafka, topic_factory, tmp_path):
    """An active group is refused with code 1; the error has its members and what to do."""
    group = Group(kafka.bootstrap_servers, topic_factory("in", partitions=2), 2)
    group.join("a")
    group.settle()
    named = ("--application-id", group.application_id, "--bootstrap-servers", kafka.bootstrap_servers)
    result = millrace(tmp_path, "reset", *named, "--yes")
    group.close()
    assert result.returncode == 1
    assert f"{group.application_id}-a-StreamThread-1-consumer (127.0.0.1)" in result.stderr
    assert "Stop it first" in result.stderr
    assert "Hint: Suspend it in Kubernetes, or stop its processes" in result.stderr
