"""The fallback assignor: every task stays with its previous owner; used when the lags of the clients cannot be told.

Tasks without a previous owner go to the least loaded client, and the group is asked to look again soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from millrace.assignment.model import AssignmentConfig, ClientState, Placement, TaskAssignment
from millrace.assignment.standby import assign_standbys
from millrace.records import TaskId


def assign(
    clients: Mapping[UUID, ClientState],
    tasks: frozenset[TaskId],
    stateful: frozenset[TaskId],
    config: AssignmentConfig,
) -> TaskAssignment:
    """Assign tasks to their previous owners; see `TaskAssignor`."""
    placement = Placement(clients)
    left = []
    for task in sorted(tasks):
        owners = [client for client, state in placement.clients.items() if task in state.previous_active]
        if owners:
            placement.active[owners[0]].add(task)
        else:
            left.append(task)
    for task in left:
        holders = [client for client, state in placement.clients.items() if task in state.previous_standby]
        best = min(holders or placement.clients, key=lambda client: (placement.load(client), client))
        placement.active[best].add(task)
    assign_standbys(placement, stateful, config, sticky=True)
    return placement.freeze(probing_rebalance_needed=True)
