"""Resets applications: observes an application on a cluster, and executes the reset that `millrace.plan.reset` has planned.

Uses two admin clients, each for what the other cannot do: see `millrace.kafka.group_admin`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.errors import ActiveGroupError
from millrace.kafka.admin import all_topic_partitions, delete_topics, group_names
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin
from millrace.kafka.connection_check import check_connection
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import earliest_offsets, latest_offsets, offsets_for_time
from millrace.plan.reset import (
    ActiveMember,
    ObservedApplication,
    OffsetTarget,
    ResetActions,
    Start,
    input_topics,
    plan_reset,
)
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import TopicPartition

__all__ = ["Resetter", "observe", "set_offsets"]

log = logging.getLogger("millrace.kafka.reset")


class Resetter:
    """Resets one application on one cluster; a context manager.

    Args:
        config: The application's settings: its id, brokers and security.
        timeout_s: How long each request may take.

    Raises:
        BrokerUnreachableError: No broker answered.
        AuthenticationError: The brokers refused the credentials.

    Example: `with Resetter(config) as resetter: resetter.execute(resetter.plan(plan))`
    """

    def __init__(self, config: StreamsConfig, timeout_s: float = 60.0) -> None:
        settings = ClientSettings(config, "reset")
        check_connection(settings)
        self._id = config.application_id
        self._timeout_s = timeout_s
        self._admin: AdminClient = open_admin(settings.admin())
        self._group = GroupAdmin(settings, timeout_s)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self._group.__exit__(kind, error, trace)

    def plan(
        self,
        plan: TopologyPlan | None = None,
        *,
        target: OffsetTarget | None = None,
        inputs: Collection[str] = (),
        force: bool = False,
        has_ended: Callable[[ActiveMember], bool] = lambda _: False,
    ) -> ResetActions:
        """Plan a reset from the present cluster, without changing anything; takes the arguments of `plan_reset`.

        Raises:
            ActiveGroupError: The group has members that have not ended, and `force` is False.
            AuthorizationError: The principal may not see the group or its topics.
            StreamsTimeoutError: The brokers did not answer in time.
        """
        observed = observe(self._admin, self._group, plan, target, inputs, self._timeout_s)
        return plan_reset(self._id, observed, plan, target=target, inputs=inputs, force=force, has_ended=has_ended)

    def execute(self, actions: ResetActions) -> None:
        """Execute a plan.

        Raises:
            ActiveGroupError: Members have joined in the meantime, or removed ones came back.
            AuthorizationError: The principal may not set offsets or delete topics.
            StreamsError: The brokers refused.
            StreamsTimeoutError: The brokers did not finish in time.
        """
        set_offsets(self._group, actions.remove_members, actions.set_offsets)
        if actions.delete_topics:
            log.info("Deleting topics %s", ", ".join(actions.delete_topics))
            delete_topics(self._admin, actions.delete_topics, self._timeout_s)


def observe(
    admin: AdminClient,
    group: GroupAdmin,
    plan: TopologyPlan | None = None,
    target: OffsetTarget | None = None,
    inputs: Collection[str] = (),
    timeout_s: float = 60.0,
) -> ObservedApplication:
    """Return the observation that `plan_reset` needs; takes the same arguments.

    Raises:
        AuthorizationError: The principal may not see the group or its topics.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    observed = ObservedApplication(
        topics=all_topic_partitions(admin, timeout_s),
        groups=group_names(admin, timeout_s),
        members=group.members(),
        committed=group.committed(),
    )
    partitions = [
        TopicPartition(topic, number)
        for topic in input_topics(group.group_id, observed, plan, inputs)
        for number in range(observed.topics[topic])
    ]
    at_time = None
    if target is not None and target.start is Start.TIMESTAMP_MS:
        at_time = offsets_for_time(admin, partitions, target.value, timeout_s)
    return replace(
        observed,
        earliest=earliest_offsets(admin, partitions, timeout_s),
        latest=latest_offsets(admin, partitions, timeout_s),
        at_time=at_time,
    )


def set_offsets(group: GroupAdmin, leaving: Collection[ActiveMember], offsets: Mapping[TopicPartition, int]) -> None:
    """Remove members from a group and, once it is empty, set its offsets.

    Raises:
        ActiveGroupError: Members have joined in the meantime, or those that were removed came back.
        AuthorizationError: The principal may not set offsets.
        StreamsError: The brokers refused.
    """
    if leaving:
        log.info("Removing %d members of group %s", len(leaving), group.group_id)
        group.remove(leaving)
    left = group.members()
    if left:
        raise ActiveGroupError(
            f"Application {group.group_id} runs: {', '.join(map(str, left))} joined its group just now. Stop it, then reset it "
            "again; nothing has been deleted"
        )
    group.commit(offsets)
