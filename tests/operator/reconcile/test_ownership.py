"""The operator writes and deletes only its own children, not other objects with the same names or labels."""

import copy

import pytest
from tests.operator.reconcile.world import APP, NAMESPACE, World

from millrace_operator import model
from millrace_operator.children import naming
from millrace_operator.children.naming import APP_LABEL, APP_UID_LABEL, labels
from millrace_operator.model import Key
from millrace_operator.reconcile.revisions import revision_of

SUPPORTING = [
    Key("ServiceAccount", APP),
    Key("Service", APP),
    Key("PodDisruptionBudget", APP),
    Key("NetworkPolicy", APP),
    Key("NetworkPolicy", naming.plan_network_policy(APP)),
]
REVISION = revision_of(World().desired().spec)
NEEDED = [
    Key("StatefulSet", APP),
    Key("Job", naming.plan_job(APP, REVISION)),
    Key("ConfigMap", naming.revision_config_map(APP, REVISION)),
    Key("ConfigMap", naming.plan_config_map(APP, REVISION)),
]
COPIED = {**labels(APP, "plan", REVISION), APP_UID_LABEL: "app-of-another-namespace"}


def foreign(world, key, marks=None):
    """Create an object under a child's name that the operator does not own, and return it."""
    metadata = {"name": key.name, "namespace": NAMESPACE, "labels": marks or {"app": "legacy"}}
    item = world.create({"kind": key.kind, "metadata": metadata, "spec": {"theirs": True}, "data": {"theirs": "yes"}})
    return copy.deepcopy(item)


def policies(world):
    """Turn NetworkPolicies on for the application."""
    world.change(networkPolicy={"enabled": True})
    return world


@pytest.mark.parametrize("marks", [None, COPIED], ids=["foreign", "copied"])
@pytest.mark.parametrize("key", SUPPORTING, ids=str)
def test_name_conflict_of_a_supporting_child_is_reported_and_blocks_nothing_else(key, marks):
    """The object is never changed, even by deletion; the application runs and reports what is in its way."""
    world = policies(World())
    before = foreign(world, key, marks)
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert world.condition("Stalled") == ("True", "NameTaken")
    assert f"{key.kind} {key.name}" in world.message("Stalled")
    assert {*SUPPORTING, Key("StatefulSet", APP)} <= world.objects.keys()
    world.delete()
    world.run(300)
    assert not world.exists
    assert world.objects[key] == before


@pytest.mark.parametrize("marks", [None, COPIED], ids=["foreign", "copied"])
@pytest.mark.parametrize("key", NEEDED, ids=str)
def test_a_taken_name_of_a_child_that_pods_need_keeps_pods_from_starting(key, marks):
    """No pod uses a manifest, plan or StatefulSet that is not ours; the application continues once the object is gone."""
    world = World()
    before = foreign(world, key, marks)
    world.run()
    assert world.pods() == []
    assert world.condition("Stalled") == ("True", "NameTaken")
    assert f"{key.kind} {key.name}" in world.message("Stalled")
    assert world.objects[key] == before
    del world.objects[key]
    world.run()
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Ready")[0] == "True"


@pytest.mark.parametrize("key", NEEDED, ids=str)
def test_a_deleted_application_leaves_what_took_its_names(key):
    """Deletion finishes, and the object is unchanged."""
    world = World()
    before = foreign(world, key)
    world.run()
    world.delete()
    world.run(300)
    assert not world.exists
    assert world.objects[key] == before


def test_name_conflict_of_a_new_revision_leaves_the_running_one_alone():
    """The running revision keeps running and can be scaled while the new one cannot create its manifest."""
    world = World()
    world.run()
    running = world.revisions()
    newer = {**world.manifest, "image": "registry.example/words:2"}
    revision = revision_of(type(world.desired().spec).model_validate(newer))
    foreign(world, Key("ConfigMap", naming.revision_config_map(APP, revision)))
    world.change(image="registry.example/words:2", replicas=2)
    world.run()
    assert world.condition("Stalled") == ("True", "NameTaken")
    assert world.condition("Ready")[0] == "True"
    assert world.revisions() == [*running, *running]


def test_an_application_at_rest_with_a_taken_name_gets_no_status_writes():
    """A name that is still taken is not reported again."""
    world = World()
    foreign(world, Key("Service", APP))
    world.run()
    writes = world.status_writes
    world.run()
    assert world.status_writes == writes


def test_children_of_an_older_operator_are_taken_over():
    """They carry no uid; they are adopted and keep running."""
    world = World()
    world.run()
    pods = [pod["metadata"]["uid"] for pod in world.pods()]
    for item in world.objects.values():
        item["metadata"]["labels"].pop(APP_UID_LABEL, None)
        item["metadata"].pop("ownerReferences", None)
    world.run()
    assert world.condition("Stalled")[0] == "False"
    assert [pod["metadata"]["uid"] for pod in world.pods()] == pods
    applied = {key for key in world.objects if key.kind not in {"Pod", "PersistentVolumeClaim"}}
    assert all(world.objects[key]["metadata"]["labels"][APP_UID_LABEL] == world.uid for key in applied)


def test_templates_do_not_depend_on_who_owns_the_application():
    """A StreamsApp that is created again has the same pods and claims: neither carries its uid."""
    world = World()
    world.run()
    spec = str(world.objects[Key("StatefulSet", APP)]["spec"])
    assert APP_UID_LABEL not in spec
    assert world.uid not in spec


def test_copies_with_labels_are_not_deleted():
    """Copying a child copies its labels, including the uid; under another name the copy is not the operator's."""
    world = World()
    world.run()
    for kind, name in (("ConfigMap", naming.revision_config_map(APP, REVISION)), ("Service", APP)):
        copied = copy.deepcopy(world.objects[Key(kind, name)])
        world.create({**copied, "metadata": {**copied["metadata"], "name": "mine"}})
    claim = copy.deepcopy(world.objects[Key("PersistentVolumeClaim", f"state-{APP}-0")])
    world.create({**claim, "metadata": {**claim["metadata"], "name": "backup-of-state"}})
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(300)
    assert not world.exists
    left = {Key("ConfigMap", "mine"), Key("Service", "mine"), Key("PersistentVolumeClaim", "backup-of-state")}
    assert world.objects.keys() == left


def test_pods_of_a_foreign_stateful_set_are_not_deleted():
    """Even if they have the application's labels and the names of its pods."""
    world = World()
    other = foreign(world, Key("StatefulSet", APP), COPIED)
    owner = {"kind": "StatefulSet", "name": APP, "uid": other["metadata"]["uid"], "controller": True}
    metadata = {"name": f"{APP}-0", "labels": labels(APP, revision=REVISION), "ownerReferences": [owner]}
    world.create({"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"image": "theirs"}]}})
    world.run()
    assert world.condition("Stalled")[0] == "True"
    world.delete()
    world.run(300)
    assert not world.exists
    assert "deletionTimestamp" not in world.objects[Key("Pod", f"{APP}-0")]["metadata"]


def test_the_policy_that_plan_jobs_had_under_a_former_name_is_deleted():
    """It would block another application of that name; another application's policy with the same name stays."""
    former = Key("NetworkPolicy", naming.former_plan_network_policy(APP))
    world = policies(World())
    foreign(world, former, labels(APP, "plan"))
    world.run()
    assert former not in world.objects
    before = foreign(world, former, labels(former.name))
    world.run()
    assert world.objects[former] == before


def test_the_stateful_set_is_shown_under_its_application():
    """It has an owner reference, which Orphan removes; neither causes a roll."""
    world = World()
    world.run()
    key = Key("StatefulSet", APP)
    (owner,) = world.objects[key]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("StreamsApp", APP, world.uid)
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, False)
    pods = [pod["metadata"]["uid"] for pod in world.pods()]
    world.change(deletionPolicy="Orphan")
    world.run()
    assert world.objects[key]["metadata"]["ownerReferences"] == []
    world.change(deletionPolicy="Retain")
    world.run()
    assert world.objects[key]["metadata"]["ownerReferences"] == [owner]
    assert [pod["metadata"]["uid"] for pod in world.pods()] == pods


def test_an_orphaned_application_is_taken_over_by_the_next():
    """Its pods keep running under the new StreamsApp, whose uid is set on the children; their group members stay the same."""
    world = World()
    world.change(deletionPolicy="Orphan")
    world.run()
    pods = [pod["metadata"]["uid"] for pod in world.pods()]
    world.delete()
    world.run(30)
    assert not world.exists
    world.recreate()
    world.run()
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Ready")[0] == "True"
    assert [pod["metadata"]["uid"] for pod in world.pods()] == pods
    assert world.condition("PodsCurrent")[0] == "True"


def test_a_finalizer_taken_off_by_force_leaves_children_that_have_to_be_handed_over():
    """The next StreamsApp of that name explains how to hand them over: they carry the uid of one that no longer exists."""
    world = World()
    world.run()
    world.exists = False
    world.recreate()
    world.run()
    assert world.condition("Stalled") == ("True", "NameTaken")
    assert f"-l {APP_LABEL}={APP} {APP_UID_LABEL}-" in world.message("Stalled")
    for item in world.objects.values():
        item["metadata"]["labels"].pop(APP_UID_LABEL, None)
    world.run()
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Ready")[0] == "True"


def test_pods_that_garbage_collection_has_not_come_to_are_waited_for():
    """A deleted StatefulSet leaves pods that refer to it: topics are not deleted while they run."""
    world = World()
    world.run()
    world.change(deletionPolicy="Purge")
    world.delete()
    del world.objects[Key("StatefulSet", APP)]
    world.pass_over()
    assert Key("Pod", f"{APP}-0") in [action.key for action in world.done(model.Delete)]
    assert world.done(model.DeleteTopics) == []
