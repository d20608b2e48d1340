"""How many replicas the load needs, and when the application is scaled to that number."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.operator.reconcile.world import World, task_with_store

from millrace.instance_status import ProcessingStatus, StreamsStatus
from millrace.manifest.upgrade import Autoscaling
from millrace_operator import model
from millrace_operator.reconcile.autoscaling import Load, advise, load_of

AUTO = {"mode": "Auto", "max": 8, "cooldown": {"rebalance": "1m", "scaleDown": "5m"}}


QUICK = {"rebalance": "20s", "scaleDown": "100s"}


def scaling(**fields):
    """Return autoscaling settings with a target of 100 seconds."""
    return Autoscaling.model_validate({"mode": "Auto", "max": 10, "targetCatchUp": "100s"} | fields)


@pytest.mark.parametrize(
    ("load", "current", "limit", "expected"),
    [
        pytest.param(Load(0, 1000, 1.4), 2, None, 2, id="well used"),
        pytest.param(Load(0, 1000, 1.9), 2, None, 3, id="nearly saturated"),
        pytest.param(Load(300_000, 1000, 2.0), 2, None, 10, id="a lag that would take too long"),
        pytest.param(Load(300_000, 1000, 2.0), 2, 6, 6, id="no more than there are tasks"),
        pytest.param(Load(0, 1000, 0.5), 4, None, 1, id="hardly used"),
        pytest.param(Load(0, 1000, 1.9), 3, None, 3, id="fewer would not be enough for long"),
        pytest.param(Load(0, 0, 0), 4, None, 1, id="nothing to do"),
        pytest.param(Load(500, 0, 0), 4, None, 4, id="nothing is done though there is something to do"),
    ],
)
def test_advice(load, current, limit, expected):
    """The advised replicas keep up, catch up within the target, and leave some headroom."""
    assert advise(load, current, scaling(), limit)[0] == expected


LOADS = st.builds(Load, st.integers(0, 10**9), st.floats(0, 1e6), st.floats(0, 50))


@given(LOADS, st.integers(1, 20), st.integers(1, 5), st.integers(0, 5), st.none() | st.integers(1, 30))
def test_advice_stays_within_its_limits(load, current, least, more, limit):
    """Never fewer than min and never more than max or the number of tasks; the number of tasks wins over min."""
    found = advise(load, current, scaling(min=least, max=least + more), limit)[0]
    assert 1 <= found <= min(least + more, limit or 10**6)
    assert found >= min(least, limit or 10**6)


@given(st.floats(1, 1e5), st.floats(0.5, 40), st.integers(1, 10))
def test_following_the_advice_yields_the_same_advice(rate, busy, current):
    """Spreading the same load over the advised replicas yields the same advice."""
    load = Load(0, rate, busy)
    wide = scaling(max=100)
    first = advise(load, current, wide, None)[0]
    assert advise(load, first, wide, None)[0] == first


def test_a_load_that_is_not_wholly_known_is_none():
    """If one pod does not report its load, the total is unknown."""
    busy = StreamsStatus(processing=ProcessingStatus(records_per_second=10.0, busy_ratio=0.5))
    assert load_of([busy, StreamsStatus()], 5) is None
    assert load_of([busy], None) is None
    assert load_of([busy, busy], 5) == Load(5, 20.0, 1.0)


@pytest.fixture
def world():
    """A healthy application with two pods of four tasks, scaled automatically."""
    world = World()
    world.change(replicas=2, autoscaling=AUTO)
    world.records_per_second, world.busy_ratio = 500.0, 0.7
    world.run(180)
    world.log.clear()
    assert len(world.pods()) == 2
    return world


def test_pods_follow_the_load(world):
    """With Auto, pods are added when two cannot carry the load, up to the number of tasks; spec.replicas is not changed."""
    world.lag, world.busy_ratio = 10**6, 1.0
    world.run(300)
    assert len(world.pods()) == 4
    assert world.manifest["replicas"] == 2
    assert world.status.autoscaling.recommended == 4
    assert world.status.autoscaling.blocked_by is None


def test_recommend_mode_only_reports(world):
    """With Recommend the number is only reported."""
    world.change(autoscaling={**AUTO, "mode": "Recommend"})
    world.lag, world.busy_ratio = 10**6, 1.0
    world.run(300)
    assert len(world.pods()) == 2
    assert world.status.autoscaling.recommended == 4


def test_fewer_pods_have_to_be_enough_for_a_while(world):
    """Scaling in waits for cooldown.scaleDown, and the status says so."""
    world.busy_ratio = 0.1
    world.run(240)
    assert len(world.pods()) == 2
    assert "Fewer replicas" in world.status.autoscaling.blocked_by
    world.run(120)
    assert len(world.pods()) == 1
    assert len(world.done(model.DrainPod)) == 1


def test_nothing_is_scaled_while_state_is_restored(world):
    """Restoring tasks block scaling, and the reason is given."""
    world.restoring["words-0"] = 1
    world.lag, world.busy_ratio = 10**6, 1.0
    world.run(300)
    assert len(world.pods()) == 2
    assert world.status.autoscaling.blocked_by == "State is being restored."
    assert world.condition("ScalingAllowed") == ("False", "StateIsRestored")


def test_tasks_that_have_moved_are_given_time(world):
    """After a rebalance, cooldown.rebalance passes before the next change."""
    world.lag, world.busy_ratio = 10**6, 1.0
    world.restoring["words-0"] = 1
    world.run(60)
    world.restoring.clear()
    world.run(40)
    assert len(world.pods()) == 2
    assert "less than 1m ago" in world.status.autoscaling.blocked_by
    world.run(60)
    assert len(world.pods()) == 4


def test_an_application_at_rest_is_not_written_to(world):
    """A load that merely fluctuates does not change the status."""
    writes = world.status_writes
    for lag, busy in ((20, 0.69), (60, 0.71), (0, 0.7)):
        world.lag, world.busy_ratio = lag, busy
        world.run(60)
    assert world.status_writes == writes
    assert world.done(model.Apply) == []


def test_nothing_is_scaled_while_tasks_warm_up(world):
    """A new pod has no part in the load before its copies have become active: until then, neither more nor fewer pods help."""
    active, copy = (task_with_store("0_1", role) for role in ("active", "standby"))
    world.tasks = {"words-0": (active,), "words-1": (copy,)}
    world.lag, world.busy_ratio = 10**6, 1.0
    world.run(300)
    assert len(world.pods()) == 2
    assert world.condition("ScalingAllowed") == ("False", "TasksWarmUp")
    assert world.status.autoscaling.blocked_by == "Tasks warm up: 0_1."
    world.change(standby={"replicas": 1})
    world.run(300)
    assert len(world.pods()) == 4, "a copy that is a standby holds up nothing"


def test_scaling_in_waits_for_copies(world):
    """While a standby is behind, fewer pods would have to restore; more are always possible."""
    active, copy = task_with_store("0_1", "active"), task_with_store("0_1", "standby", 20_000)
    world.change(standby={"replicas": 1, "catchUpTimeout": "1h"})
    world.run(300)
    world.tasks = {"words-0": (active,), "words-1": (copy,)}
    world.busy_ratio = 0.1
    world.run(900, step=20)
    assert len(world.pods()) == 2
    assert "Task 0_1 has no copy" in world.status.autoscaling.blocked_by
    world.lag, world.busy_ratio = 10**6, 1.0
    world.run(300)
    assert len(world.pods()) == 4


def test_the_most_that_was_needed_stays(world):
    """After a while with dips, scaling in leaves as many pods as were enough all the time, not as many as just now."""
    world.lag, world.busy_ratio = 10**6, 1.0
    world.run(300)
    world.lag = 0
    for busy in (0.4, 0.1, 0.3, 0.05):  # of four pods: 3, 1, 2 and 1 are enough
        world.busy_ratio = busy
        world.run(100)
    assert len(world.pods()) == 3
    assert world.status.autoscaling.recommended == 3


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(0, 2500), min_size=1, max_size=3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_number_of_pods_follows_any_load_without_swinging(loads, first, random):
    """Whatever the load does, no pod goes within scaleDown of one coming, and a steady load ends with a steady number.

    Each pod processes 500 records per second. What a new pod is to take over warms up first, for a random time.
    """
    world = World()
    world.change(replicas=first, autoscaling={"mode": "Auto", "max": 4, "targetCatchUp": "5m", "cooldown": QUICK})
    history: list[tuple[float, int]] = []
    working, warm_at = first, 0.0
    for number, load in enumerate([*loads, loads[-1]]):
        until = world.now + (300 if number < len(loads) else 1200)
        while world.now < until:
            there = len(world.pods()) or first
            if there > working and not warm_at:
                warm_at = world.now + random.uniform(0, 120)
            if there <= working or world.now >= warm_at > 0:
                working, warm_at = there, 0.0
            done = min(load + world.lag / 20, 500.0 * working)
            world.lag = max(0, int(world.lag + (load - done) * 20))
            world.records_per_second, world.busy_ratio = done / there, done / (500.0 * there)
            world.tasks = {"words-0": (task_with_store("0_1", "standby", 9),)} if warm_at else {}
            world.run(0)
            world.tick(20)
            if not history or history[-1][1] != there:
                history.append((world.now, there))
    changes = [(when, after > before) for (_, before), (when, after) in itertools.pairwise(history)]
    for (earlier, was_up), (later, is_up) in itertools.pairwise(changes):
        assert not was_up or is_up or later - earlier >= 100, history
    last = [is_up for when, is_up in changes if when > world.now - 1100]
    assert last == sorted(last) or last == sorted(last, reverse=True), f"up and down under a steady load: {history}"
    assert not [when for when, _ in changes if when > world.now - 300], history
