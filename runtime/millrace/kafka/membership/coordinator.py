"""Finds the broker that coordinates the group, and sends requests to it.

There are two connections: JoinGroup and SyncGroup are answered only after the whole group has sent theirs, and a broker answers
the requests of one connection in order, so heartbeats, commits and offset fetches need another one.

All coroutines run on the member's IO thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

import kafka.errors as kafka_errors
from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest

from millrace.deadline import Deadline
from millrace.errors import AuthorizationError
from millrace.kafka.client_settings import MembershipSettings
from millrace.kafka.connection import Connection

log = logging.getLogger("millrace.kafka.membership")

_REBOOTSTRAP_AFTER_S = 20.0
NOT_HERE = (14, 15, 16)
"""Error codes COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: retry, maybe with another broker."""


class Coordinator:
    """The group's coordinator, as seen by one member."""

    def __init__(self, connection: Connection, settings: MembershipSettings, closed: Callable[[], bool]) -> None:
        """Start without knowing the coordinator; `find` looks for it."""
        self._connection = connection
        self._settings = settings
        self._closed = closed
        self._node: int | None = None
        self._blocking_node: str | None = None

    @property
    def known(self) -> bool:
        """Whether the coordinator has been found and has not failed since."""
        return self._node is not None

    def forget(self, reason: object) -> None:
        """Look for the coordinator again before the next request."""
        if self._node is not None:
            log.info("Group %s looks for its coordinator again: %s", self._settings.group_id, reason)
        self._node = self._blocking_node = None

    async def send(
        self,
        request: object,
        timeout_ms: int | None = None,
        deadline: Deadline | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Any:
        """Send a request to the coordinator, after finding it if necessary, and return the answer.

        Args:
            request: Any group request.
            timeout_ms: How long the answer may take.
            deadline: How long to look for the coordinator; None = until it is found.
            wanted: Whether to still send it once the coordinator is found.

        Raises:
            kafka.errors.Cancelled: It is no longer wanted.
            kafka.errors.KafkaError: It cannot be reached or did not answer; the next request looks for it again.
        """
        if self._node is None:
            await self.find(deadline)
        if not wanted():
            raise kafka_errors.Cancelled
        blocks = isinstance(request, JoinGroupRequest | SyncGroupRequest)
        node = self._blocking_node if blocks else self._node
        if node is None:
            raise kafka_errors.CoordinatorNotAvailableError
        try:
            return await self._connection.send(request, node, timeout_ms)
        except (kafka_errors.KafkaError, KeyError) as error:
            if node in {self._node, self._blocking_node}:
                self.forget(error)
            if isinstance(error, KeyError):
                raise kafka_errors.NodeNotReadyError(str(error)) from error
            raise

    async def find(self, deadline: Deadline | None = None) -> None:
        """Find the coordinator; retries with back-off until it is found, the deadline has passed or the member closes.

        Raises:
            AuthorizationError: The principal may not use this group.
            kafka.errors.CoordinatorNotAvailableError: The deadline has passed.
            kafka.errors.Cancelled: The member was closed.
        """
        backoff_ms, began = self._settings.retry_backoff_ms, time.monotonic()
        while not self._closed():
            try:
                await self._find_once()
            except kafka_errors.GroupAuthorizationFailedError:
                raise AuthorizationError(
                    f"The principal may not read group {self._settings.group_id}: allow READ and DESCRIBE on that group"
                ) from None
            except (kafka_errors.KafkaError, OSError) as error:
                log.debug("Coordinator of group %s not found yet: %s", self._settings.group_id, error)
                if deadline is not None and deadline.passed:
                    raise kafka_errors.CoordinatorNotAvailableError(str(error)) from error
                if time.monotonic() - began > _REBOOTSTRAP_AFTER_S:
                    began = time.monotonic()
                    log.warning("Group %s still has no coordinator: %s; retrying", self._settings.group_id, error)
                    await self._bootstrap_again()
                await self._connection.sleep(backoff_ms / 1000)
                backoff_ms = min(backoff_ms * 2, self._settings.retry_backoff_max_ms)
            else:
                return
        raise kafka_errors.Cancelled

    async def _find_once(self) -> None:
        manager, group = self._connection.manager, self._settings.group_id
        node_id = manager.least_loaded_node()
        if node_id is None:
            raise kafka_errors.NodeNotReadyError("any broker")
        request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
        response = await self._connection.send(request, node_id)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            error = kafka_errors.for_code(found.error_code)
            raise error
        if manager.cluster.broker_metadata(found.node_id) is None:
            await manager.cluster.refresh_metadata()
        self._blocking_node = manager.cluster.add_coordinator(found, CoordinatorType.GROUP, group)
        self._node = found.node_id
        log.debug("Group %s is coordinated by broker %s at %s:%s", group, found.node_id, found.host, found.port)

    async def _bootstrap_again(self) -> None:
        try:
            await self._connection.manager.bootstrap_async(5_000)
        except (kafka_errors.KafkaError, OSError) as error:
            log.warning("No broker of bootstrap.servers answers: %s", error)

    async def partition_counts(self, topics: Collection[str] | None) -> dict[str, int]:
        """Return the partition counts of topics; those that do not exist are left out.

        Args:
            topics: Their names, or None for all topics except Kafka's internal ones.

        Raises:
            kafka.errors.KafkaError: No broker answered.
        """
        node_id = self._connection.manager.least_loaded_node()
        if node_id is None:
            raise kafka_errors.NodeNotReadyError("any broker")
        item = MetadataRequest.MetadataRequestTopic
        wanted = None if topics is None else [item(name=topic) for topic in sorted(topics)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False, max_version=9)
        response = await self._connection.send(request, node_id)
        return {
            topic.name: len(topic.partitions)
            for topic in response.topics
            if topic.error_code == 0 and topic.partitions and (topics is not None or not topic.is_internal)
        }
