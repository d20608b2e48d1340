"""Which of Kafka Streams' metrics are exported, under which names, and what they are read from.

Names follow KIP-714, which gives a client metric one name outside of Java: `org.apache.kafka.`, its group without `-metrics`,
its own name, all with dots; tags with underscores. So `process-total` of `stream-thread-metrics` is
`org.apache.kafka.stream.thread.process.total` with the attribute `thread_id`, and dashboards made for Java's push work here.

Only what a reader cannot derive is exported: rates and averages are the business of the back end, from totals.
The runtime keeps plain numbers; they are read when an exporter asks, never while a record is processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from millrace.engine.task_metrics import (
    NODE_GROUP,
    NODE_METRICS,
    TASK_METRICS,
    Level,
    Metric,
    MetricKind,
    exported_name,
)
from millrace.runtime.states import State, ThreadState
from millrace.runtime.stream_thread import StreamThread

__all__ = [
    "CLIENT_METRICS",
    "NODE_GROUP",
    "NODE_METRICS",
    "TASK_METRICS",
    "THREAD_METRICS",
    "Level",
    "Metric",
    "MetricKind",
    "exported_name",
    "mapping_rows",
]

_CLIENT: Final = "stream-metrics"
_THREAD: Final = "stream-thread-metrics"
_UPDATER: Final = "stream-state-updater-metrics"
_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
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
