"""What a task tells of itself while it runs in an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from millrace.backfill.progress import Address, Teller
from millrace.records import KEY, VALUE, TaskId

if TYPE_CHECKING:
    from millrace.engine.task import StreamTask

__all__ = ["Exporter", "Observer", "TaskObservation"]

_KEY: Final = itemgetter(KEY)
_VALUE: Final = itemgetter(VALUE)


@dataclass(frozen=True, slots=True)
class Observer:
    """Observes the tasks of a stage; pickled into the executors."""

    stage: int = 0
    pass_number: int = 0
    address: Address | None = None
    """Where to tell how far they are."""
    parent: Mapping[str, str] = field(default_factory=dict)
    """The context of the stage's span."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The driver's `OTEL_*`."""

    @contextmanager
    def task(self, task_id: TaskId, exporter: Exporter) -> Iterator[TaskObservation]:
        """Bracket one task, which is exported meanwhile."""
        observation = TaskObservation(task_id, self._teller(task_id))
        done = False
        with exporter(observation):
            try:
                yield observation
                done = True
            finally:
                observation.close(done=done)

    def _teller(self, task_id: TaskId) -> Teller | None:
        if self.address is None:
            return None
        try:
            return Teller(self.address, self.stage, self.pass_number, str(task_id))
        except OSError:
            return None  # progress is not worth a failure


class TaskObservation:
    """Counts what one task reads, and tells how far it is."""

    def __init__(self, task_id: TaskId, teller: Teller | None) -> None:
        self.task_id = task_id
        self._teller = teller
        self.task: StreamTask | None = None
        """The task, once it exists."""
        self.bytes = 0
        """Of the keys and values that it has read so far."""

    @property
    def records(self) -> int:
        """How many it has processed so far."""
        return 0 if self.task is None else self.task.counters.records_processed

    def count(self, records: Sequence[Any]) -> None:
        """Count the bytes of records that it reads."""
        for part in (_KEY, _VALUE):
            self.bytes += sum(map(len, filter(None, map(part, records))))

    def tell(self, *, done: bool = False) -> None:
        """Tell the driver, now and then."""
        if self._teller is not None:
            self._teller.tell(self.records, self.bytes, done=done)

    def close(self, *, done: bool) -> None:
        """Tell for the last time."""
        if self._teller is not None:
            if done:
                self.tell(done=True)
            self._teller.close()


Exporter = Callable[[TaskObservation], AbstractContextManager[object]]
"""Exports what is observed of a task, as long as the task runs."""
