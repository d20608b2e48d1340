"""Reads all outputs while they are written, as a consumer that only sees committed records."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.soak.model import Output
from tests.topologies.soak import OUTPUTS, PARTITIONS, topic

from millrace.dev.kafka import EmbeddedKafka
from millrace.engine.partitioner import partition_for_key
from millrace.processor.handlers import HEADER_EXCEPTION


class Reader:
    """The only reader of an application's outputs; it skips dead letters of refused results, which the model does not know."""

    def __init__(self, kafka: EmbeddedKafka, application: str) -> None:
        self.outputs: dict[str, list[Output]] = {name: [] for name in OUTPUTS}
        """The records read, in order for each partition."""
        self.records = 0
        self._closed_ms: dict[int, int] = {}
        self.longest_gap_s = 0.0
        self._kafka = kafka
        self._application = application
        self._last_at: float | None = None
        self._over = threading.Event()
        self._ends: dict[tuple[str, int], int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": f"{application}-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._partitions = [(topic(application, name), number) for name in OUTPUTS for number in range(PARTITIONS)]
        self._consumer.assign([TopicPartition(name, number, 0) for name, number in self._partitions])
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._consumer.close()

    @property
    def gap_s(self) -> float:
        """How long ago the last record was read."""
        return 0.0 if self._last_at is None else time.monotonic() - self._last_at

    def watch_gaps(self, *, on: bool) -> None:
        """Start, or stop, measuring the longest time without output."""
        if self._last_at is not None:
            self.longest_gap_s = max(self.longest_gap_s, self.gap_s)
        self._last_at = time.monotonic() if on else None

    def closed_ms(self, partition: int) -> int:
        """Return the start of the last window that an input partition has closed, as far as its result was read; 0 for none."""
        return self._closed_ms.get(partition, 0)

    def behind(self) -> list[str]:
        """Return the partitions whose end, including uncommitted records and markers, was not reached."""
        ends = end_offsets(self._kafka, self._partitions)
        return [
            f"{name}-{number} at {self._ends.get((name, number), 0)} of {end}"
            for (name, number), end in ends.items()
            if self._ends.get((name, number), 0) < end
        ]

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, 0.2):
                self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        where = message.topic(), message.partition()
        if error is None:
            if b"ProductionError" not in dict(message.headers() or ()).get(HEADER_EXCEPTION, b""):
                name = where[0].removeprefix(f"{self._application}.")
                self.outputs[name].append((message.key().decode(), message.value()))
                if name == "closed":
                    key, _, start = message.key().decode().partition("@")
                    partition = partition_for_key(key.encode(), PARTITIONS)
                    self._closed_ms[partition] = max(int(start), self.closed_ms(partition))
            self.records += 1
            self._ends[where] = message.offset() + 1
            if self._last_at is not None:
                self.watch_gaps(on=True)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._ends[where] = message.offset()


def first_offsets(kafka: EmbeddedKafka, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the first offsets that the partitions still have."""
    return _offsets(kafka, partitions, OffsetSpec.earliest())


def end_offsets(kafka: EmbeddedKafka, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the partitions' ends, for a consumer that sees everything."""
    return _offsets(kafka, partitions, OffsetSpec.latest())


def _offsets(
    kafka: EmbeddedKafka, partitions: Sequence[tuple[str, int]], wanted: OffsetSpec
) -> dict[tuple[str, int], int]:
    asked = {TopicPartition(name, number): wanted for name, number in partitions}
    admin = kafka.admin()  # kept: if it ended, the answers would never arrive
    answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=20)
    return {(tp.topic, tp.partition): future.result(30).offset for tp, future in answers.items()}
