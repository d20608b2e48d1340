"""Whether a child has to be applied."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.reconcile.world import APP, World

from millrace_operator.model import Key
from millrace_operator.reconcile.drift import is_part_of, needs_apply, stamped

WANTED = {
    "kind": "Thing",
    "metadata": {"name": "a", "labels": {"app": "a"}},
    "spec": {
        "containers": [{"name": "main", "image": "i", "resources": {"limits": {"memory": "1Gi"}}}],
        "args": ["a", "b"],
        "replicas": 0,
    },
}


def seen(**spec):
    """Return the object as a server stores it, with defaults, and with some fields of the spec changed."""
    item = copy.deepcopy(stamped(WANTED, "uid-of-app"))
    item["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    item["spec"] |= {"defaulted": True, **spec}
    item["status"] = {"phase": "Ready"}
    return item


def test_defaults_are_no_difference():
    """Fields that the server or another manager adds do not cause an apply."""
    item = seen()
    item["spec"]["containers"].insert(0, {"name": "injected"})
    item["spec"]["containers"][1]["terminationMessagePath"] = "/dev/termination-log"
    assert not needs_apply(stamped(WANTED, "uid-of-app"), item)


def test_quantities_are_compared_by_value():
    """1024Mi is 1Gi."""
    item = seen(containers=[{"name": "main", "image": "i", "resources": {"limits": {"memory": "1024Mi"}}}])
    assert not needs_apply(stamped(WANTED, "uid-of-app"), item)
    item = seen(containers=[{"name": "main", "image": "i", "resources": {"limits": {"memory": "1025Mi"}}}])
    assert needs_apply(stamped(WANTED, "uid-of-app"), item)


@pytest.mark.parametrize("spec", [{"args": ["a"]}, {"args": ["b", "a"]}, {"replicas": 2}, {"containers": []}])
def test_drift_is_a_difference(spec):
    """Fields that somebody has changed are applied again."""
    assert needs_apply(stamped(WANTED, "uid-of-app"), seen(**spec))


def test_a_field_that_is_no_longer_wanted_is_a_difference():
    """The hash of the last applied object reveals fields that have to be removed."""
    less = copy.deepcopy(WANTED)
    del less["spec"]["args"]
    assert is_part_of(less, seen())
    assert needs_apply(stamped(less, "uid-of-app"), seen())


def test_an_object_that_is_not_there_is_applied():
    """A missing object is always applied."""
    assert needs_apply(stamped(WANTED, "uid-of-app"), None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_everything_is_part_of_itself(value):
    """An object that was applied and not changed is not applied again."""
    assert is_part_of(value, copy.deepcopy(value))


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "ServiceAccount"])
def test_deleted_child_is_created_again(kind):
    """The next pass applies it again."""
    world = World()
    world.run()
    del world.objects[Key(kind, APP)]
    world.run(10)
    assert Key(kind, APP) in world.objects


def test_manually_scaled_stateful_set_is_corrected():
    """The operator owns the number of replicas; the extra pod is drained first."""
    world = World()
    world.run()
    world.objects[Key("StatefulSet", APP)]["spec"]["replicas"] = 2
    world.settle()
    world.run(60)
    assert len(world.pods()) == 1


def test_a_child_that_is_no_longer_wanted_is_deleted():
    """Turning the disruption budget off deletes it."""
    world = World()
    world.run()
    world.change(podDisruptionBudget={"enabled": False})
    world.run(10)
    assert world.names("PodDisruptionBudget") == []
