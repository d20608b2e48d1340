"""Heartbeats keep a member in its group while its stream thread processes records.

They run on the member's IO thread, so a long batch does not end the membership. But a thread that has not polled for
`max.poll.interval.ms` is considered stuck, and the member leaves so that others get its tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import kafka.errors as kafka_errors
from kafka.protocol.consumer import HeartbeatRequest

from millrace.deadline import Deadline
from millrace.errors import AuthorizationError
from millrace.kafka.client_settings import MembershipSettings
from millrace.kafka.connection import Connection
from millrace.kafka.membership.coordinator import NOT_HERE, Coordinator
from millrace.kafka.membership.state import SharedState

log = logging.getLogger("millrace.kafka.membership")

_BUSY_S: Final = 0.3
"""A stream thread that has not polled for this long is busy. Other threads rejoin themselves, with current data."""


class Heartbeats:
    """The heartbeat loop of one member."""

    def __init__(
        self,
        connection: Connection,
        coordinator: Coordinator,
        settings: MembershipSettings,
        member: SharedState,
        rebalance: Callable[..., None],
        leave_stuck: Callable[[], Awaitable[None]],
    ) -> None:
        """Prepare the loop; `run` is the coroutine to start on the IO thread.

        Args:
            connection: The member's connection.
            coordinator: The group's coordinator.
            settings: The member's settings.
            member: The member's state.
            rebalance: Rejoins because the group rebalances; called with whether the stream thread is busy.
            leave_stuck: Leaves the group because the stream thread does not poll.
        """
        self._connection = connection
        self._coordinator = coordinator
        self._settings = settings
        self._member = member
        self._rebalance = rebalance
        self._leave_stuck = leave_stuck
        self._interval_s = settings.heartbeat_interval_ms / 1000
        self._tick_s = min(self._interval_s / 2, 1.0)
        self.last_poll_s = time.monotonic()

    def polled(self) -> None:
        """Record that the stream thread has polled."""
        self.last_poll_s = time.monotonic()

    async def run(self) -> None:
        """Send heartbeats until the member closes."""
        next_s = 0.0
        while not self._member.closed:
            await self._connection.sleep(self._tick_s)
            identity = self._member.heartbeat_identity()
            now = time.monotonic()
            if identity is None:
                next_s = now + self._interval_s
            elif now - self.last_poll_s > self._settings.max_poll_interval_ms / 1000:
                log.warning(
                    "Member %s has not polled for %.1f s (max.poll.interval.ms=%d): it leaves group %s, so that others get "
                    "its tasks. Lower max.poll.records or raise max.poll.interval.ms if processing is that slow",
                    *(
                        identity[1],
                        now - self.last_poll_s,
                        self._settings.max_poll_interval_ms,
                        self._settings.group_id,
                    ),
                )
                await self._leave_stuck()
            elif now >= next_s:
                next_s = now + (self._interval_s if await self._beat(*identity) else self._retry_s)

    @property
    def _retry_s(self) -> float:
        return min(self._settings.retry_backoff_ms / 1000, self._interval_s)

    async def _beat(self, generation: int, member_id: str) -> bool:
        """Send one heartbeat and act on the answer; returns whether the coordinator answered."""
        request = HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=self._settings.instance_id,
        )
        timeout_ms = min(self._settings.request_timeout_ms, self._settings.session_timeout_ms)
        try:
            code = (await self._coordinator.send(request, timeout_ms, Deadline(self._interval_s))).error_code
        except AuthorizationError as error:
            self._member.fail(error)
            return False
        except kafka_errors.KafkaError as error:
            log.debug("Heartbeat of group %s failed: %s", self._settings.group_id, error)
            return False
        with self._member.lock:
            if self._member.heartbeat_identity() != (generation, member_id):
                return True  # the answer is about a former membership
            self._act(code)
        return code not in NOT_HERE

    def _act(self, code: int) -> None:
        group = self._settings.group_id
        if code == 27:  # REBALANCE_IN_PROGRESS
            self._rebalance(busy=time.monotonic() - self.last_poll_s >= _BUSY_S)
        elif code == 22:  # ILLEGAL_GENERATION
            self._member.reset("the group has moved on to another generation", keep_member_id=True)
        elif code == 25:  # UNKNOWN_MEMBER_ID
            self._member.reset("the group has removed this member", keep_member_id=False)
        elif code == 82:  # FENCED_INSTANCE_ID
            self._member.fenced()
        elif code == 30:  # GROUP_AUTHORIZATION_FAILED
            self._member.fail(AuthorizationError(f"The principal may not read group {group}: allow READ on that group"))
        elif code in NOT_HERE:
            self._coordinator.forget(f"error {code}")
        elif code:
            log.warning("Heartbeat of group %s was answered with error %d; it will be sent again", group, code)
