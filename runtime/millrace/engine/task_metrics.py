"""The metrics of a task and its nodes, under the names of Kafka Streams, and what they are read from.

The engine only keeps plain numbers (`TaskCounters`, sensors); exporters (on their schedule) and the test driver (when it is
asked) read them through this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from millrace.engine.task import StreamTask

S = TypeVar("S")


class MetricKind(Enum):
    """What a number means over time."""

    COUNTER = "counter"
    """Only grows during the life of the thread or task."""
    GAUGE = "gauge"


class Level(Enum):
    """The lowest `metrics.recording.level` at which a metric is exported."""

    INFO = 0
    DEBUG = 1
    TRACE = 2


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One metric of Kafka Streams."""

    group: str
    name: str
    kind: MetricKind
    level: Level
    unit: str
    """In UCUM, as in OpenTelemetry: `By`, `ms`, `{record}`."""
    description: str
    read: Callable[[S], int | float | None]
    """Returns the number, None if there is nothing to report."""

    @property
    def exported_name(self) -> str:
        """The name outside of Java."""
        return exported_name(self.group, self.name)


def exported_name(group: str, name: str) -> str:
    """Return the KIP-714 name of a metric.

    >>> exported_name("stream-thread-metrics", "process-total")
    'org.apache.kafka.stream.thread.process.total'
    """
    return f"org.apache.kafka.{group.removesuffix('-metrics')}.{name}".replace("-", ".")


class MetricName(NamedTuple):
    """Identifies a metric of a task or of one of its nodes."""

    group: str
    name: str
    processor_node_id: str | None = None
    """The node, for a node's metrics."""


TASK_GROUP: Final = "stream-task-metrics"
NODE_GROUP: Final = "stream-processor-node-metrics"
_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_INFO, _DEBUG = Level.INFO, Level.DEBUG

TASK_METRICS: Final[tuple[Metric[StreamTask], ...]] = (
    Metric(
        TASK_GROUP,
        "dropped-records-total",
        _COUNTER,
        _INFO,
        "{record}",
        "Records dropped: null keys, expired windows, handlers that continued",
        lambda task: task.counters.dropped_records,
    ),
    Metric(
        TASK_GROUP,
        "process-total",
        _COUNTER,
        _DEBUG,
        "{record}",
        "Records processed",
        lambda task: task.counters.records_processed,
    ),
    Metric(
        TASK_GROUP,
        "punctuate-total",
        _COUNTER,
        _DEBUG,
        "{call}",
        "Punctuators called",
        lambda task: task.counters.punctuations,
    ),
    Metric(TASK_GROUP, "commit-total", _COUNTER, _DEBUG, "{commit}", "Commits", lambda task: task.counters.commits),
    Metric(
        TASK_GROUP,
        "enforced-processing-total",
        _COUNTER,
        _DEBUG,
        "{record}",
        "Records processed although an input was empty",
        lambda task: task.counters.enforced_processing,
    ),
    Metric(
        TASK_GROUP,
        "restore-total",
        _COUNTER,
        _DEBUG,
        "{record}",
        "Changelog records applied",
        lambda task: task.counters.restored_records,
    ),
    Metric(
        TASK_GROUP, "active-buffer-count", _GAUGE, _DEBUG, "{record}", "Records that wait", lambda task: task.buffered()
    ),
    Metric(
        TASK_GROUP,
        "uncommitted-bytes",
        _GAUGE,
        _DEBUG,
        "By",
        "Memory held by state writes that wait for a commit (not in Java)",
        lambda task: task.uncommitted_bytes(),
    ),
)

NODE_METRICS: Final[Mapping[str, str]] = {
    "suppression-emit": "Records that suppress let through",
    "idempotent-update-skip": "Updates of a table that changed nothing",
    "window-aggregate-final-emit": "Windows emitted when they closed",
}
"""Sensors of nodes, whose event counts are exported as `<sensor>-total` from DEBUG on."""


def task_metrics(task: StreamTask) -> dict[MetricName, float]:
    """Return the current values of all metrics of a task and of its nodes' sensors."""
    read = {MetricName(metric.group, metric.name): metric.read(task) for metric in TASK_METRICS}
    found: dict[MetricName, float] = {name: value for name, value in read.items() if value is not None}
    for (node, sensor), (events, _) in task.sensors.items():
        found[MetricName(NODE_GROUP, f"{sensor}-total", node)] = events
    return found
