"""How a group's tasks are placed on its members: task assignors, their wire formats, and the parts of leader and member.

Pure: nothing here knows a Kafka client. The leader asks the cluster through `leader.ClusterAccess`, and the group client
(`millrace.kafka.membership`) speaks with both parts in the terms of `protocol`.
"""

from millrace.assignment.assignors import select_assignor
from millrace.assignment.leader import ClusterAccess, GroupLeader
from millrace.assignment.member import AssignedTasks, MemberProtocol
from millrace.assignment.model import (
    LATEST_OFFSET,
    UNKNOWN_OFFSET_SUM,
    AssignmentConfig,
    ClientAssignment,
    ClientState,
    HostInfo,
    TaskAssignment,
    TaskAssignor,
)

__all__ = [
    "LATEST_OFFSET",
    "UNKNOWN_OFFSET_SUM",
    "AssignedTasks",
    "AssignmentConfig",
    "ClientAssignment",
    "ClientState",
    "ClusterAccess",
    "GroupLeader",
    "HostInfo",
    "MemberProtocol",
    "TaskAssignment",
    "TaskAssignor",
    "select_assignor",
]
