"""The requests of a member that joins and leaves its group by the classic protocol, and what refusals of them mean.

Protocol type `consumer`, protocol name `stream`. Coroutines of the member's IO thread; they send what they are given and change
nothing of the member.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from millrace.assignment.protocol import MemberSubscription
from millrace.errors import AuthorizationError, ConfigError, InconsistentGroupError, StreamsError
from millrace.kafka.clients import MembershipSettings
from millrace.kafka.membership.coordinator import Coordinator
from millrace.kafka.membership.payloads import decode_subscription, encode_subscription
from millrace.kafka.membership.watch import TopicWatch

__all__ = ["GroupRequests", "refusal"]

log = logging.getLogger("millrace.kafka.membership")

_PROTOCOL_TYPE: Final = "consumer"
_PROTOCOL_NAME: Final = "stream"
_REASON_LENGTH: Final = 255


class GroupRequests:
    """JoinGroup, SyncGroup and LeaveGroup of one member."""

    def __init__(self, coordinator: Coordinator, watch: TopicWatch, settings: MembershipSettings) -> None:
        """Use the member's coordinator and topics."""
        self._coordinator = coordinator
        self._watch = watch
        self._settings = settings
        # The broker answers when all members have joined or synced, for which they have the rebalance time-out.
        self._timeout_ms = max(settings.request_timeout_ms, settings.max_poll_interval_ms + 5_000)

    async def join(self, member_id: str, subscription: MemberSubscription, reason: str) -> Any:
        """Send JoinGroup and return its answer; a leader's topics are watched from then on.

        Args:
            member_id: Empty for a member that is new.
            subscription: Its topics are replaced if others match the patterns by now.
            reason: For the broker's log.

        Raises:
            AuthorizationError: The principal may not use the group.
            kafka.errors.KafkaError: The coordinator did not answer.
        """
        topics = self._watch.topics
        await self._watch.refresh()
        if self._watch.topics != topics or not subscription.topics:
            subscription = replace(subscription, topics=tuple(sorted(self._watch.topics)))
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            group_id=self._settings.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[protocol(name=_PROTOCOL_NAME, metadata=encode_subscription(subscription))],
            reason=reason[:_REASON_LENGTH],
            max_version=9,
        )
        response = await self._coordinator.send(request, self._timeout_ms)
        if response.error_code == 0 and response.leader == response.member_id:
            members = [decode_subscription(member.metadata) for member in response.members]
            await self._watch.assigned(frozenset(topic for member in members for topic in member.topics))
        else:
            self._watch.follow()
        return response

    async def sync(self, generation: int, member_id: str, assignments: Mapping[str, bytes]) -> Any:
        """Send SyncGroup and return its answer; `assignments` by member id are the leader's, else empty.

        Raises:
            AuthorizationError: The principal may not use the group.
            kafka.errors.KafkaError: The coordinator did not answer.
        """
        item = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=_PROTOCOL_NAME,
            assignments=[item(member_id=member, assignment=data) for member, data in assignments.items()],
            max_version=5,
        )
        return await self._coordinator.send(request, self._timeout_ms)

    async def leave(self, member_id: str, reason: str, timeout_ms: int) -> None:
        """Send LeaveGroup; a failure is only logged, as the session time-out does the same later.

        Args:
            member_id: Empty for a static member that was not told its id.
            reason: For the broker's log.
            timeout_ms: How long it may take.
        """
        request = LeaveGroupRequest(
            group_id=self._settings.group_id,
            member_id=member_id,
            members=[
                LeaveGroupRequest.MemberIdentity(
                    member_id=member_id,
                    group_instance_id=self._settings.instance_id,
                    reason=reason[:_REASON_LENGTH],
                )
            ],
        )
        try:
            await self._coordinator.send(request, timeout_ms, time.monotonic() + timeout_ms / 1000)
        except kafka_errors.KafkaError as error:
            log.info("Leaving group %s failed: %s", self._settings.group_id, error)


def refusal(code: int, settings: MembershipSettings) -> StreamsError | None:
    """Return what the application is told about an error answer to JoinGroup or SyncGroup; None if joining again may help."""
    group = settings.group_id
    if code == 23:
        return InconsistentGroupError(
            f"Group {group} has members that are not Kafka Streams applications, or uses another group.protocol: "
            "use another application.id, or end those members"
        )
    if code == 26:
        return ConfigError(
            f"session.timeout.ms={settings.session_timeout_ms} is outside of what the broker allows "
            "(group.min.session.timeout.ms to group.max.session.timeout.ms)"
        )
    if code == 30:
        return AuthorizationError(f"The principal may not read group {group}: allow READ on that group")
    if code in {24, 81}:
        return ConfigError(
            f"The broker does not let this member into group {group}: {kafka_errors.for_code(code).message}"
        )
    return None
