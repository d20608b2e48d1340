"""One run of a simulation: the cluster, the instances, and the plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast
from unittest import mock

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from millrace.config import ClientConfig, GroupProtocol, StreamsConfig
from millrace.errors import FencedInstanceIdError, StreamsTimeoutError
from millrace.instance import background, producer
from millrace.kafka.admin_requests import give_up_when
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.client_supplier import KafkaClientSupplier
from millrace.kafka.connection import Connection
from millrace.kafka.internal_topics import provision
from millrace.records import OffsetAndMetadata, TaskId, TopicPartition
from millrace.testing.simulation.admin import SimulatedAdmin
from millrace.testing.simulation.broker import Broker, Outcome
from millrace.testing.simulation.connection import SimulatedConnection
from millrace.testing.simulation.consumer import SimulatedConsumer
from millrace.testing.simulation.disk import Disks
from millrace.testing.simulation.group import Group
from millrace.testing.simulation.group_offsets import BaseGroup
from millrace.testing.simulation.host import Host
from millrace.testing.simulation.instance import Instance
from millrace.testing.simulation.plan import BEHIND, SILENT, Fault, Input, Plan
from millrace.testing.simulation.producer import SimulatedProducer
from millrace.testing.simulation.scheduler import Scheduler
from millrace.testing.simulation.streams_group import GroupSettings, StreamsGroup
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["ALLOWED_DEATHS", "Problem", "World"]

_SETTLE_S: Final = 150.0
"""How long transactions, sessions and rebalances may take after all faults are over."""
_MOST_GENERATIONS: Final = 10
"""How many generations there may be in addition to two for each thread of an instance, and each thread that a fault ends."""
_MOST_ATTEMPTS: Final = 3
"""How often a record may be processed, in addition to once for each fault."""
_MOST_STEPS: Final = 3
"""How many sub-topologies a record passes through at most."""
_NODES: Final = 3
_PROBE_S: Final = 0.5
_START_S: Final = 0.5
"""The time within which the instances start."""
_LATER_STARTS_S: Final = (0.5, 6.0, 20.0)
"""The same with the streams protocol, so that tasks move more often."""
_SLOW_MARKERS: Final = 0.03
"""How many of a transaction's markers are written much later than the one before."""
_SLOW_MARKER_S: Final = 10.0
ALLOWED_DEATHS: Final = (StreamsTimeoutError, FencedInstanceIdError)
"""Errors that may end a thread: brokers unreachable for long, and a static member that returns while its former self lives."""
_Answer = TypeVar("_Answer")


class Problem(Exception):  # noqa: N818 (it is found, not made)
    """A problem of a run."""


class _Supplier(KafkaClientSupplier):
    """Opens the simulated clients of one process."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def admin(self, settings: ClientConfig) -> AdminClient:
        del settings
        return cast("AdminClient", SimulatedAdmin(self._host))

    def consumer(self, settings: ClientConfig) -> Consumer:
        return self._consumer(settings, "poll")

    def restore_consumer(self, settings: ClientConfig) -> Consumer:
        return self._consumer(settings, "restore")

    def _consumer(self, settings: ClientConfig, name: str) -> Consumer:
        committed_only = settings["isolation.level"] == "read_committed"
        return cast("Consumer", SimulatedConsumer(self._host, committed_only=committed_only, name=name))

    def producer(self, settings: ClientConfig) -> Producer:
        return cast("Producer", SimulatedProducer(self._host, settings))

    def member(self, settings: ClientSettings, thread: int, timeout_s: float) -> Connection:
        del settings, thread, timeout_s
        return cast("Connection", SimulatedConnection(self._host))


class World:
    """One run.

    Args:
        topology: what the instances run.
        config: their settings.
        plan: input and faults.
        partitions: how many partitions the input topics, and other topics that must exist, have.
        folder: for the instances' disks.
        disks: the stores' disks, if they are in memory.
        group_settings: the group's, if it has the streams protocol.
    """

    def __init__(
        self,
        topology: BuiltTopology,
        config: StreamsConfig,
        plan: Plan,
        partitions: dict[str, int],
        folder: Path,
        disks: Disks | None = None,
        group_settings: GroupSettings | None = None,
    ) -> None:
        self.topology = topology
        self.config = config
        self.plan = plan
        self.disks = disks
        self.scheduler = Scheduler(plan.seed)
        self.rng = self.scheduler.rng
        self.broker = Broker(lambda: self.scheduler.now_s, lambda _group, transaction: self.group.end(transaction))
        self._by_brokers = config.group_protocol is GroupProtocol.STREAMS
        """Whether the brokers assign tasks and create internal topics."""
        self.group: BaseGroup = (
            StreamsGroup(
                self.scheduler, self.broker.topics, self.broker.create_topic, group_settings or GroupSettings()
            )
            if self._by_brokers
            else Group(self.scheduler)
        )
        self.outputs = frozenset(topic for item in topology.subtopologies for topic in item.sink_topics)
        self.current: Any = None
        """The stream thread whose code is running."""
        self.history: defaultdict[TaskId, list[list[tuple[TopicPartition, int]]]] = defaultdict(list)
        """The records processed and committed: per task a list for each commit, in order."""
        self.covered: dict[TopicPartition, int] = {}
        """The committed offsets of inputs."""
        self.late: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        """Changelog offsets of records sent by a task after another, or a new one in the same process, had replaced it."""
        self._taken_over: dict[TopicPartition, tuple[Host, float, int]] = {}
        """For each changelog, who took over its task last, when, and in which generation of the group."""
        self._settled_in: int | None = None
        """The group's generation at the last probe, if all was settled."""
        self._calls: Counter[tuple[int, str]] = Counter()
        self._faults = {(fault.instance, fault.call, fault.nth): fault for fault in plan.faults if fault.call}
        self.problem: str | None = None
        """What an instance has found wrong while it ran."""
        self.attempts: Counter[tuple[TopicPartition, int]] = Counter()
        """How often each record was processed, whether that was committed or not."""
        self._longer_s: dict[tuple[TopicPartition, int], float] = {}
        """How much longer than others each input record takes, by where it is."""
        self._outage_until_s = 0.0
        self._down: frozenset[int] = frozenset()
        self._behind_until_s: defaultdict[int, float] = defaultdict(float)
        self._silent_until_s: defaultdict[int, float] = defaultdict(float)
        self._done = False
        for name, count in partitions.items():
            self.broker.create_topic(name, count)
        self.instances = [
            Instance(self, number, self._config_of(number), folder / str(number)) for number in range(plan.instances)
        ]

    def _config_of(self, number: int) -> StreamsConfig:
        if not self.plan.static_members:
            return self.config
        config = self.config.model_copy(update={"group_instance_id": f"instance-{number}"})
        config.model_fields_set.add("group_instance_id")
        return config

    @contextmanager
    def running(self) -> Iterator[None]:
        """Put the world in the product's threads' place; at the end all instances crash."""
        with (
            mock.patch.object(background, "in_background", self._in_background),
            mock.patch.object(producer, "in_background", _at_once),
        ):
            give_up_when(lambda: self.current is not None and self.current.progress.given_up)
            try:
                yield
            finally:
                give_up_when(lambda: False)
                for instance in self.instances:
                    instance.crash()

    def run(self) -> None:
        """Run the plan; call this in the body of `running`.

        Raises:
            Problem: the application has not processed its input in time.
        """
        self._schedule()
        limit_s = self._limit_s()
        self.scheduler.wait_for(lambda: self._done or self.problem is not None, limit_s)
        if self.problem is not None:
            raise Problem(self.problem)
        if not self._done:
            raise Problem(f"After {limit_s:.0f} s the input is not processed: {self._unfinished()}")
        most = _MOST_GENERATIONS + 2 * self.config.num_stream_threads * (len(self.plan.faults) + self.plan.instances)
        if self.group.generation > most:
            raise Problem(
                f"The group has begun {self.group.generation} generations, more than {most}: it does not settle"
            )
        most = _MOST_ATTEMPTS + len(self.plan.faults)
        for (partition, offset), attempts in self.attempts.items():
            if attempts > most:
                raise Problem(
                    f"The record at offset {offset} of {partition} was processed {attempts} times, more than {most}"
                )

    def _limit_s(self) -> float:
        """Return how long everything may take: until the last fault is over, then the work, part of it twice, and rebalances."""
        plan = self.plan
        began_s = max(
            [one.at_s for one in plan.inputs] + [fault.at_s + fault.seconds for fault in plan.faults if not fault.call],
            default=0.0,
        )
        pauses_s = sum(fault.seconds for fault in plan.faults if fault.call)
        work_s = sum(one.takes_s + _MOST_STEPS * plan.record_s for one in plan.inputs)
        return began_s + pauses_s + 2 * work_s + _SETTLE_S

    def _schedule(self) -> None:
        scheduler = self.scheduler
        host = Host(self, -1, lambda: None)
        if not self._by_brokers:
            provision(self.topology.plan(), self.supplier(host).admin({}), self.config)
        starts_s = self.rng.choice(_LATER_STARTS_S) if self._by_brokers else _START_S
        for instance in self.instances:
            scheduler.later(self.rng.random() * starts_s, instance.start)
        for one in self.plan.inputs:
            scheduler.later(one.at_s, _bind(self._write, one, int((scheduler.now_s + one.at_s) * 1000)))
        for fault in self.plan.faults:
            if not fault.call:
                scheduler.later(fault.at_s, _bind(self._happen, fault))
        last = max(
            [one.at_s for one in self.plan.inputs] + [fault.at_s + fault.seconds for fault in self.plan.faults],
            default=0,
        )
        scheduler.later(last + 1.0, self._probe)
        scheduler.later(1.0, self._expire)

    def _write(self, one: Input, timestamp: int) -> None:
        partition = TopicPartition(one.topic, one.partition)
        self._longer_s[partition, self.broker.log(partition).end] = one.takes_s
        self.broker.produce(partition, [(one.key, one.value, timestamp, ())])
        self.wake_readers(partition)

    def begin_record(self, partition: TopicPartition, offset: int) -> float:
        """Note that a record is about to be processed; return how long the application's code takes for it."""
        self.attempts[partition, offset] += 1
        return self.plan.record_s + self._longer_s.get((partition, offset), 0.0)

    def waits_s(self) -> float:
        """Return how long a stream thread waits for an answer."""
        return self.rng.random() * self.plan.request_s if self.plan.request_s else 0.0

    def _expire(self) -> None:
        for transaction in self.broker.expire_transactions():
            self._write_marker(transaction)
        self.scheduler.later(1.0, self._expire)

    def _probe(self) -> None:
        """End the run once nothing is left to do twice in a row, as a member may be about to start a rebalance."""
        settled_in = self.group.generation if self._unfinished() is None else None
        self._done = settled_in is not None and settled_in == self._settled_in
        self._settled_in = settled_in
        if not self._done:
            self.scheduler.later(_PROBE_S, self._probe)

    def _unfinished(self) -> str | None:
        for partition, log in self.broker.logs.items():
            if log.open:
                return f"{partition} has an open transaction"
        for topic in dict.fromkeys(topic for item in self.topology.subtopologies for topic in item.source_topics):
            if topic not in self.broker.topics:
                return f"{topic} does not exist"
            for number in range(self.broker.topics[topic]):
                partition = TopicPartition(topic, number)
                known = self.group.committed.get(partition)
                reached = 0 if known is None else known.offset
                last = next(reversed(self.broker.log(partition).committed()), None)
                if last is not None and last.offset >= reached:
                    return f"{partition} is committed up to {reached}, and has a record at {last.offset}"
        for instance in self.instances:
            if not instance.is_settled:
                return f"instance {instance.number} is not settled"
        if not self.group.is_settled([name for instance in self.instances for name in instance.member_ids]):
            return "the group is not settled"
        return None

    # Faults

    def fault_at(self, instance: int, call: str) -> Fault | None:
        """Return the fault that is planned for this request of an instance, and count the request."""
        nth = self._calls[instance, call]
        self._calls[instance, call] = nth + 1
        self.scheduler.note(instance, call)
        return self._faults.pop((instance, call, nth), None)

    def crash(self, fault: Fault) -> None:
        """Let an instance crash, and start again after a while."""
        instance = self.instances[fault.instance]
        instance.crash()
        self.scheduler.later(fault.seconds, instance.start)

    def _happen(self, fault: Fault) -> None:
        instance = self.instances[fault.instance]
        self.scheduler.note(fault.kind, fault.instance)
        if fault.kind == "outage":
            self._down = frozenset(number for number in range(_NODES) if self.rng.random() < 0.6)
            self._outage_until_s = self.scheduler.now_s + fault.seconds
            return
        if fault.kind == BEHIND:
            self._behind_until_s[fault.instance] = self.scheduler.now_s + fault.seconds
            return
        if fault.kind == SILENT:
            self._silent_until_s[fault.instance] = self.scheduler.now_s + fault.seconds
            return
        if fault.kind == "stop":
            instance.stop()
            return
        if fault.kind == "disk lost":
            instance.lose_disk()
            self.scheduler.later(fault.seconds, instance.start)
        else:
            self.crash(fault)

    def is_behind(self, instance: int) -> bool:
        """Whether an instance gets no records of changelogs."""
        return self.scheduler.now_s < self._behind_until_s[instance]

    def is_silent(self, instance: int) -> bool:
        """Whether an instance gets no answers about topics."""
        return self.scheduler.now_s < self._silent_until_s[instance]

    def is_down(self, partition: TopicPartition) -> bool:
        """Whether the broker that leads a partition is away."""
        return self._is_node_down(partition.partition % _NODES)

    @property
    def is_coordinator_down(self) -> bool:
        """Whether the broker that coordinates group and transactions is away."""
        return self._is_node_down(0)

    def _is_node_down(self, node: int) -> bool:
        return node in self._down and self.scheduler.now_s < self._outage_until_s

    # The cluster

    def supplier(self, host: Host) -> KafkaClientSupplier:
        """Return what opens the clients of a process."""
        return _Supplier(host)

    def handle(self, host: Host, request: Any, answer: Callable[[Any], None]) -> None:
        """Answer a request of a group member."""
        if isinstance(request, FindCoordinatorRequest):
            found = SimpleNamespace(
                error_code=15 if self.is_coordinator_down else 0, node_id=0, host="broker", port=9092
            )
            answer(SimpleNamespace(coordinators=[found]))
        elif isinstance(request, MetadataRequest):
            topics = self.broker.topics
            names = topics if request.topics is None else [item.name for item in request.topics if item.name in topics]
            answer(
                SimpleNamespace(
                    topics=[
                        SimpleNamespace(name=name, partitions=range(topics[name]), error_code=0, is_internal=False)
                        for name in names
                    ]
                )
            )
        elif self.is_coordinator_down:
            return  # the request times out
        elif isinstance(request, OffsetCommitRequest):
            self.group.handle(request, lambda response: self._offsets_committed(host, request, response, answer))
        else:
            self.group.handle(request, answer)

    def _offsets_committed(self, host: Host, request: Any, response: Any, answer: Callable[[Any], None]) -> None:
        offsets = {
            TopicPartition(topic.name, part.partition_index): OffsetAndMetadata(part.committed_offset, "")
            for topic in request.topics
            for part in topic.partitions
        }
        if not any(part.error_code for topic in response.topics for part in topic.partitions):
            self._committed(host, offsets)
        answer(response)

    def end_transaction(
        self, host: Host, transactional_id: str, epoch: int, outcome: Outcome, *, is_late: bool = False
    ) -> None:
        """Decide a transaction; its markers follow a little later, one by one.

        Args:
            host: whose transaction.
            transactional_id: the producer's.
            epoch: the one that the producer had when it sent the request.
            outcome: what the transaction comes to.
            is_late: whether the producer has sent the request again since, and knows nothing of this.
        """
        before = self.broker.transaction_of(transactional_id)
        was_open = before is not None and before.outcome is Outcome.OPEN
        transaction = self.broker.end_transaction(transactional_id, epoch, outcome)
        self.scheduler.note(outcome.value, transactional_id)
        if was_open and outcome is Outcome.COMMITTED:
            self._committed(host, self.group.offsets_of(transaction))
        if outcome is Outcome.ABORTED and not is_late:
            host.processed.clear()
        self.scheduler.soon(lambda: self._write_marker(transaction))

    def _write_marker(self, transaction: Any) -> None:
        partitions = list(transaction.first_offsets)
        if transaction.completing and self.broker.write_marker(transaction):
            if self.rng.random() < _SLOW_MARKERS:
                self.scheduler.later(self.rng.random() * _SLOW_MARKER_S, lambda: self._write_marker(transaction))
            else:
                self.scheduler.soon(lambda: self._write_marker(transaction))
        for partition in partitions:
            if partition not in transaction.first_offsets:
                self.wake_readers(partition)

    def write_markers(self) -> None:
        """Write a marker that a client waits for."""
        for transaction in self.broker.completing():
            self._write_marker(transaction)

    def took_over(self, host: Host, generation: int, partitions: Iterable[TopicPartition]) -> None:
        """Note that a process is about to restore a task from these changelogs, in order to run it.

        A process that does not know yet that the task is another's in a later generation does not take it over.
        """
        for partition in partitions:
            known = self._taken_over.get(partition)
            if known is None or generation >= known[2]:
                self._taken_over[partition] = host, self.scheduler.now_s, generation

    def written(self, host: Host, partition: TopicPartition, sent_s: Mapping[int, float]) -> None:
        """Note who wrote to a log, and let others read it.

        Args:
            host: whose producer.
            partition: the log.
            sent_s: when the record at each new offset was given to the producer.
        """
        owner, since_s, _ = self._taken_over.get(partition, (host, 0.0, 0))
        self.late[partition].update(offset for offset, at_s in sent_s.items() if owner is not host or at_s <= since_s)
        self.wake_readers(partition)

    def wake_readers(self, partition: TopicPartition) -> None:
        """Let threads and updaters that read a partition look for records."""
        for instance in self.instances:
            instance.wake_readers(partition)

    def _committed(self, host: Host, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Keep the processed records that a commit covers."""
        before = dict(self.covered)
        processed: defaultdict[TaskId, list[tuple[TopicPartition, int]]] = defaultdict(list)
        for task_id, partition, offset in host.processed:
            if partition in offsets and before.get(partition, 0) <= offset < offsets[partition].offset:
                processed[task_id].append((partition, offset))
        for task_id, records in processed.items():
            self.history[task_id].append(records)
        host.processed = [one for one in host.processed if one[1] not in offsets or one[2] >= offsets[one[1]].offset]
        for partition, position in offsets.items():
            self.covered[partition] = max(position.offset, before.get(partition, 0))

    # Work that the product would do in other threads

    def _in_background(
        self, name: str, call: Callable[[], _Answer], given_up: Callable[[], bool] | None = None
    ) -> Future[_Answer]:
        del name, given_up
        outcome: Future[_Answer] = Future()

        def run() -> None:
            outer, self.current = self.current, None
            try:
                outcome.set_result(call())
            except BaseException as error:  # raised where the result is awaited
                outcome.set_exception(error)
            finally:
                self.current = outer
            for instance in self.instances:
                instance.wake()

        self.scheduler.soon(run)
        return outcome


def _at_once(name: str, call: Callable[[], _Answer], given_up: Callable[[], bool] | None = None) -> Future[_Answer]:
    del name, given_up
    outcome: Future[_Answer] = Future()
    try:
        outcome.set_result(call())
    except BaseException as error:  # raised where the result is awaited
        outcome.set_exception(error)
    return outcome


def _bind(function: Callable[..., None], *args: object) -> Callable[[], None]:
    return lambda: function(*args)
