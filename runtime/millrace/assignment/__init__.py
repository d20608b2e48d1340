"""How a group's tasks are placed on its members: task assignors, their wire formats, and the parts of leader and member.

Pure: nothing here knows a Kafka client. The leader asks the cluster through `leader.ClusterAccess`, and the group client
(`millrace.kafka.membership`) speaks with both parts in the terms of `protocol`.
"""

from millrace.assignment.application_state import (
    LATEST_OFFSET,
    UNKNOWN_OFFSET_SUM,
    ApplicationState,
    AssignmentConfig,
    ClientAssignment,
    ClientState,
    HostInfo,
    TaskAssignment,
    TaskAssignor,
    TaskInfo,
)
from millrace.assignment.assignors import select_assignor
from millrace.assignment.custom import (
    AssignmentError,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
    validate_task_assignment,
)
from millrace.assignment.leader import ClusterAccess, GroupLeader
from millrace.assignment.member import AssignedTasks, MemberProtocol

__all__ = [
    "LATEST_OFFSET",
    "UNKNOWN_OFFSET_SUM",
    "ApplicationState",
    "AssignedTasks",
    "AssignmentConfig",
    "AssignmentError",
    "ClientAssignment",
    "ClientState",
    "ClusterAccess",
    "GroupLeader",
    "HostInfo",
    "MemberProtocol",
    "TaskAssignment",
    "TaskAssignor",
    "TaskInfo",
    "default_standby_task_assignment",
    "identity_assignment",
    "optimize_rack_aware_active_tasks",
    "optimize_rack_aware_standby_tasks",
    "select_assignor",
    "validate_task_assignment",
]
