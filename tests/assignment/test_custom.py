"""Custom assignors: what the helpers do, and that the leader checks what it is given."""

from dataclasses import replace
from uuid import UUID

import pytest

from millrace.assignment import (
    ApplicationState,
    AssignmentConfig,
    AssignmentError,
    ClientAssignment,
    ClientState,
    TaskAssignment,
    TaskInfo,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
    validate_task_assignment,
)
from millrace.config import StreamsConfig
from millrace.records import TaskId, TopicPartition

HERE, THERE = UUID(int=1), UUID(int=2)
TASKS = [TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)]
STATELESS = TASKS[2]


def application(**config):
    """Return two clients in two racks; the first two tasks have state and are read in the other rack than they run."""
    tasks, racks = {}, {}
    for task in TASKS:
        source = TopicPartition(f"in-{task.subtopology}", task.partition)
        changelog = TopicPartition("changelog", task.partition)
        stateful = task != STATELESS
        tasks[task] = TaskInfo(
            frozenset({source}), frozenset({changelog} if stateful else ()), frozenset({"s"} if stateful else ())
        )
        racks |= dict.fromkeys((source, changelog), frozenset({"b" if task.partition == 0 else "a"}))
    clients = {
        HERE: ClientState(HERE, 1, frozenset({TASKS[0]}), frozenset({TASKS[1]}), rack="a"),
        THERE: ClientState(THERE, 1, frozenset({TASKS[1], STATELESS}), rack="b"),
    }
    return ApplicationState(clients, tasks, AssignmentConfig(**config), racks)


def given(here=(), there=(), here_standby=(), there_standby=()):
    """Return an assignment of both clients."""
    return TaskAssignment(
        {
            HERE: ClientAssignment(frozenset(here), frozenset(here_standby)),
            THERE: ClientAssignment(frozenset(there), frozenset(there_standby)),
        }
    )


def test_identity_changes_nothing():
    """Every client has what it had before."""
    assert identity_assignment(application()) == given(TASKS[:1], TASKS[1:], here_standby=[TASKS[1]])


def test_default_standbys_are_added_without_losing_anything():
    """Each stateful task gets a standby on the other client; follow-up rebalances stay as they were."""
    before = given(TASKS[:1], TASKS[1:])
    before = replace(before, clients={**before.clients, HERE: replace(before.clients[HERE], followup_rebalance_ms=7)})
    after = default_standby_task_assignment(application(num_standby_replicas=1), before)
    assert after.clients[HERE] == ClientAssignment(frozenset(TASKS[:1]), frozenset({TASKS[1]}), 7)
    assert after.clients[THERE] == ClientAssignment(frozenset(TASKS[1:]), frozenset({TASKS[0]}))


COSTS = {"rack_aware_traffic_cost": 10, "rack_aware_non_overlap_cost": 1}


@pytest.mark.parametrize("strategy", ["min_traffic", "balance_subtopology"])
def test_active_tasks_move_to_where_their_input_is(strategy):
    """Two tasks are exchanged, as each client then reads in its own rack."""
    state = application(rack_aware_strategy=strategy, **COSTS)
    after = optimize_rack_aware_active_tasks(state, given(TASKS[:1], TASKS[1:]), TASKS[:2])
    assert after == given(TASKS[1:2], [TASKS[0], STATELESS])


def test_moving_may_cost_more_than_traffic():
    """Tasks stay if a move costs more than reading from another rack."""
    state = application(rack_aware_strategy="min_traffic", **COSTS)
    before = given(TASKS[:1], TASKS[1:])
    assert optimize_rack_aware_active_tasks(state, before, traffic_cost=1, non_overlap_cost=2) == before


@pytest.mark.parametrize(
    "config",
    [{"rack_aware_strategy": "none", **COSTS}, {"rack_aware_strategy": "min_traffic", "rack_aware_traffic_cost": 1}],
)
def test_nothing_is_optimized_unless_configured(config):
    """Without a strategy or without both costs, an assignment stays as it is."""
    before = given(TASKS[:1], TASKS[1:], there_standby=TASKS[:1], here_standby=TASKS[1:2])
    state = application(**config)
    assert optimize_rack_aware_active_tasks(state, before) == before
    assert optimize_rack_aware_standby_tasks(state, before) == before


def test_nothing_is_optimized_if_a_rack_is_unknown():
    """One client without `client.rack`, or one partition of unknown place, and tasks stay where they are."""
    state = application(rack_aware_strategy="min_traffic", **COSTS)
    before = given(TASKS[:1], TASKS[1:])
    rackless = replace(state, clients={**state.clients, HERE: replace(state.clients[HERE], rack=None)})
    assert optimize_rack_aware_active_tasks(rackless, before) == before
    lost = TopicPartition("in-1", 0)
    unplaced = replace(state, racks={tp: rack for tp, rack in state.racks.items() if tp != lost})
    assert optimize_rack_aware_active_tasks(unplaced, before) == before


def test_standbys_move_to_where_their_changelog_is():
    """Standbys of two clients are exchanged."""
    state = application(rack_aware_strategy="min_traffic", **COSTS)
    third = UUID(int=3)
    state = replace(state, clients={**state.clients, third: ClientState(third, 1, rack="c")})
    before = given(here_standby=TASKS[:1], there_standby=TASKS[1:2])
    before = TaskAssignment({**before.clients, third: ClientAssignment(frozenset(TASKS))})
    after = optimize_rack_aware_standby_tasks(state, before)
    assert after.clients[HERE].standby == {TASKS[1]}
    assert after.clients[THERE].standby == {TASKS[0]}


@pytest.mark.parametrize(
    ("assignment", "error"),
    [
        (given(TASKS[:1], TASKS[1:]), AssignmentError.NONE),
        (given(TASKS[:1]), AssignmentError.NONE),
        (given(TASKS, TASKS[1:]), AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES),
        (given(TASKS[:2], there_standby=[STATELESS]), AssignmentError.INVALID_STANDBY_TASK),
        (TaskAssignment({HERE: ClientAssignment(frozenset(TASKS))}), AssignmentError.MISSING_PROCESS_ID),
        (
            TaskAssignment({**given(TASKS).clients, UUID(int=9): ClientAssignment()}),
            AssignmentError.UNKNOWN_PROCESS_ID,
        ),
        (given([TaskId(7, 7)]), AssignmentError.UNKNOWN_TASK_ID),
    ],
)
def test_the_first_error_of_an_assignment_is_found(assignment, error):
    """Each kind of mistake has its own error; a task that nobody runs is none."""
    assert validate_task_assignment(application(), assignment) is error


def test_a_task_cannot_be_active_and_standby_on_one_client():
    """Such an assignment cannot even be written down."""
    with pytest.raises(ValueError, match="0_0"):
        ClientAssignment(frozenset(TASKS[:1]), frozenset(TASKS[:1]))


def test_settings_of_rack_awareness_are_read():
    """Kafka's keys end up in what assignors see."""
    config = StreamsConfig.of(
        {
            "application.id": "a",
            "rack.aware.assignment.strategy": "balance_subtopology",
            "rack.aware.assignment.traffic_cost": "12",
            "rack.aware.assignment.non_overlap_cost": "3",
        }
    )
    read = AssignmentConfig.of(config)
    assert read.rack_aware_strategy == "balance_subtopology"
    assert (read.rack_aware_traffic_cost, read.rack_aware_non_overlap_cost) == (12, 3)
