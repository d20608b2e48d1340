"""Registers Kafka Streams' metrics as observable instruments: exporters ask for them on their schedule.

Callbacks run in the exporter's thread and only read. A task may end between being listed and being read; it is then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millrace.engine.task import StreamTask
from millrace.engine.task_state import IllegalTaskStateError
from millrace.runtime.states import State
from millrace.runtime.stream_thread import StreamThread
from millrace.telemetry.metric_table import (
    CLIENT_METRICS,
    NODE_GROUP,
    NODE_METRICS,
    TASK_METRICS,
    THREAD_METRICS,
    Client,
    Level,
    Metric,
    MetricKind,
    exported_name,
)

__all__ = ["observe"]

S = TypeVar("S")
Attributes = dict[str, str]
Listed = Iterable[tuple[Any, Attributes]]


def observe(
    meter: Meter,
    client_id: str,
    state: Callable[[], State],
    threads: Callable[[], Iterable[StreamThread]],
    level: Level = Level.INFO,
) -> None:
    """Export the metrics of one client.

    Args:
        meter: makes the instruments.
        client_id: tells clients of one process apart; an attribute of every metric.
        state: gives the client's state.
        threads: gives its stream threads, also those that have ended.
        level: `metrics.recording.level`.
    """

    def client() -> Listed:
        both: Client = state(), tuple(threads())
        return [(both, {"client_id": client_id})]

    def all_threads() -> Listed:
        return [(thread, {"client_id": client_id, "thread_id": thread.name}) for thread in threads()]

    def all_tasks() -> Listed:
        return [
            (task, {**attributes, "task_id": str(task.task_id)})
            for thread, attributes in all_threads()
            for task in _tasks(thread)
        ]

    _register(meter, CLIENT_METRICS, client, level)
    _register(meter, THREAD_METRICS, all_threads, level)
    _register(meter, TASK_METRICS, all_tasks, level)
    if level.value >= Level.DEBUG.value:
        for sensor, description in NODE_METRICS.items():
            meter.create_observable_counter(
                exported_name(NODE_GROUP, f"{sensor}-total"), [_sensor_callback(sensor, all_tasks)], "1", description
            )


def _tasks(thread: StreamThread) -> list[StreamTask]:
    tasks = thread.tasks
    return [] if tasks is None else [*tasks.running.values(), *tasks.restoring.values()]


def _register(meter: Meter, metrics: Sequence[Metric[Any]], listed: Callable[[], Listed], level: Level) -> None:
    for metric in metrics:
        if metric.level.value <= level.value:
            create = (
                meter.create_observable_counter if metric.kind is MetricKind.COUNTER else meter.create_observable_gauge
            )
            create(metric.exported_name, [_callback(metric.read, listed)], metric.unit, metric.description)


def _callback(
    read: Callable[[Any], int | float | None], listed: Callable[[], Listed]
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
    sensor: str, all_tasks: Callable[[], Listed]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observations(_options: CallbackOptions) -> Iterable[Observation]:
        for task, attributes in all_tasks():
            for (node, name), (events, _) in list(task.sensors.items()):
                if name == sensor:
                    yield Observation(events, {**attributes, "processor_node_id": node})

    return observations
