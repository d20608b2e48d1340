"""Volumes that grow, fill up and are kept."""

import pytest
from tests.operator.reconcile.world import APP, World

from millrace_operator import model


@pytest.fixture
def world():
    """A healthy application with two pods."""
    world = World()
    world.change(replicas=2)
    world.run()
    world.log.clear()
    return world


def sizes(world):
    """Return the sizes of the claims, then of the StatefulSet's template."""
    claims = [item for key, item in sorted(world.objects.items()) if key.kind == "PersistentVolumeClaim"]
    stateful_set = world.objects[model.Key("StatefulSet", APP)]
    return [
        item["spec"]["resources"]["requests"]["storage"]
        for item in (*claims, stateful_set["spec"]["volumeClaimTemplates"][0])
    ]


def test_volumes_grow_without_touching_pods(world):
    """Claims are resized and the StatefulSet is recreated underneath its pods, which stay."""
    uids = [pod["metadata"]["uid"] for pod in world.pods()]
    world.change(storage={"size": "5Gi"})
    world.run()
    assert sizes(world) == ["5Gi", "5Gi", "5Gi"]
    assert [pod["metadata"]["uid"] for pod in world.pods()] == uids
    assert [action.orphan for action in world.done(model.Delete)] == [True]
    assert world.condition("StorageHealthy") == ("True", "VolumesFit")
    assert world.pass_over().actions == ()


def test_a_claim_without_a_volume_is_resized_when_it_has_one(world):
    """The API server refuses to change an unbound claim: the others grow now, and that one once it is bound."""
    claim = world.objects[model.Key("PersistentVolumeClaim", f"state-{APP}-0")]
    claim["status"] = {"phase": "Pending"}
    world.change(storage={"size": "5Gi"})
    world.run()
    assert sizes(world) == ["1Gi", "5Gi", "5Gi"]
    world.objects[model.Key("PersistentVolumeClaim", f"state-{APP}-0")]["status"] = {"phase": "Bound"}
    world.run(30)
    assert sizes(world) == ["5Gi", "5Gi", "5Gi"]


def test_the_same_size_in_other_words_is_no_change(world):
    """1024Mi is 1Gi."""
    world.change(storage={"size": "1024Mi"})
    world.run(30)
    assert world.log == []


def test_a_class_that_lets_no_volume_grow(world):
    """The change is refused with a remedy, nothing is touched, and the rest of the work continues."""
    world.expandable = False
    world.change(storage={"size": "5Gi"}, replicas=3)
    world.run()
    assert set(sizes(world)) == {"1Gi"}
    assert world.condition("StorageHealthy") == ("False", "ExpansionUnsupported")
    assert "allowVolumeExpansion" in world.message("StorageHealthy")
    assert len(world.pods()) == 3
    assert world.pass_over().actions == ()


def test_volumes_do_not_shrink(world):
    """A smaller size is refused with a reason, and nothing is touched."""
    world.change(storage={"size": "500Mi"})
    world.run()
    assert set(sizes(world)) == {"1Gi"}
    assert world.condition("StorageHealthy") == ("False", "ShrinkingRefused")
    assert world.log == []


def test_a_volume_that_fills(world):
    """Above 85 % StorageHealthy is false and says what to do; the status rounds the usage to steps of five."""
    world.used_percent = 91.3
    world.run(10)
    assert world.condition("StorageHealthy") == ("False", "VolumeNearlyFull")
    assert "storage.size" in world.message("StorageHealthy")
    assert world.status.storage.max_used_percent == 90
    writes = world.status_writes
    world.used_percent = 89.0
    world.run(10)
    assert world.status_writes == writes


def test_a_volume_that_is_full_stays_so_while_no_pod_answers(world):
    """The known usage stays until a pod reports free space: a full volume may be why it does not answer."""
    world.used_percent = 99.0
    world.run(10)
    world.used_percent = None
    world.run(10)
    assert world.condition("StorageHealthy") == ("False", "VolumeNearlyFull")
    for pod in world.pods():
        del world.objects[model.Key("Pod", pod["metadata"]["name"])]
    world.pass_over()
    assert world.condition("StorageHealthy") == ("False", "VolumeNearlyFull"), "the pods are about to be made again"
    world.run(10)
    world.used_percent = 10.0
    world.run(10)
    assert world.condition("StorageHealthy") == ("True", "VolumesFit")


def test_pods_stay_when_the_stateful_set_is_deleted(world):
    """Orphaned pods are adopted by the recreated StatefulSet."""
    uids = [pod["metadata"]["uid"] for pod in world.pods()]
    del world.objects[model.Key("StatefulSet", APP)]
    world.run(30)
    assert [pod["metadata"]["uid"] for pod in world.pods()] == uids
    assert world.condition("Ready")[0] == "True"
