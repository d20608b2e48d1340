"""What every assignor guarantees for any group, and what is special about each of them."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.assignment.application_state import (
    LATEST_OFFSET,
    ApplicationState,
    AssignmentConfig,
    ClientState,
    TaskInfo,
)
from millrace.assignment.high_availability import high_availability_assignor
from millrace.assignment.sticky import fallback_prior_assignor, sticky_assignor
from millrace.records import TaskId, TopicPartition

TASKS = st.frozensets(st.builds(TaskId, st.integers(0, 3), st.integers(0, 7)), min_size=1)


def process(number):
    """Return the process id with this number."""
    return UUID(int=number)


def application(clients, tasks, stateful, config):
    """Return the state of an application whose tasks read one topic for each sub-topology."""
    infos = {}
    for task in tasks:
        changelogs = {TopicPartition(f"changelog-{task.subtopology}", task.partition)} if task in stateful else set()
        inputs = {TopicPartition(f"in-{task.subtopology}", task.partition)}
        stores = {"store"} if task in stateful else set()
        infos[task] = TaskInfo(frozenset(inputs), frozenset(changelogs), frozenset(stores))
    return ApplicationState(clients, infos, config)


@st.composite
def groups(draw):
    """Draw a group: tasks, some of them stateful, and clients that ran some of them or have copies."""
    tasks = draw(TASKS)
    stateful = frozenset(task for task in tasks if task.subtopology < draw(st.integers(0, 4)))
    count = draw(st.integers(1, 5))
    clients = {}
    runner = {task: draw(st.integers(-1, count - 1)) for task in sorted(tasks)}
    for number in range(count):
        active = frozenset(task for task in tasks if runner[task] == number)
        standby = draw(st.frozensets(st.sampled_from(sorted(tasks)))) & stateful - active
        lags = {task: draw(st.sampled_from([0, 50, 20_000, 10**9])) for task in sorted(stateful)}
        lags |= dict.fromkeys(active & stateful, LATEST_OFFSET)
        clients[process(number)] = ClientState(
            process(number), draw(st.integers(1, 4)), active, standby, lags, {"zone": str(number % 2)}
        )
    config = AssignmentConfig(
        num_standby_replicas=draw(st.integers(0, 2)),
        max_warmup_replicas=draw(st.integers(1, 3)),
        rack_aware_tags=draw(st.sampled_from([(), ("zone",)])),
    )
    return clients, tasks, stateful, config


ASSIGNORS = [high_availability_assignor, sticky_assignor, fallback_prior_assignor]


@pytest.mark.parametrize("assign", ASSIGNORS, ids=lambda f: f.__name__)
@settings(max_examples=60)
@given(group=groups())
def test_every_task_is_active_exactly_once_and_copies_are_apart(assign, group):
    """Each task is active on one client; no client has two copies of it; only stateful tasks have standbys."""
    clients, tasks, stateful, config = group
    result = assign(application(clients, tasks, stateful, config))
    assert result.clients.keys() == clients.keys()
    active = [task for assigned in result.clients.values() for task in assigned.active]
    assert sorted(active) == sorted(tasks)
    for assigned in result.clients.values():
        assert not assigned.active & assigned.standby
        assert assigned.standby <= stateful


@pytest.mark.parametrize("assign", ASSIGNORS, ids=lambda f: f.__name__)
@settings(max_examples=60)
@given(group=groups())
def test_standbys_are_as_many_as_asked_or_as_clients_allow(assign, group):
    """A stateful task has the configured number of standbys, or one on each other client; warm-ups come on top."""
    clients, tasks, stateful, config = group
    result = assign(application(clients, tasks, stateful, config))
    wanted = min(config.num_standby_replicas, len(clients) - 1)
    warmups = config.max_warmup_replicas if assign is high_availability_assignor else 0
    extra = 0
    for task in stateful:
        copies = sum(task in assigned.standby for assigned in result.clients.values())
        assert copies >= wanted
        extra += copies - wanted
    assert extra <= warmups


def settled(clients, result, stateful):
    """Return the clients after tasks have moved as decided; a client that gives up a task keeps its state."""
    return {
        process_id: ClientState(
            process_id,
            client.capacity,
            result.clients[process_id].active,
            result.clients[process_id].standby,
            {
                task: LATEST_OFFSET if task in result.clients[process_id].active else max(0, client.lags[task])
                for task in stateful
            },
            client.tags,
        )
        for process_id, client in clients.items()
    }


def caught_up(clients, result, stateful):
    """Return the clients after their standbys and warm-ups have caught up."""
    return {
        process_id: ClientState(
            process_id,
            client.capacity,
            client.previous_active,
            client.previous_standby,
            {**client.lags, **dict.fromkeys(result.clients[process_id].standby, 0)},
            client.tags,
        )
        for process_id, client in clients.items()
    }


@settings(max_examples=60)
@given(group=groups())
def test_probing_rebalances_end_in_a_balanced_assignment(group):
    """Warm-ups catch up and tasks follow, until loads differ by less than one task per thread and no task waits."""
    clients, tasks, stateful, config = group
    state = clients
    for _ in range(40):
        result = high_availability_assignor(application(state, tasks, stateful, config))
        if not result.probing_rebalance_needed:
            break
        state = caught_up(settled(state, result, stateful), result, stateful)
    assert not result.probing_rebalance_needed
    again = high_availability_assignor(application(settled(state, result, stateful), tasks, stateful, config))
    assert again == result
    threads = sum(client.capacity for client in clients.values())
    for process_id, assigned in result.clients.items():
        share = len(stateful) * clients[process_id].capacity / threads
        assert abs(len(assigned.active & stateful) - share) < 1 + clients[process_id].capacity


def test_a_new_client_warms_up_before_it_gets_stateful_tasks():
    """Tasks stay with the client that is caught up; the new one gets as many warm-ups as allowed, and a probe is scheduled."""
    tasks = frozenset(TaskId(0, n) for n in range(4))
    old = ClientState(process(1), 1, tasks, lags=dict.fromkeys(tasks, LATEST_OFFSET))
    new = ClientState(process(2), 1, lags=dict.fromkeys(tasks, 1_000_000))
    result = high_availability_assignor(
        application({process(1): old, process(2): new}, tasks, tasks, AssignmentConfig())
    )
    assert result.clients[process(1)].active == tasks
    assert len(result.clients[process(2)].standby) == 2
    assert result.probing_rebalance_needed


def test_a_small_lag_is_acceptable():
    """A client whose lag is within acceptable.recovery.lag gets its share at once."""
    tasks = frozenset(TaskId(0, n) for n in range(4))
    old = ClientState(process(1), 1, tasks, lags=dict.fromkeys(tasks, LATEST_OFFSET))
    new = ClientState(process(2), 1, lags=dict.fromkeys(tasks, 10_000))
    result = high_availability_assignor(
        application({process(1): old, process(2): new}, tasks, tasks, AssignmentConfig())
    )
    assert len(result.clients[process(2)].active) == 2
    assert not result.probing_rebalance_needed


def test_a_lost_client_s_task_goes_to_its_standby():
    """If the client that ran a task is gone, the one with a caught-up standby takes over."""
    task = TaskId(0, 0)
    cold = ClientState(process(1), 1, lags={task: 1_000_000})
    warm = ClientState(process(2), 1, previous_standby=frozenset({task}), lags={task: 5})
    clients = {process(1): cold, process(2): warm}
    for assign in (high_availability_assignor, sticky_assignor, fallback_prior_assignor):
        result = assign(application(clients, frozenset({task}), frozenset({task}), AssignmentConfig()))
        assert result.clients[process(2)].active == {task}


def test_standbys_go_to_other_zones():
    """With rack.aware.assignment.tags, a standby goes to a client whose tag value differs from the active task's."""
    tasks = frozenset(TaskId(0, n) for n in range(6))
    clients = {
        process(n): ClientState(process(n), 1, lags=dict.fromkeys(tasks, 0), tags={"zone": zone})
        for n, zone in enumerate(["a", "a", "b", "b"])
    }
    config = AssignmentConfig(num_standby_replicas=1, rack_aware_tags=("zone",))
    for assign in (high_availability_assignor, sticky_assignor):
        result = assign(application(clients, tasks, tasks, config))
        for task in tasks:
            zones = {clients[p].tags["zone"] for p, c in result.clients.items() if task in c.active | c.standby}
            assert zones == {"a", "b"}


def test_sticky_moves_only_what_the_new_client_s_share_needs():
    """A third client takes its share of both sub-topologies; no task moves between the other two."""
    tasks = frozenset(TaskId(s, n) for s in range(2) for n in range(6))
    half = {1: frozenset(t for t in tasks if t.partition % 2), 2: frozenset(t for t in tasks if not t.partition % 2)}
    clients = {process(n): ClientState(process(n), 2, half.get(n, frozenset())) for n in (1, 2, 3)}
    result = sticky_assignor(application(clients, tasks, tasks, AssignmentConfig()))
    assert all(result.clients[process(n)].active <= half[n] for n in (1, 2))
    assert len(result.clients[process(3)].active) == 4
    assert {task.subtopology for task in result.clients[process(3)].active} == {0, 1}
