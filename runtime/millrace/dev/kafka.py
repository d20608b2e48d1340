"""A real Apache Kafka on this machine, for development and tests, without Docker or installation; on 127.0.0.1 by default.

`EmbeddedKafka` runs one or more nodes, each a broker and a controller in its own JVM. Started means *serving*: every broker is
registered, and a topic with a replica on each of them could be created. A cluster ends with the process that started it, even
if that is killed, unless it is detached; then its state file lets another process attach to it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millrace.deadline import Deadline
from millrace.dev._broker_files import (
    HOST,
    LOG4J,
    STATE_FILE,
    ClusterState,
    NodePorts,
    NodeState,
    SaslPlain,
    cluster_id_of,
    format_storage,
    new_cluster_id,
    server_properties,
)
from millrace.dev._ports import free_ports, is_free
from millrace.dev._process import BrokerProcess
from millrace.dev._readiness import accepts_connections, has_leaders, quiet_admin, serves
from millrace.dev.jars import Bundle, resolve
from millrace.dev.java import ClassArchive, find_java, join_class_path
from millrace.errors import BrokerStartError, DevKafkaError

__all__ = ["EmbeddedKafka", "SaslPlain"]

_JVM_OPTIONS = (
    "-Xms96m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
)
_LOG_TAIL_LINES = 40
_PORT_ATTEMPTS = 3
_POLL_S = 0.02
_STOP_TIMEOUT_S = 15.0
_TEMPORARY_STOP_TIMEOUT_S = 1.0


class EmbeddedKafka:
    """A Kafka cluster of one or more nodes on this machine.

    Example::

        with EmbeddedKafka() as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        directory: Path | None = None,
        host: str = HOST,
        ports: Literal["free"] | Sequence[int] = "free",
        advertised_ports: Sequence[int] = (),
        config: Mapping[str, str] | None = None,
        log_level: str = "WARN",
        security: SaslPlain | None = None,
        detach: bool = False,
        owner_pid: int | None = None,
        jvm_options: Sequence[str] = (),
        start_timeout_s: float = 180.0,
    ) -> None:
        """Describe a cluster; `start` runs it.

        Args:
            brokers: How many nodes; with three or more, internal topics have three replicas.
            directory: Where to keep data, logs and configuration; by default a temporary one, which `stop` removes.
            host: The address of this machine that the brokers listen on and advertise.
            ports: The brokers' client ports, one per broker, or "free" to choose some.
            advertised_ports: Where proxies listen, one port per broker: each broker has another open listener
                (`proxied_ports`), whose clients are told to connect to the proxy.
            config: Broker settings that replace or add to the defaults.
            log_level: The log level of the brokers: ERROR, WARN, INFO, DEBUG.
            security: A second listener, with user names and passwords.
            detach: Whether the brokers outlive this process and the `with` block.
            owner_pid: The brokers end when this process ends; by default the current one.
            jvm_options: Options for the JVMs, after the defaults, which they override.
            start_timeout_s: How long the cluster may take to start, and a topic to be created.

        Raises:
            DevKafkaError: The number of ports, or of advertised ports, differs from the number of brokers.
        """
        if brokers < 1 or (ports != "free" and len(ports) != brokers):
            message = f"{brokers} brokers cannot listen on ports {ports}: give one port per broker, for at least one"
            raise DevKafkaError(message)
        if advertised_ports and len(advertised_ports) != brokers:
            message = (
                f"{brokers} brokers cannot be behind proxies on ports {advertised_ports}: give one port per broker"
            )
            raise DevKafkaError(message)
        self._ids = range(1, brokers + 1)
        self._temporary = directory is None
        self._directory = Path(directory).absolute() if directory else None
        self._host = host
        self._wanted_ports = ports
        self._advertised_ports = advertised_ports
        self._config = dict(config or {})
        self._log_level = log_level
        self._security = security
        self._detach = detach
        self._owner_pid = None if detach else owner_pid or os.getpid()
        self._jvm_options = (*_JVM_OPTIONS, *jvm_options)
        self._start_timeout_s = start_timeout_s
        self._ports: dict[int, NodePorts] = {}
        self._processes: dict[int, BrokerProcess] = {}
        self._paused: set[int] = set()
        self._archive: ClassArchive | None = None

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """Return a handle on the cluster that is running in `directory`, no matter which process started it.

        The cluster keeps running at the end of a `with` block on the handle; `stop` ends it.

        Raises:
            DevKafkaError: No cluster is running there.
        """
        state = ClusterState.of_running(directory)
        if state is None:
            message = (
                f"No Kafka is running in {directory}: start one there with EmbeddedKafka(directory=..., detach=True)"
            )
            raise DevKafkaError(message)
        handle = cls(
            len(state.nodes),
            directory=directory,
            host=state.bootstrap_servers.partition(":")[0],
            config=state.config,
            log_level=state.log_level,
            security=SaslPlain(state.users) if state.users else None,
            detach=True,
        )
        handle._temporary = state.temporary
        for node in state.nodes:
            handle._ports[node.node_id] = node.ports
            handle._processes[node.node_id] = BrokerProcess(node.pid, node.started_at)
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
        return self._require_directory()

    @property
    def bootstrap_servers(self) -> str:
        """The open listeners, for `bootstrap.servers`."""
        self._require_started()
        return ",".join(f"{self._host}:{ports.client}" for ports in self._ports.values())

    @property
    def sasl_bootstrap_servers(self) -> str:
        """The listeners that require a password (SASL_PLAINTEXT, PLAIN)."""
        self._require_started()
        if not self._security:
            message = "This Kafka has no listener with passwords: start it with security=SaslPlain({user: password})"
            raise DevKafkaError(message)
        return ",".join(f"{self._host}:{ports.sasl}" for ports in self._ports.values())

    @property
    def proxied_ports(self) -> tuple[int, ...]:
        """The brokers' own ports behind `advertised_ports`, to which the proxies must connect."""
        self._require_started()
        return tuple(ports.proxied for ports in self._ports.values() if ports.proxied)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The node ids, 1 to n."""
        return tuple(self._ids)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the brokers that have not ended."""
        return tuple(process.pid for process in self._processes.values() if process.alive)

    def start(self) -> Self:
        """Start all brokers and wait until the cluster serves.

        Raises:
            BrokerStartError: A broker ended, or the cluster did not serve in time; the message has the end of its log.
            JavaNotFoundError: There is no Java 17 or newer.
            JarDownloadError: Kafka's jars cannot be downloaded.
            DevKafkaError: It is already running.
        """
        self._prepare_directory()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if not self._ports or attempt > 1:
                self._ports = self._choose_ports()
            self._check_ports()
            try:
                self._launch_all()
            except BrokerStartError as error:
                self._end_all()
                port_was_taken = self._wanted_ports == "free" and "Address already in use" in str(error)
                if not port_was_taken or attempt == _PORT_ATTEMPTS:
                    raise
            except BaseException:
                self._end_all()
                raise
            else:
                break
        return self

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop all brokers cleanly, killing those that take too long; a temporary directory is removed.

        Args:
            timeout_s: How long they may take in total; by default 15 s, or 1 s if their data is removed anyway.
        """
        if timeout_s is None:
            data_is_removed = self._temporary and not (self._archive and self._archive.recording)
            timeout_s = _TEMPORARY_STOP_TIMEOUT_S if data_is_removed else _STOP_TIMEOUT_S
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)
        deadline = Deadline(timeout_s)
        clean = [process.wait(deadline.left_s()) for process in self._processes.values()]
        self._end_all(complete=all(clean))
        if self._directory and not ClusterState.of_running(self._directory):  # else it belongs to another cluster
            (self._directory / STATE_FILE).unlink(missing_ok=True)
        if self._directory and self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self, broker_id: int = 1) -> None:
        """Kill a broker, like a crash (SIGKILL)."""
        self._process(broker_id).kill()

    def stop_broker(self, broker_id: int = 1, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop one broker cleanly, or kill it after `timeout_s`."""
        process = self._process(broker_id)
        process.signal(signal.SIGTERM)
        self.resume(broker_id)
        if not process.wait(timeout_s):
            process.kill()

    def restart_broker(self, broker_id: int = 1) -> None:
        """Start a broker again on its ports and data, after stopping it cleanly if it is running, and wait until it serves.

        Raises:
            BrokerStartError: It ended, or did not serve in time.
        """
        self.stop_broker(broker_id)
        self._launch(broker_id)
        self._write_state()
        self._wait_until_serving([broker_id])

    def pause(self, broker_id: int = 1) -> None:
        """Suspend a broker without ending it, like a long garbage collection (SIGSTOP).

        Raises:
            DevKafkaError: It is still running after 60 s.
        """
        self._process(broker_id).pause()
        self._paused.add(broker_id)

    def resume(self, broker_id: int = 1) -> None:
        """Resume a paused broker (SIGCONT)."""
        self._process(broker_id).signal(signal.SIGCONT)
        self._paused.discard(broker_id)

    def log(self, broker_id: int = 1) -> str:
        """Return what a broker has logged."""
        with contextlib.suppress(FileNotFoundError):
            return self._log_path(broker_id).read_text(errors="replace")
        return ""

    def admin(self) -> AdminClient:
        """Return a new admin client for the open listener."""
        return quiet_admin(self.bootstrap_servers)

    def create_topics(
        self,
        *names: str,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create topics and wait until all their partitions have leaders that serve them.

        Args:
            names: The topics.
            partitions: How many partitions each has.
            replication_factor: Replicas per partition; -1 for the cluster's default (three, or all brokers if fewer).
            config: Topic settings.

        Raises:
            KafkaException: The broker refused to create one, for example because it exists.
            DevKafkaError: A partition has no leader in time.
        """
        admin = self.admin()
        deadline = Deadline(self._start_timeout_s)
        topics = {name: NewTopic(name, partitions, replication_factor, config=dict(config or {})) for name in names}
        unanswered: set[str] = set()
        while topics:
            asked = admin.create_topics(list(topics.values()), request_timeout=deadline.left_s(at_least=0.1))
            for name, future in asked.items():
                try:
                    future.result()
                except KafkaException as error:
                    code = error.args[0].code()
                    if code == KafkaError._DESTROY_BROKER and not deadline.passed:  # noqa: SLF001 (it has left the cluster)
                        unanswered.add(name)
                        continue
                    if not (name in unanswered and code == KafkaError.TOPIC_ALREADY_EXISTS):
                        raise
                del topics[name]
            if topics:
                time.sleep(_POLL_S)
        deadline = Deadline(self._start_timeout_s)
        for name in names:
            while not has_leaders(admin, name, partitions):
                if deadline.passed:
                    message = f"Topic {name} has no leaders after {self._start_timeout_s:.0f} s. {self.log_tails()}"
                    raise DevKafkaError(message)
                time.sleep(_POLL_S)

    def log_tails(self) -> str:
        """Return the last log lines of each broker, under the files' names."""
        tails = []
        for node in self._ids:
            lines = self.log(node).splitlines()[-_LOG_TAIL_LINES:]
            tails.append("\n".join([f"The end of {self._log_path(node)}:", *(lines or ["(empty)"])]))
        return "\n".join(tails)

    def _prepare_directory(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="millrace-kafka-"))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"Cannot create the directory {self._directory}: {error.strerror}. Choose another one"
            raise DevKafkaError(message) from error
        running = ClusterState.of_running(self._directory)
        if running:
            message = (
                f"A Kafka is already running in {self._directory}, at {running.bootstrap_servers}: "
                "use EmbeddedKafka.attach, stop it, or take another directory"
            )
            raise DevKafkaError(message)

    def _choose_ports(self) -> dict[int, NodePorts]:
        numbers = iter(free_ports(4 * len(self._ids), self._host))
        clients = [next(numbers) for _ in self._ids] if self._wanted_ports == "free" else self._wanted_ports
        advertised: Sequence[int | None] = self._advertised_ports or [None] * len(self._ids)
        return {
            node: NodePorts(
                client,
                next(numbers),
                next(numbers) if self._security else None,
                next(numbers) if proxy else None,
                proxy,
            )
            for node, client, proxy in zip(self._ids, clients, advertised, strict=True)
        }

    def _check_ports(self) -> None:
        taken = [ports.client for ports in self._ports.values() if not is_free(ports.client, self._host)]
        if taken:
            message = (
                f"Address already in use: something listens on {self._host}:{taken[0]}. Stop it, or choose another port"
            )
            raise BrokerStartError(message)

    def _launch_all(self) -> None:
        java, jars = find_java(), resolve(Bundle.KAFKA_BROKER)
        cluster_id = cluster_id_of(self._data_path(1)) or new_cluster_id()
        for node in self._ids:
            format_storage(self._data_path(node), node, cluster_id, java, jars)
            self._log_path(node).unlink(missing_ok=True)
            self._launch(node)
        self._write_state()
        self._wait_until_serving(self._ids)

    def _launch(self, node: int) -> None:
        java, jars = find_java(), resolve(Bundle.KAFKA_BROKER)
        directory = self._require_directory()
        self._archive = self._archive or ClassArchive(java, jars, may_record=self._owner_pid == os.getpid())
        properties, log4j = directory / f"node-{node}.properties", directory / "log4j2.xml"
        properties.touch(mode=0o600)
        properties.write_text(
            server_properties(node, self._ports, self._data_path(node), self._security, self._config, host=self._host),
        )
        log4j.write_text(LOG4J.format(level=self._log_level))
        command = [str(java.executable), *self._jvm_options, *self._archive.options()]
        command += [f"-Dlog4j2.configurationFile={log4j}", "-cp", join_class_path(jars), "kafka.Kafka", str(properties)]
        self._processes[node] = BrokerProcess.start(
            command, directory, self._log_path(node), self._owner_pid, temporary=self._temporary
        )

    def _wait_until_serving(self, started: Iterable[int]) -> None:
        deadline = Deadline(self._start_timeout_s)
        for node in started:
            while not accepts_connections(self._host, self._ports[node].client):
                self._check_starting(started, deadline)
                time.sleep(_POLL_S)
        reachable = [node for node, process in self._processes.items() if process.alive and node not in self._paused]
        admin = quiet_admin(",".join(f"{self._host}:{self._ports[node].client}" for node in reachable))
        cluster_id = cluster_id_of(self._data_path(1)) or ""
        while not serves(admin, cluster_id, len(reachable)):
            self._check_starting(started, deadline)
            time.sleep(_POLL_S)

    def _check_starting(self, started: Iterable[int], deadline: Deadline) -> None:
        for node in started:
            process = self._processes[node]
            if not process.alive:
                message = f"Kafka's node {node} ended with exit code {process.exit_code}. {self.log_tails()}"
                raise BrokerStartError(message)
        if deadline.passed:
            message = f"Kafka does not serve after {self._start_timeout_s:.0f} s. {self.log_tails()}"
            raise BrokerStartError(message)

    def _end_all(self, *, complete: bool = False) -> None:
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        self._paused.clear()
        if self._archive:
            self._archive.close(complete=complete)
        self._archive = None

    def _process(self, broker_id: int) -> BrokerProcess:
        self._require_started()
        if broker_id not in self._ids:
            message = f"There is no broker {broker_id}; the ids are {', '.join(map(str, self._ids))}"
            raise DevKafkaError(message)
        return self._processes[broker_id]

    def _require_started(self) -> None:
        if not self._processes:
            message = "This Kafka is not started: call start() or use it in a with statement"
            raise DevKafkaError(message)

    def _require_directory(self) -> Path:
        if self._directory is None:
            message = "A Kafka without a given directory has one only while it is running"
            raise DevKafkaError(message)
        return self._directory

    def _data_path(self, node: int) -> Path:
        return self._require_directory() / f"node-{node}"

    def _log_path(self, node: int) -> Path:
        return self._require_directory() / f"node-{node}.log"

    def _write_state(self) -> None:
        nodes = tuple(
            NodeState(node, process.pid, process.started_at, self._ports[node])
            for node, process in self._processes.items()
        )
        users = dict(self._security.users) if self._security else {}
        state = ClusterState(self.bootstrap_servers, nodes, self._config, users, self._log_level, self._temporary)
        state.write(self._require_directory())
