"""An application on a real broker: its input, what it has written, and its settings."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from tests.backfill.programs import CountPerKey
from tests.reading import read_to_end
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.kafka.admin import topic_partitions
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin
from millrace.kafka.group_admin import GroupAdmin
from millrace.serdes import Serdes

READ_TIMEOUT_S = 60.0
FIRST_TIMESTAMP = 1_700_000_000_000
MANIFEST = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata: {{name: shop}}
spec:
  applicationId: {app.id}
  image: shop:1
  app: {{entrypoint: "shop:topology"}}
  kafka: {{bootstrapServers: ["{app.kafka.bootstrap_servers}"]}}
"""
PROGRAM = """\
from tests.backfill.programs import CountPerKey

def topology():
    return CountPerKey({app.source!r}, {app.sink!r}, by_value={by_value})()
"""


def run_command(folder, *arguments, prefix=(), **environment):
    """Run `millrace backfill` in a process without a terminal; both its outputs are in `stdout`."""
    path = os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))
    return subprocess.run(
        [*prefix, sys.executable, "-m", "millrace.cli.spark_driver", "-f", "streamsapp.yaml", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )


@dataclass
class App:
    """One application, counting its input."""

    kafka: object
    partitions: int = 2
    guarantee: str = "exactly_once_v2"
    id: str = field(default_factory=lambda: f"app-{secrets.token_hex(4)}")
    counts: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.source, self.sink = f"{self.id}.in", f"{self.id}.out"
        config = {"retention.ms": "-1"}  # timestamps are years ago
        self.kafka.create_topics(self.source, self.sink, partitions=self.partitions, config=config)

    @property
    def changelog(self):
        return f"{self.id}-counts-changelog"

    @property
    def settings(self):
        return {
            "application.id": self.id,
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "processing.guarantee": self.guarantee,
        }

    @property
    def clients(self):
        return ClientSettings(StreamsConfig.of(self.settings), "test")

    def add_partition(self, topic):
        """Give a topic one partition more."""
        admin = open_admin(self.clients.admin())
        [extended] = admin.create_partitions([NewPartitions(topic, self.partitions + 1)]).values()
        extended.result(30)
        wait_until(
            lambda: topic_partitions(admin, [topic])[topic] == self.partitions + 1,
            "the broker knows it",
            READ_TIMEOUT_S,
        )

    def topology(self, *, by_value=False):
        """Return the user's program, built."""
        return CountPerKey(self.source, self.sink, by_value=by_value)()

    def write_project(self, folder, *, by_value=False):
        """Write the user's program and its manifest, `streamsapp.yaml`."""
        (folder / "shop.py").write_text(PROGRAM.format(app=self, by_value=by_value))
        (folder / "streamsapp.yaml").write_text(MANIFEST.format(app=self))

    def produce(self, keys, first=FIRST_TIMESTAMP):
        """Write a record per key, a second apart."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "partitioner": "murmur2_random"})
        for number, key in enumerate(keys):
            producer.produce(self.source, key, key, timestamp=first + number * 1_000)
        assert producer.flush(60) == 0
        self.counts.update(keys)

    def open_transaction(self, keys):
        """Write records in a transaction, and return the producer to end it."""
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "transactional.id": f"other-{secrets.token_hex(4)}",
                "transaction.timeout.ms": 600_000,
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for key in keys:
            producer.produce(self.source, key, key, timestamp=FIRST_TIMESTAMP)
        assert producer.flush(60) == 0
        return producer

    def join(self):
        """Return a consumer that has become a member of the application's group, and reads nothing."""
        settings = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "group.id": self.id,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
        member = Consumer(settings)
        member.subscribe([self.source])
        wait_until(member.assignment, "it is a member", meanwhile=lambda: member.poll(0.1), poll_s=0)
        return member

    def table(self, topic):
        """Return the last value per key of a topic, without deleted ones."""
        long, string = Serdes.long(), Serdes.string()
        found = {}
        for record in self.read(topic):
            key = string.deserialize(topic, record.key())
            found[key] = None if record.value() is None else long.deserialize(topic, record.value())
        return {key: value for key, value in found.items() if value is not None}

    def read(self, topic, isolation="read_committed"):
        """Return all records of a topic, only committed ones unless told; none if it does not exist."""
        settings = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(settings)
        try:
            known = consumer.list_topics(timeout=60).topics
            if topic not in known:
                return []
            admin = self.kafka.admin()  # without a reference to it the answers never come
            starts = [TopicPartition(topic, number, 0) for number in known[topic].partitions]
            return list(read_to_end(consumer, admin, starts, READ_TIMEOUT_S))
        finally:
            consumer.close()

    def committed(self):
        """Return the group's offsets in the source topic."""
        with GroupAdmin(self.clients) as group:
            return {number: offset for (topic, number), offset in group.committed().items() if topic == self.source}
