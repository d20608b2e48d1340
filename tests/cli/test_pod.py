"""`millrace run` with the arguments of a pod: manifest, replica, volume, port and mounted secrets."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request

import pytest
import yaml
from confluent_kafka.admin import AdminClient
from tests import forked
from tests.brokers import PASSWORDS
from tests.waiting import PATIENCE_S, wait_until

from millrace.dev._ports import free_ports
from millrace.manifest.pods import parse_last_message

pytestmark = pytest.mark.broker

PASSWORD = PASSWORDS["alice"]
PROGRAM = '''\
from millrace.dsl import Consumed
from millrace.serdes import Serdes


def topology(builder):
    """Count the numbers of each key."""
    numbers = builder.stream("{source}", Consumed.with_(Serdes.string(), Serdes.integer()))
    numbers.group_by_key().count().to_stream().to("{sink}")
'''


@pytest.fixture
def program(topic_factory):
    """Return the text of a program with topics of its own."""
    return PROGRAM.format(source=topic_factory("numbers"), sink=topic_factory("counts"))


@pytest.fixture
def port():
    """Return a port that nothing listens on, and that no client's connection takes."""
    [port] = free_ports(1, "127.0.0.1")
    return port


def answer(port, path):
    """Return status code and body of a GET, or (0, {}) while nothing listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except OSError:
        return 0, {}
    finally:
        connection.close()


def wait_for(condition, process, log):
    """Wait until a condition holds, as long as a process lives."""
    wait_until(lambda: process.poll() is not None or condition(), log.read_text)
    assert process.poll() is None, log.read_text()


def test_pod_runs_drains_and_ends(kafka, program, tmp_path, port):
    """It joins with the mounted credentials, drains when its annotation says so, ends on SIGTERM, and shows no secret."""
    app = f"app-{secrets.token_hex(4)}"
    document = {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": {"name": "shop"},
        "spec": {
            "applicationId": app,
            "image": "registry.example/shop:1",
            "app": {"entrypoint": "shop:topology"},
            "kafka": {
                "bootstrapServers": [kafka.sasl_bootstrap_servers],
                "auth": {"type": "plain", "secretRef": {"name": "login"}},
            },
            "storage": {"size": "1Gi", "memoryFraction": 0.2},
            "observability": {
                "logs": {"level": "DEBUG", "format": "json"},
                "metrics": {"podMonitor": {"enabled": True}},
            },
        },
    }
    (tmp_path / "shop.py").write_text(program)
    (tmp_path / "streamsapp.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "secrets" / "auth").mkdir(parents=True)
    (tmp_path / "secrets" / "auth" / "username").write_text("alice")
    (tmp_path / "secrets" / "auth" / "password").write_text(PASSWORD + "\n")
    log = tmp_path / "log"
    arguments = ["run", "-f", "streamsapp.yaml", "--replica", "0", "--state-dir", "state"]
    arguments += ["--http", f"127.0.0.1:{port}", "--secrets-dir", str(tmp_path / "secrets")]
    annotation = tmp_path / "drain"
    annotation.touch()
    last_message = tmp_path / "termination-log"
    last_message.touch()
    with log.open("w") as output:
        process = forked.Popen(
            [sys.executable, "-m", "millrace.cli", *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "MILLRACE_DRAIN_FILE": str(annotation),
                "MILLRACE_LAST_MESSAGE_FILE": str(last_message),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: answer(port, "/readyz")[0] == 200, process, log)
        status = answer(port, "/status")[1]
        assert status["threads"][0]["instance_id"] == "shop-0-1"
        assert status["ready"]
        wait_for(lambda: parse_last_message(last_message.read_text())[0], process, log)
        assert parse_last_message(last_message.read_text()) == ({status["threads"][0]["member_id"]}, "")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as page:
            metrics = page.read().decode()
        assert 'client_id="shop-0"' in metrics
        assert status["state"] == "RUNNING"  # the file is empty as long as the pod has no annotation
        annotation.write_text("1700000000")
        wait_for(lambda: answer(port, "/status")[1].get("state") == "DRAINED", process, log)
        assert answer(port, "/livez")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert last_message.read_text() == ""
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    assert all(json.loads(line)["logger"] for line in text.splitlines())
    assert PASSWORD not in text + json.dumps(status) + metrics
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


@pytest.mark.parametrize(("variables", "left"), [({}, {"shop-0-1"}), ({"MILLRACE_LEAVE_ON_STOP": "true"}, set())])
def test_pod_with_standbys_leaves_the_group_when_it_is_stopped(kafka, program, tmp_path, port, variables, left):
    """A static member keeps its place on SIGTERM; with the variable that pods with standbys have, its tasks are free at once."""
    app = f"app-{secrets.token_hex(4)}"
    (tmp_path / "shop.py").write_text(program)
    log = tmp_path / "log"
    settings = ("group.instance.id=shop-0", f"state.dir={tmp_path / 'state'}")
    arguments = ["run", "shop:topology", "--application-id", app, "--bootstrap", kafka.bootstrap_servers]
    arguments += ["--http", f"127.0.0.1:{port}", *(part for item in settings for part in ("-c", item))]
    with log.open("w") as output:
        process = forked.Popen(
            [sys.executable, "-m", "millrace.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: answer(port, "/readyz")[0] == 200, process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    members = admin.describe_consumer_groups([app])[app].result(PATIENCE_S).members
    assert {member.group_instance_id for member in members} == left
