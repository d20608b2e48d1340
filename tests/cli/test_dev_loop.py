"""The daily loop: an application that `millrace init` creates is run, changed, looked at and reset on one machine."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests import forked, waiting
from tests.waiting import PATIENCE_S

from millrace.dev._ports import free_ports

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

wait_until = partial(waiting.wait_until, poll_s=0.5)  # most looks start a process


class App:
    """An application in a folder, created by `millrace init`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.millrace("init", "--name", "words")
        manifest = folder / "streamsapp.yaml"
        manifest.write_text(manifest.read_text().replace("replicas: 2", "replicas: 1"))

    def millrace(self, *arguments, code=0, **options):
        """Run a command, which must end with a code, and return its output, or its errors if it must fail."""
        place = ["--dir", "data"] if arguments[0] == "dev" else []
        ran = forked.run(
            [sys.executable, "-m", "millrace.cli", *arguments, *place],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=290,
            **{"stdin": subprocess.DEVNULL, **options},
        )
        assert ran.returncode == code, ran.stderr + ran.stdout
        assert "Traceback" not in ran.stderr
        assert "librdkafka" not in ran.stderr  # what clients try again, such as a coordinator that is loading
        return ran.stderr if code else ran.stdout

    def status(self):
        """Return what `dev status` says of the application."""
        command = [sys.executable, "-m", "millrace.cli", "dev", "status", "--json", "--dir", "data"]
        ran = forked.run(command, capture_output=True, text=True, cwd=self.folder, timeout=60)
        return json.loads(ran.stdout)

    def counts(self):
        """Return the last count of each word in the output."""
        lines = self.millrace("dev", "consume", "word-counts").splitlines()
        return {record["key"]: record["value"] for record in map(json.loads, lines)}

    def wait_for(self, counts):
        """Wait until the output has these counts."""
        wait_until(lambda: self.counts() == counts, lambda: f"{self.counts()} is {counts}")

    def change(self, old, new):
        """Change the topology."""
        program = self.folder / "words.py"
        assert old in program.read_text()
        program.write_text(program.read_text().replace(old, new))


def without_members(shown):
    """Return what a reset shows, without the members that would leave by themselves in the meantime."""
    return [line for line in shown.splitlines() if not line.startswith("  remove member")]


@pytest.fixture
def app(tmp_path):
    """Yield an application, and stop it at the end."""
    app = App(tmp_path / "words")
    yield app
    app.millrace("dev", "down")


def test_application_is_run_changed_and_reset(app):
    """Input is counted; the address stays; a change that the state does not fit is refused until it is reset."""
    (port,) = free_ports(1, "127.0.0.1")
    app.millrace("dev", "up", "--detach", "--port", str(port))
    assert app.status()["bootstrapServers"] == f"127.0.0.1:{port}"
    app.millrace("dev", "produce", "lines", '{"value": "to be"}', '{"value": "be"}')
    app.wait_for({"to": 1, "be": 2})
    wait_until(
        lambda: (
            [(topic["kinds"], topic["lag"]) for topic in json.loads(app.millrace("dev", "topics", "--json"))]
            == [(["input"], 0), (["repartition"], 0), (["changelog"], None), (["output"], None)]
        ),
        "no lag",
    )
    assert "INFO" in app.millrace("dev", "logs")
    assert len(app.millrace("dev", "logs", "0", "--tail", "2").splitlines()) == 2
    told = app.millrace("dev", "reset", "--yes", code=1)
    assert re.search(r"Error: words is running \(pid \d+\): stop it with `millrace dev down`, then reset it", told)

    app.millrace("dev", "down")
    app.change('Materialized.as_("counts")', 'Materialized.as_("totals")')
    told = app.millrace("dev", "up", "--detach", code=1)
    assert "The existing state of words-v1 does not fit the changed program: store counts was renamed to totals" in told
    assert "`millrace dev reset`" in told

    shown = app.millrace("dev", "reset", "--dry-run")
    assert "delete topic words-v1-counts-changelog\n" in shown
    assert f"delete state in {app.folder}/data/words-0/state/words-v1\n" in shown
    assert "set offset of lines-0 to 0\n" in shown
    assert shown.endswith("Dry run: nothing was changed\n")
    told = app.millrace("dev", "reset", code=2)
    assert "Nothing was changed, as there is no terminal to ask for confirmation" in told
    assert without_members(app.millrace("dev", "reset", "--dry-run")) == without_members(shown)
    assert app.millrace("dev", "reset", "--yes").endswith("words-v1 is reset\n")

    app.millrace("dev", "up", "--detach")
    assert app.status()["bootstrapServers"] == f"127.0.0.1:{port}"
    app.millrace("dev", "produce", "lines", '{"value": "be"}')
    app.wait_for({"to": 1, "be": 3})
    names = {topic["name"] for topic in json.loads(app.millrace("dev", "topics", "--json"))}
    assert "words-v1-totals-changelog" in names


@pytest.mark.thorough
def test_reset_asks_and_starts_where_it_is_told(app):
    """On a terminal the user is asked; with `--to-latest` the input that is there is not counted again."""
    app.millrace("dev", "up", "--detach")
    app.millrace("dev", "produce", "lines", '{"value": "old"}')
    app.wait_for({"old": 1})
    app.millrace("dev", "down")
    for answer, code in (("n", 1), ("y", 0)):
        controller, terminal = pty.openpty()
        os.write(controller, f"{answer}\n".encode())
        try:
            app.millrace("dev", "reset", "--to-latest", code=code, stdin=terminal)
        finally:
            os.close(controller)
            os.close(terminal)
    app.millrace("dev", "up", "--detach")
    app.millrace("dev", "produce", "lines", '{"value": "new"}')
    app.wait_for({"old": 1, "new": 1})
    lines = app.millrace("dev", "consume", "word-counts").splitlines()
    app.millrace("dev", "produce", "lines", '{"value": "old"}')
    wait_until(lambda: app.millrace("dev", "consume", "word-counts").splitlines() != lines, "another count")
    assert app.counts() == {"old": 1, "new": 1}  # counted from one on, not two


@pytest.mark.thorough
def test_policy_starts_a_program_that_the_state_does_not_fit(app):
    """With `--topology-policy Warn` it runs all the same, and from then on its own plan counts."""
    app.millrace("dev", "up", "--detach")
    app.millrace("dev", "down")
    app.change('Materialized.as_("counts")', 'Materialized.as_("totals")')
    app.millrace("dev", "up", "--detach", code=1)
    app.millrace("dev", "up", "--detach", "--topology-policy", "warn")
    assert "✗ store counts was renamed to totals" in (app.folder / "data" / "host.log").read_text()
    app.millrace("dev", "down")
    app.millrace("dev", "up", "--detach")


@pytest.mark.thorough
def test_reload_runs_the_changed_program(app):
    """A change restarts the replicas; one that is wrong is reported, and what runs keeps running."""
    log = app.folder / "data" / "host.log"
    app.millrace("dev", "up", "--detach", "--reload")
    app.millrace("dev", "produce", "lines", '{"value": "One"}')
    app.wait_for({"one": 1})
    before = app.status()["replicas"][0]["pid"]
    app.change("line.lower()", "line.lower(")
    wait_until(lambda: "Not reloaded: The program cannot make a plan" in log.read_text(), "a report")
    assert app.status()["replicas"][0]["pid"] == before
    app.change("line.lower(", "line.upper()")
    wait_until(lambda: app.status()["replicas"][0]["pid"] not in {before, None}, "another process")
    app.millrace("dev", "produce", "lines", '{"value": "Two"}')
    app.wait_for({"one": 1, "TWO": 1})
    assert "Changed: words.py" in log.read_text()


@pytest.mark.thorough
def test_manifest_that_is_removed_while_it_is_watched(app):
    """It is told what is missing, what runs keeps running, and with the file back the replicas are restarted."""
    app.millrace("dev", "up", "--detach", "--reload")
    app.millrace("dev", "produce", "lines", '{"value": "one"}')
    app.wait_for({"one": 1})
    before = app.status()["replicas"][0]["pid"]
    manifest, log = app.folder / "streamsapp.yaml", app.folder / "data" / "host.log"
    told = "streamsapp.yaml is gone. The running replicas continue with what they have read, and are restarted"
    kept = manifest.rename(app.folder / "kept.yaml")
    try:
        wait_until(lambda: told in log.read_text(), "a report")
        os.kill(before, 0)
    finally:
        kept.rename(manifest)
    wait_until(lambda: app.status()["replicas"][0]["pid"] not in {before, None}, "another process")
    app.millrace("dev", "produce", "lines", '{"value": "one"}')
    app.wait_for({"one": 2})


@pytest.mark.thorough
def test_replica_that_dies_does_not_run_a_program_that_the_state_does_not_fit(app):
    """It is checked like a reload, and what is wrong is shown; with the program as it was, all goes on."""
    app.millrace("dev", "up", "--detach", "--reload")
    app.millrace("dev", "produce", "lines", '{"value": "one"}')
    app.wait_for({"one": 1})
    app.change('Materialized.as_("counts")', 'Materialized.as_("totals")')
    log = app.folder / "data" / "host.log"
    wait_until(lambda: "Not reloaded: The existing state" in log.read_text(), "a report")
    os.kill(app.status()["replicas"][0]["pid"], signal.SIGKILL)
    wait_until(lambda: app.status()["replicas"][0]["state"] == "failed", "not restarted")
    assert "store counts was renamed to totals" in app.status()["replicas"][0]["note"]
    app.change('Materialized.as_("totals")', 'Materialized.as_("counts")')
    wait_until(lambda: app.status()["replicas"][0]["state"] == "running", "it runs again")
    app.millrace("dev", "produce", "lines", '{"value": "one"}')
    app.wait_for({"one": 2})


@pytest.mark.thorough
def test_logs_are_followed_until_the_host_ends(app):
    """`dev logs -f` prints what is there and what comes, and ends with `dev up`."""
    app.millrace("dev", "up", "--detach")
    command = [sys.executable, "-m", "millrace.cli", "dev", "logs", "-f", "--dir", "data"]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True, cwd=app.folder) as process:
        assert process.stdout
        assert process.stdout.readline()
        app.millrace("dev", "down")
        rest = process.stdout.read()
    assert process.returncode == 0
    assert rest.splitlines()[-1] == app.millrace("dev", "logs").splitlines()[-1]
    told = app.millrace("dev", "logs", "-f", "streamsapp.yaml", code=2)
    assert "In `dev logs`, -f is short for --follow: name the manifest with --file streamsapp.yaml" in told
    assert "There is no log of words-7" in app.millrace("dev", "logs", "7", code=2)


@pytest.mark.thorough
def test_interrupt_ends_what_reads_or_writes_while_brokers_are_gone(app):
    """Ctrl-C is not lost in the report that brokers do not answer."""
    app.millrace("dev", "up", "--detach")
    app.millrace("dev", "produce", "lines", '{"value": "one"}')
    command = [sys.executable, "-m", "millrace.cli", "dev", "consume", "lines", "--follow", "--from-beginning"]
    followers = [
        forked.Popen(
            [*command, "--dir", "data"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=app.folder
        )
        for _ in range(3)
    ]
    assert all(follower.stdout.readline() for follower in followers)
    command[command.index("consume") :] = ["produce", "lines"]
    writer = forked.Popen(
        [*command, "--dir", "data"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=app.folder,
    )  # fmt: skip
    writer.stdin.write('{"value": "two"}\n')
    writer.stdin.flush()
    app.wait_for({"one": 1, "two": 1})
    app.millrace("dev", "down")
    writer.stdin.write('{"value": "three"}\n')
    writer.stdin.close()
    writer.stdin = None
    for follower in (*followers, writer):
        assert "refused" in follower.stderr.readline()
        follower.send_signal(signal.SIGINT)
        _, told = follower.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in told
        assert follower.returncode == 130


@pytest.mark.thorough
def test_port_that_is_in_use(app):
    """A port that was asked for must be free; one that is only remembered is replaced, and said."""
    app.millrace("dev", "up", "--detach")
    servers = app.status()["bootstrapServers"]
    app.millrace("dev", "down")
    port = servers.rpartition(":")[2]
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1"], stderr=subprocess.DEVNULL
    ) as taking:
        try:
            wait_until(lambda: not _is_free(int(port)), "a listener")
            told = app.millrace("dev", "up", "--detach", "--port", port, code=1)
            assert f"Address already in use: something listens on {servers}" in told
            app.millrace("dev", "up", "--detach")
            assert app.status()["bootstrapServers"] != servers
            assert (
                f"Port {port}, which Kafka has had here so far, is in use"
                in (app.folder / "data" / "host.log").read_text()
            )
            app.millrace("dev", "down")
        finally:
            taking.send_signal(signal.SIGTERM)
    app.millrace("dev", "up", "--detach")
    assert app.status()["bootstrapServers"] == servers


def _is_free(port):
    from millrace.dev._ports import is_free

    return is_free(port, "127.0.0.1")
