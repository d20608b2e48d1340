"""What an assignor of one's own can use: parts of the built-in ones, and the check of its decision (KIP-924).

An assignor is a function from an `ApplicationState` to a `TaskAssignment`; `task.assignor.class` names it. Each helper takes an
assignment and returns a new one.

>>> from millrace.assignment import ApplicationState, TaskAssignment
>>> def keep_what_runs(state: ApplicationState) -> TaskAssignment:
...     assignment = optimize_rack_aware_active_tasks(state, identity_assignment(state))
...     return default_standby_task_assignment(state, assignment)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum
from uuid import UUID

from millrace.assignment.application_state import ApplicationState, AssignmentConfig, ClientAssignment, TaskAssignment
from millrace.assignment.placement import Placement
from millrace.assignment.rack_aware import RackCosts, costs_configured, optimise_active, optimise_standbys, racks_known
from millrace.assignment.standbys import assign_standbys
from millrace.java_collections import hash_order, tasks_in_hash_order
from millrace.records import TaskId


class AssignmentError(StrEnum):
    """What is wrong with an assignment."""

    NONE = "none"
    ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES = "a task is active on several clients"
    INVALID_STANDBY_TASK = "a task without stores has a standby"
    MISSING_PROCESS_ID = "a client has no assignment, not even an empty one"
    UNKNOWN_PROCESS_ID = "a client is not in the group"
    UNKNOWN_TASK_ID = "a task does not exist"


def validate_task_assignment(state: ApplicationState, assignment: TaskAssignment) -> AssignmentError:
    """Return the first error of an assignment. The leader checks every decision and ends all members if it is not valid.

    A task that is assigned to nobody is no error: it does not run.
    """
    seen: set[TaskId] = set()
    for client in assignment.clients.values():
        if not client.active | client.standby <= state.tasks.keys():
            return AssignmentError.UNKNOWN_TASK_ID
        if client.active & seen:
            return AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES
        seen |= client.active
    if any(not state.tasks[task].stores for client in assignment.clients.values() for task in client.standby):
        return AssignmentError.INVALID_STANDBY_TASK
    if state.clients.keys() - assignment.clients.keys():
        return AssignmentError.MISSING_PROCESS_ID
    if assignment.clients.keys() - state.clients.keys():
        return AssignmentError.UNKNOWN_PROCESS_ID
    return AssignmentError.NONE


def identity_assignment(state: ApplicationState) -> TaskAssignment:
    """Return the assignment that changes nothing: every client has the tasks that it had before."""
    return TaskAssignment(
        {
            process: ClientAssignment(client.previous_active, client.previous_standby)
            for process, client in state.clients.items()
        }
    )


def default_standby_task_assignment(state: ApplicationState, assignment: TaskAssignment) -> TaskAssignment:
    """Add `num.standby.replicas` standbys of each task with a changelog, spread over client tags and evenly."""
    placement = _draft(state, assignment)
    stateful = state.stateful
    tasks = hash_order(task for task in tasks_in_hash_order(state.tasks) if task in stateful)
    assign_standbys(placement, tasks, state.config)
    return _changed(assignment, placement)


def optimize_rack_aware_active_tasks(
    state: ApplicationState,
    assignment: TaskAssignment,
    tasks: Collection[TaskId] | None = None,
    *,
    traffic_cost: int | None = None,
    non_overlap_cost: int | None = None,
) -> TaskAssignment:
    """Exchange active tasks so that less is read from other racks; best before standbys are added.

    Nothing changes unless `rack.aware.assignment.strategy` is on, both costs are configured, and all racks are known.

    Args:
        state: The application.
        assignment: Where the tasks are.
        tasks: The active tasks that may move, all assigned; every active task by default.
        traffic_cost: Replaces `rack.aware.assignment.traffic_cost`.
        non_overlap_cost: Replaces `rack.aware.assignment.non_overlap_cost`.
    """
    if not costs_configured(state.config) or not racks_known(state, lambda task: task.partitions | task.changelogs):
        return assignment
    costs = _costs(state.config, traffic_cost, non_overlap_cost)
    placement = _draft(state, assignment)
    if tasks is None:
        tasks = {task for active in placement.active.values() for task in active}
    optimise_active(state, placement, tasks, costs, lambda task: task.partitions | task.changelogs)
    return _changed(assignment, placement)


def optimize_rack_aware_standby_tasks(
    state: ApplicationState,
    assignment: TaskAssignment,
    *,
    traffic_cost: int | None = None,
    non_overlap_cost: int | None = None,
) -> TaskAssignment:
    """Exchange standbys so that less is read from other racks; conditions as in `optimize_rack_aware_active_tasks`.

    Args:
        state: The application.
        assignment: Where the tasks are.
        traffic_cost: Replaces `rack.aware.assignment.traffic_cost`.
        non_overlap_cost: Replaces `rack.aware.assignment.non_overlap_cost`.
    """
    if not costs_configured(state.config) or not racks_known(state, lambda task: task.changelogs):
        return assignment
    costs = _costs(state.config, traffic_cost, non_overlap_cost)
    placement = _draft(state, assignment)
    by_subtopology = state.config.rack_aware_strategy == "balance_subtopology"
    optimise_standbys(state, placement, costs, lambda *_: True, by_subtopology=by_subtopology)
    return _changed(assignment, placement)


def _costs(config: AssignmentConfig, traffic: int | None, non_overlap: int | None) -> RackCosts:
    usual = RackCosts.of(config, traffic=0, non_overlap=0)
    return RackCosts(
        usual.traffic if traffic is None else traffic, usual.non_overlap if non_overlap is None else non_overlap
    )


def _draft(state: ApplicationState, assignment: TaskAssignment) -> Placement:
    placement = Placement(state.clients, hash_order(state.clients))
    for process, client in assignment.clients.items():
        placement.active[process] |= client.active
        placement.standby[process] |= client.standby
    return placement


def _changed(assignment: TaskAssignment, placement: Placement) -> TaskAssignment:
    def changed(process: UUID) -> ClientAssignment:
        return replace(
            assignment.clients.get(process, ClientAssignment()),
            active=frozenset(placement.active[process]),
            standby=frozenset(placement.standby[process]),
        )

    return replace(assignment, clients={process: changed(process) for process in placement.clients})
