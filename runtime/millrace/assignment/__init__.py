"""Task assignors and their wire formats; pure functions, and the leader's and members' part that call them."""

from millrace.assignment.assignor import Cluster, GroupLeader, select_assignor
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
    "Cluster",
    "GroupLeader",
    "HostInfo",
    "MemberProtocol",
    "TaskAssignment",
    "TaskAssignor",
    "select_assignor",
]
