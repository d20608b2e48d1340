"""A topology on topics with several partitions: one task per sub-topology and partition, run in any order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from millrace.config import StreamsConfig
from millrace.engine.partitioner import partition_for_key
from millrace.engine.task import StreamTask
from millrace.plan.partition_counts import resolve_partition_counts
from millrace.records import NO_HEADERS, ConsumedRecord, TaskId, TopicPartition
from millrace.testing.output_collector import CapturingCollector
from millrace.topology import Topology

DEFAULTS = {
    "application.id": "app",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "default.dsl.store": "in_memory",
}


class PartitionedTasks:
    """Every task of a topology, and the topics between them.

    Args:
        topology: what runs.
        inputs: input topics with their numbers of partitions.
        directory: for the tasks' state.
    """

    def __init__(self, topology: Topology, inputs: Mapping[str, int], directory: Path) -> None:
        config = StreamsConfig.of(DEFAULTS)
        built = topology.build(config)
        counts = resolve_partition_counts(built.plan(), inputs)
        self.partitions = {"out": 1, **counts.topics}
        self.written: dict[TopicPartition, list[ConsumedRecord]] = defaultdict(list)
        """What was written, by partition."""
        self._read: dict[TopicPartition, int] = defaultdict(int)
        self._collector = CapturingCollector(lambda topic: self.partitions[topic])
        self.tasks: list[StreamTask] = []
        for part in built.subtopologies:
            for number in range(counts.tasks[part.id]):
                task = StreamTask(
                    TaskId(part.id, number),
                    part,
                    config,
                    self._collector,
                    state_dir=directory / f"{part.id}_{number}",
                    cache=None,
                    clock=lambda: 0,
                    input_partitions=frozenset(
                        TopicPartition(topic, number) for topic in part.source_topics if number < self.partitions[topic]
                    ),
                )
                task.open_stores()
                task.initialize()
                self.tasks.append(task)

    def write(self, topic: str, key: str, value: str | None, partition: int | None = None) -> None:
        """Append a record to an input topic."""
        data = None if value is None else value.encode()
        self._append(topic, key.encode(), data, 0, partition)

    def step(self, choose: Callable[[list[Any]], Any]) -> bool:
        """Have one task process one record of one partition; return False if everything has been read."""
        waiting = [
            (task, partition)
            for task in self.tasks
            for partition in sorted(task.input_partitions)
            if self._read[partition] < len(self.written[partition])
        ]
        if not waiting:
            return False
        task, partition = choose(waiting)
        task.add_records(partition, [self.written[partition][self._read[partition]]])
        self._read[partition] += 1
        for other in task.input_partitions:
            task.set_lag(other, 0)
        assert task.process(0) == 1
        for record in self._collector.take():
            if record.topic in self.partitions:
                self._append(record.topic, record.key, record.value, record.timestamp or 0, record.partition)
        return True

    def settle(self, choose: Callable[[list[Any]], Any] = lambda waiting: waiting[0]) -> None:
        """Process everything."""
        while self.step(choose):
            pass

    def table(self, topic: str) -> dict[str, str]:
        """Return a topic's records as a table."""
        table: dict[str, str | None] = {}
        for number in range(self.partitions[topic]):
            for record in self.written[TopicPartition(topic, number)]:
                table[record.key.decode()] = None if record.value is None else record.value.decode()
        return {key: value for key, value in table.items() if value is not None}

    def _append(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, partition: int | None
    ) -> None:
        if partition is None:
            partition = 0 if key is None else partition_for_key(key, self.partitions[topic])
        where = TopicPartition(topic, partition)
        record = ConsumedRecord(topic, partition, len(self.written[where]), timestamp, key, value, NO_HEADERS)
        self.written[where].append(record)

    def close(self) -> None:
        """Close every task."""
        for task in self.tasks:
            task.close_dirty()
