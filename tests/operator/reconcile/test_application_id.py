"""An application id belongs to one StreamsApp, and its group has no foreign members."""

import pytest
from tests.operator.reconcile.world import APP, NAMESPACE, World

from millrace_operator import model
from millrace_operator.model import ConsumerGroupMember, Key, Neighbour

JAVA = ConsumerGroupMember("java", "host7-1", "10.0.0.3", "words-v1-1f-StreamThread-1-consumer")
CHANGELOG = "words-v1-counts-changelog"
STATEFUL_SET = Key("StatefulSet", APP)


def other(**fields):
    """Return a younger StreamsApp with the same application id, which does not run."""
    defaults = {"namespace": "other", "name": APP, "uid": "other", "created": "2026-01-03T00:00:00Z", "same_id": True}
    return Neighbour(**{**defaults, "runs": False, **fields})


OLDER = {"created": "2026-01-01T00:00:00Z"}
OLD_APP = {"namespace": NAMESPACE, "name": "old"}


def refused(world):
    """Return why the application does not start, having checked that it has no pods and no topics of its own."""
    world.run(60)
    assert world.pods() == []
    assert world.done(model.ProvisionTopics) == []
    return world.condition("ApplicationIdUnique")


@pytest.mark.parametrize(
    "neighbour",
    [other(**OLDER), other(runs=True), other(backfill="history"), other(created="2026-01-02T00:00:00Z", uid="aaa")],
)
def test_the_younger_of_two_does_not_begin(neighbour):
    """It reports which StreamsApp has its id, creates nothing, and starts once the other one is gone."""
    world = World(neighbours=(neighbour,))
    assert refused(world) == ("False", "DuplicateApplicationId")
    assert world.condition("Stalled") == ("True", "ApplicationIdInUse")
    assert "other/words" in world.message("ApplicationIdUnique")
    world.neighbours = ()
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert world.condition("ApplicationIdUnique") == ("True", "Unique")


def test_the_older_of_two_runs():
    """A younger StreamsApp that is not running does not keep the older one from starting."""
    world = World(neighbours=(other(),))
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_what_runs_is_not_stopped():
    """When two are already running, each reports the other and neither is touched."""
    world = World()
    world.run()
    before = [pod["metadata"]["uid"] for pod in world.pods()]
    world.neighbours = (other(**OLDER, runs=True),)
    world.run()
    assert [pod["metadata"]["uid"] for pod in world.pods()] == before
    assert world.condition("ApplicationIdUnique") == ("False", "DuplicateApplicationId")
    assert world.condition("Stalled")[0] == "False"


def test_group_with_foreign_members_is_not_joined():
    """Foreign members are named. They may come back after leaving, unless another restartNonce says that they will not."""
    world = World(group_exists=True, strangers=[JAVA])
    assert refused(world) == ("False", "GroupInUse")
    assert f"{JAVA.client_id} (10.0.0.3)" in world.message("ApplicationIdUnique")
    world.strangers = []
    assert refused(world) == ("Unknown", "MembersLeft")
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Reconciling") == ("True", "WaitingForHandover")
    world.change(restartNonce=1)
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_a_group_that_stays_empty_is_joined():
    """No confirmation is needed that the former members are gone for good: after a few minutes without them it starts."""
    world = World(group_exists=True, strangers=[JAVA])
    refused(world)
    world.strangers = []
    world.run(290)
    assert world.pods() == []
    world.run(120)
    assert world.condition("Ready")[0] == "True"
    assert world.condition("ApplicationIdUnique") == ("True", "Unique")


@pytest.mark.parametrize("reason", ["Unreachable", "Unknown"])
def test_those_who_come_back_to_a_group_keep_it(reason):
    """The wait starts when foreign members were last seen; brokers' silence counts only after an operator restart."""
    world = World(group_exists=True, strangers=[JAVA])
    refused(world)
    world.strangers = []
    world.run(200)
    world.strangers = [JAVA]
    assert refused(world) == ("False", "GroupInUse")
    world.strangers = []
    world.run(200)
    world.brokers_up, world.kafka_reason = False, reason
    world.run(60)
    world.brokers_up = True
    world.run(60)
    assert (world.pods() == []) == (reason == "Unreachable")
    world.run(300)
    assert world.condition("Ready")[0] == "True"


def test_a_suspended_application_gives_its_group_to_others():
    """While suspended, foreign members in its group are not an error; it does not start while they are there."""
    world = World()
    world.run()
    world.change(state="suspended")
    world.run()
    world.strangers = [JAVA]
    world.run(30)
    assert world.condition("Stalled")[0] == "False"
    world.change(state="running")
    world.run(30)
    assert world.pods() == []
    assert world.condition("ApplicationIdUnique") == ("False", "GroupInUse")


def test_an_application_scaled_to_zero_gives_its_group_to_others():
    """With no pods to start, it matches its spec and waits for nothing; it does not start while foreign members are there."""
    world = World()
    world.run()
    world.change(replicas=0)
    world.run(60)
    world.strangers = [JAVA]
    world.run(30)
    assert world.condition("ApplicationIdUnique") == ("False", "GroupInUse")
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Ready") == ("True", "ScaledToZero")
    world.change(replicas=1)
    world.run(30)
    assert world.pods() == []
    assert world.condition("Stalled") == ("True", "ApplicationIdInUse")


def test_members_of_the_applications_own_are_no_obstacle():
    """Static members outlive their pods for a while, and the pods come back to them."""
    world = World(group_exists=True, members={f"{APP}-0"})
    world.run()
    assert world.condition("Ready")[0] == "True"


def handed_over() -> World:
    """Return a world in which an application took over the pods, and their ids, of an earlier one."""
    world = World()
    world.change(deletionPolicy="Orphan")
    world.run()
    world.delete()
    world.run(30)
    world.recreate()
    world.run(30)
    return world


@pytest.mark.parametrize("reason", ["Unreachable", "Unknown"])
def test_former_ids_are_kept_while_the_members_are_unknown(reason):
    """Taken-over pods stop while the brokers are down: their members still count as the application's own afterwards."""
    world = handed_over()
    world.brokers_up, world.kafka_reason = False, reason
    world.change(state="suspended")
    world.run(60)
    assert (world.pods(), len(world.members)) == ([], 1)
    world.brokers_up = True
    world.run(30)
    assert world.members == set()
    world.change(state="running")
    world.run()
    assert world.condition("Ready")[0] == "True"


@pytest.mark.parametrize("uid", ["app1", ""], ids=["handed over", "older operator"])
@pytest.mark.parametrize("waits", [True, False], ids=["foreground", "background"])
def test_members_are_known_after_the_stateful_set_was_deleted(uid, waits):
    """Only the deleted StatefulSet knew the ids of its pods' members: they still count as its own and block no new pods."""
    world = handed_over()
    for item in (world.objects[STATEFUL_SET]["spec"]["template"], *world.pods()):
        arguments = item["spec"]["containers"][0]["args"]
        arguments[:] = [each.replace(".app1", f".{uid}" if uid else "") for each in arguments]
        if not uid:
            given = arguments.index("client.id=$(POD_NAME)")
            del arguments[given - 1 : given + 1]
    world.joined_as = {f"{APP}-0": f"{APP}-0.{uid}" if uid else f"{APP}-0"}
    world.run(30)
    for item in (world.objects[STATEFUL_SET], *world.pods()):
        item["metadata"]["deletionTimestamp"] = world.timestamp()
    if not waits:
        del world.objects[STATEFUL_SET]
    world.run(60)
    assert world.condition("Ready")[0] == "True"
    assert world.names("ConfigMap") == sorted(
        f"{APP}-{kind}-{world.status.stable_revision}" for kind in ("plan", "rev")
    )


def test_a_group_is_taken_over_when_it_is_empty():
    """With `handover` the application waits for the others to leave, says so, and then starts."""
    world = World(group_exists=True, strangers=[JAVA])
    world.change(handover={"from": {"group": True}})
    assert refused(world) == ("False", "HandoverPending")
    assert world.condition("Reconciling") == ("True", "WaitingForHandover")
    assert world.condition("Stalled")[0] == "False"
    world.strangers = []
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_a_rolling_handover_joins_at_once():
    """With `allowForeignMembers` the application joins the existing members."""
    world = World(group_exists=True, strangers=[JAVA], neighbours=(other(**OLDER, **OLD_APP, runs=True),))
    world.change(handover={"from": {"name": "old"}, "allowForeignMembers": True})
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert world.strangers == [JAVA]


def test_a_streams_app_is_taken_over_when_it_has_no_pods():
    """The other StreamsApp may continue to exist, suspended, even though it is older."""
    world = World(neighbours=(other(**OLDER, **OLD_APP, runs=True),))
    world.change(handover={"from": {"name": "old"}})
    assert refused(world) == ("False", "HandoverPending")
    assert f"{NAMESPACE}/old still has pods" in world.message("ApplicationIdUnique")
    world.neighbours = (other(**OLDER, **OLD_APP),)
    world.run()
    assert world.condition("Ready")[0] == "True"


@pytest.mark.parametrize("rolling", [False, True])
def test_a_streams_app_that_a_backfill_keeps_stopped_is_not_taken_over(rolling):
    """It has no pods, but the backfill writes to its group and changelogs: nothing starts before that is done."""
    world = World(neighbours=(other(**OLD_APP, backfill="history"),))
    world.change(handover={"from": {"name": "old"}, "allowForeignMembers": rolling})
    assert refused(world) == ("False", "HandoverPending")
    assert f"StreamsBackfill history keeps StreamsApp {NAMESPACE}/old stopped" in world.message("ApplicationIdUnique")
    assert not any(item["spec"]["replicas"] for item in world.objects.values() if item["kind"] == "StatefulSet")
    world.neighbours = (other(**OLD_APP),)
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_what_was_handed_over_does_not_begin_again():
    """The application that was taken over stays stopped, even though it is the older one."""
    world = World()
    world.run()
    world.change(state="suspended")
    world.run()
    world.neighbours = (other(takes_over=True),)
    world.change(state="running")
    world.run(30)
    assert world.pods() == []
    assert world.condition("ApplicationIdUnique") == ("False", "HandedOver")


def test_taking_a_handover_out_of_the_manifest_replaces_no_pod():
    """Removing it does not change the pods."""
    world = World()
    world.change(handover={"from": {"group": True}})
    world.run()
    before = [pod["metadata"]["uid"] for pod in world.pods()]
    del world.manifest["handover"]
    world.change()
    world.run()
    assert [pod["metadata"]["uid"] for pod in world.pods()] == before


def purge(world, seconds=300):
    """Delete the application with everything."""
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(seconds)
    assert not world.exists
    return [event.message for event in world.warnings if event.reason == "LeftToOthers"]


def test_purge_leaves_what_another_streams_app_has():
    """Topics and offsets shared with a StreamsApp of the same id are kept; volumes are deleted."""
    world = World()
    world.run()
    world.neighbours = (other(),)
    assert "StreamsApp other/words" in purge(world)[0]
    assert CHANGELOG in world.topics
    assert world.group_exists
    assert world.objects == {}


def test_purge_leaves_topics_that_another_one_reads():
    """A topic that another topology names is kept; the others are deleted."""
    world = World()
    world.run()
    world.topics["words-v1-b-changelog"] = world.topics[CHANGELOG]
    world.neighbours = (other(same_id=False, topics=frozenset({CHANGELOG, "lines"})),)
    assert f"{CHANGELOG} (other/words)" in purge(world)[0]
    assert CHANGELOG in world.topics
    assert not world.group_exists


def test_purge_leaves_a_group_in_which_others_are():
    """An outside application with the same id uses the topics: they are kept along with the group."""
    world = World()
    world.run()
    world.strangers = [JAVA]
    assert JAVA.client_id in purge(world)[0]
    assert CHANGELOG in world.topics
    assert world.group_exists


def test_purge_waits_for_members_that_were_killed():
    """Deletion waits for members whose session has to time out; then topics and group are deleted."""
    world = World()
    world.run()
    world.strangers = [JAVA]
    world.change(deletionPolicy="Purge")
    world.delete()
    world.run(45)
    assert world.exists
    world.strangers = []
    world.run(30)
    assert not world.exists
    assert CHANGELOG not in world.topics
    assert not world.group_exists
