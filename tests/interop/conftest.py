"""Runs the word count in Java and in Python with the same protocol, and reads what they leave on the broker."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaAdminClient
from tests import forked
from tests.java_programs import streams_class_path
from tests.reading import read_to_end
from tests.waiting import wait_until

from millrace.dev.java import find_java

HERE = Path(__file__).parent
PARTITIONS = 3
FIRST_TIMESTAMP = int(time.time()) * 1000 - 3_600_000
"""Recent, since the broker deletes records older than a topic's retention."""
DEADLINE_S = 120.0


class App:
    """A running word count, in either language."""

    def __init__(self, name, command, log_path):
        self.name = name
        self._log_path = log_path
        self._log = log_path.open("w+")
        self._process = forked.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT, env={**os.environ}
        )

    def log(self):
        """Return its output so far."""
        return self._log_path.read_text()

    def check(self):
        """Fail if it has ended unexpectedly or reports an error."""
        assert self._process.poll() is None, f"{self.name} ended with {self._process.returncode}:\n{self.log()[-4000:]}"
        assert "\nERROR\n" not in self.log(), f"{self.name} failed:\n{self.log()[-4000:]}"

    def wait_running(self):
        """Wait until it processes records."""
        wait_until(
            lambda: "RUNNING" in self.log().splitlines(), f"{self.name} running", DEADLINE_S, meanwhile=self.check
        )
        return self

    def stop(self):
        """Let it commit, leave the group and end."""
        self._process.stdin.close()
        try:
            code = self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{self.name} does not stop:\n{self.log()[-4000:]}")
        assert code == 0, f"{self.name} ended with {code}:\n{self.log()[-4000:]}"
        self._log.close()

    def kill(self):
        """End it immediately, like a crash."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._log.close()


@dataclass
class WordCount:
    """One application id with its topics, run by one program after the other."""

    kafka: object
    application_id: str
    input: str
    output: str
    directory: Path
    settings: dict
    class_path: str
    offsets_admin: KafkaAdminClient
    """kafka-python's: librdkafka's admin client reads a metadata string beyond its end."""
    apps: list = field(default_factory=list)
    words: Counter = field(default_factory=Counter)
    windowed: Counter = field(default_factory=Counter)
    max_timestamps: dict = field(default_factory=lambda: defaultdict(lambda: -1))
    lines: int = 0

    def start(self, language):
        """Start the program in `java` or `python`, with its own state directory."""
        number = len(self.apps)
        settings = {
            "application.id": self.application_id,
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "state.dir": str(self.directory / f"state-{number}"),
            "input": self.input,
            "output": self.output,
            "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
            "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
            "commit.interval.ms": "100",
            "auto.offset.reset": "earliest",
            **self.settings,
        }
        if language == "java":
            command = [str(find_java().executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self.class_path]
            command.append("WordCount")
        else:
            command = [sys.executable, str(HERE / "word_count.py")]
        command += [f"{name}={value}" for name, value in settings.items()]
        app = App(language, command, self.directory / f"{number}-{language}.log")
        self.apps.append(app)
        return app

    def produce(self, lines, seed):
        """Write lines of five words with increasing timestamps, and keep the counts they produce."""
        chance = random.Random(seed)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 20})
        failures = []

        def delivered(error, message):
            if error is None:
                key = (self.input, message.partition())
                self.max_timestamps[key] = max(self.max_timestamps[key], message.timestamp()[1])
            else:
                failures.append(error)

        for _ in range(lines):
            words = [f"w{min(int(chance.expovariate(0.03)), 300)}" for _ in range(5)]
            timestamp = FIRST_TIMESTAMP + self.lines * 10
            producer.produce(self.input, " ".join(words), str(self.lines), timestamp=timestamp, on_delivery=delivered)
            producer.poll(0)
            self.lines += 1
            self.words.update(words)
            window = timestamp - timestamp % 10_000
            self.windowed.update((word, window) for word in words)
        assert producer.flush(120) == 0
        assert not failures

    def committed(self):
        """Return the group's committed positions: (topic, partition) → (offset, metadata)."""
        found = self.offsets_admin.list_group_offsets(self.application_id)[self.application_id]
        return {
            (partition.topic, partition.partition): (position.offset, position.metadata)
            for partition, position in found.items()
            if position.offset >= 0
        }

    def progress(self):
        """Return how many input records are committed."""
        return sum(offset for (topic, _), (offset, _) in self.committed().items() if topic == self.input)

    def topics(self):
        """Return every topic of this application, with its number of partitions."""
        found = self.kafka.admin().list_topics(timeout=60).topics
        return {name: len(topic.partitions) for name, topic in found.items() if name.startswith(self.application_id)}

    def tail(self, topic):
        """Open a topic for reading from its beginning."""
        return Tail(self.kafka, topic)

    def read(self, topic):
        """Return all committed records of a topic as they are now."""
        tail = self.tail(topic)
        try:
            return tail.read_to_end()
        finally:
            tail.close()


class Tail:
    """Reads a topic's committed records and keeps them."""

    def __init__(self, kafka, topic):
        self.records = []
        self._admin = kafka.admin()
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        count = len(self._consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        self._partitions = [TopicPartition(topic, partition, 0) for partition in range(count)]

    def read_to_end(self):
        """Read on up to the present end and return everything read so far."""
        for message in read_to_end(self._consumer, self._admin, self._partitions, DEADLINE_S):
            self.records.append(message)
            self._partitions[message.partition()].offset = message.offset() + 1
        return self.records

    def close(self):
        """Close the connection."""
        self._consumer.close()


@pytest.fixture(scope="session")
def word_count_class_path():
    """Compile the Java program and return the class path to run it with."""
    return streams_class_path(HERE / "java" / "WordCount.java")


@pytest.fixture
def word_count(kafka, tmp_path, word_count_class_path):
    """Return a factory of word counts; those still running when the test ends are stopped."""
    made = []
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

    def make(**settings):
        name = f"wc-{os.getpid()}-{random.SystemRandom().getrandbits(32):08x}"
        application = WordCount(
            kafka, name, f"{name}-lines", f"{name}-out", tmp_path, settings, word_count_class_path, admin
        )
        kafka.create_topics(
            application.input, application.output, f"{application.output}-windowed", partitions=PARTITIONS
        )
        made.append(application)
        return application

    yield make
    for application in made:
        for app in application.apps:
            app.kill()
    admin.close()
