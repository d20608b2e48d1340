"""Looking at what an application has on a cluster, and throwing it away: the hands of `millrace.kafka.reset`.

Two admin clients, each for what the other cannot do: see `millrace.kafka.group_admin`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.errors import ActiveGroupError
from millrace.kafka.admin import all_topic_partitions, delete_topics, group_names
from millrace.kafka.check import check_connection
from millrace.kafka.clients import ClientSettings, open_admin
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import earliest_offsets, latest_offsets, offsets_for_time
from millrace.kafka.reset import Observed, OffsetTarget, ResetActions, Start, input_topics, plan_reset
from millrace.records import TopicPartition
from millrace.topology.plan import TopologyPlan

__all__ = ["Resetter"]

log = logging.getLogger("millrace.kafka.reset")


class Resetter:
    """Resets one application on one cluster; a context manager.

    Args:
        config: The application's settings: its id, brokers and security.
        timeout_s: How long each request may take.

    Raises:
        BrokerUnreachableError: No broker answered.
        AuthenticationError: The brokers refuse the credentials.

    Example: `with Resetter(config) as resetter: resetter.execute(resetter.plan(plan))`
    """

    def __init__(self, config: StreamsConfig, timeout_s: float = 60.0) -> None:
        check_connection(config)
        settings = ClientSettings(config, "reset")
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
    ) -> ResetActions:
        """Look at the cluster and work out what to do, which changes nothing; the arguments are those of `plan_reset`.

        Raises:
            ActiveGroupError: The group has members, and `force` is False.
            AuthorizationError: The principal may not see the group or its topics.
            StreamsTimeoutError: The brokers did not answer in time.
        """
        target = target or OffsetTarget()
        observed = Observed(
            topics=all_topic_partitions(self._admin, self._timeout_s),
            groups=group_names(self._admin, self._timeout_s),
            members=self._group.members(),
            committed=self._group.committed(),
        )
        partitions = [
            TopicPartition(topic, number)
            for topic in input_topics(self._id, observed, plan, inputs)
            for number in range(observed.topics[topic])
        ]
        observed = replace(
            observed,
            earliest=earliest_offsets(self._admin, partitions, self._timeout_s),
            latest=latest_offsets(self._admin, partitions, self._timeout_s),
            at_time=offsets_for_time(self._admin, partitions, target.value, self._timeout_s)
            if target.start is Start.TIMESTAMP_MS
            else None,
        )
        return plan_reset(self._id, observed, plan, target=target, inputs=inputs, force=force)

    def execute(self, actions: ResetActions) -> None:
        """Do what was planned.

        Raises:
            ActiveGroupError: Members have joined meanwhile, or those that were removed came back.
            AuthorizationError: The principal may not set offsets or delete topics.
            StreamsError: The brokers refuse.
            StreamsTimeoutError: The brokers did not do it in time.
        """
        if actions.remove_members:
            log.info("Removing %d members of group %s", len(actions.remove_members), self._id)
            self._group.remove(actions.remove_members)
        left = self._group.members()
        if left:
            raise ActiveGroupError(
                f"Application {self._id} runs: {', '.join(map(str, left))} joined its group just now. Stop it, then reset it "
                "again; nothing has been deleted"
            )
        self._group.commit(actions.set_offsets)
        if actions.delete_topics:
            log.info("Deleting topics %s", ", ".join(actions.delete_topics))
            delete_topics(self._admin, actions.delete_topics, self._timeout_s)
