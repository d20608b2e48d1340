"""A real Apache Kafka on this machine, for development and tests: no Docker, no installation, 127.0.0.1 only.

`EmbeddedKafka` runs one or more nodes, each a broker and a controller in a JVM of its own. Started means *serving*: every
broker is registered and a topic with a replica on each of them could be created. A cluster ends with the process that started
it, even if that is killed, unless it is detached; then its state file lets another process attach to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millrace.dev._broker_config import (
    HOST,
    NodePorts,
    SaslPlain,
    cluster_id_of,
    format_storage,
    log4j_configuration,
    new_cluster_id,
    server_properties,
)
from millrace.dev._ports import free_ports
from millrace.dev._process import BrokerProcess, is_running
from millrace.dev.jars import Bundle, cache_directory, resolve
from millrace.dev.java import find_java, join_class_path
from millrace.errors import BrokerStartError, DevKafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millrace.dev.java import Java

__all__ = ["EmbeddedKafka", "SaslPlain", "serve"]

STATE_FILE = "embedded-kafka.json"
_JVM_OPTIONS = (
    "-Xms96m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Djava.awt.headless=true",
)
_LOG_TAIL_LINES = 40
_PORT_ATTEMPTS = 3
_STOP_TIMEOUT_S = 10.0
_CLIENT_CONFIG = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 10_000}


class EmbeddedKafka:
    """A Kafka cluster of one or more nodes on this machine.

    Example:
        >>> with EmbeddedKafka() as kafka:  # doctest: +SKIP
        ...     producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        directory: Path | None = None,
        ports: Literal["free"] | Sequence[int] = "free",
        config: Mapping[str, str] | None = None,
        log_level: str = "WARN",
        security: SaslPlain | None = None,
        detach: bool = False,
        owner_pid: int | None = None,
        jvm_options: Sequence[str] = (),
        start_timeout_s: float = 60.0,
    ) -> None:
        """Describe a cluster; `start` runs it.

        Args:
            brokers: How many nodes; three or more replicate the internal topics three times.
            directory: Where data, logs and configuration are kept; a temporary one, removed on `stop`, when not given.
            ports: The brokers' client ports, one per broker, or "free" to choose some.
            config: Broker settings that replace or add to the defaults.
            log_level: What the brokers log: ERROR, WARN, INFO, DEBUG.
            security: A second listener, with user names and passwords.
            detach: Whether the brokers outlive this process and leaving the `with` block.
            owner_pid: The process with whose end the brokers end; this one when not given.
            jvm_options: Options for the JVMs, after (so over) the defaults.
            start_timeout_s: How long the cluster may take to serve.
        """
        if brokers < 1 or (ports != "free" and len(ports) != brokers):
            message = f"{brokers} brokers cannot listen on ports {ports}: give one port per broker, at least one"
            raise DevKafkaError(message)
        self._temporary = directory is None
        self._directory = Path(directory).absolute() if directory else Path()
        self._wanted_ports = ports
        self._config = dict(config or {})
        self._log_level = log_level
        self._security = security
        self._detach = detach
        self._owner_pid = None if detach else owner_pid or os.getpid()
        self._jvm_options = (*_JVM_OPTIONS, *jvm_options)
        self._start_timeout_s = start_timeout_s
        self._ids = range(1, brokers + 1)
        self._ports: dict[int, NodePorts] = {}
        self._processes: dict[int, BrokerProcess] = {}
        self._archive: ClassArchive | None = None
        self._attached = False

    @classmethod
    def attach(cls, directory: Path) -> EmbeddedKafka:
        """Return a handle on a running cluster that another process, or this one, started in `directory`.

        Leaving a `with` block on the handle leaves the cluster running; `stop` ends it.

        Raises:
            DevKafkaError: No cluster runs there.
        """
        state = _read_state(directory)
        if not state:
            message = f"No Kafka is running in {directory}: start one with EmbeddedKafka(directory=..., detach=True)"
            raise DevKafkaError(message)
        users = state["users"]
        handle = cls(
            len(state["nodes"]),
            directory=directory,
            config=state["config"],
            log_level=state["log_level"],
            security=SaslPlain(users) if users else None,
            detach=True,
        )
        for node in state["nodes"]:
            handle._ports[node["id"]] = NodePorts(**node["ports"])
            handle._processes[node["id"]] = BrokerProcess(node["pid"], node["started_at"])
        handle._attached = True
        handle._temporary = state["temporary"]
        return handle

    def __enter__(self) -> Self:
        if not self._processes:
            self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if not self._detach:
            self.stop()

    @property
    def directory(self) -> Path:
        """Where the cluster keeps its data and, per node, `node-N.log`."""
        return self._directory

    @property
    def bootstrap_servers(self) -> str:
        """The open listeners, for `bootstrap.servers`."""
        self._require_started()
        return ",".join(f"{HOST}:{ports.client}" for ports in self._ports.values())

    @property
    def sasl_bootstrap_servers(self) -> str:
        """The listeners that ask for a password (SASL_PLAINTEXT, PLAIN)."""
        self._require_started()
        if not self._security:
            message = "This Kafka has no listener with passwords: start it with security=SaslPlain({user: password})"
            raise DevKafkaError(message)
        return ",".join(f"{HOST}:{ports.sasl}" for ports in self._ports.values())

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the brokers that have not ended."""
        return tuple(process.pid for process in self._processes.values() if process.alive)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The node ids, 1 to n."""
        return tuple(self._ids)

    def start(self) -> Self:
        """Start all brokers and wait until the cluster serves.

        Raises:
            BrokerStartError: A broker ended or the cluster did not serve in time; the message has the end of its log.
            JavaNotFoundError: There is no Java 17 or newer.
            JarDownloadError: Kafka's jars cannot be fetched.
            DevKafkaError: It is running already.
        """
        if self.pids:
            message = f"This Kafka is running already, at {self.bootstrap_servers}"
            raise DevKafkaError(message)
        java, jars = find_java(), resolve(Bundle.KAFKA_BROKER)
        self._prepare_directory()
        for attempt in range(_PORT_ATTEMPTS):
            if not self._ports or attempt:
                self._ports = self._choose_ports()
            try:
                self._launch_all(java, jars)
            except BrokerStartError as error:
                self._end_all()
                taken = "Address already in use" in str(error) and self._wanted_ports == "free"
                if not taken or attempt + 1 == _PORT_ATTEMPTS:
                    raise
            except BaseException:
                self._end_all()
                raise
            else:
                return self
        raise AssertionError

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop all brokers cleanly, killing those that take too long; a temporary directory is removed.

        Args:
            timeout_s: How long they may take together.
        """
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)
        deadline = time.monotonic() + timeout_s
        clean = [process.wait(max(0.0, deadline - time.monotonic())) for process in self._processes.values()]
        self._end_all()
        if self._archive and all(clean):
            self._archive.keep()
        self._archive = None
        if self._directory != Path():
            (self._directory / STATE_FILE).unlink(missing_ok=True)
        if self._temporary and self._directory != Path():
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = Path()

    def kill(self, broker_id: int = 1) -> None:
        """End a broker as a crash would (SIGKILL)."""
        self._process(broker_id).kill()

    def stop_broker(self, broker_id: int = 1, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop one broker cleanly, killing it if it takes longer than `timeout_s`."""
        process = self._process(broker_id)
        process.signal(signal.SIGTERM)
        if not process.wait(timeout_s):
            process.kill()

    def restart_broker(self, broker_id: int = 1) -> None:
        """Start a broker again on its ports and data, after stopping it cleanly if it still runs, and wait until it serves.

        Raises:
            BrokerStartError: It ended or did not serve in time.
        """
        self.stop_broker(broker_id)
        java, jars = find_java(), resolve(Bundle.KAFKA_BROKER)
        self._launch(broker_id, java, jars)
        self._write_state()
        self._wait_until_serving()

    def pause(self, broker_id: int = 1) -> None:
        """Stop a broker from running without ending it, as a long garbage collection would (SIGSTOP)."""
        self._process(broker_id).signal(signal.SIGSTOP)

    def resume(self, broker_id: int = 1) -> None:
        """Let a paused broker run again (SIGCONT)."""
        self._process(broker_id).signal(signal.SIGCONT)

    def log(self, broker_id: int = 1) -> str:
        """Return what a broker has logged."""
        with contextlib.suppress(FileNotFoundError):
            return self._log_path(broker_id).read_text(errors="replace")
        return ""

    def create_topics(
        self,
        *names: str,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create topics and wait until every one has a leader for all its partitions.

        Args:
            names: The topics.
            partitions: How many partitions each has.
            replication_factor: Replicas per partition; -1 for the cluster's default (three, or all brokers if fewer).
            config: Topic settings.

        Raises:
            KafkaException: The broker refused one, for example because it exists.
        """
        admin = self.admin()
        topics = [NewTopic(name, partitions, replication_factor, config=dict(config or {})) for name in names]
        for future in admin.create_topics(topics, operation_timeout=30).values():
            future.result()
        deadline = time.monotonic() + self._start_timeout_s
        for name in names:
            while not _has_leaders(admin, name, partitions):
                if time.monotonic() > deadline:
                    message = f"Topic {name} has no leaders after {self._start_timeout_s:.0f} s. {self._log_tails()}"
                    raise DevKafkaError(message)
                time.sleep(0.02)

    def admin(self) -> AdminClient:
        """Return a new admin client for the open listener."""
        return AdminClient({**_CLIENT_CONFIG, "bootstrap.servers": self.bootstrap_servers})

    def _prepare_directory(self) -> None:
        if self._temporary and self._directory == Path():
            self._directory = Path(tempfile.mkdtemp(prefix="millrace-kafka-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        if _read_state(self._directory):
            message = f"A Kafka is running in {self._directory} already: use EmbeddedKafka.attach, or another directory"
            raise DevKafkaError(message)

    def _choose_ports(self) -> dict[int, NodePorts]:
        count = len(self._ids)
        numbers = iter(free_ports(3 * count, HOST))
        clients = [next(numbers) for _ in self._ids] if self._wanted_ports == "free" else list(self._wanted_ports)
        return {
            node: NodePorts(client, next(numbers), next(numbers) if self._security else None)
            for node, client in zip(self._ids, clients, strict=True)
        }

    def _launch_all(self, java: Java, jars: list[Path]) -> None:
        cluster_id = cluster_id_of(self._data_path(1)) or new_cluster_id()
        self._archive = ClassArchive(java, jars)
        for node in self._ids:
            format_storage(self._data_path(node), node, cluster_id, java, jars)
            self._log_path(node).unlink(missing_ok=True)
            self._launch(node, java, jars)
        self._write_state()
        self._wait_until_serving()

    def _launch(self, node: int, java: Java, jars: list[Path]) -> None:
        directory = self._directory
        properties, log4j = directory / f"node-{node}.properties", directory / "log4j2.xml"
        text = server_properties(node, self._ports, self._data_path(node), self._security, self._config)
        properties.touch(mode=0o600)
        properties.write_text(text)
        log4j.write_text(log4j_configuration(self._log_level))
        archive = self._archive.options(records=node == 1) if self._archive else ()
        command = [str(java.executable), *self._jvm_options, *archive, f"-Dlog4j2.configurationFile={log4j}"]
        command += ["-cp", join_class_path(jars), "kafka.Kafka", str(properties)]
        self._processes[node] = BrokerProcess.start(command, directory, self._log_path(node), self._owner_pid)

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        for node in self._ids:
            while not _accepts_connections(self._ports[node].client):
                self._check_starting(deadline)
                time.sleep(0.02)
        admin = self.admin()
        probe = NewTopic("millrace-probe", 1, len(self._ids))
        while not _could_create(admin, probe):
            self._check_starting(deadline)
            time.sleep(0.02)

    def _check_starting(self, deadline: float) -> None:
        for node, process in self._processes.items():
            if not process.alive:
                message = f"Kafka's node {node} ended with exit code {process.exit_code}. {self._log_tails()}"
                raise BrokerStartError(message)
        if time.monotonic() > deadline:
            message = f"Kafka does not serve after {self._start_timeout_s:.0f} s. {self._log_tails()}"
            raise BrokerStartError(message)

    def _log_tails(self) -> str:
        tails = []
        for node in self._ids:
            lines = self.log(node).splitlines()[-_LOG_TAIL_LINES:]
            tails.append("\n".join([f"The end of {self._log_path(node)}:", *(lines or ["(empty)"])]))
        return "\n".join(tails)

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _process(self, broker_id: int) -> BrokerProcess:
        self._require_started()
        try:
            return self._processes[broker_id]
        except KeyError:
            message = f"There is no broker {broker_id}; the ids are {', '.join(map(str, self._ids))}"
            raise DevKafkaError(message) from None

    def _require_started(self) -> None:
        if not self._ports:
            message = "This Kafka has not been started: call start() or use it in a with statement"
            raise DevKafkaError(message)

    def _data_path(self, node: int) -> Path:
        return self._directory / f"node-{node}"

    def _log_path(self, node: int) -> Path:
        return self._directory / f"node-{node}.log"

    def _write_state(self) -> None:
        state = {
            "bootstrap_servers": self.bootstrap_servers,
            "config": self._config,
            "log_level": self._log_level,
            "temporary": self._temporary,
            "users": dict(self._security.users) if self._security else {},
            "nodes": [
                {"id": node, "pid": process.pid, "started_at": process.started_at, "ports": asdict(self._ports[node])}
                for node, process in self._processes.items()
            ],
        }
        part = self._directory / f"{STATE_FILE}.part"
        part.touch(mode=0o600)
        part.write_text(json.dumps(state, indent=2))
        part.replace(self._directory / STATE_FILE)


def serve(
    *,
    brokers: int = 1,
    directory: Path | None = None,
    port: int | None = 9092,
    config: Mapping[str, str] | None = None,
    log_level: str = "WARN",
    report: Callable[[str], None] = print,
) -> None:
    """Run a Kafka in the foreground until SIGINT or SIGTERM; call it in the main thread.

    Args:
        brokers: How many nodes.
        directory: Where data is kept across runs; nothing is kept when not given.
        port: The first broker's port, the others follow it; none chooses free ones.
        config: Broker settings over the defaults.
        log_level: What the brokers log.
        report: Gets one line with the bootstrap servers once they serve.

    Raises:
        BrokerStartError: A broker ended or did not serve in time.
    """
    ended = threading.Event()
    previous = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    ports: Literal["free"] | Sequence[int] = range(port, port + brokers) if port else "free"
    kafka = EmbeddedKafka(brokers, directory=directory, ports=ports, config=config, log_level=log_level)
    try:
        with kafka:
            report(f"Kafka serves at {kafka.bootstrap_servers}")
            while not ended.wait(0.5):
                if len(kafka.pids) < brokers:
                    message = f"A broker ended by itself. {kafka._log_tails()}"
                    raise BrokerStartError(message)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class ClassArchive:
    """The JVM's class-data archive for the broker, which halves its start-up time; recorded once per Java and jar set."""

    def __init__(self, java: Java, jars: Sequence[Path]) -> None:
        executable = java.executable.resolve()
        identity = hash_of(f"{executable}:{executable.stat().st_mtime_ns}:{join_class_path(jars)}")
        self._path = cache_directory() / "cds" / f"kafka-java{java.version}-{identity}.jsa"
        self._recording: Path | None = None

    def options(self, *, records: bool) -> tuple[str, ...]:
        """Return the JVM options that use the archive or, if it is missing and `records`, make it on a clean exit."""
        if self._path.exists():
            return (f"-XX:SharedArchiveFile={self._path}",)
        if not records:
            return ()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._recording = self._path.with_suffix(f".{os.getpid()}.part")
        return (f"-XX:ArchiveClassesAtExit={self._recording}",)

    def keep(self) -> None:
        """Put a complete recording in place for later starts."""
        if self._recording and self._recording.exists():
            self._recording.replace(self._path)


def hash_of(text: str) -> str:
    """Return a short name for `text` that is safe in a file name."""
    import hashlib  # noqa: PLC0415

    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_state(directory: Path) -> dict[str, object] | None:
    try:
        state = json.loads((directory / STATE_FILE).read_text())
    except FileNotFoundError:
        return None
    return state if any(is_running(node["pid"], node["started_at"]) for node in state["nodes"]) else None


def _accepts_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _could_create(admin: AdminClient, topic: NewTopic) -> bool:
    try:
        for future in admin.create_topics([topic], validate_only=True, request_timeout=5).values():
            future.result()
    except KafkaException:
        return False
    return True


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    described = admin.list_topics(topic, timeout=10).topics[topic]
    return len(described.partitions) == partitions and all(p.leader >= 0 for p in described.partitions.values())
