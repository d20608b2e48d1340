"""What a backfill shows to OpenTelemetry: spans of its stages and tasks, and metrics.

| span | where | what |
|---|---|---|
| `backfill <application>` | driver | all of it |
| `stage <number>` | driver | from its planning, so waiting for the stages before it is part of it, until all are computed |
| `task <task>` | executor | one task of a stage; child of it |
| `publish <application>` | driver | writing the result |

Tasks have the metrics that they have in production, under the same names (`org.apache.kafka.stream.task…`). The driver has those
of the stages: `millrace.backfill.records`, `.bytes`, `.tasks` and `.tasks.done`. Spark's own metrics are Spark's business.

The variables `OTEL_*` of the driver count in the executors too, where these do not have others. With nothing to export, there is
nothing of all this.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Self

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span, Status, StatusCode

from millrace.backfill.observation import Observer, TaskObservation
from millrace.backfill.progress import Progress, StageProgress
from millrace.config import StreamsConfig
from millrace.telemetry.metrics import Level, observe_tasks
from millrace.telemetry.setup import INSTRUMENTATION_NAME, Telemetry, configure
from millrace.telemetry.tracing import BATCH_MESSAGE_COUNT, CONSUMER_GROUP_NAME, TASK_ID

if TYPE_CHECKING:
    from millrace.backfill.stages import Stage

__all__ = ["Watch", "exported"]

STAGE: Final = "millrace.backfill.stage"
BYTES: Final = "millrace.backfill.bytes"


class Watch:
    """Watches one backfill from its driver; a context manager.

    Args:
        config: the application's settings.
        progress: hears from tasks, or None if nobody wants to know.
    """

    def __init__(self, config: StreamsConfig, progress: Progress | None = None) -> None:
        self._application = config.application_id
        self._progress = progress
        self._telemetry = configure(_own(config, "driver"))
        provider = self._telemetry.tracer_provider if self._telemetry else None
        self._tracer = provider.get_tracer(INSTRUMENTATION_NAME) if provider else None
        self._span: Span | None = None
        self._stages: dict[int, Span] = {}
        if progress is not None and self._telemetry is not None:
            _observe_stages(self._telemetry, self._application, progress.stages)

    def __enter__(self) -> Self:
        """Begin the span of the whole."""
        if self._tracer is not None:
            attributes = {CONSUMER_GROUP_NAME: self._application}
            self._span = self._tracer.start_span(f"backfill {self._application}", Context(), attributes=attributes)
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        """End all spans, and export them."""
        self._end_stages(error)
        if self._span is not None:
            _end(self._span, error)
        if self._telemetry is not None:
            self._telemetry.shutdown()

    def stage(self, number: int, stage: Stage, records: int | None) -> None:
        """Say that a stage is planned, and about how many records it will process."""
        if self._progress is not None:
            self._progress.expect(number, stage, records)
        if self._tracer is not None and self._span is not None:
            attributes: dict[str, str | int] = {STAGE: number, CONSUMER_GROUP_NAME: self._application}
            context = trace.set_span_in_context(self._span)
            self._stages[number] = self._tracer.start_span(f"stage {number}", context, attributes=attributes)

    def observer(self, number: int, pass_number: int) -> Observer:
        """Return what a stage's tasks are observed by in this pass."""
        carrier: dict[str, str] = {}
        if number in self._stages:
            propagate.inject(carrier, trace.set_span_in_context(self._stages[number]))
        return Observer(
            number,
            pass_number,
            self._progress.address if self._progress is not None else None,
            carrier,
            {name: value for name, value in os.environ.items() if name.startswith("OTEL_")},
        )

    def computed(self) -> None:
        """Say that all stages are done."""
        if self._progress is not None:
            self._progress.finish()
        self._end_stages(None)

    def publishing(self) -> AbstractContextManager[object]:
        """Bracket writing the result."""
        if self._tracer is None or self._span is None:
            return nullcontext()
        context = trace.set_span_in_context(self._span)
        return self._tracer.start_as_current_span(f"publish {self._application}", context)

    def _end_stages(self, error: BaseException | None) -> None:
        for span in self._stages.values():
            _end(span, error)
        self._stages.clear()


@contextmanager
def exported(observer: Observer, config: StreamsConfig, observation: TaskObservation) -> Iterator[None]:
    """Bracket a task of an executor with its span, and export its metrics meanwhile."""
    telemetry = _of_process(config)
    if telemetry is None:
        yield
        return
    span = None
    if telemetry.tracer_provider is not None:
        attributes: dict[str, str | int] = {
            STAGE: observer.stage,
            TASK_ID: str(observation.task_id),
            CONSUMER_GROUP_NAME: config.application_id,
        }
        context = propagate.extract(observer.parent, Context())
        tracer = telemetry.tracer_provider.get_tracer(INSTRUMENTATION_NAME)
        span = tracer.start_span(f"task {observation.task_id}", context, attributes=attributes)
    _running.append(observation)
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        if span is not None:
            span.set_attributes({BATCH_MESSAGE_COUNT: observation.records, BYTES: observation.bytes})
            _end(span, failure)
        telemetry.flush()  # Spark kills the process when it needs it no more
        _running.remove(observation)


_running: Final[list[TaskObservation]] = []
"""The tasks that run in this process."""
_telemetry: list[Telemetry | None] = []
"""What this process exports, once it is known: as long as the process, in which Spark runs many tasks."""


def _of_process(config: StreamsConfig) -> Telemetry | None:
    if not _telemetry:
        who = f"{socket.gethostname()}-{os.getpid()}"
        found = configure(_own(config, who))
        if found is not None and found.meter_provider is not None:
            meter = found.meter_provider.get_meter(INSTRUMENTATION_NAME)
            level = Level[config.metrics_recording_level]
            observe_tasks(meter, f"backfill-{who}", lambda: [item.task for item in _running if item.task], level)
        _telemetry.append(found)
    return _telemetry[0]


def _own(config: StreamsConfig, who: str) -> StreamsConfig:
    """Return settings under which a process of the backfill is told from the others, and from the application."""
    return config.model_copy(update={"group_instance_id": f"backfill-{who}", "health_metrics": False})


def _observe_stages(telemetry: Telemetry, application: str, stages: Callable[[], Iterable[StageProgress]]) -> None:
    if telemetry.meter_provider is None:
        return
    meter = telemetry.meter_provider.get_meter(INSTRUMENTATION_NAME)

    def reader(read: Callable[[StageProgress], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [
            Observation(read(found), {"application_id": application, "stage": number})
            for number, found in enumerate(stages())
        ]

    prefix = "millrace.backfill"
    for name, unit, text, read in (
        ("records", "{record}", "Records that a stage has processed", lambda stage: stage.records),
        ("bytes", "By", "Bytes of keys and values that a stage has read", lambda stage: stage.bytes),
        ("tasks", "{task}", "Tasks of a stage", lambda stage: stage.tasks),
        ("tasks.done", "{task}", "Tasks of a stage that are done", lambda stage: stage.done),
    ):
        meter.create_observable_gauge(f"{prefix}.{name}", [reader(read)], unit, text)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.end()
