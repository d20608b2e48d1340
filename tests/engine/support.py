"""Helpers: a topology, one task of it, an in-memory collector, and text records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.processor.api import Processor
from millrace.records import NO_HEADERS, ConsumedRecord, Headers, TaskId, TopicPartition
from millrace.state.cache import RecordCache
from millrace.testing.output_collector import CapturingCollector
from millrace.topology import Topology

DEFAULTS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


class Harness:
    """One task over partition 0 of its topics, which the test drives."""

    def __init__(
        self, topology: Topology, directory: Path, *, cache: RecordCache | None = None, **settings: Any
    ) -> None:
        self.config = StreamsConfig.of({**DEFAULTS, **settings})
        self.now = 0
        self.collector = CapturingCollector()
        self.subtopology = topology.build(self.config).subtopologies[0]
        self.task = StreamTask(
            TaskId(0, 0),
            self.subtopology,
            self.config,
            self.collector,
            state_dir=directory / "0_0",
            cache=cache,
            clock=lambda: self.now,
            input_partitions=frozenset(TopicPartition(topic, 0) for topic in self.subtopology.source_topics),
        )
        self.offsets: dict[str, int] = {}

    def run(self, committed: Any = None) -> StreamTask:
        """Open the task and bring it to RUNNING."""
        self.task.open_stores()
        self.task.initialize(committed or {})
        return self.task

    def add(self, topic: str, *records: tuple[str | None, str | None, int], headers: Headers = NO_HEADERS) -> None:
        """Buffer records given as (key, value, timestamp)."""
        raw = []
        for key, value, timestamp in records:
            offset = self.offsets.get(topic, 0)
            self.offsets[topic] = offset + 1
            raw.append(
                ConsumedRecord(
                    topic,
                    0,
                    offset,
                    timestamp,
                    None if key is None else key.encode(),
                    None if value is None else value.encode(),
                    headers,
                )
            )
        self.task.add_records(TopicPartition(topic, 0), raw)

    def values(self, topic: str | None = None) -> list[str | None]:
        """Return the values sent since the last call."""
        return [
            None if record.value is None else record.value.decode()
            for record in self.collector.take()
            if topic in (None, record.topic)
        ]


class Failing(Processor[Any, Any, Any, Any]):
    """Raises on the value `bad`, forwards everything else."""

    def process(self, record: Any) -> None:
        """Forward, or fail."""
        if record.value == "bad":
            raise ValueError("no good")
        self.context.forward(record)


class Echo(Processor[Any, Any, Any, Any]):
    """Forwards everything."""

    def process(self, record: Any) -> None:
        """Forward."""
        self.context.forward(record)


def pipe(*topics: str, processor: Any = Echo) -> Topology:
    """Return a topology that reads topics, processes their records and writes to `out`."""
    return (
        Topology()
        .add_source("src", *(topics or ("in",)))
        .add_processor("p", processor, "src")
        .add_sink("snk", "out", "p")
    )
