"""Administration of one consumer group from outside: its members and committed offsets.

Uses kafka-python's admin client. librdkafka's (2.16) cannot remove members, reads past the end of the metadata of committed
offsets, which every Streams application writes, and ends the process if the broker that it asks for offsets is not (yet) the
group's coordinator. Members themselves use `millrace.kafka.membership`.
"""

# ruff: noqa: SLF001 (these requests have a time limit of their own, and the library's public methods have none)
from __future__ import annotations

import copy
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient, MemberToRemove
from kafka.protocol.admin import DeleteGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.structs import OffsetAndMetadata as ClientOffsetAndMetadata
from kafka.structs import TopicPartition as ClientTopicPartition

from millrace.config import GroupProtocol
from millrace.deadline import Deadline
from millrace.errors import ActiveGroupError, AuthorizationError, BrokerUnreachableError, StreamsError
from millrace.kafka.admin_requests import REQUEST_TIMEOUT_S, pause, request_timeout
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection import open_network, quiet_library
from millrace.kafka.streams_messages import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from millrace.plan.reset import ActiveMember
from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["DescribedGroup", "GroupAdmin"]

log = logging.getLogger("millrace.kafka.admin")

_FORBIDDEN: Final = (kafka_errors.GroupAuthorizationFailedError, kafka_errors.TopicAuthorizationFailedError)
_ALREADY_REMOVED: Final = (
    kafka_errors.NoError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.GroupIdNotFoundError,
    kafka_errors.FencedInstanceIdError,
)
_NOT_SERVED: Final = (kafka_errors.UnsupportedVersionError, kafka_errors.IncompatibleBrokerVersion)
_SHORTEST_ATTEMPT_S: Final = 1.0
"""How long the last attempt may take, even if the deadline is nearer: any answer says more than a timeout."""
_FETCH_VERSIONS: Final = (8, 9)  # version 10 names topics by id
_TRANSIENT: Final = (OSError, kafka_errors.UnknownBrokerIdError)  # in addition to the library's retriable errors
_CODE: Final = re.compile(r"\[Error (-?\d+)\]")
_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as its coordinator describes it."""

    state: str
    """Stable, PreparingRebalance, CompletingRebalance, Empty, or Dead if there is no such group. With the streams protocol also
    NotReady (topics are missing), Assigning or Reconciling."""
    members: tuple[ActiveMember, ...] = ()
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    """Who assigns its tasks; meaningless if there is no such group."""


class GroupAdmin:
    """Administers one group over its own connection; a context manager that threads may share.

    Args:
        settings: The client settings of the application whose group it is.
        timeout_s: How long each method may take.

    Raises:
        BrokerUnreachableError: No broker answered.
    """

    def __init__(self, settings: ClientSettings, timeout_s: float = 30.0) -> None:
        self.group_id = settings.config.application_id
        self.timeout_s = timeout_s
        quiet_library()
        given = settings.kafka_python()
        given["request_timeout_ms"] = min(given["request_timeout_ms"], int(timeout_s * 1000))
        network = open_network(**given)
        try:
            self._client = KafkaAdminClient(
                **given, bootstrap_timeout_ms=int(timeout_s * 1000), kafka_client=lambda **_: network
            )
        except kafka_errors.KafkaError as error:
            network.close()
            servers = ",".join(settings.config.bootstrap_servers)
            raise BrokerUnreachableError(f"No broker of bootstrap.servers={servers} answered: {error}") from error
        self._manager = self._client._manager

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self._client.close()

    def of_group(self, group_id: str, timeout_s: float) -> GroupAdmin:
        """Return an administrator of another group over the same connection, which this object still has to close."""
        other = copy.copy(self)
        other.group_id, other.timeout_s = group_id, timeout_s
        return other

    def describe(self) -> DescribedGroup:
        """Return the group's state and active members.

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """

        async def request(node: int) -> dict[str, Any]:
            found: dict[str, Any] = (await self._client._async_describe_groups([self.group_id], node))[self.group_id]
            if found["group_state"] != "Dead" and (code := _CODE.match(found["error"] or "")):
                raise kafka_errors.for_code(int(code[1]))
            return found

        deadline = Deadline(self.timeout_s)
        described = self._ask("describe", request, deadline)
        if described["group_state"] == "Dead":
            return self._ask("describe", self._describe_streams_group, deadline)
        members = (
            ActiveMember(item["member_id"], item["group_instance_id"], item["client_id"], item["client_host"])
            for item in described["members"]
        )
        return DescribedGroup(described["group_state"], tuple(members))

    async def _describe_streams_group(self, node: int) -> DescribedGroup:
        """Describe a group with the streams protocol, which DescribeGroups does not know; Dead if there is none."""
        try:
            found = await self._request_streams_group(node)
        except (kafka_errors.GroupIdNotFoundError, *_NOT_SERVED):
            return DescribedGroup("Dead")
        members = (
            ActiveMember(item.member_id, item.instance_id, item.client_id, item.client_host) for item in found.members
        )
        return DescribedGroup(found.group_state, tuple(members), GroupProtocol.STREAMS)

    async def _request_streams_group(self, node: int) -> Any:
        request = StreamsGroupDescribeRequest(group_ids=[self.group_id], include_authorized_operations=False)
        (found,) = (await self._manager.send(request, node_id=node)).groups
        if found.error_code:
            raise kafka_errors.for_code(found.error_code)
        return found

    def brokers_assign(self) -> bool:
        """Return whether the group's coordinator serves the streams group protocol (KIP-1071).

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """

        async def request(node: int) -> bool:
            try:
                await self._request_streams_group(node)
            except kafka_errors.GroupIdNotFoundError:
                return True
            except _NOT_SERVED:
                return False
            return True

        return self._ask("describe", request)

    def members(self) -> tuple[ActiveMember, ...]:
        """Return the group's active members; empty if there is no such group.

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """
        return self.describe().members

    def remove(self, members: Collection[ActiveMember]) -> None:
        """Remove members from the group; idempotent: succeeds for members that have left or, if static, been replaced.

        Raises:
            AuthorizationError: The group may not be changed.
            StreamsError: The coordinator refused.
        """
        leaving = [
            MemberToRemove(member_id=member.member_id, group_instance_id=member.instance_id) for member in members
        ]

        async def request(node: int) -> Mapping[str, type[kafka_errors.KafkaError]]:
            return _settled(await self._client._async_remove_group_members(self.group_id, leaving, node))

        what, deadline = "remove members from", Deadline(self.timeout_s)
        answers = self._ask(what, request, deadline)
        self._check("remove", {who: error for who, error in answers.items() if error not in _ALREADY_REMOVED})
        if any(error is not kafka_errors.NoError for error in answers.values()):
            # LeaveGroup does not find those in a group with the streams protocol.
            described = self._ask("describe", self._describe_streams_group, deadline)
            for member_id in {item.member_id for item in members} & {item.member_id for item in described.members}:
                self._ask(what, partial(self._leave_streams_group, member_id), deadline)

    async def _leave_streams_group(self, member_id: str, node: int) -> None:
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group_id, member_id=member_id, member_epoch=-1, endpoint_information_epoch=-1
        )
        error = kafka_errors.for_code((await self._manager.send(request, node_id=node)).error_code)
        if error not in _ALREADY_REMOVED:
            raise error

    def committed(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets, with the errors of `positions`."""
        return {partition: found.offset for partition, found in self.positions().items()}

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets with their metadata.

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """

        async def request(_node: int) -> Mapping[str, Mapping[Any, Any]]:
            answers: Mapping[str, Mapping[Any, Any]]
            answers = await self._client._async_list_group_offsets({self.group_id: None})  # at the node that was found
            return answers

        answers = self._ask("read the offsets of", request)
        return {
            TopicPartition(partition.topic, partition.partition): OffsetAndMetadata(found.offset, found.metadata or "")
            for partition, found in answers[self.group_id].items()
            if found.offset >= 0
        }

    def stable_offsets(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the group's committed offsets once no transaction is pending on them (KIP-447).

        Args:
            partitions: Which ones; all that are known if not given. For a partition without a committed offset, brokers say that
                one is pending only if they are asked for that partition: `millrace.kafka.internal_topics.committed_partitions`.

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time, or a transaction stays pending.
            StreamsError: The coordinator refused.
        """
        if partitions is not None and not partitions:
            return {}
        found: dict[TopicPartition, int] = {}
        what, deadline = "read the offsets of", Deadline(self.timeout_s)
        while True:
            answer = self._ask(what, partial(self._fetch_stable_offsets, partitions), deadline)
            found |= {
                partition: part.committed_offset
                for partition, part in answer.items()
                if not part.error_code and part.committed_offset >= 0
            }
            failed = {
                partition: kafka_errors.for_code(part.error_code)
                for partition, part in answer.items()
                if part.error_code
            }
            if not failed:
                return found
            self._check("read the offset of", {tp: error for tp, error in failed.items() if not error.retriable})
            pause(deadline, f"{what} group {self.group_id}", next(iter(failed.values())).__name__)
            partitions = failed  # only these: of many, one would always be pending

    async def _fetch_stable_offsets(
        self, partitions: Collection[TopicPartition] | None, node: int
    ) -> dict[TopicPartition, Any]:
        """Ask the coordinator once, and return its answer for each partition."""
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions or ():
            topics.setdefault(topic, []).append(partition)
        item = group.OffsetFetchRequestTopics
        asked = [item(name=name, partition_indexes=numbers) for name, numbers in topics.items()]
        request = OffsetFetchRequest(
            groups=[group(group_id=self.group_id, topics=None if partitions is None else asked)],
            require_stable=True,
            min_version=_FETCH_VERSIONS[0],
            max_version=_FETCH_VERSIONS[1],
        )
        (answer,) = (await self._manager.send(request, node_id=node)).groups
        if answer.error_code:
            raise kafka_errors.for_code(answer.error_code)
        return {
            TopicPartition(topic.name, part.partition_index): part
            for topic in answer.topics
            for part in topic.partitions
        }

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets on behalf of the group, which must have no members.

        Raises:
            AuthorizationError: The group may not be changed.
            StreamsError: The coordinator refused a partition, for example because members have joined.
        """
        if not offsets:
            return
        given = {ClientTopicPartition(*tp): ClientOffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}

        async def request(node: int) -> Mapping[ClientTopicPartition, type[kafka_errors.KafkaError]]:
            return _settled(await self._client._async_alter_group_offsets(self.group_id, given, node))

        answers = self._ask("set the offsets of", request)
        self._check(
            "set the offset of", {tp: error for tp, error in answers.items() if error is not kafka_errors.NoError}
        )

    def delete(self) -> None:
        """Delete the group with its committed offsets; idempotent: succeeds if there is no such group.

        Raises:
            ActiveGroupError: It has members.
            AuthorizationError: The group may not be deleted.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """

        async def request(node: int) -> type[kafka_errors.KafkaError]:
            answer = await self._manager.send(DeleteGroupsRequest(groups_names=[self.group_id]), node_id=node)
            (result,) = answer.results
            error: type[kafka_errors.KafkaError] = kafka_errors.for_code(result.error_code)
            if error not in {kafka_errors.NoError, kafka_errors.GroupIdNotFoundError, kafka_errors.NonEmptyGroupError}:
                raise error
            return error

        if self._ask("delete", request) is kafka_errors.NonEmptyGroupError:
            raise ActiveGroupError(
                f"Group {self.group_id} cannot be deleted because it has active members: stop them first"
            )

    def _ask(
        self, what: str, request: Callable[[int], Awaitable[_Answer]], deadline: Deadline | None = None
    ) -> _Answer:
        """Send a request to the coordinator until it is answered; one that takes too long is sent again, maybe to another broker.

        Args:
            what: What it does to the group, for messages.
            request: Sends it to a node.
            deadline: How long to try; by default `timeout_s`.
        """
        deadline, problem = deadline or Deadline(self.timeout_s), None

        async def within(limit: Deadline, function: Callable[..., Awaitable[Any]], *args: object) -> Any:
            return await self._manager.wait_for(self._manager.call_soon(function, *args), limit.left_s() * 1000)

        async def attempt(limit: Deadline) -> _Answer:
            # Two steps, so that a request is not sent once nobody waits for it.
            node = await within(limit, self._client._find_coordinator_id, self.group_id)
            await within(limit, self._manager.get_connection, node)
            answer: _Answer = await within(limit, request, node)
            return answer

        while True:
            limit_s = max(request_timeout(deadline), _SHORTEST_ATTEMPT_S)
            try:
                return self._manager.run(attempt, Deadline(limit_s))  # type: ignore[no-any-return]
            except _FORBIDDEN as error:
                raise AuthorizationError(
                    f"The principal may not {what} group {self.group_id}: {error}; grant it with an ACL"
                ) from error
            except (kafka_errors.KafkaError, OSError) as error:
                # The library remembers the coordinator and never looks for it again.
                self._manager.cluster._coordinators.pop((CoordinatorType.GROUP, self.group_id), None)
                if not isinstance(error, _TRANSIENT) and not error.retriable:
                    raise StreamsError(f"The brokers refused to {what} group {self.group_id}: {error}") from error
                cut_short = limit_s < REQUEST_TIMEOUT_S and isinstance(error, kafka_errors.KafkaTimeoutError)
                if problem is None or not cut_short:
                    problem = error
                pause(deadline, f"{what} group {self.group_id}", problem)

    def _check(self, what: str, refused: Mapping[_Item, type[Exception]]) -> None:
        if not refused:
            return
        item, kind = next(iter(refused.items()))
        if issubclass(kind, _FORBIDDEN):
            raise AuthorizationError(
                f"The principal may not {what} {item} in group {self.group_id}; grant it with an ACL"
            )
        joined = ": a member has joined in the meantime, stop it" if kind is kafka_errors.UnknownMemberIdError else ""
        raise StreamsError(
            f"The coordinator of group {self.group_id} refused to {what} {item}: {kind.__name__}{joined}"
        )


def _settled(answers: Mapping[_Item, type[kafka_errors.KafkaError]]) -> Mapping[_Item, type[kafka_errors.KafkaError]]:
    """Return answers per item; raise the first transient error, such as a coordinator that has just moved."""
    for kind in answers.values():
        if kind.retriable:
            raise kind
    return answers
