"""Group membership: who of an application's stream threads works on which partitions."""

from millrace.assignment.protocol import (
    Assigned,
    GroupEvent,
    LeaderAssignor,
    Lost,
    MemberAssignment,
    MemberSubscription,
    Revoked,
    TopicSubscription,
    UserDataProvider,
)
from millrace.kafka.membership.classic import GroupMember
from millrace.kafka.membership.group_metadata import check_layout, encode_group_metadata
from millrace.kafka.membership.offsets import CommittedOffsets
from millrace.kafka.membership.standing import MemberState

__all__ = [
    "Assigned",
    "CommittedOffsets",
    "GroupEvent",
    "GroupMember",
    "LeaderAssignor",
    "Lost",
    "MemberAssignment",
    "MemberState",
    "MemberSubscription",
    "Revoked",
    "TopicSubscription",
    "UserDataProvider",
    "check_layout",
    "encode_group_metadata",
]
