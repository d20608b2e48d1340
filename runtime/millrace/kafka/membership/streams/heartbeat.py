"""Heartbeats of the streams group protocol (KIP-1071): they join the group, report tasks, learn tasks, and leave.

State      epoch sent   next
UNJOINED   nothing      `poll` → JOINING
JOINING    0            answer → STABLE; no answer → again after a back-off; refused → failure
STABLE     the latest   another target: `poll` gives it to the stream thread → SYNCING
SYNCING    the latest   next `poll`, when the tasks that were revoked are closed: report what is owned → STABLE
any                     UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH → UNJOINED with `Lost`

Everything here runs on the member's IO thread, with one request in flight at most. A request has the changed fields; after a
failure it has all, because nobody knows what the coordinator has seen. It also has the tasks after every assignment, even if
they are the same as before: the stream thread may have skipped an assignment that was soon revoked, and the coordinator
waits until the member reports that it does not own it.

The coordinator sends a changed assignment once, and its answer may be lost, or replaced by an error although the change is
stored; after such an answer the assignment is read from the group's description. A heartbeat that was not answered in time
may still arrive, after those that follow it, and then the change is in an answer that nobody reads. So for a session's time
the assignment is read after every heartbeat, which has all fields: then the last epoch but one is accepted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

import kafka.errors as kafka_errors

from millrace.assignment.application_state import HostInfo
from millrace.deadline import Deadline
from millrace.errors import (
    AuthorizationError,
    ConfigError,
    InconsistentGroupError,
    StreamsError,
    TopologyError,
    UnsupportedFeatureError,
)
from millrace.kafka.client_settings import MembershipSettings
from millrace.kafka.connection import Connection
from millrace.kafka.membership.coordinator import NOT_HERE, Coordinator
from millrace.kafka.membership.state import NO_GENERATION, MemberState
from millrace.kafka.membership.streams.state import (
    ASSIGNMENT_DELAYED,
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_INTERNAL_TOPICS,
    MISSING_SOURCE_TOPICS,
    Endpoints,
    OwnedTasks,
    StreamsState,
)
from millrace.kafka.streams_messages import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from millrace.plan.topology_plan import TopologyPlan, external_source_topics
from millrace.records import TaskId, TopicPartition

__all__ = ["StreamsHeartbeats", "StreamsMemberInfo"]

log = logging.getLogger("millrace.kafka.membership")

_JOIN_EPOCH: Final = 0
_LEAVE_EPOCH: Final = -1
_TICK_S: Final = 0.5
_SOON_S: Final = 1.0
"""How long to wait if the coordinator is creating topics or about to assign tasks: less than a heartbeat interval."""
_CREATED_WITHIN_S: Final = 5.0
"""How long the coordinator usually takes to create internal topics, at most."""
_UNKNOWN_SERVER_ERROR: Final = -1
_REMOVED: Final = {25: "the group has removed this member", 110: "the group has another epoch of this member"}
_FORBIDDEN: Final = {29: "DESCRIBE on all topics of the topology", 30: "DESCRIBE on that group"}
"""For each error code of a refused group description, the missing permission."""
_PASSING: Final = {MISSING_INTERNAL_TOPICS, ASSIGNMENT_DELAYED}
"""Statuses of a group that is starting or rebalancing."""
_UNCONFIGURED: Final = {MISSING_SOURCE_TOPICS, INCORRECTLY_PARTITIONED_TOPICS, MISSING_INTERNAL_TOPICS}
"""Statuses of a group whose tasks are not known yet."""

_Ids = frozenset[TaskId]


class _TaskIds(Protocol):
    subtopology_id: str
    partitions: Sequence[int]


class _TopicPartitions(Protocol):
    topic: str
    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class StreamsMemberInfo:
    """A member's description of itself for the coordinator."""

    plan: TopologyPlan
    process_id: UUID
    end_point: HostInfo | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1
    """For internal topics that the coordinator creates; -1 = the broker's default."""


class StreamsHeartbeats:
    """The heartbeats of one member."""

    def __init__(
        self,
        connection: Connection,
        coordinator: Coordinator,
        settings: MembershipSettings,
        member: StreamsState,
        info: StreamsMemberInfo,
        topology: object,
    ) -> None:
        """Prepare; `run` is the coroutine to start on the IO thread."""
        self._connection = connection
        self._coordinator = coordinator
        self._settings = settings
        self._member = member
        self._info = info
        self._topology = topology
        self._inputs = {item.id: item.source_topics for item in info.plan.subtopologies}
        self._next_s = 0.0
        self._beating = self._again = False
        self._backoff_ms = settings.retry_backoff_ms
        self._reported: OwnedTasks | None = None
        """The tasks that, as the coordinator knows, this member owns; None if that is uncertain."""
        self._endpoint_epoch = -1
        self._joins_without_endpoint = False
        self._ids: tuple[_Ids, _Ids, _Ids] = (frozenset(), frozenset(), frozenset())
        self._resolved: tuple[_Ids, _Ids, _Ids] | None = None
        self._look_again_s = 0.0
        """When to ask again how many partitions the tasks' inputs have (monotonic)."""
        self._warn_at_s = math.inf
        """When to warn that internal topics are still missing (monotonic)."""
        self._missed_answer = False
        """Whether a lost answer, or an error, may have changed the assignment."""
        self._late_until_s = 0.0
        """Until when a heartbeat without an answer may still arrive (monotonic)."""
        self._last_poll_s = time.monotonic()
        self.shutdown_application = False
        """Whether to tell the coordinator that the whole application should stop."""

    def polled(self) -> None:
        """Record that the stream thread has polled."""
        self._last_poll_s = time.monotonic()

    async def run(self) -> None:
        """Send heartbeats until the member closes."""
        member = self._member
        while not member.closed:
            due_s = math.inf if self._beating else max(0.01, self._next_s - time.monotonic())
            await self._connection.sleep(min(_TICK_S, due_s))
            silent_s = time.monotonic() - self._last_poll_s
            if member.generation != NO_GENERATION and silent_s > self._settings.max_poll_interval_ms / 1000:
                log.warning(
                    "Member %s has not polled for %.1f s (max.poll.interval.ms=%d): it leaves group %s, so that others get "
                    "its tasks. Lower max.poll.records or raise max.poll.interval.ms if processing is that slow",
                    *(member.member_id, silent_s, self._settings.max_poll_interval_ms, self._settings.group_id),
                )
                await self._leave_stuck()
            elif not self._beating and time.monotonic() >= self._next_s:  # the stream thread may have started one
                await self.beat()

    async def beat(self) -> None:
        """Send a heartbeat now; if one is under way, another one after it."""
        self._again = True
        if self._beating:
            return
        self._beating = True
        try:
            while self._again:
                self._again = False
                await self._beat_once()
        finally:
            self._beating = False

    async def refresh(self) -> None:
        """Send a heartbeat with all fields, to which the coordinator answers with the member's latest epoch."""
        self._reported = None
        await self.beat()

    async def leave(self, timeout_ms: int) -> None:
        """Leave the group.

        Raises:
            kafka.errors.KafkaError: The coordinator did not answer; the session timeout will end the membership.
        """
        member = self._member
        with member.lock:
            joined = member.generation != NO_GENERATION or member.state is MemberState.JOINING
            if not joined or member.failure is not None:
                return
        request = StreamsGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=member.member_id,
            member_epoch=_LEAVE_EPOCH,
            endpoint_information_epoch=self._endpoint_epoch,
        )
        await self._coordinator.send(request, timeout_ms, Deadline(timeout_ms / 1000))

    async def _leave_stuck(self) -> None:
        try:
            await self.leave(self._settings.request_timeout_ms)
        except kafka_errors.KafkaError as error:
            log.info("Leaving group %s failed: %s", self._settings.group_id, error)
        self._member.reset("max.poll.interval.ms was exceeded")

    # One heartbeat

    async def _beat_once(self) -> None:
        member = self._member
        with member.lock:
            if member.failure is not None or member.state in {MemberState.UNJOINED, MemberState.CLOSED}:
                self._next_s = time.monotonic() + member.heartbeat_interval_s
                return
            epoch, reporting = member.generation, member.may_own()
            request = self._request(epoch, reporting)
        timeout_ms = min(self._settings.request_timeout_ms, self._settings.session_timeout_ms)
        try:
            answer = await self._coordinator.send(request, timeout_ms, Deadline(member.heartbeat_interval_s))
        except AuthorizationError as error:
            member.fail(error)
            return
        except (kafka_errors.IncompatibleBrokerVersion, kafka_errors.UnsupportedVersionError):
            member.fail(_refusal(35, "", self._settings))
            return
        except kafka_errors.KafkaError as error:
            log.debug("Heartbeat of group %s failed: %s", self._settings.group_id, error)
            self._late_until_s = time.monotonic() + self._settings.session_timeout_ms / 1000
            self._missed(epoch)
            return
        with member.lock:
            if member.generation != epoch or member.state in {MemberState.UNJOINED, MemberState.CLOSED}:
                return  # the answer is about a former membership
            if answer.error_code:
                self._refused(answer.error_code, answer.error_message or "")
            else:
                self._reported = reporting if answer.active_tasks is None and not self._missed_answer else None
                self._accepted(answer)
        if answer.error_code:
            if answer.error_code == _UNKNOWN_SERVER_ERROR:
                await self._look_for_topics()
        else:
            if self._missed_answer:
                await self._reread()
            await self._resolve()

    async def _look_for_topics(self) -> None:
        """Report missing source topics, because coordinators of release 4.3 fail to do so if members have endpoints."""
        topics = external_source_topics(self._info.plan) & {topic for each in self._inputs.values() for topic in each}
        try:
            missing = topics - (await self._coordinator.partition_counts(topics)).keys()
        except kafka_errors.KafkaError as error:
            log.debug("Could not look for topics: %s", error)
            return
        if missing:
            with self._member.lock:
                self._note({MISSING_SOURCE_TOPICS: f"Source topics {', '.join(sorted(missing))} are missing"})

    async def _reread(self) -> None:
        """Learn the assignment from the description of the group."""
        member = self._member
        request = StreamsGroupDescribeRequest(group_ids=[self._settings.group_id], include_authorized_operations=False)
        # Meanwhile no heartbeats are sent, and if the answer is lost the next one must still be in time. How long a session lasts
        # is the group's setting, which members are not told; but they are told how often heartbeats are due.
        timeout_ms = min(self._settings.request_timeout_ms, int(max(_SOON_S, member.heartbeat_interval_s) * 1000))
        try:
            (group,) = (await self._coordinator.send(request, timeout_ms, Deadline(member.heartbeat_interval_s))).groups
        except AuthorizationError as error:
            member.fail(error)
            return
        except kafka_errors.KafkaError as error:
            group, problem = None, str(error)
        else:
            problem = f"error {group.error_code}"
        if group is not None and group.error_code in _FORBIDDEN:
            member.fail(
                AuthorizationError(
                    f"The principal may not read the assignment of group {self._settings.group_id}: allow "
                    f"{_FORBIDDEN[group.error_code]}"
                )
            )
            return
        if group is None or group.error_code:
            log.info("The assignment of group %s could not be read: %s", self._settings.group_id, problem)
            self._retry()
            return
        with member.lock:
            for each in group.members:
                if each.member_id == member.member_id and member.generation != NO_GENERATION:
                    given = each.assignment
                    self._learn(_ids(given.active_tasks), _ids(given.standby_tasks), _ids(given.warmup_tasks))

    def _learn(self, active: _Ids, standby: _Ids, warmup: _Ids) -> None:
        self._missed_answer = time.monotonic() < self._late_until_s
        self._ids = (active, standby, warmup)
        if self._ids != self._resolved:
            self._member.target = None  # until `_resolve` knows it; the stream thread's target stays unchanged

    def _request(self, epoch: int, reporting: OwnedTasks) -> StreamsGroupHeartbeatRequest:
        message, info, member = StreamsGroupHeartbeatRequest, self._info, self._member
        request = message(
            group_id=self._settings.group_id,
            member_id=member.member_id,
            member_epoch=_JOIN_EPOCH if epoch == NO_GENERATION else epoch,
            endpoint_information_epoch=self._endpoint_epoch,
            shutdown_application=self.shutdown_application,
        )
        if epoch == NO_GENERATION:
            self._endpoint_epoch = request.endpoint_information_epoch = -1
            request.topology = self._topology
            request.rack_id = self._settings.rack_id
            request.rebalance_timeout_ms = self._settings.max_poll_interval_ms
            request.process_id = str(info.process_id)
            request.client_tags = [message.KeyValue(key=k, value=v) for k, v in sorted(info.client_tags.items())]
        if epoch == NO_GENERATION or reporting != self._reported:
            request.active_tasks = _grouped(reporting.active)
            request.standby_tasks = _grouped(reporting.standby)
            request.warmup_tasks = _grouped(reporting.warmup)
        if info.end_point is not None and epoch == NO_GENERATION and not self._joins_without_endpoint:
            request.user_endpoint = message.Endpoint(host=info.end_point.host, port=info.end_point.port)
        return request

    def _accepted(self, answer: StreamsGroupHeartbeatResponse) -> None:
        member = self._member
        waited = bool(member.statuses.keys() & _UNCONFIGURED)
        another_epoch = answer.member_epoch != member.generation
        member.generation = answer.member_epoch
        member.heartbeat_interval_s = answer.heartbeat_interval_ms / 1000
        self._backoff_ms = self._settings.retry_backoff_ms
        if member.state is MemberState.JOINING:
            member.state = MemberState.STABLE
            log.info("Member %s has joined group %s", member.member_id, self._settings.group_id)
        statuses = {item.status_code: item.status_detail for item in answer.status or ()}
        self._note(statuses)
        wait_s = (
            min(_SOON_S, member.heartbeat_interval_s) if statuses.keys() & _PASSING else member.heartbeat_interval_s
        )
        self._next_s = time.monotonic() + wait_s
        self._endpoint_epoch = answer.endpoint_information_epoch
        if answer.partitions_by_user_endpoint is not None:
            member.endpoints = _endpoints(answer)
        if answer.active_tasks is not None:  # then all three are given
            self._learn(_ids(answer.active_tasks), _ids(answer.standby_tasks), _ids(answer.warmup_tasks))
        if another_epoch:
            # Perhaps because an input has more partitions, which existing tasks read if another input had as many before.
            self._look_again_s = 0.0
        if self._joins_without_endpoint and waited and not (statuses.keys() & _UNCONFIGURED or member.owned):
            # Coordinators of release 4.3 fail with UNKNOWN_SERVER_ERROR if a member joins with an endpoint while topics are
            # missing, and do not tell others of one that comes later. This member owns nothing yet, so it can join again.
            log.info("Member %s joins group %s again, with its endpoint", member.member_id, self._settings.group_id)
            self._joins_without_endpoint = False
            member.generation, member.state, member.target = NO_GENERATION, MemberState.JOINING, None
            self._again = True

    def _note(self, statuses: Mapping[int, str]) -> None:
        member, now = self._member, time.monotonic()
        if (MISSING_INTERNAL_TOPICS in statuses) != (MISSING_INTERNAL_TOPICS in member.statuses):
            self._warn_at_s = now + _CREATED_WITHIN_S
        if MISSING_INTERNAL_TOPICS in statuses and now >= self._warn_at_s:
            self._warn_at_s = math.inf
            detail = statuses[MISSING_INTERNAL_TOPICS]
            log.warning("Group %s has no tasks until its internal topics exist: %s", self._settings.group_id, detail)
        if statuses != member.statuses:
            problems = "; ".join(f"{detail} ({code})" for code, detail in sorted(statuses.items()))
            level = logging.INFO if statuses.keys() <= _PASSING else logging.WARNING
            log.log(level, "Status of group %s: %s", self._settings.group_id, problems or "in order again")
            member.statuses = statuses
        if MISSING_SOURCE_TOPICS not in statuses:
            member.topics_missing_since_s = None
        elif member.topics_missing_since_s is None:
            member.topics_missing_since_s = now
        member.changed.set()

    async def _resolve(self) -> None:
        """Publish the target with the input partitions of its tasks, once their topics' partition counts are known."""
        member, ids = self._member, self._ids
        looks_again = member.target is not None
        if member.generation == NO_GENERATION or (looks_again and time.monotonic() < self._look_again_s):
            return
        numbers = {subtopology for each in ids for subtopology, _ in each}
        topics = {topic for number in numbers for topic in self._inputs[number]}
        try:
            counts = await self._coordinator.partition_counts(topics) if topics else {}
        except kafka_errors.KafkaError as error:
            log.debug("Partition counts could not be read: %s", error)
            counts = None
        if counts is None or counts.keys() != topics:
            if looks_again:
                return  # the next heartbeat tries again, and the target stays
            if counts is not None:
                log.info("Waiting for topics %s to appear", ", ".join(sorted(topics - counts.keys())))
            self._retry()
            return
        with member.lock:
            if member.generation == NO_GENERATION:
                return
            # A broker may know less than the one that was asked before, so inputs that are read already stay.
            known = (member.target if looks_again else None) or OwnedTasks()
            self._look_again_s = time.monotonic() + self._settings.metadata_max_age_ms / 1000
            target = OwnedTasks(
                *(
                    {task: self._partitions(task, counts) | before.get(task, frozenset()) for task in each}
                    for each, before in zip(ids, (known.active, known.standby, known.warmup), strict=True)
                )
            )
            if target != member.target:
                member.target, self._resolved = target, ids
                member.changed.set()

    def _partitions(self, task: TaskId, counts: Mapping[str, int]) -> frozenset[TopicPartition]:
        topics = self._inputs[task.subtopology]
        return frozenset(TopicPartition(topic, task.partition) for topic in topics if task.partition < counts[topic])

    def _missed(self, epoch: int) -> None:
        """Send a heartbeat with all fields after a back-off, then read the assignment, which may have changed."""
        self._missed_answer = epoch != NO_GENERATION
        self._retry()

    def _retry(self) -> None:
        """Send a heartbeat with all fields after a back-off."""
        self._reported = None
        self._next_s = time.monotonic() + self._backoff_ms / 1000
        self._backoff_ms = min(self._backoff_ms * 2, self._settings.retry_backoff_max_ms)

    def _refused(self, code: int, message: str) -> None:
        member, group = self._member, self._settings.group_id
        joining = member.generation == NO_GENERATION
        if code == 69 and not joining:
            member.reset("the group has been deleted")
        elif code in _REMOVED:
            member.reset(_REMOVED[code])
            self._retry()
        elif code in NOT_HERE:
            if code != NOT_HERE[0]:
                self._coordinator.forget(f"error {code}")
            self._missed(member.generation)
        elif code == _UNKNOWN_SERVER_ERROR:
            self._joins_without_endpoint = joining and self._info.end_point is not None
            if self._backoff_ms == self._settings.retry_backoff_ms:  # the first one in a row
                log.warning("The coordinator of group %s has failed, and is asked again: %s", group, message)
            self._missed(member.generation)
        else:
            member.fail(_refusal(code, message, self._settings))


def _refusal(code: int, message: str, settings: MembershipSettings) -> StreamsError:
    """Return the error to raise for an error code that ends the membership."""
    group = settings.group_id
    if code in {29, 30, 31}:
        what = {29: "DESCRIBE on all topics of the topology", 30: "READ on that group", 31: "CREATE on internal topics"}
        return AuthorizationError(f"The principal may not join group {group}: allow {what[code]}. {message}".rstrip())
    if code == 35:
        return UnsupportedFeatureError(
            "group.protocol=streams: the brokers do not serve the streams group protocol (KIP-1071). It needs Apache Kafka 4.2 "
            "with the feature streams.version=1, and `streams` in group.coordinator.rebalance.protocols if that is set; or set "
            "group.protocol=classic"
        )
    if code == 69:
        return InconsistentGroupError(
            f"Group {group} has members with another group.protocol ({message}): stop all of them before the protocol changes, "
            "or use another application.id"
        )
    if code in {42, 130, 131, 132}:
        return TopologyError(
            f"The coordinator of group {group} does not accept this program's topology: {message}. With group.protocol=streams a "
            "group keeps the topology of its first member: use another application.id, or stop all members and delete the group, "
            "with its committed offsets"
        )
    name = kafka_errors.for_code(code).__name__
    return ConfigError(f"The coordinator does not admit this member to group {group}: {name}: {message}")


def _ids(tasks: Iterable[_TaskIds]) -> _Ids:
    return frozenset(TaskId(int(item.subtopology_id), number) for item in tasks for number in item.partitions)


def _grouped(tasks: Iterable[TaskId]) -> list[object]:
    numbers: dict[int, list[int]] = {}
    for task in sorted(tasks):
        numbers.setdefault(task.subtopology, []).append(task.partition)
    item = StreamsGroupHeartbeatRequest.TaskIds
    return [item(subtopology_id=str(number), partitions=parts) for number, parts in numbers.items()]


def _endpoints(answer: StreamsGroupHeartbeatResponse) -> Endpoints:
    def partitions(topics: Iterable[_TopicPartitions]) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(item.topic, number) for item in topics for number in item.partitions)

    hosts = [
        (HostInfo(item.user_endpoint.host, item.user_endpoint.port), item)
        for item in answer.partitions_by_user_endpoint
    ]
    return Endpoints(
        {host: partitions(item.active_partitions) for host, item in hosts},
        {host: partitions(item.standby_partitions) for host, item in hosts},
    )
