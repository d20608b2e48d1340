"""Doing to an application's topics and group what was decided. What is done already is well done."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millrace.config import StreamsConfig
from millrace.errors import StreamsTimeoutError
from millrace.kafka.admin import delete_group, delete_topics
from millrace.kafka.admin_requests import given_up
from millrace.kafka.internal_topics import provision
from millrace.kafka.resetter import set_offsets
from millrace.plan.model import TopologyPlan
from millrace.plan.reset import ActiveMember
from millrace.records import TopicPartition
from millrace_operator.kafka.connections import AdminConnection
from millrace_operator.model import DeleteGroup, DeleteTopics, ProvisionTopics, RemoveMembers

log = logging.getLogger("millrace_operator.kafka")


@dataclass(frozen=True, slots=True)
class SetOffsets:
    """Set where the group goes on reading; it must have no members but those that are to leave."""

    leaving: tuple[ActiveMember, ...]
    """Members that were killed and did not leave the group."""
    offsets: Mapping[TopicPartition, int]


KafkaAction = ProvisionTopics | DeleteTopics | RemoveMembers | DeleteGroup | SetOffsets
ACTION_TIMEOUT_S: Final = 30.0


def carry_out(connection: AdminConnection, config: StreamsConfig, action: KafkaAction) -> None:
    """Do one thing.

    Raises:
        StreamsError: It could not be done; says why and what to do.
    """
    _check_may_go_on(config)
    match action:
        case ProvisionTopics(plan, names, replication_factor):
            wanted = config.model_copy(update={"replication_factor": replication_factor})
            report = provision(
                TopologyPlan.from_json(plan), connection.admin, wanted, only=names, timeout_s=ACTION_TIMEOUT_S
            )
            log.info(
                "Created topics of %s: %s", config.application_id, ", ".join(report.created) or "none were missing"
            )
        case DeleteTopics(names):
            delete_topics(connection.admin, names, ACTION_TIMEOUT_S)
            log.info("Deleted topics of %s: %s", config.application_id, ", ".join(names))
        case RemoveMembers(_, member_ids):
            group = connection.groups.of_group(config.application_id, ACTION_TIMEOUT_S)
            gone = [member for member in group.members() if member.instance_id and member.member_id in member_ids]
            _check_may_go_on(config)
            if gone:
                group.remove(gone)
            log.info("Removed %d members of group %s", len(gone), config.application_id)
        case SetOffsets(leaving, offsets):
            set_offsets(connection.groups.of_group(config.application_id, ACTION_TIMEOUT_S), leaving, offsets)
            log.info("Set the offsets of group %s in %d partitions", config.application_id, len(offsets))
        case DeleteGroup():
            delete_group(connection.admin, config.application_id, ACTION_TIMEOUT_S)
            log.info("Deleted group %s", config.application_id)


def _check_may_go_on(config: StreamsConfig) -> None:
    """Check that whoever acts may still do so: to connect, and to look, takes time.

    Raises:
        StreamsTimeoutError: It may not.
    """
    if given_up():
        raise StreamsTimeoutError(
            f"The brokers of {config.application_id} were given no more to do: it is too late for that"
        )
