"""Which of Kafka Streams' metrics are exported, under which names, and what they are read from.

Names follow KIP-714, which gives a client metric one name outside of Java: `org.apache.kafka.`, its group without `-metrics`,
its own name, all with dots; tags with underscores. So `process-total` of `stream-thread-metrics` is
`org.apache.kafka.stream.thread.process.total` with the attribute `thread_id`, and dashboards made for Java's push work here.

Only what a reader cannot derive is exported: rates and averages are the business of the back end, from totals.
The runtime keeps plain numbers; they are read when an exporter asks, never while a record is processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from millrace.engine.task import StreamTask
from millrace.runtime.states import State, ThreadState
from millrace.runtime.stream_thread import StreamThread

__all__ = [
    "CLIENT_METRICS",
    "NODE_GROUP",
    "NODE_METRICS",
    "TASK_METRICS",
    "THREAD_METRICS",
    "Kind",
    "Level",
    "Metric",
    "exported_name",
    "mapping_rows",
]

S = TypeVar("S")


class Kind(Enum):
    """What a number means over time."""

    COUNTER = "counter"
    """Only grows, for as long as the thread or task lives."""
    GAUGE = "gauge"


class Level(Enum):
    """From which `metrics.recording.level` on a metric is exported."""

    INFO = 0
    DEBUG = 1
    TRACE = 2


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One metric of Kafka Streams."""

    group: str
    name: str
    kind: Kind
    level: Level
    unit: str
    """In UCUM, as OpenTelemetry has it: `By`, `ms`, `{record}`."""
    description: str
    read: Callable[[S], int | float | None]
    """Gives the number, None when there is nothing to tell."""

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


_CLIENT: Final = "stream-metrics"
_THREAD: Final = "stream-thread-metrics"
_UPDATER: Final = "stream-state-updater-metrics"
_TASK: Final = "stream-task-metrics"
NODE_GROUP: Final = "stream-processor-node-metrics"
_COUNTER, _GAUGE = Kind.COUNTER, Kind.GAUGE
_INFO, _DEBUG = Level.INFO, Level.DEBUG
_STATES: Final = {state: number for number, state in enumerate(State)}
_THREAD_STATES: Final = {state: number for number, state in enumerate(ThreadState)}
Client = tuple[State, tuple[StreamThread, ...]]
"""What the metrics of a client are read from: its state and its threads."""


def _tasks(thread: StreamThread, read: Callable[[Any], int]) -> int | None:
    return None if thread.tasks is None else read(thread.tasks)


def _resources(thread: StreamThread, read: Callable[[Any], int]) -> int | None:
    return None if thread.resources is None else read(thread.resources)


def _alive(threads: Iterable[StreamThread]) -> int:
    return sum(thread.state not in (ThreadState.CREATED, ThreadState.DEAD) for thread in threads)


CLIENT_METRICS: Final[tuple[Metric[Client], ...]] = (
    Metric(
        _CLIENT,
        "client-state",
        _GAUGE,
        _INFO,
        "1",
        "The client's state as a number: " + ", ".join(f"{number} {state.value}" for state, number in _STATES.items()),
        lambda client: _STATES[client[0]],
    ),
    Metric(
        _CLIENT, "alive-stream-threads", _GAUGE, _INFO, "{thread}", "Stream threads that run", lambda c: _alive(c[1])
    ),
    Metric(
        _CLIENT,
        "failed-stream-threads",
        _GAUGE,
        _INFO,
        "{thread}",
        "Stream threads that ended with an exception",
        lambda client: sum(thread.error is not None for thread in client[1]),
    ),
)

THREAD_METRICS: Final[tuple[Metric[StreamThread], ...]] = (
    Metric(
        _THREAD,
        "thread-state",
        _GAUGE,
        _INFO,
        "1",
        "The thread's state as a number: "
        + ", ".join(f"{number} {state.value}" for state, number in _THREAD_STATES.items()),
        lambda thread: _THREAD_STATES[thread.state],
    ),
    Metric(
        _THREAD, "poll-total", _COUNTER, _INFO, "{call}", "Rounds of the thread", lambda thread: thread.rounds_total
    ),
    Metric(
        _THREAD,
        "process-total",
        _COUNTER,
        _INFO,
        "{record}",
        "Records processed",
        lambda thread: _tasks(thread, lambda tasks: tasks.records_total),
    ),
    Metric(
        _THREAD,
        "commit-total",
        _COUNTER,
        _INFO,
        "{commit}",
        "Commits of one task or more",
        lambda thread: _tasks(thread, lambda tasks: tasks.commits_total),
    ),
    Metric(
        _UPDATER,
        "active-restoring-tasks",
        _GAUGE,
        _INFO,
        "{task}",
        "Tasks whose state is being restored",
        lambda thread: _tasks(thread, lambda tasks: len(tasks.restoring)),
    ),
    Metric(
        _UPDATER,
        "restore-records-total",
        _COUNTER,
        _INFO,
        "{record}",
        "Changelog records applied",
        lambda thread: _resources(thread, lambda resources: resources.updater.restored_total),
    ),
)

TASK_METRICS: Final[tuple[Metric[StreamTask], ...]] = (
    Metric(
        _TASK,
        "dropped-records-total",
        _COUNTER,
        _INFO,
        "{record}",
        "Records dropped: null keys, expired windows, handlers that went on",
        lambda task: task.counters.dropped_records,
    ),
    Metric(
        _TASK,
        "process-total",
        _COUNTER,
        _DEBUG,
        "{record}",
        "Records processed",
        lambda task: task.counters.records_processed,
    ),
    Metric(
        _TASK,
        "punctuate-total",
        _COUNTER,
        _DEBUG,
        "{call}",
        "Punctuators called",
        lambda task: task.counters.punctuations,
    ),
    Metric(_TASK, "commit-total", _COUNTER, _DEBUG, "{commit}", "Commits", lambda task: task.counters.commits),
    Metric(
        _TASK,
        "enforced-processing-total",
        _COUNTER,
        _DEBUG,
        "{record}",
        "Records processed although an input was empty",
        lambda task: task.counters.enforced_processing,
    ),
    Metric(
        _TASK,
        "restore-total",
        _COUNTER,
        _DEBUG,
        "{record}",
        "Changelog records applied",
        lambda task: task.counters.restored_records,
    ),
    Metric(_TASK, "active-buffer-count", _GAUGE, _DEBUG, "{record}", "Records that wait", lambda task: task.buffered()),
    Metric(
        _TASK,
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


def mapping_rows() -> list[tuple[str, str, str, str, str]]:
    """Return (group, name, exported name, kind, level) of every metric, for the documentation."""
    metrics: tuple[Metric[Any], ...] = (*CLIENT_METRICS, *THREAD_METRICS, *TASK_METRICS)
    rows = [
        (metric.group, metric.name, metric.exported_name, metric.kind.value, metric.level.name) for metric in metrics
    ]
    rows += [
        (NODE_GROUP, f"{sensor}-total", exported_name(NODE_GROUP, f"{sensor}-total"), "counter", "DEBUG")
        for sensor in NODE_METRICS
    ]
    return rows
