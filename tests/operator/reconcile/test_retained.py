"""Records that outlive an application, so that the next one of its name is compared with it."""

import json

import pytest
from tests.operator.reconcile.world import APP, INPUT, Program, World, plan

from millrace_operator.children.config_maps import RETAINED_KEY
from millrace_operator.children.naming import ACCEPT_LOSS_ANNOTATION, APP_UID_LABEL, RETAINED_LABEL, STARTED_ANNOTATION
from millrace_operator.model import ConsumerGroupMember, Key, Topic

NEXT = "registry.example/words:2"
WINDOWED = plan(["counts"], kinds={"counts": "window"})
CHANGELOG = "words-v1-counts-changelog"
RECORD = Key("ConfigMap", f"{APP}.retained")


def ran(**fields):
    """Return a world whose application has run."""
    world = World(programs={NEXT: Program(plan=WINDOWED)})
    world.change(**fields)
    world.run()
    assert world.condition("Ready")[0] == "True"
    return world


def deleted(**fields):
    """Return a world whose application has run and was deleted."""
    world = ran(**fields)
    world.delete()
    world.run(200)
    assert not world.exists
    return world


@pytest.mark.parametrize("policy", ["Retain", "Orphan"])
def test_an_application_that_is_created_again_is_compared_with_what_ran_before(policy):
    """An incompatible topology is refused as for an upgrade in place, even though it is another StreamsApp."""
    world = ran()
    world.change(image=NEXT)
    world.run(60)
    refused = world.message("TopologyCompatible")
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")
    world.change(image="registry.example/words:1", deletionPolicy=policy)
    world.run()
    world.delete()
    world.run(200)
    pods = world.revisions()
    world.recreate(image=NEXT)
    world.run()
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")
    assert world.condition("Stalled") == ("True", "TopologyHeldBack")
    assert refused.splitlines()[0] in world.message("TopologyCompatible")
    assert world.revisions() == pods


def test_what_is_retained_is_labelled_as_that():
    """It has the label for retained records, and no uid of the deleted StreamsApp."""
    world = deleted()
    kept = [item for key, item in world.objects.items() if key.kind == "ConfigMap"]
    assert len(kept) == 2
    for item in kept:
        assert item["metadata"]["labels"][RETAINED_LABEL] == "true"
        assert APP_UID_LABEL not in item["metadata"]["labels"]
    record = json.loads(world.objects[RECORD]["data"][RETAINED_KEY])
    assert record["topicIds"] == {CHANGELOG: world.topics[CHANGELOG].id}


def test_what_is_retained_can_be_forgotten_as_the_message_says():
    """Whoever deleted volumes and topics on purpose may continue with any topology."""
    world = deleted()
    del world.topics[CHANGELOG]
    for key in [key for key in world.objects if key.kind == "PersistentVolumeClaim"]:
        del world.objects[key]
    world.recreate(image=NEXT)
    world.run(60)
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")
    command = world.message("TopologyCompatible").partition("kubectl delete configmap ")[2]
    for name in command.split():
        del world.objects[Key("ConfigMap", name)]
    world.run()
    assert world.condition("TopologyCompatible")[0] == "True"
    assert world.condition("Ready")[0] == "True"


def test_topic_that_was_recreated_meanwhile_is_found():
    """Its id differs from the one that the earlier application knew; the loss can be accepted as usual."""
    world = deleted()
    known = world.topics[CHANGELOG].id
    world.topics[CHANGELOG] = Topic("another", world.topics[INPUT].partitions, 1, world.topics[CHANGELOG].config)
    world.recreate()
    world.run(60)
    assert world.condition("TopicsReady") == ("False", "ChangelogLost")
    assert known in world.message("TopicsReady")
    assert world.pods() == []
    world.annotations[ACCEPT_LOSS_ANNOTATION] = known
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_compatible_application_continues_and_its_record_is_deleted():
    """Once its revision is stable its own status is enough; the earlier application's records are deleted."""
    world = deleted()
    world.recreate()
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert world.status.stable_revision is not None
    assert RECORD not in world.objects
    plans = [item for key, item in world.objects.items() if key.kind == "ConfigMap"]
    assert all(item["metadata"]["labels"][APP_UID_LABEL] == world.uid for item in plans)
    assert not any(RETAINED_LABEL in item["metadata"]["labels"] for item in plans)


def test_what_is_retained_survives_a_second_deletion():
    """An application that was created again but never ran leaves the records as they were."""
    world = deleted()
    before = {key: item["metadata"]["uid"] for key, item in world.objects.items()}
    world.recreate(image=NEXT)
    world.run(60)
    world.delete()
    world.run(200)
    assert {key: item["metadata"]["uid"] for key, item in world.objects.items()} == before
    world.recreate(image=NEXT)
    world.run(60)
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")


@pytest.mark.parametrize("again", [False, True])
def test_purge_removes_what_is_retained(again):
    """Records are deleted along with the state, including those of an earlier application."""
    world = deleted() if again else ran()
    if again:
        world.recreate()
        world.run(10)
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(300)
    assert not world.exists
    assert world.objects == {}


def test_nothing_is_retained_when_claims_and_topics_go():
    """There is no state left that a topology could misread."""
    world = ran(storage={"retention": {"whenDeleted": "Delete"}}, internalTopics={"deletionPolicy": "Delete"})
    world.delete()
    world.run(300)
    assert world.names("ConfigMap") == []


def test_ids_of_topics_that_go_are_not_retained():
    """The next application creates the topics again, but its plan is still compared because of the volumes."""
    world = ran(internalTopics={"deletionPolicy": "Delete"})
    world.delete()
    world.run(300)
    assert json.loads(world.objects[RECORD]["data"][RETAINED_KEY])["topicIds"] == {}
    world.recreate()
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_an_application_that_never_ran_leaves_nothing():
    """Its plan describes no state."""
    world = World()
    world.change(state="suspended")
    world.run(60)
    world.delete()
    world.run(200)
    assert world.objects == {}


def left_behind():
    """Return a world whose application was deleted while its brokers were down, so that its members are still in the group."""
    world = ran()
    world.brokers_up = False
    world.delete()
    world.run(300)
    assert not world.exists
    assert world.members
    world.brokers_up = True
    return world


def test_members_that_a_deletion_has_left_are_removed():
    """The next application of that name recognises them as the earlier one's, and starts once they are gone."""
    world = left_behind()
    world.recreate()
    world.pass_over()
    assert world.condition("ApplicationIdUnique") == ("False", "HandoverPending")
    assert world.condition("Reconciling") == ("True", "WaitingForHandover")
    assert world.condition("Stalled")[0] == "False"
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert world.condition("ApplicationIdUnique") == ("True", "Unique")
    assert set(world.joined_as.values()) == {"words-0.app2"}


def test_members_that_cannot_be_removed_are_waited_for_and_no_longer():
    """A member that is not static leaves when its session expires; the next application then starts with no manifest change."""
    world = left_behind()
    world.members.clear()
    world.strangers = [ConsumerGroupMember("m", None, "10.0.0.9", "words-0.app1-StreamThread-1-consumer")]
    world.recreate()
    world.run(60)
    assert world.pods() == []
    assert "words-0.app1" in world.message("ApplicationIdUnique")
    world.strangers.clear()
    world.run(60)
    assert world.condition("Ready")[0] == "True"


def test_members_are_known_after_two_deletions():
    """An application that was created again but never ran keeps the record of the earlier members, too."""
    world = left_behind()
    world.brokers_up = False
    world.recreate()
    world.run(30)
    world.delete()
    world.run(300)
    assert not world.exists
    world.brokers_up = True
    world.recreate()
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_members_without_a_uid_are_foreign_to_the_next_application():
    """They may belong to a namesake in another namespace: they are reported and not removed."""
    world = left_behind()
    world.members.clear()
    world.strangers = [ConsumerGroupMember("m", "words-0", "10.0.0.9", "words-0-StreamThread-1-consumer", "words-0-1")]
    world.recreate()
    world.run(60)
    assert world.condition("ApplicationIdUnique") == ("False", "GroupInUse")
    assert len(world.strangers) == 1


def test_failed_revision_does_not_count_as_stable():
    """After a rollback the stable revision is the one whose state must be kept, and it may always be deployed again."""
    world = World(programs={NEXT: Program(plan=plan(["counts", "totals"]), crashes=True)})
    world.run()
    world.change(image=NEXT)
    world.run(300)
    assert world.condition("RolledBack")[0] == "True"
    world.delete()
    world.run(200)
    world.recreate(image="registry.example/words:1")
    world.run()
    assert world.condition("TopologyCompatible")[0] == "True"
    assert world.condition("Ready")[0] == "True"


def test_a_restored_plan_with_an_old_uid_counts():
    """A backup restores volumes, topics and plans, but the StreamsApp has a new uid: the plan still describes the state."""
    world = ran()
    plans = {
        key: item
        for key, item in world.objects.items()
        if STARTED_ANNOTATION in item["metadata"].get("annotations", {})
    }
    claims = {key: item for key, item in world.objects.items() if key.kind == "PersistentVolumeClaim"}
    world.delete()
    world.run(200)
    world.objects = {**plans, **claims}
    world.recreate(image=NEXT)
    world.run(60)
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")
