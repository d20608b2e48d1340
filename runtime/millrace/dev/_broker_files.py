"""The files of an embedded broker: `server.properties`, log4j's configuration, formatted storage, and the cluster's state file.

The settings make a broker start and fail over fast and keep it small; none changes what a client may rely on. Every node is
broker and controller at once. A node's storage is formatted by copying the bootstrap checkpoint, which Kafka's own formatter
wrote once per machine (it holds feature levels only) and by writing `meta.properties`. The state file of a running cluster lets
another process find and control it.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace.dev._process import is_running
from millrace.dev.jars import KAFKA_VERSION, cache_directory
from millrace.dev.java import Java, join_class_path
from millrace.errors import BrokerStartError

HOST = "127.0.0.1"

LOG4J = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%d{{ISO8601}} %p [%t] %m (%c)%n"/></Console>
  </Appenders>
  <Loggers><Root level="{level}"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""
"""log4j's configuration, to be formatted with a `level`: everything from it up goes to standard output."""

_SMALL_AND_FAST = {
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    "broker.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.coordinator.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.min.session.timeout.ms": "1000",
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
    "log.index.size.max.bytes": str(1 << 20),
    "num.io.threads": "4",
    "num.network.threads": "2",
    "num.replica.fetchers": "1",
    "offsets.topic.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.threads": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "1",
}


@dataclass(frozen=True, slots=True)
class SaslPlain:
    """A listener with user names and passwords (SASL_PLAINTEXT, mechanism PLAIN), in addition to the open one."""

    users: Mapping[str, str]
    """Password by user name."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The TCP ports of one node, all on the cluster's address."""

    client: int
    controller: int
    sasl: int | None = None
    proxied: int | None = None
    """The port of another open listener, whose clients are told to connect to `advertised`."""
    advertised: int | None = None


def server_properties(
    node_id: int,
    ports: Mapping[int, NodePorts],
    data: Path,
    security: SaslPlain | None,
    overrides: Mapping[str, str],
    *,
    host: str = HOST,
) -> str:
    """Return the text of `server.properties` for one node of a cluster.

    Args:
        node_id: Which node.
        ports: The ports of every node of the cluster by node id.
        data: Where the node keeps its logs.
        security: A second listener with passwords, if any.
        overrides: Settings that replace or add to the defaults.
        host: The address that all nodes listen on and are reached at.
    """
    own, nodes = ports[node_id], len(ports)
    replicas, in_sync = str(min(3, nodes)), str(2 if nodes > 2 else 1)
    listeners = {"PLAINTEXT": own.client, "CONTROLLER": own.controller}
    settings = {
        **_SMALL_AND_FAST,
        # A killed broker may register again only when its old session has timed out.
        "broker.session.timeout.ms": "6000" if nodes > 1 else "3000",
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node}@{host}:{port.controller}" for node, port in ports.items()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,PROXIED:PLAINTEXT",
        "log.dirs": str(data),
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }
    if security and own.sasl:
        listeners["SASL"] = own.sasl
        settings["sasl.enabled.mechanisms"] = "PLAIN"
        quoted = {name: text.replace("\\", "\\\\").replace('"', '\\"') for name, text in security.users.items()}
        users = " ".join(f'user_{name}="{password}"' for name, password in quoted.items())
        login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        settings["listener.name.sasl.plain.sasl.jaas.config"] = login
    if own.proxied and own.advertised:
        listeners["PROXIED"] = own.proxied
        told = {name: port for name, port in listeners.items() if name != "CONTROLLER"} | {"PROXIED": own.advertised}
        settings["advertised.listeners"] = ",".join(f"{name}://{host}:{port}" for name, port in told.items())
    settings["listeners"] = ",".join(f"{name}://{host}:{port}" for name, port in listeners.items())
    settings |= overrides
    escaped = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in sorted(settings.items())}
    return "".join(f"{key}={value}\n" for key, value in escaped.items())


def new_cluster_id() -> str:
    """Return a random cluster id in Kafka's form: 16 bytes in URL-safe base 64."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def cluster_id_of(data: Path) -> str | None:
    """Return the cluster id that a data directory was formatted with, or None if it is not formatted."""
    try:
        lines = (data / "meta.properties").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("cluster.id=")), None)


def format_storage(data: Path, node_id: int, cluster_id: str, java: Java, jars: Sequence[Path]) -> None:
    """Format a node's storage, if it is not formatted yet.

    Raises:
        BrokerStartError: Kafka's formatter failed.
    """
    if cluster_id_of(data):
        return
    checkpoint = _bootstrap_checkpoint(java, jars)
    data.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(checkpoint, data / "bootstrap.checkpoint")
    part = data / "meta.properties.part"
    part.write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={new_cluster_id()}\n")
    part.replace(data / "meta.properties")


def _bootstrap_checkpoint(java: Java, jars: Sequence[Path]) -> Path:
    cached = cache_directory() / f"kafka-{KAFKA_VERSION}-bootstrap.checkpoint"
    if cached.exists():
        return cached
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent, prefix="format-") as name:
        data = cached.parent / name / "data"
        properties = data.with_name("server.properties")
        properties.write_text(server_properties(1, {1: NodePorts(9092, 9093)}, data, None, {}))
        log4j = data.with_name("log4j2.xml")
        log4j.write_text(LOG4J.format(level="ERROR"))
        command = [str(java.executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={log4j}"]
        command += ["-cp", join_class_path(jars), "kafka.tools.StorageTool"]
        command += ["format", "-t", new_cluster_id(), "-c", str(properties)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 (our command)
        if result.returncode:
            message = f"Kafka's storage tool failed with exit code {result.returncode}: {result.stdout}{result.stderr}"
            raise BrokerStartError(message)
        (data / "bootstrap.checkpoint").replace(cached)
    return cached


STATE_FILE = "embedded-kafka.json"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node's process and ports."""

    node_id: int
    pid: int
    started_at: str
    ports: NodePorts


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A running cluster."""

    bootstrap_servers: str
    nodes: tuple[NodeState, ...]
    config: dict[str, str]
    users: dict[str, str]
    log_level: str
    temporary: bool
    """Whether the directory is removed when the cluster stops."""

    @property
    def running(self) -> bool:
        """Whether the process of any node is still running."""
        return any(is_running(node.pid, node.started_at) for node in self.nodes)

    def write(self, directory: Path) -> None:
        """Replace the state file of a directory; only its owner may read it, because it contains passwords."""
        part = directory / f"{STATE_FILE}.part"
        part.touch(mode=0o600)
        part.write_text(json.dumps(asdict(self), indent=2))
        part.replace(directory / STATE_FILE)

    @classmethod
    def of_running(cls, directory: Path) -> ClusterState | None:
        """Return the state of the cluster that is running in a directory, or None if there is none."""
        try:
            fields = json.loads((directory / STATE_FILE).read_text())
        except FileNotFoundError:
            return None
        nodes = tuple(NodeState(**{**node, "ports": NodePorts(**node["ports"])}) for node in fields.pop("nodes"))
        state = cls(nodes=nodes, **fields)
        return state if state.running else None
