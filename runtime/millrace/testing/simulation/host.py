"""A stream thread as its clients see it: their requests to the cluster, and the faults of these.

It stands below the clients, the instances whose threads use them, and the world that contains all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from millrace.records import TaskId, TopicPartition
from millrace.testing.simulation.broker import Broker, Outcome
from millrace.testing.simulation.group_offsets import BaseGroup
from millrace.testing.simulation.plan import DELAYED, LATE, WAITS, Fault
from millrace.testing.simulation.scheduler import Scheduler

__all__ = ["Cluster", "CrashedError", "Host", "Process", "Processed", "lost"]

_Answer = TypeVar("_Answer")

Processed = tuple[TaskId, TopicPartition, int]
"""Task, input partition and offset of a record that was processed."""


class CrashedError(BaseException):
    """The calling process has ended: none of its code may catch this and continue."""


def lost(doing: str) -> KafkaException:
    """Return librdkafka's error for a request that was not answered."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{doing}: no answer", False, True, False))  # noqa: SLF001


class Process:
    """A process, from its start to its end."""

    def __init__(self) -> None:
        self.alive = True
        self.frozen_until_s = 0.0
        """Until when nothing in it runs."""


class Cluster(Protocol):
    """The part of the world that the clients of a host need."""

    scheduler: Scheduler
    broker: Broker
    group: BaseGroup

    @property
    def is_coordinator_down(self) -> bool:
        """Whether the broker that coordinates group and transactions is away."""

    def is_down(self, partition: TopicPartition) -> bool:
        """Whether the broker that leads a partition is away."""

    def is_behind(self, instance: int) -> bool:
        """Whether an instance gets no records of changelogs."""

    def is_silent(self, instance: int) -> bool:
        """Whether an instance gets no answers about topics."""

    def fault_at(self, instance: int, call: str) -> Fault | None:
        """Return the fault that is planned for this request of an instance, and count the request."""

    def waits_s(self) -> float:
        """Return how long a stream thread waits for an answer."""

    def crash(self, fault: Fault) -> None:
        """Let an instance crash, and start again after a while."""

    def handle(self, host: Host, request: Any, answer: Callable[[Any], None]) -> None:
        """Answer a request of a group member."""

    def end_transaction(
        self, host: Host, transactional_id: str, epoch: int, outcome: Outcome, *, is_late: bool = False
    ) -> None:
        """Decide a transaction."""

    def write_markers(self) -> None:
        """Write a marker that a client waits for."""

    def written(self, host: Host, partition: TopicPartition, sent_s: Mapping[int, float]) -> None:
        """Note who wrote to a log, and let others read it."""


class Host:
    """One stream thread of a process, from its start to its end, as its clients see it.

    Args:
        world: the cluster of its clients.
        number: the instance's.
        wake: called when something happens that the thread may be waiting for.
        process: the process that it is a thread of; a new one if not given.
    """

    def __init__(self, world: Cluster, number: int, wake: Callable[[], None], process: Process | None = None) -> None:
        self.world = world
        self.number = number
        self.wake = wake
        self.process = process or Process()
        self.ended = False
        """Whether the thread has ended."""
        self.updater_waits_s = 0.0
        """How long its state updater waits before its next step."""
        self.idle_s = 0.0
        """How long its thread waits before its next round."""
        self.updater_idle_s = 0.0
        """How long its state updater would have waited for records in its last step."""
        self.has_committed = False
        """Whether its last transaction was committed, and it has begun no other."""
        self.processed: list[Processed] = []
        """The records that its thread has processed since its last commit."""
        self.reading: set[TopicPartition] = set()
        """Partitions that its thread reads."""
        self.restoring: set[TopicPartition] = set()
        """Changelog partitions that its state updater reads."""

    @property
    def alive(self) -> bool:
        """Whether its process runs, and it does."""
        return self.process.alive and not self.ended

    @property
    def frozen_until_s(self) -> float:
        """Until when nothing in its process runs."""
        return self.process.frozen_until_s

    def forget(self, task_id: TaskId) -> None:
        """Forget a task's work since its last commit: it is about to start again from there."""
        self.processed = [one for one in self.processed if one[0] != task_id]

    def require_alive(self) -> None:
        """Raise CrashedError if the process has ended."""
        if not self.alive:
            raise CrashedError

    def call(
        self,
        name: str,
        request: Callable[[], _Answer],
        lost: Callable[[], Exception] | None = None,
        late: Callable[[float], None] | None = None,
        *,
        may_be_delayed: bool = False,
    ) -> _Answer:
        """Make a request to the cluster, with the fault that is planned for it, if any.

        Args:
            name: the request's, in faults.
            request: does it.
            lost: returns the error to raise if it or its answer is lost; None = the client would just send it again.
            late: sends it so that it arrives so many seconds later, and waits as long as the client does before it repeats it.
            may_be_delayed: whether it may arrive after the client has given it up.
        """
        self.require_alive()
        fault = self.world.fault_at(self.number, name)
        if fault is None:
            answer = request()
            self.require_alive()
            self._wait_for_answer(name)
            return answer
        if fault.kind == "crash before":
            self.world.crash(fault)
        elif fault.kind in {"pause before", "freeze before"}:
            self._pause(fault)
        self.require_alive()
        if fault.kind == DELAYED and may_be_delayed:
            self.world.scheduler.later(fault.seconds, lambda: _ignore(request()))
        if fault.kind in {"lost request", DELAYED} and lost is not None:
            raise lost()
        if fault.kind == LATE and late is not None:
            late(fault.seconds)
        answer = request()
        self.require_alive()
        self._wait_for_answer(name)
        if fault.kind == "crash after":
            self.world.crash(fault)
        elif fault.kind in {"pause after", "freeze after"}:
            self._pause(fault)
        self.require_alive()
        if fault.kind == "lost answer" and lost is not None:
            raise lost()
        return answer

    def _wait_for_answer(self, name: str) -> None:
        waits_s = self.world.waits_s() if name in WAITS else 0.0
        if waits_s:
            self.take_time(waits_s)

    def take_time(self, seconds: float) -> None:
        """Let the thread be busy for a while, or longer if the process is frozen meanwhile."""
        scheduler = self.world.scheduler
        scheduler.wait_for(lambda: not self.alive, seconds)
        while self.alive and self.frozen_until_s > scheduler.now_s:
            scheduler.wait_for(lambda: not self.alive, self.frozen_until_s - scheduler.now_s)
        self.require_alive()

    def _pause(self, fault: Fault) -> None:
        scheduler = self.world.scheduler
        if fault.call == "restore":  # the stream thread must find its updater between two steps, not inside one
            self.updater_waits_s = fault.seconds
            return
        if fault.kind.startswith("freeze"):
            self.process.frozen_until_s = scheduler.now_s + fault.seconds
        scheduler.wait_for(lambda: not self.alive, fault.seconds)


def _ignore(answer: object) -> None:
    """Do nothing with an answer: nobody waits for it."""
    del answer
