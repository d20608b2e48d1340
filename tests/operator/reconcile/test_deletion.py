"""What deletion keeps and what it deletes."""

import pytest
from tests.operator.reconcile.world import INPUT, World

from millrace_operator import model
from millrace_operator.children.naming import APP_UID_LABEL
from millrace_operator.model import ConsumerGroupMember, Decision, Key
from millrace_operator.reconcile.reconciler import reconcile

CHANGELOG = "words-v1-counts-changelog"


@pytest.fixture
def world():
    """A healthy application with two pods, and a topic that merely looks like one of its own."""
    world = World()
    world.change(replicas=2)
    world.topics["words-v1-counts-changelog-of-mine"] = world.topics[INPUT]
    world.run()
    world.log.clear()
    return world


def delete(world, policy="Retain", **fields):
    """Delete the application with a policy and wait until it is gone."""
    world.change(deletionPolicy=policy, **fields)
    world.delete()
    world.run(300)


def test_retain_keeps_state(world):
    """Pods and their supporting objects are deleted; claims, topics, offsets and the record of them stay; members are removed."""
    revision = world.status.stable_revision
    delete(world)
    assert not world.exists
    assert {key.kind for key in world.objects} == {"PersistentVolumeClaim", "ConfigMap"}
    assert world.names("ConfigMap") == [f"words-plan-{revision}", "words.retained"]
    assert len(world.names("PersistentVolumeClaim")) == 2
    assert CHANGELOG in world.topics
    assert world.group_exists
    assert world.members == set()


def test_state_that_was_retained_is_used_again(world):
    """An application with the same name reuses volumes and topics."""
    delete(world)
    ids = {name: topic.id for name, topic in world.topics.items()}
    world.recreate()
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert {name: topic.id for name, topic in world.topics.items()} == ids
    assert len(world.names("PersistentVolumeClaim")) == 2


def test_purge_leaves_nothing_but_the_users_own(world):
    """Claims, internal topics and the group are deleted too; input topics and topics with other names stay."""
    delete(world, "Purge")
    assert not world.exists
    assert world.objects == {}
    assert set(world.topics) == {INPUT, "words-v1-counts-changelog-of-mine"}
    assert not world.group_exists


def test_purge_deletes_topics_only_when_nothing_writes_any_more(world):
    """Pods go first, then members, then topics."""
    delete(world, "Purge")
    kinds = [
        f"{type(action).__name__} {action.key.kind}" if isinstance(action, model.Delete) else type(action).__name__
        for action in world.log
    ]
    order = ["Delete StatefulSet", "RemoveMembers", "DeleteTopics", "DeleteGroup", "Delete ConfigMap"]
    places = [kinds.index(kind) for kind in order]
    assert places == sorted(places)
    assert kinds[-1] == "SetFinalizer"


def test_orphan_leaves_everything(world):
    """No child is deleted or otherwise changed; they only lose the StreamsApp's uid, so that another one may adopt them."""
    before = {key: (item["metadata"]["uid"], item.get("spec")) for key, item in world.objects.items()}
    world.change(deletionPolicy="Orphan")
    world.delete()
    world.run(30)
    assert not world.exists
    after = {key: (item["metadata"]["uid"], item.get("spec")) for key, item in world.objects.items()}
    assert {key: after[key] for key in before} == before
    assert [key.name for key in after.keys() - before.keys()] == ["words.retained"]
    assert not any(APP_UID_LABEL in item["metadata"]["labels"] for item in world.objects.values())
    assert world.objects[Key("StatefulSet", "words")]["metadata"]["ownerReferences"] == []
    assert world.log[-1] == model.SetFinalizer(present=False)
    assert world.done(model.Delete) == []


@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_members_of_others_stay(world, policy):
    """Only members of this very StreamsApp are removed: not those of a successor, a Java application or a namesake."""
    world.strangers = [
        ConsumerGroupMember("b", "words-b-0", "10.0.0.2", "words-b-0.app-StreamThread-1-consumer"),
        ConsumerGroupMember("java", "java-app-host7", "10.0.0.3", "java-app-1f-StreamThread-1-consumer"),
        ConsumerGroupMember("namesake", "words-0", "10.0.0.4", "words-0.other-StreamThread-1-consumer"),
        ConsumerGroupMember("dynamic", None, "10.0.0.5", "tool"),
    ]
    before = list(world.strangers)
    delete(world, policy)
    assert not world.exists
    assert (world.strangers, world.members) == (before, set())


@pytest.mark.parametrize("pods_go_first", [False, True])
@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_members_that_kept_former_ids_are_removed(world, policy, pods_go_first):
    """Taken-over pods use the ids of an earlier StreamsApp, which only they and their StatefulSet know."""
    delete(world, "Orphan")
    world.recreate()
    world.run(30)
    assert {each.partition(".")[2] for each in world.joined_as.values()} == {"app1"}
    if pods_go_first:
        world.brokers_up = False
        world.change(deletionPolicy=policy)
        world.delete()
        world.run(30)
        assert (world.pods(), len(world.members)) == ([], 2)
        world.brokers_up = True
    delete(world, policy)
    assert not world.exists
    assert world.members == set()
    assert world.group_exists == (policy == "Retain")
    assert (world.objects == {}) == (policy == "Purge")


def test_members_that_kept_former_ids_are_removed_after_a_crash(world):
    """The ids survive a crash although the pods may be gone right after the first pass."""
    delete(world, "Orphan")
    world.recreate()
    world.run(30)
    world.change(deletionPolicy="Retain")
    world.delete()
    world.pass_over(1)
    assert Key("StatefulSet", "words") not in world.objects
    world.pass_over()
    world.settle()
    world.run(300)
    assert not world.exists
    assert world.members == set()


def test_claims_and_topics_can_go_with_the_application(world):
    """storage.retention.whenDeleted and internalTopics.deletionPolicy each decide for themselves."""
    delete(world, storage={"retention": {"whenDeleted": "Delete"}}, internalTopics={"deletionPolicy": "Delete"})
    assert world.names("PersistentVolumeClaim") == []
    assert CHANGELOG not in world.topics
    assert world.group_exists


@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_deletion_ends_though_no_broker_answers(world, policy):
    """The finalizer is removed a minute after the pods' grace period, and a Warning says what was left behind."""
    world.brokers_up = False
    world.change(deletionPolicy=policy)
    world.delete()
    world.run(115)
    assert world.exists
    world.run(10)
    assert not world.exists
    assert CHANGELOG in world.topics
    assert ("KafkaLeftBehind", "Warning") in [(event.reason, event.type) for event in world.warnings]


def test_brokers_that_refuse_do_not_hold_deletion_up_forever(world):
    """After repeated refusals the operator gives up, and no action that could fail again comes before the finalizer."""
    world.refused = True
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(60)
    assert world.exists
    world.run(300)
    assert not world.exists
    assert CHANGELOG in world.topics
    assert "KafkaLeftBehind" in [event.reason for event in world.warnings]


def test_brokers_that_refuse_an_operator_that_was_away_are_asked_once(world):
    """Even after the deadline, whatever was never tried is tried once."""
    world.refused = True
    world.change(deletionPolicy="Purge")
    world.delete()
    world.tick(3600)
    world.run(30)
    assert len(world.done(model.RemoveMembers)) == 1
    assert not world.exists
    assert "KafkaLeftBehind" in [event.reason for event in world.warnings]


def test_topics_that_come_back_do_not_hold_deletion_up_forever(world):
    """If somebody recreates topics as often as they are deleted, they are left in the end, also after the operator was away."""
    world.change(deletionPolicy="Purge")
    world.delete()
    world.tick(3600)
    for _ in range(10):
        world.topics.setdefault(CHANGELOG, world.topics[INPUT])
        world.pass_over()
        world.settle()
    assert not world.exists
    assert len(world.done(model.DeleteTopics)) == 1


def test_brokers_that_come_back_in_time_are_still_asked(world):
    """Deletion finishes all of its work within its time limit."""
    world.brokers_up = False
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(30)
    world.brokers_up = True
    world.run(60)
    assert not world.exists
    assert CHANGELOG not in world.topics


def test_brokers_are_waited_for_when_pods_took_all_their_time(world):
    """The time that pods take to stop does not shorten the time allowed for the brokers."""
    world.brokers_up, world.stuck = False, True
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(60)
    world.stuck = False
    world.run(30)
    world.brokers_up = True
    world.run(10)
    assert not world.exists
    assert CHANGELOG not in world.topics


@pytest.mark.parametrize("reason", ["Unknown", "Unreachable"])
def test_brokers_are_waited_for_by_an_operator_that_was_away(world, reason):
    """Even past the deadline, brokers that were not asked yet, or have only just failed, get some time to answer."""
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(0)
    world.tick(3600)
    world.brokers_up, world.kafka_reason = False, reason
    world.run(50)
    assert world.exists
    world.brokers_up = True
    world.run(10)
    assert not world.exists
    assert CHANGELOG not in world.topics


@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_brokers_that_are_never_asked_are_not_waited_for_forever(world, policy):
    """If operators keep dying before the brokers answer, the resource is kept for a few minutes at most."""
    world.brokers_up, world.kafka_reason = False, "Unknown"
    world.change(deletionPolicy=policy)
    world.delete()
    world.run(600)
    assert world.exists
    world.run(120)
    assert not world.exists
    assert "KafkaLeftBehind" in [event.reason for event in world.warnings]


def test_time_to_ask_brokers_starts_with_the_deletion(world):
    """An earlier outage of the brokers does not shorten the time the operator has to ask them."""
    world.brokers_up = False
    world.run(3600, step=60)
    world.kafka_reason = "Unknown"
    world.delete()
    world.run(120)
    assert world.exists
    world.brokers_up = True
    world.run(10)
    assert not world.exists
    assert world.members == set()


def test_a_pod_that_does_not_end_is_not_waited_for_forever(world):
    """A lost node keeps its pods; the finalizer is removed some time after their grace period."""
    world.stuck = True
    world.delete()
    world.run(150)
    assert world.exists
    world.run(100)
    assert not world.exists
    assert len(world.names("PersistentVolumeClaim")) == 2


def test_a_stateful_set_that_waits_for_its_pods_is_not_waited_for_forever(world):
    """Deleted with `kubectl delete --cascade=foreground`, it exists as long as a pod on a lost node does."""
    world.stuck = True
    world.delete()
    for key in [Key("StatefulSet", "words"), Key("Pod", "words-0"), Key("Pod", "words-1")]:
        world.objects[key]["metadata"]["deletionTimestamp"] = world.timestamp()
    world.run(150)
    assert world.exists
    world.run(100)
    assert not world.exists
    assert "PodsLeftBehind" in [event.reason for event in world.warnings]


def test_pods_deleted_late_by_an_absent_operator_get_their_grace_period(world):
    """Nothing is deleted while pods still run: their grace period starts when they were told to stop."""
    world.change(deletionPolicy="Purge")
    world.delete()
    world.tick(3600)
    world.stuck = True
    world.run(60)
    assert len(world.pods()) == 2
    assert "PodsLeftBehind" not in [event.reason for event in world.warnings]
    assert [action.key.kind for action in world.done(model.Delete)] == ["StatefulSet"]
    world.run(120)
    assert "PodsLeftBehind" in [event.reason for event in world.warnings]


def test_an_application_that_never_started(world):
    """A resource whose first actions were never carried out is released at once."""
    world = World()
    world.pass_over(1)
    world.delete()
    world.run(30)
    assert not world.exists
    assert world.objects == {}


def test_an_application_that_never_reached_its_brokers():
    """Brokers that never answered cannot hold anything of the application, so they are not waited for."""
    world = World(topics={})
    world.brokers_up = False
    world.run(30)
    world.delete()
    world.run(10)
    assert not world.exists
    assert "KafkaLeftBehind" not in [event.reason for event in world.warnings]


def test_a_spec_that_cannot_be_read_is_deleted_like_retain(world):
    """Its policy is unknown, so nothing persistent is deleted."""
    desired = world.desired()
    world.delete()
    broken = model.DesiredApp(
        namespace=desired.namespace,
        name=desired.name,
        uid=desired.uid,
        generation=9,
        status=desired.status,
        spec=None,
        problems=("spec.image: is missing",),
        finalizers=world.finalizers,
        deleting=True,
        deletion_time=world.now,
    )
    kinds = set()
    for _ in range(10):
        decision = reconcile(broken, world.observed())
        kinds |= {type(action) for action in decision.actions}
        world.carry_out(decision)
        world.settle()
        world.tick(5)
    assert not world.exists
    assert kinds == {model.Apply, model.Delete, model.Release, model.SetFinalizer}
    assert len(world.names("PersistentVolumeClaim")) == 2


def test_a_resource_that_is_being_deleted_by_others_is_left_alone(world):
    """Without the operator's finalizer there is nothing left to do."""
    world.finalizers = ()
    world.deleted_at = world.now
    assert reconcile(world.desired(), world.observed()) == Decision()


def test_a_paused_application_can_be_deleted(world):
    """Pausing does not delay an explicit deletion."""
    world.annotations["streams.millrace.dev/pause"] = "true"
    delete(world)
    assert not world.exists
