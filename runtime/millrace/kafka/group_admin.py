"""What is asked and changed about a group from the outside: members, committed offsets.

This goes over kafka-python's admin client: librdkafka's cannot remove members, and reads metadata strings of committed offsets
(which every Streams application writes) beyond their end. Members themselves use `millrace.kafka.membership`.
"""

from __future__ import annotations

import copy
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient, MemberToRemove
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as ClientTopicPartition

from millrace.errors import AuthorizationError, BrokerUnreachableError, StreamsError
from millrace.kafka.admin_requests import pause
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection import open_network, quiet_library
from millrace.plan.reset import ActiveMember
from millrace.records import TopicPartition

__all__ = ["DescribedGroup", "GroupAdmin"]

log = logging.getLogger("millrace.kafka.admin")

_FORBIDDEN: Final = (kafka_errors.GroupAuthorizationFailedError, kafka_errors.TopicAuthorizationFailedError)
_GONE: Final = (
    kafka_errors.NoError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.GroupIdNotFoundError,
    kafka_errors.FencedInstanceIdError,
)
_CODE: Final = re.compile(r"\[Error (-?\d+)\]")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as its coordinator knows it."""

    state: str
    """Stable, PreparingRebalance, CompletingRebalance, Empty, or Dead if there is no such group."""
    members: tuple[ActiveMember, ...] = ()


class GroupAdmin:
    """A connection that administers one group; a context manager. Threads may share it.

    Args:
        settings: Of the application whose group it is.
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

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self._client.close()

    def of_group(self, group_id: str, timeout_s: float) -> GroupAdmin:
        """Return what administers another group over the same connection, which stays this one's to close."""
        other = copy.copy(self)
        other.group_id, other.timeout_s = group_id, timeout_s
        return other

    def describe(self) -> DescribedGroup:
        """Return the group's state and active members.

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """

        def request() -> dict[str, Any]:
            found: dict[str, Any] = self._client.describe_groups([self.group_id])[self.group_id]
            if found["group_state"] != "Dead" and (code := _CODE.match(found["error"] or "")):
                raise kafka_errors.for_code(int(code[1]))
            return found

        described = self._ask("describe", request)
        if described["group_state"] == "Dead":
            return DescribedGroup("Dead")
        members = (
            ActiveMember(item["member_id"], item["group_instance_id"], item["client_id"], item["client_host"])
            for item in described["members"]
        )
        return DescribedGroup(described["group_state"], tuple(members))

    def members(self) -> tuple[ActiveMember, ...]:
        """Return the group's active members; none if there is no such group.

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """
        return self.describe().members

    def remove(self, members: Collection[ActiveMember]) -> None:
        """Make members leave the group; a static one that another has taken the place of is out of it already.

        Raises:
            AuthorizationError: The group may not be changed.
            StreamsError: The coordinator refuses.
        """
        leaving = [
            MemberToRemove(member_id=member.member_id, group_instance_id=member.instance_id) for member in members
        ]
        answers = self._ask(
            "remove members from", lambda: _settled(self._client.remove_group_members(self.group_id, leaving))
        )
        self._check("remove", {who: error for who, error in answers.items() if error not in _GONE})

    def committed(self) -> dict[TopicPartition, int]:
        """Return the offsets the group has committed.

        Raises:
            AuthorizationError: The group may not be described.
            StreamsTimeoutError: Its coordinator did not answer in time.
        """
        answers = self._ask("read the offsets of", lambda: self._client.list_group_offsets({self.group_id: None}))
        return {
            TopicPartition(partition.topic, partition.partition): found.offset
            for partition, found in answers[self.group_id].items()
            if found.offset >= 0
        }

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets in the place of the group, which has no members.

        Raises:
            AuthorizationError: The group may not be changed.
            StreamsError: The coordinator refuses a partition; members have joined meanwhile.
        """
        if not offsets:
            return
        given = {ClientTopicPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}
        answers = self._ask(
            "set the offsets of", lambda: _settled(self._client.alter_group_offsets(self.group_id, given))
        )
        self._check(
            "set the offset of", {tp: error for tp, error in answers.items() if error is not kafka_errors.NoError}
        )

    def _ask(self, what: str, request: Callable[[], _Answer]) -> _Answer:
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return request()
            except _FORBIDDEN as error:
                raise AuthorizationError(
                    f"The principal may not {what} group {self.group_id}: {error}; grant it by an ACL"
                ) from error
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise StreamsError(f"The brokers refuse to {what} group {self.group_id}: {error}") from error
                pause(deadline, f"{what} group {self.group_id}", error)

    def _check(self, what: str, refused: Mapping[Any, type[Exception]]) -> None:
        if not refused:
            return
        item, kind = next(iter(refused.items()))
        if issubclass(kind, _FORBIDDEN):
            raise AuthorizationError(
                f"The principal may not {what} {item} in group {self.group_id}; grant it by an ACL"
            )
        joined = ": a member has joined meanwhile, stop it" if kind is kafka_errors.UnknownMemberIdError else ""
        raise StreamsError(
            f"The coordinator of group {self.group_id} refuses to {what} {item}: {kind.__name__}{joined}"
        )


def _settled(answers: Mapping[Any, type[Exception]]) -> Mapping[Any, type[Exception]]:
    """Return answers per item, unless one is an error that passes, such as a coordinator that has just moved: raise that."""
    for kind in answers.values():
        if getattr(kind, "retriable", False):
            raise kind
    return answers
