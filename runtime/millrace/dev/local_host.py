"""Runs a `StreamsApp` manifest on this machine, with the same steps as the operator on a cluster.

Validate, ask the program for its plan, start Kafka, create topics, run the replicas. Each step is a method, so that a program
(such as the demo) can do something between them; `poll` keeps the replicas running and must be called often. Everything started
here ends with `stop` or with this process, and the data is kept.

The program is asked for its plan in a separate process (`millrace plan --json`): neither this host nor the operator ever imports
user code. Internal topics are created from the plan; the user's own topics are created only on request.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.deadline import Deadline
from millrace.dev._broker_files import HOST
from millrace.dev._ports import is_free
from millrace.dev._readiness import quiet_admin
from millrace.dev.kafka import EmbeddedKafka
from millrace.dev.local_directory import HostNote, LocalDirectory, ReplicaView
from millrace.dev.local_replica import Replica, ReplicaState
from millrace.errors import DevKafkaError, LocalHostError, MissingSourceTopicError, StreamsError
from millrace.instance_status import StreamsStatus, read_status
from millrace.kafka.admin import TopicToCreate, create_topics, topic_partitions
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection_check import check_connection
from millrace.kafka.group_settings import correct_group_settings
from millrace.kafka.internal_topics import provision
from millrace.manifest import StreamsApp, load, replica_name, to_group_settings, to_streams_config
from millrace.plan.diff import diff_plans
from millrace.plan.topology_plan import TopologyPlan, external_source_topics, repartition_topics
from millrace.rate_meter import RateMeter

STOP_TIMEOUT_S = 60.0
CHECK_TIMEOUT_S = 15.0
_POLL_S = 0.05
_RATE_WINDOW_S = 5.0
PLAN_TIMEOUT_S = 120.0
DEFAULT_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What to run, and how to deviate from the manifest."""

    manifest: Path
    directory: Path | None = None
    """Where data is kept; by default in the user's data directory."""
    bootstrap: str | None = None
    """Brokers to use instead of an embedded Kafka."""
    topics: Mapping[str, int | None] = field(default_factory=dict)
    """Topics to create if missing, with their partition counts."""
    create_topics: bool = True
    """Whether all missing input and output topics are created, not only the named ones."""
    port: int | None = None
    """The embedded Kafka's port; by default the previous one."""
    topology_policy: str | None = None
    """`Enforce` or `Warn`; overrides the manifest's."""
    reload: bool = False
    """Whether replicas are restarted when the program or the manifest changes, and failed ones wait for that."""

    def arguments(self) -> list[str]:
        """Return the corresponding arguments of `millrace dev up`."""
        result = ["--file", str(self.manifest), "--create-topics" if self.create_topics else "--no-create-topics"]
        if self.directory:
            result += ["--dir", str(self.directory.absolute())]
        if self.bootstrap:
            result += ["--bootstrap", self.bootstrap]
        if self.port:
            result += ["--port", str(self.port)]
        if self.topology_policy:
            result += ["--topology-policy", self.topology_policy]
        if self.reload:
            result.append("--reload")
        for name, count in self.topics.items():
            result += ["--topic", name if count is None else f"{name}:{count}"]
        return result


class LocalHost:
    """One manifest on this machine. Use it in a `with` block, which stops everything at the end."""

    def __init__(self, options: HostOptions, *, report: Callable[[str], None]) -> None:
        """Read the manifest and choose the folder, without starting anything.

        Args:
            options: What to run.
            report: Called with a line for each step.

        Raises:
            ManifestError: The manifest is wrong.
        """
        self.app: StreamsApp = load(options.manifest)
        self.directory = LocalDirectory.of(self.app.metadata.name, options.directory)
        self._plan: TopologyPlan | None = None
        self.replicas: tuple[Replica, ...] = ()
        self._options = options
        self._report = report
        self._kafka: EmbeddedKafka | None = None
        self._kafka_is_ours = False
        self._bootstrap = options.bootstrap
        self._cleanup = ExitStack()
        self._note: HostNote | None = None
        self._rates: dict[str, RateMeter] = {}

    def __enter__(self) -> Self:
        self._note = self._cleanup.enter_context(self.directory.host(self._options.manifest))
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The address of Kafka."""
        assert self._bootstrap, "start_kafka() comes first"
        return self._bootstrap

    def ask_for_plan(self) -> TopologyPlan:
        """Ask the program for its plan. This is the first step, because it fails most often and does not need Kafka.

        Raises:
            LocalHostError: The program cannot make a plan.
        """
        self._plan = ask_for_plan(self._options.manifest)
        return self._plan

    def check_plan(self) -> None:
        """Compare the plan with the one that made the existing state of this application id.

        Raises:
            LocalHostError: It does not fit, and the topology policy is not `Warn`; the differences have been reported.
        """
        plan = self._plan or self.ask_for_plan()
        before = self.directory.plan(plan.application_id)
        misfits = [] if before is None else [item for item in diff_plans(before, plan).reasons if item.needs_reset]
        if not misfits:
            return
        for item in misfits:
            self._report(f"✗ {item}")
        if (self._options.topology_policy or self.app.spec.upgrade.topology_policy) == "Warn":
            self._report(f"The existing state of {plan.application_id} is used anyway")
            return
        changes = "; ".join(f"{item.resource} {item.name} {item.change}" for item in misfits)
        raise LocalHostError(
            f"The existing state of {plan.application_id} does not fit the changed program: {changes}. Start from scratch with "
            "`millrace dev reset`, or keep the state and choose another spec.applicationId; `--topology-policy Warn` starts it "
            "anyway"
        )

    def start_kafka(self) -> None:
        """Connect to the Kafka that was named, to one that is already running in the folder, or start one on the folder's data.

        Raises:
            BrokerUnreachableError: The named one does not respond.
            DevKafkaError: The embedded one cannot be downloaded or started.
            LocalHostError: The running one has a different port.
        """
        if self._options.bootstrap:
            check_connection(ClientSettings(StreamsConfig.of(self.settings()), "check"), CHECK_TIMEOUT_S)
            self._report(f"Using Kafka at {self.bootstrap_servers}")
        else:
            try:
                self._kafka = EmbeddedKafka.attach(self.directory.kafka)
            except DevKafkaError:
                self._kafka = self._embedded_kafka()
                self._kafka_is_ours = True
            self._bootstrap = self._kafka.bootstrap_servers
            self._keep_port(int(self._bootstrap.rpartition(":")[2]))
            self._report(f"Kafka serves at {self.bootstrap_servers}")
        if self._note:
            self._note.set_kafka(self.bootstrap_servers)

    def _embedded_kafka(self) -> EmbeddedKafka:
        port = self._options.port or self.directory.port
        if port and not self._options.port and not is_free(port, HOST):
            self._report(f"Port {port}, which Kafka has had here so far, is in use: it gets another one this time")
            port = None
        return EmbeddedKafka(directory=self.directory.kafka, ports=[port] if port else "free").start()

    def _keep_port(self, port: int) -> None:
        if self._options.port not in {None, port}:
            raise LocalHostError(
                f"The Kafka that is running in {self.directory.kafka} has port {port}: stop it, or leave out --port"
            )
        if self._options.port or self.directory.port is None:
            self.directory.keep_port(port)

    def provide_topics(self) -> None:
        """Create the user's missing topics if the options allow it, and the internal topics of the plan.

        Raises:
            LocalHostError: The program cannot make a plan.
            MissingSourceTopicError: Topics are missing and may not be created.
            MisconfiguredInternalTopicError: An internal topic exists but does not fit.
        """
        plan = self._plan or self.ask_for_plan()
        admin = quiet_admin(self.bootstrap_servers)
        provide_topics(
            admin,
            plan,
            wanted=self._options.topics,
            create_missing=self._options.create_topics,
            report=self._report,
        )
        provisioned = provision(plan, admin, StreamsConfig.of(self.settings()))
        for name, count in sorted(provisioned.created.items()):
            self._report(f"Created internal topic {name}, partitions: {count}")

    def start_replicas(self) -> None:
        """Keep the plan, give the group its settings, and start a process for each replica of the manifest.

        Raises:
            StreamsError: The brokers do not accept the group's settings.
        """
        self._keep_plan()
        self._set_up_group()
        self.replicas = tuple(self._replica(number) for number in range(self.app.spec.replicas))
        self.poll()
        self.publish()

    def reload(self) -> None:
        """Restart the replicas with the present program and manifest; if these are wrong, only report that."""
        if not self._options.manifest.exists():
            self._report(
                f"Not reloaded: {self._options.manifest} is gone. The running replicas continue with what they have "
                "read, and are restarted as soon as it is back"
            )
            return
        app, plan = self.app, self._plan
        try:
            self.app = load(self._options.manifest)
            if self.app.metadata.name != app.metadata.name:
                raise LocalHostError(f"metadata.name was {app.metadata.name}: restart `millrace dev up` to change it")
            self.ask_for_plan()
            self.check_plan()
            self.provide_topics()
        except StreamsError as error:
            self.app, self._plan = app, plan
            self._report(f"Not reloaded: {error}")
            return
        self._report("Restarting the replicas with the changed files")
        self._stop_replicas()
        self._rates.clear()
        self.start_replicas()

    def _keep_plan(self) -> None:
        if self._plan:
            self.directory.plan_file(self._plan.application_id).write_text(self._plan.to_json())

    def poll(self) -> bool:
        """Restart replicas that have died and are due, unless the program has changed so that the existing state does not fit.

        Returns whether anything has changed.

        Raises:
            LocalHostError: All replicas have failed permanently (unless they are reloaded), or the embedded Kafka has ended.
        """
        changed = [self._poll(replica) for replica in self.replicas]
        if self._kafka and not self._kafka.pids:
            raise LocalHostError(f"The embedded Kafka has ended unexpectedly. {self._kafka.log_tails()}")
        if (
            self.replicas
            and not self._options.reload
            and all(replica.state is ReplicaState.FAILED for replica in self.replicas)
        ):
            words = self.replicas[0].last_error.removeprefix("Error: ")
            raise LocalHostError(f"No replica can run: {words} (see {self.directory.log(self.replicas[0].name)})")
        return any(changed)

    def _poll(self, replica: Replica) -> bool:
        if replica.is_due_again:
            running = self._plan
            with suppress(LocalHostError):  # a program without a plan does not start either, and says why
                self.ask_for_plan()
            if self._plan != running:
                try:
                    self.check_plan()
                    self.provide_topics()
                except StreamsError as error:
                    self._plan = running
                    replica.give_up(f"Not restarted: {error}")
                    return True
                self._keep_plan()
        return replica.poll()

    def view(self) -> tuple[ReplicaView, ...]:
        """Return the present state of every replica."""
        return tuple(self._view(replica) for replica in self.replicas)

    def publish(self) -> tuple[ReplicaView, ...]:
        """Publish the present state of the replicas, for `millrace dev status`, and return it."""
        views = self.view()
        if self._note:
            self._note.set_replicas(views)
        return views

    def stop(self) -> None:
        """Stop the replicas, which commit first, then the embedded Kafka; all data is kept."""
        running = [replica for replica in self.replicas if replica.pid]
        if running:
            self._report(f"Stopping {len(running)} replica{'s' if len(running) > 1 else ''} …")
        self._stop_replicas()
        if self._kafka and self._kafka_is_ours:
            self._kafka.stop()
        self._kafka = None
        self._cleanup.close()

    def _stop_replicas(self) -> None:
        for replica in self.replicas:
            replica.stop()
        deadline = Deadline(STOP_TIMEOUT_S)
        while any(replica.pid for replica in self.replicas):
            if deadline.passed:
                self.kill()
            for replica in self.replicas:
                replica.poll()
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """Kill the replicas, without a commit."""
        for replica in self.replicas:
            replica.kill()

    def _set_up_group(self) -> None:
        """Give the consumer group the manifest's settings, if its brokers assign the tasks.

        Raises:
            StreamsError: The brokers do not accept them.
        """
        group, admin = self.app.spec.application_id, quiet_admin(self.bootstrap_servers)
        changed = correct_group_settings(admin, group, to_group_settings(self.app.spec))
        for name, value in sorted(changed.items()):
            self._report(f"Set {name} of group {group} to {'the default' if value is None else value}")

    def _replica(self, number: int) -> Replica:
        name = replica_name(self.app, number)
        self.directory.status(name).unlink(missing_ok=True)
        arguments = command(
            "run",
            *("--file", str(self._options.manifest)),
            *("--replica", str(number)),
            *("--bootstrap", self.bootstrap_servers),
            *("--state-dir", str(self.directory.state(name))),
            *("--status-file", str(self.directory.status(name))),
            "--stop-with-parent",
        )
        return Replica(name, arguments, self.directory.log(name), clock=time.monotonic)

    def _view(self, replica: Replica) -> ReplicaView:
        status = read_status(self.directory.status(replica.name)) if replica.pid else None
        if status and status.pid != replica.pid:
            status = None
        state = replica.state.value
        if replica.state is ReplicaState.RUNNING:
            state = "starting" if status is None else status.state.lower()
            if status is not None and status.task_counts.restoring:
                state = "restoring"
        rate = self._rate(replica.name, status)
        return ReplicaView(
            name=replica.name,
            pid=replica.pid,
            state=state,
            tasks=len(status.tasks) if status else None,
            lag=status.lag.total if status else None,
            records_per_s=rate,
            restarts=replica.restarts,
            note=self._remark(replica) or ("" if status is None else _dropped_note(status)),
            dropped=sum(each.records for each in status.dropped if not each.harmless) if status else None,
        )

    def _rate(self, name: str, status: StreamsStatus | None) -> float | None:
        if status is None:
            self._rates.pop(name, None)
            return None
        return self._rates.setdefault(name, RateMeter(_RATE_WINDOW_S)).add(
            status.time_ms / 1000, status.processing.records
        )

    def _remark(self, replica: Replica) -> str:
        told = f"{replica.last_error} (see {self.directory.log(replica.name)})".lstrip()
        if replica.state is ReplicaState.FAILED:
            return told
        if replica.state is ReplicaState.WAITING and replica.restarts:
            return f"ended with exit code {replica.exit_code}, starts again in {replica.starts_in_s:.0f} s. {told}"
        return f"restarted. {told}" if replica.last_error else ""

    def settings(self) -> dict[str, object]:
        """Return the settings that all replicas share, with the address of Kafka."""
        return to_streams_config(self.app, bootstrap_servers=[self.bootstrap_servers])


def command(*arguments: str) -> list[str]:
    """Return the command line that runs `millrace` with this process's interpreter."""
    return [sys.executable, "-m", "millrace.cli", *arguments]


def ask_for_plan(manifest: Path) -> TopologyPlan:
    """Ask the program of a manifest for its plan, in a separate process.

    Raises:
        LocalHostError: It cannot make one; the message is from `millrace plan`.
    """
    try:
        result = subprocess.run(  # noqa: S603 (the arguments are ours)
            command("plan", "--file", str(manifest), "--json"),
            capture_output=True,
            text=True,
            timeout=PLAN_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise LocalHostError(f"The program did not return its topology within {PLAN_TIMEOUT_S:.0f} s") from None
    if result.returncode:
        told = result.stderr.strip().removeprefix("Error: ") or f"exit code {result.returncode}"
        raise LocalHostError(f"The program cannot make a plan: {told}")
    _, brace, rest = result.stdout.partition("{")
    return TopologyPlan.from_json(brace + rest)


def provide_topics(
    admin: AdminClient,
    plan: TopologyPlan,
    *,
    wanted: Mapping[str, int | None],
    create_missing: bool,
    report: Callable[[str], None],
) -> None:
    """Create the user's missing topics, if they may be created.

    Args:
        admin: The cluster.
        plan: What the application reads and writes.
        wanted: Topics to create if missing, with their partition counts (None for the default).
        create_missing: Whether all other topics of the plan may be created as well.
        report: Called with a line for each topic created.

    Raises:
        MissingSourceTopicError: Input topics are missing and may not be created; names them.
        StreamsError: The brokers refused to create a topic.
    """
    inputs = external_source_topics(plan)
    outputs = {name for item in plan.subtopologies for name in item.sink_topics} - repartition_topics(plan).keys()
    if plan.dead_letter_topic is not None:
        outputs.add(plan.dead_letter_topic)
    existing = topic_partitions(admin, {*inputs, *outputs, *wanted})
    partitions = max((existing[name] for name in inputs if name in existing), default=DEFAULT_PARTITIONS)
    missing = {name: count or partitions for name, count in wanted.items() if name not in existing}
    others = [name for name in (*sorted(inputs), *sorted(outputs - inputs)) if name not in {*existing, *wanted}]
    if create_missing:
        missing |= dict.fromkeys(others, partitions)
    elif others:
        kinds = (
            dict.fromkeys(outputs, "output") | {plan.dead_letter_topic: "dead letters"} | dict.fromkeys(inputs, "input")
        )
        named = ", ".join(f"{name} ({kinds[name]})" for name in others)
        options = " ".join(f"--topic {name}:{DEFAULT_PARTITIONS}" for name in others)
        raise MissingSourceTopicError(
            f"Topics of the application do not exist: {named}. Create them, or add `{options}`"
        )
    if missing:
        create_topics(admin, {name: TopicToCreate(count) for name, count in missing.items()})
    for name, count in missing.items():
        report(f"Created topic {name}, partitions: {count}")


def _dropped_note(status: StreamsStatus) -> str:
    """Return where a replica drops most records, and why; nothing if it drops none."""
    most = max((each for each in status.dropped if not each.harmless), key=attrgetter("records"), default=None)
    if most is None:
        return ""
    place = f" ({Path(most.place).name})" if most.place else ""
    return f"drops records at {most.node}{place}: {most.records:,} {most.problem}"
