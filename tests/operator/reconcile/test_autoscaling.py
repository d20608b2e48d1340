"""How many replicas the load needs, and when the application is scaled to that number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.reconcile.world import World

from millrace.manifest.upgrade import Autoscaling
from millrace_operator import model
from millrace_operator.model import ReportedStatus
from millrace_operator.reconcile.autoscaling import Load, advise, load_of

AUTO = {"mode": "Auto", "max": 8, "cooldown": {"rebalance": "1m", "scaleDown": "5m"}}


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
    busy = ReportedStatus("RUNNING", records_per_second=10.0, busy_ratio=0.5)
    assert load_of([busy, ReportedStatus("RUNNING")], 5) is None
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
