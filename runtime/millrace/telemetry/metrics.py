"""Which of Kafka Streams' metrics are exported, under which names, and what they are read from.

Names follow KIP-714, which gives a client metric one name outside of Java: `org.apache.kafka.`, its group without `-metrics`,
its own name, all with dots; tags with underscores. So `process-total` of `stream-thread-metrics` is
`org.apache.kafka.stream.thread.process.total` with the attribute `thread_id`, and dashboards made for Java's push work here.

Only what a reader cannot derive is exported: the back end computes rates and averages from totals.
The runtime keeps plain numbers. They are read by observable instruments, in the exporter's thread, when it asks for them and
never while a record is processed. A task may end between being listed and being read; it is then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millrace.engine.task import StreamTask
from millrace.engine.task_metrics import (
    NODE_GROUP,
    NODE_METRICS,
    TASK_METRICS,
    Level,
    Metric,
    MetricKind,
    exported_name,
)
from millrace.engine.task_state import IllegalTaskStateError
from millrace.instance.states import State, ThreadState
from millrace.instance.stream_thread import StreamThread

__all__ = ["CLIENT_METRICS", "THREAD_METRICS", "Level", "mapping_rows", "observe", "observe_tasks"]

_CLIENT: Final = "stream-metrics"
_THREAD: Final = "stream-thread-metrics"
_UPDATER: Final = "stream-state-updater-metrics"
_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_INFO = Level.INFO
_STATES: Final = {state: number for number, state in enumerate(State)}
_THREAD_STATES: Final = {state: number for number, state in enumerate(ThreadState)}
Client = tuple[State, tuple[StreamThread, ...]]
"""What a client's metrics are read from: its state and its threads."""


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
        _CLIENT,
        "alive-stream-threads",
        _GAUGE,
        _INFO,
        "{thread}",
        "Stream threads that run",
        lambda client: sum(thread.state not in (ThreadState.CREATED, ThreadState.DEAD) for thread in client[1]),
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
        lambda thread: None if thread.tasks is None else thread.tasks.records_total,
    ),
    Metric(
        _THREAD,
        "commit-total",
        _COUNTER,
        _INFO,
        "{commit}",
        "Commits of one task or more",
        lambda thread: None if thread.tasks is None else thread.tasks.commits_total,
    ),
    Metric(
        _UPDATER,
        "active-restoring-tasks",
        _GAUGE,
        _INFO,
        "{task}",
        "Tasks whose state is being restored",
        lambda thread: None if thread.tasks is None else len(thread.tasks.restoring),
    ),
    Metric(
        _UPDATER,
        "standby-updating-tasks",
        _GAUGE,
        _INFO,
        "{task}",
        "Standbys that are kept up to date",
        lambda thread: None if thread.tasks is None else len(thread.tasks.standby),
    ),
    Metric(
        _UPDATER,
        "restore-records-total",
        _COUNTER,
        _INFO,
        "{record}",
        "Changelog records applied",
        lambda thread: None if thread.resources is None else thread.resources.updater.restored_total,
    ),
)


def mapping_rows() -> list[tuple[str, str, str, str, str]]:
    """Return group, name, exported name, kind and level of every metric, for the documentation."""
    metrics: tuple[Metric[Any], ...] = (*CLIENT_METRICS, *THREAD_METRICS, *TASK_METRICS)
    rows = [
        (metric.group, metric.name, metric.exported_name, metric.kind.value, metric.level.name) for metric in metrics
    ]
    rows += [
        (NODE_GROUP, f"{sensor}-total", exported_name(NODE_GROUP, f"{sensor}-total"), "counter", "DEBUG")
        for sensor in NODE_METRICS
    ]
    return rows


Attributes = dict[str, str]
_Source = TypeVar("_Source")
Listed = Iterable[tuple[_Source, Attributes]]


def observe(
    meter: Meter,
    client_id: str,
    state: Callable[[], State],
    threads: Callable[[], Iterable[StreamThread]],
    level: Level = Level.INFO,
) -> None:
    """Export the metrics of one client.

    Args:
        meter: creates the instruments.
        client_id: identifies a client within the process; an attribute of every metric.
        state: returns the client's state.
        threads: returns its stream threads, including those that have ended.
        level: `metrics.recording.level`.
    """

    def client() -> Listed[Client]:
        both: Client = state(), tuple(threads())
        return [(both, {"client_id": client_id})]

    def all_threads() -> Listed[StreamThread]:
        return [(thread, {"client_id": client_id, "thread_id": thread.name}) for thread in threads()]

    def all_tasks() -> Listed[StreamTask]:
        return [
            (task, {**attributes, "task_id": str(task.task_id)})
            for thread, attributes in all_threads()
            if (tasks := thread.tasks) is not None
            for task in (*tasks.running.values(), *tasks.restoring.values())
        ]

    _register(meter, CLIENT_METRICS, client, level)
    _register(meter, THREAD_METRICS, all_threads, level)
    _register(meter, TASK_METRICS, all_tasks, level)
    if level.value >= Level.DEBUG.value:
        for sensor, description in NODE_METRICS.items():
            meter.create_observable_counter(
                exported_name(NODE_GROUP, f"{sensor}-total"), [_sensor_callback(sensor, all_tasks)], "1", description
            )


def observe_tasks(
    meter: Meter, client_id: str, tasks: Callable[[], Iterable[StreamTask]], level: Level = Level.INFO
) -> None:
    """Export the metrics of tasks that another host than a client runs.

    Args:
        meter: creates the instruments.
        client_id: identifies the host; an attribute of every metric.
        tasks: returns the tasks that run now.
        level: `metrics.recording.level`.
    """
    _register(
        meter,
        TASK_METRICS,
        lambda: [(task, {"client_id": client_id, "task_id": str(task.task_id)}) for task in tasks()],
        level,
    )


def _register(
    meter: Meter, metrics: Sequence[Metric[_Source]], listed: Callable[[], Listed[_Source]], level: Level
) -> None:
    for metric in metrics:
        if metric.level.value <= level.value:
            create = (
                meter.create_observable_counter if metric.kind is MetricKind.COUNTER else meter.create_observable_gauge
            )
            create(metric.exported_name, [_callback(metric.read, listed)], metric.unit, metric.description)


def _callback(
    read: Callable[[_Source], int | float | None], listed: Callable[[], Listed[_Source]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observations(_options: CallbackOptions) -> Iterable[Observation]:
        for source, attributes in listed():
            try:
                value = read(source)
            except IllegalTaskStateError:
                continue
            if value is not None:
                yield Observation(value, attributes)

    return observations


def _sensor_callback(
    sensor: str, all_tasks: Callable[[], Listed[StreamTask]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observations(_options: CallbackOptions) -> Iterable[Observation]:
        for task, attributes in all_tasks():
            for (node, name), (events, _) in list(task.sensors.items()):
                if name == sensor:
                    yield Observation(events, {**attributes, "processor_node_id": node})

    return observations
