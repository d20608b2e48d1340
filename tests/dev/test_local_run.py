"""A manifest on this machine from start to finish: run, killed, stopped, resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from tests import forked
from tests.waiting import PATIENCE_S, wait_until

from millrace.dev._process import is_running
from millrace.dev.local_directory import LocalDirectory
from millrace.dev.local_host import HostOptions, LocalHost
from millrace.serdes import Serdes

EXAMPLE = Path(__file__).parents[2] / "examples" / "wordcount" / "streamsapp.yaml"
LINES = [f"word{number % 7} and word{number % 3}" for number in range(2_000)]

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


def write(bootstrap_servers: str, lines: list[str]) -> None:
    """Write lines to the input topic."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number, line in enumerate(lines):
        producer.produce("lines", line.encode(), partition=number % 4)
    assert producer.flush(PATIENCE_S) == 0


def expected(lines: list[str]) -> dict[str, int]:
    """Return how often each word occurs."""
    return dict(Counter(word.translate(str.maketrans("", "", "0123456789")) for line in lines for word in line.split()))


class Counts:
    """Follows the output topic and only sees what is committed."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.counts: dict[str, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe(["word-counts"])

    def wait_for(self, wanted: dict[str, int], meanwhile=lambda: None) -> None:
        """Read until the last counts are the expected ones."""

        def read() -> None:
            meanwhile()
            for message in self._consumer.consume(1_000, timeout=0.2):
                assert message.error() is None, message.error()
                word = Serdes.string().deserialize("word-counts", message.key())
                self.counts[word] = Serdes.long().deserialize("word-counts", message.value())

        wait_until(lambda: self.counts == wanted, lambda: f"{self.counts} is {wanted}", meanwhile=read, poll_s=0)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def all_run(replicas, tasks: int) -> bool:
    """Return whether the replicas run all tasks between them."""
    return sum(view.tasks or 0 for view in replicas) == tasks and {view.state for view in replicas} == {"running"}


def test_manifest_runs_survives_a_kill_and_resumes(tmp_path):
    """Two replicas count exactly once while one is killed; after a stop and a start they continue where they were."""
    said: list[str] = []
    options = HostOptions(EXAMPLE, directory=tmp_path / "data")
    with LocalHost(options, report=said.append) as host:
        host.start_kafka()
        host.provide_topics()
        assert "Created topic lines, partitions: 4" in said
        assert any(line.startswith("Created internal topic wordcount-v1-") for line in said)
        write(host.bootstrap_servers, LINES)
        host.start_replicas()
        counts = Counts(host.bootstrap_servers)
        counts.wait_for(expected(LINES), meanwhile=host.poll)
        wait_until(lambda: all_run(host.view(), tasks=8), "all tasks run", meanwhile=host.poll)
        victim = host.view()[0].pid
        assert victim
        os.kill(victim, signal.SIGKILL)
        write(host.bootstrap_servers, LINES)
        counts.wait_for(expected(LINES * 2), meanwhile=host.poll)
        wait_until(lambda: host.view()[0].restarts == 1, "a restart", meanwhile=host.poll)
        counts.close()
    assert not any(replica.pid for replica in host.replicas)
    with LocalHost(options, report=said.append) as host:
        host.start_kafka()
        host.provide_topics()
        host.start_replicas()
        write(host.bootstrap_servers, ["again"])
        counts = Counts(host.bootstrap_servers)
        counts.wait_for({**expected(LINES * 2), "again": 1}, meanwhile=host.poll)
        counts.close()


def test_group_of_the_streams_protocol_gets_the_manifests_standbys(tmp_path):
    """Where brokers assign the tasks, the number of standbys is a setting of the group, which the host sets."""
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"] |= {"standby": {"replicas": 1}}
    manifest["spec"]["kafka"] |= {"groupProtocol": "streams"}
    (tmp_path / "streamsapp.yaml").write_text(yaml.safe_dump(manifest))
    shutil.copy(EXAMPLE.with_name("wordcount.py"), tmp_path)
    said: list[str] = []
    directory = LocalDirectory.of("wordcount", tmp_path / "data")
    with LocalHost(HostOptions(tmp_path / "streamsapp.yaml", directory=tmp_path / "data"), report=said.append) as host:
        host.start_kafka()
        host.provide_topics()
        host.start_replicas()
        assert "Set streams.num.standby.replicas of group wordcount-v1 to 1" in said
        write(host.bootstrap_servers, LINES)
        counts = Counts(host.bootstrap_servers)
        counts.wait_for(expected(LINES), meanwhile=host.poll)

        def standbys() -> list[int]:
            files = [directory.status(replica.name) for replica in host.replicas]
            return [json.loads(file.read_text())["task_counts"]["standby"] for file in files if file.exists()]

        wait_until(lambda: sum(standbys()) == 4, lambda: str(standbys()), meanwhile=host.poll)
        counts.close()


def millrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would."""
    command = [sys.executable, "-m", "millrace.cli", *arguments]
    return forked.run(command, capture_output=True, text=True, timeout=290)


def status(place: list[str]) -> dict:
    """Return the output of `dev status`."""
    return json.loads(millrace("dev", "status", *place, "--json").stdout)


@pytest.mark.thorough
def test_detached_host_is_shown_and_stopped(tmp_path):
    """`dev up --detach` returns once replicas run; a second one is refused; `dev down` stops everything."""
    place = ["-f", str(EXAMPLE), "--dir", str(tmp_path / "data")]
    result = millrace("dev", "up", *place, "--detach")
    assert result.returncode == 0, result.stderr
    assert "wordcount is running in the background" in result.stdout
    wait_until(
        lambda: [replica["state"] for replica in status(place)["replicas"]] == ["running", "running"],
        "two running replicas",
    )
    result = millrace("dev", "up", *place, "--detach")
    assert result.returncode == 1
    assert "wordcount is already running" in result.stderr
    before = status(place)
    result = millrace("dev", "down", *place)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("wordcount has stopped; its data is kept in")
    assert not [
        pid for pid in (before["pid"], *(replica["pid"] for replica in before["replicas"])) if is_running(pid, "")
    ]
    log = (tmp_path / "data" / "host.log").read_text()
    assert "Stopping 2 replicas" in log
    assert "Traceback" not in log


def test_error_of_a_replica_is_shown(kafka, topic_factory, tmp_path):
    """`dev up` and `dev status` say what ended a replica and where its log is, also once it runs again."""
    source = topic_factory("in")
    (tmp_path / "shop.py").write_text(
        "def fail(value):\n    raise ValueError('no good')\n\n\n"
        "def topology(builder, config):\n    builder.stream(config['input']).map_values(fail)\n"
    )
    serdes = {"default.key.serde": "string", "default.value.serde": "string"}
    spec = {
        "applicationId": f"shop-{uuid.uuid4().hex}",
        "image": "shop:1",
        "app": {"entrypoint": "shop:topology", "config": {"input": source}},
        "kafka": {"bootstrapServers": ["elsewhere:9092"], "config": serdes},
    }
    manifest = {"apiVersion": "streams.millrace.dev/v1alpha1", "kind": "StreamsApp", "metadata": {"name": "shop"}}
    (tmp_path / "streamsapp.yaml").write_text(yaml.safe_dump({**manifest, "spec": spec}))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(source, b"x")
    assert producer.flush(PATIENCE_S) == 0
    reason = f"Error: Task 0_0: node KSTREAM-MAPVALUES-0000000001 failed on the record at offset 0 of {source}-0"
    options = HostOptions(tmp_path / "streamsapp.yaml", tmp_path / "data", bootstrap=kafka.bootstrap_servers)
    with LocalHost(options, report=print) as host:
        host.provide_topics()
        host.start_replicas()
        for state in ("waiting", "starting"):
            wait_until(
                lambda state=state: any(view.state == state and view.restarts for view in host.view()),
                state,
                meanwhile=host.poll,
            )
            host.publish()
            running = host.directory.running_host()
            assert running
            (view,) = running.replicas
            log = host.directory.log(view.name)
            assert reason in view.note
            assert f"(see {log})" in view.note
            assert 'shop.py", line 2, in fail\n' in log.read_text()


def test_killed_host_leaves_nothing_behind(tmp_path):
    """If the host is killed, its replicas and its Kafka end too."""
    place = ["-f", str(EXAMPLE), "--dir", str(tmp_path / "data")]
    result = millrace("dev", "up", *place, "--detach")
    assert result.returncode == 0, result.stderr
    wait_until(lambda: all(replica["pid"] for replica in status(place)["replicas"]), "all replicas started")
    before = status(place)
    kafka = json.loads((tmp_path / "data" / "kafka" / "embedded-kafka.json").read_text())
    os.kill(before["pid"], signal.SIGKILL)
    pids = [*(replica["pid"] for replica in before["replicas"]), *(node["pid"] for node in kafka["nodes"])]
    assert len(pids) == 3
    wait_until(lambda: not [pid for pid in pids if is_running(pid, "")], "all processes ended")
    assert status(place)["running"] is False
