"""A test bench for operators: one node and its stores in the real engine, fed with text, its output recorded as objects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.processor.node import NodeContext, NodeFactory, ProcessFn
from millrace.records import (
    NO_HEADERS,
    ConsumedRecord,
    Headers,
    OffsetAndMetadata,
    TaskId,
    TopicPartition,
)
from millrace.state.api import StoreBuilder
from millrace.state.cache import RecordCache
from millrace.testing.output_collector import CapturingCollector
from millrace.topology.builder import TopologyBuilder
from millrace.topology.physical_topology import SourceNode

SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


class Sent(NamedTuple):
    """A record that a node forwarded."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = NO_HEADERS


class Pipeline:
    """A topology under construction: sources, nodes and stores, whose last node is recorded."""

    def __init__(self) -> None:
        self.builder = TopologyBuilder()
        self.sent: list[Sent] = []

    def source(self, topic: str) -> Self:
        """Read a topic; the source has the topic's name."""
        self.builder.add_source(SourceNode(topic, (topic,)))
        return self

    def node(self, name: str, factory: NodeFactory, *parents: str) -> Self:
        """Add a node."""
        self.builder.add_processor(name, factory, parents)
        return self

    def store(self, builder: StoreBuilder, *nodes: str) -> Self:
        """Add a store and connect it."""
        self.builder.add_state_store(builder, nodes)
        return self

    def listen_to(self, *nodes: str) -> Self:
        """Record what these nodes forward."""

        def listener(_node: NodeContext) -> ProcessFn:
            def hear(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
                self.sent.append(Sent(key, value, timestamp, headers))

            return hear

        self.builder.add_processor("listener", listener, nodes)
        return self


class Running:
    """A pipeline as one task. Records go in; `sent` returns what came out since its last call."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        cache_bytes: int = 0,
        committed: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        now_ms: int = 0,
        **settings: Any,
    ) -> None:
        self.now_ms = now_ms
        self._pipeline = pipeline
        self._directory = tempfile.TemporaryDirectory(prefix="millrace-test-")
        self._offsets: dict[str, int] = {}
        config = StreamsConfig.of({**SETTINGS, **settings})
        subtopology = pipeline.builder.build(config).subtopologies[0]
        self.collector = CapturingCollector()
        self.task = StreamTask(
            TaskId(0, 0),
            subtopology,
            config,
            self.collector,
            state_dir=Path(self._directory.name) / "0_0",
            cache=RecordCache(cache_bytes) if cache_bytes else None,
            clock=lambda: self.now_ms,
            input_partitions=frozenset(TopicPartition(topic, 0) for topic in subtopology.source_topics),
        )
        self.task.open_stores()
        self.task.initialize(committed or {})

    def pipe(
        self, topic: str, key: str | None, value: str | None, timestamp: int, headers: Iterable[Any] = NO_HEADERS
    ) -> list[Sent]:
        """Process one record; return what was forwarded."""
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        raw_key, raw_value = (None if text is None else text.encode() for text in (key, value))
        partition = TopicPartition(topic, 0)
        record = ConsumedRecord(topic, 0, offset, timestamp, raw_key, raw_value, Headers(headers))
        self.task.add_records(partition, [record])
        for other in self.task.input_partitions:
            self.task.set_lag(other, 0)
        assert self.task.process(self.now_ms) == 1
        return self.sent()

    def commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit; return the offsets."""
        offsets = self.task.prepare_commit()
        self.task.post_commit({})
        return offsets

    def sent(self) -> list[Sent]:
        """Return what has been forwarded since the last call."""
        taken, self._pipeline.sent[:] = list(self._pipeline.sent), []
        return taken

    def store(self, name: str) -> Any:
        """Return a store."""
        return self.task.stores[name]

    @property
    def dropped(self) -> int:
        """The number of dropped records so far."""
        return self.task.counters.dropped_records

    def close(self) -> None:
        """Close without a commit."""
        self.task.close_dirty()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def new_values(sent: Iterable[Sent]) -> list[tuple[Any, Any, int]]:
    """Return key, new value and timestamp of table updates."""
    found = []
    for record in sent:
        new, _, _ = record.value
        found.append((record.key, new, record.timestamp))
    return found
