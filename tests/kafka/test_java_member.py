"""A Java Kafka Streams process and a Python member in one group: each leads once and understands the other."""

import secrets
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from tests.java_programs import streams_class_path
from tests.waiting import wait_until

from millrace.assignment import AssignmentConfig, GroupLeader, MemberProtocol
from millrace.assignment.application_state import LATEST_OFFSET
from millrace.assignment.protocol import Assigned, TopicSubscription
from millrace.config import StreamsConfig
from millrace.dev.java import find_java
from millrace.instance.background import in_background
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.internal_topics import LeaderCluster
from millrace.kafka.membership.classic.member import GroupMember
from millrace.plan.topology_plan import (
    PlannedChangelogTopic,
    PlannedRepartitionTopic,
    PlannedStore,
    PlannedSubtopology,
    TopologyPlan,
)
from millrace.records import TaskId

pytestmark = [pytest.mark.broker, pytest.mark.java, pytest.mark.slow]

SOURCE = Path(__file__).parents[1] / "interop" / "java" / "WordCount.java"
PARTITIONS = 4
TASKS = {TaskId(subtopology, number) for subtopology in (0, 1) for number in range(PARTITIONS)}


@pytest.fixture(scope="module")
def class_path():
    """Compile the Java program."""
    return streams_class_path(SOURCE)


class Application:
    """The word count's group: a Java process and a Python member that does not process."""

    def __init__(self, kafka, class_path, directory):
        self.kafka, self.class_path, self.directory = kafka, class_path, directory
        self.id = f"wc-{secrets.token_hex(4)}"
        self.input = f"{self.id}-lines"
        kafka.create_topics(self.input, f"{self.id}-out", f"{self.id}-out-windowed", partitions=PARTITIONS)
        self.java = self.log = self.member = None
        self.tasks = {}

    def plan(self):
        """Return the plan of WordCount.java."""
        stores = {"counts": "compact", "windowed-counts": "compact,delete"}
        return TopologyPlan(
            application_id=self.id,
            hash="",
            subtopologies=(
                PlannedSubtopology(id=0, source_topics=(self.input,), sink_topics=(f"{self.id}-words-repartition",)),
                PlannedSubtopology(
                    id=1,
                    source_topics=(f"{self.id}-words-repartition",),
                    repartition_topics=(PlannedRepartitionTopic(name=f"{self.id}-words-repartition"),),
                    stores=tuple(
                        PlannedStore(
                            name=name,
                            kind="keyvalue",
                            value_format="timestamped",
                            persistent=True,
                            changelog_topic=f"{self.id}-{name}-changelog",
                        )
                        for name in stores
                    ),
                    changelog_topics=tuple(
                        PlannedChangelogTopic(name=f"{self.id}-{name}-changelog", config={"cleanup.policy": policy})
                        for name, policy in stores.items()
                    ),
                ),
            ),
        )

    def start_java(self):
        """Start the Java process."""
        settings = {
            "application.id": self.id,
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "state.dir": str(self.directory / "state"),
            "input": self.input,
            "output": f"{self.id}-out",
            "commit.interval.ms": "100",
            "heartbeat.interval.ms": "200",
            "application.server": "java.host:1234",
        }
        self.log = self.directory / "java.log"
        command = [
            str(find_java().executable),
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            self.class_path,
            "WordCount",
        ]
        with self.log.open("w") as log:
            self.java = subprocess.Popen(
                [*command, *(f"{name}={value}" for name, value in settings.items())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def java_states(self):
        """Return the states the Java process has printed."""
        text = self.log.read_text()
        assert self.java.poll() in {None, 0}, text[-3000:]
        return [line for line in text.splitlines() if line.isupper()]

    def stop_java(self):
        """Let the Java process leave while the member keeps taking part."""
        self.java.stdin.close()
        self.until(lambda: self.java.poll() is not None)
        assert self.java.returncode == 0, self.log.read_text()[-3000:]

    def start_python(self):
        """Start the Python member."""
        config = StreamsConfig.of(
            {
                "application.id": self.id,
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "heartbeat.interval.ms": 200,
                "application.server": "python.host:4321",
            }
        )
        process_id = uuid4()
        protocol = MemberProtocol(process_id, end_point=config.application_server)

        def committed_offsets(*asked):
            return self.member.committed_offsets(*asked)

        cluster = LeaderCluster(self.plan(), self.kafka.admin(), config, committed_offsets)
        leader = GroupLeader(self.plan(), process_id, cluster, AssignmentConfig.of(config))
        self.protocol = protocol
        self.member = GroupMember(
            ClientSettings(config, str(process_id)),
            1,
            TopicSubscription.of({self.input, f"{self.id}-words-repartition"}),
            user_data=lambda: protocol.user_data(dict.fromkeys(self.tasks, LATEST_OFFSET)),
            assign=lambda members: in_background("assignment", lambda: leader(members)),
        )
        self.member.start()

    def until(self, condition):
        """Take part in the group until a condition holds."""
        wait_until(
            condition,
            lambda: f"{self.tasks} {self.log and self.log.read_text()[-3000:]}",
            meanwhile=self.poll,
        )

    def poll(self):
        """Take part in the group for a moment."""
        for event in () if self.member is None else self.member.poll(0.05):
            if isinstance(event, Assigned):
                given = self.protocol.accept(event)
                self.tasks, self.hosts = given.active, given.partitions_by_host
                if given.next_rebalance_ms == 0:
                    self.member.request_rejoin("follow-up")

    def close(self):
        """Stop both."""
        if self.java is not None:
            self.java.kill()
            self.java.wait()
            if not self.java.stdin.closed:
                self.java.stdin.close()
        if self.member is not None:
            self.member.close(leave_group=True)


@pytest.fixture
def application(kafka, class_path, tmp_path):
    """Yield an application of which nothing runs yet."""
    application = Application(kafka, class_path, tmp_path)
    yield application
    application.close()


def hosts(application):
    """Return how many partitions each host has."""
    return {host.host: len(partitions) for host, partitions in application.hosts.items()}


def test_java_leads_and_python_follows(application):
    """Java assigns half of the tasks to the Python member and lists its endpoint; when Java leaves, Python has them all."""
    application.start_java()
    application.until(lambda: "RUNNING" in application.java_states())
    application.start_python()
    application.until(lambda: len(application.tasks) == len(TASKS) // 2)
    assert not application.member.is_leader
    assert set(application.tasks) < TASKS
    assert hosts(application) == {"java.host": PARTITIONS, "python.host": PARTITIONS}
    for task, partitions in application.tasks.items():
        assert {tp.partition for tp in partitions} == {task.partition}
    application.stop_java()
    application.until(lambda: set(application.tasks) == TASKS)
    assert application.member.is_leader


def test_python_leads_and_java_follows(application):
    """Python provisions, assigns, and gives Java its half when it joins: Java runs with it, and later with all of it."""
    application.start_python()
    application.until(lambda: set(application.tasks) == TASKS)
    application.start_java()
    application.until(lambda: application.java_states()[-1:] == ["RUNNING"])
    application.until(lambda: len(application.tasks) == len(TASKS) // 2)
    assert application.member.is_leader
    application.until(lambda: application.java_states()[-1:] == ["RUNNING"])
    assert hosts(application) == {"java.host": PARTITIONS, "python.host": PARTITIONS}
    application.member.commit_offsets({})
    application.member.close()
    application.member = None
    application.until(
        lambda: application.java_states()[-1] == "RUNNING" and application.java_states().count("RUNNING") > 1
    )
