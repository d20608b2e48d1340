"""Decisions about a reset: when it waits, when it is refused, and that it is done completely and only once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.resets.world import CHANGELOG, INPUT, OLD_CHANGELOG, REPARTITION, World

from millrace.manifest import StreamsResetSpec
from millrace.manifest.streamsreset import AppReference
from millrace.plan.reset import ActiveMember
from millrace_operator.children.naming import FINALIZER
from millrace_operator.model import Delete, DeleteTopics, DesiredReset, SetFinalizer
from millrace_operator.resets.reconciler import (
    PATIENCE_S,
    ObservedReset,
    PatchApp,
    question_for,
    reconcile_reset,
    with_problem,
)

KILLED = ActiveMember("m-1", "app-0.u-1", "app-0.u-StreamThread-1-consumer", "/10.0.0.1")
FOREIGN = ActiveMember("m-2", "app-0.x-1", "app-0.u-StreamThread-1-consumer", "/10.0.0.2")


def world(**fields):
    """Return a world with a reset; keyword arguments are fields of the reset's spec."""
    spec = {name: fields.pop(name) for name in list(fields) if name in StreamsResetSpec.model_fields}
    return World(StreamsResetSpec(app_ref=AppReference(name="app"), **spec), **fields)


def phase(this):
    """Return the reset's phase."""
    return this.reset_status.phase


def test_a_reset_deletes_all_that_holds_state():
    """Offsets, internal topics of all revisions, volumes and the operator's record of them are deleted; nothing else is."""
    this = world()
    this.run()
    assert phase(this) == "Succeeded"
    assert this.topics == {"in": 2, "out": 2}
    assert this.committed == {INPUT[0]: 10, INPUT[1]: 0}
    assert this.claims == {}
    assert (this.status.stable_revision, this.status.internal_topics) == (None, ())
    assert this.started == set()
    result = this.reset_status.result
    assert result.deleted_topics == tuple(sorted((REPARTITION, CHANGELOG, OLD_CHANGELOG)))
    assert result.deleted_volumes == ("state-app-0", "state-app-1")
    assert [(item.partition, item.offset) for item in result.offsets] == [(0, 10), (1, 0)]
    assert this.reset_status.completion_time is not None
    assert [event.reason for event in this.events] == ["ResetBegun", "ResetSucceeded"]


def test_a_reset_forgets_what_an_earlier_application_has_left():
    """The ids of its topics are forgotten along with the topics; a reset that keeps the topics keeps the ids."""
    this = world(earlier="{}")
    this.run()
    assert not this.earlier
    this = world(earlier="{}", delete_internal_topics=False)
    this.run()
    assert this.earlier


def test_plan_is_reported_before_anything_is_done():
    """The first pass only writes down what will be done, and adds the finalizer."""
    this = world()
    decision = this.pass_over()
    assert decision.actions == (SetFinalizer(present=True),)
    assert phase(this) == "Running"
    assert len(this.reset_status.plan.deleted_topics) == 3


def test_a_finished_reset_does_nothing_ever_again():
    """Once the application has run again, neither an operator restart nor another pass resets it a second time."""
    this = world()
    this.run()
    fresh = World(this.spec, reset_status=this.reset_status)
    for state in ("running", "suspended"):
        fresh.state = state
        assert fresh.pass_over() == reconcile_reset(*fresh.look())
        assert fresh.done == []


def test_a_reset_that_a_newer_operator_has_ended_stays_ended():
    """A completion time is enough, even if the phase is unknown."""
    this = world()
    this.run()
    this.reset_status = this.reset_status.model_copy(update={"phase": None, "conditions": ()})
    assert this.pass_over().actions == ()
    assert question_for(*this.look()) is None


@given(
    target=st.sampled_from(
        ["earliest", "latest", "offset:20", "shift:-7", "shift:3", "timestamp:2026-01-01T00:00:00Z"]
    ),
    crashes=st.lists(st.integers(0, 7), max_size=6),
    volumes=st.booleans(),
    topics=st.booleans(),
)
def test_a_crash_after_any_action_is_repaired(target, crashes, volumes, topics):
    """However often the operator dies between two actions, the outcome is that of a reset without a crash."""
    spec = {"to_offset": target, "delete_volumes": volumes or topics, "delete_internal_topics": topics}
    smooth, this = world(**spec), world(**spec)
    smooth.run()
    this.pass_over()
    for crash in crashes:
        if phase(this) != "Running":
            break
        this.pass_over(crash)
    this.run()
    assert phase(this) == "Succeeded"
    for name in ("topics", "committed", "claims", "status", "annotations"):
        assert getattr(this, name) == getattr(smooth, name)
    assert this.reset_status.result == smooth.reset_status.result


def test_an_operator_that_crashes_after_every_action_gets_there():
    """Each pass sees what earlier passes have done, so one action per pass is enough."""
    this = world(to_offset="shift:-5")
    for _ in range(20):
        if reconcile_reset(*this.look()).actions:
            this.pass_over(1)
        elif this.pass_over().again_after is None:
            break
        this.volumes_go()
    assert (phase(this), this.committed) == ("Succeeded", {INPUT[0]: 45, INPUT[1]: 0})
    assert len(this.done) == len({str(action) for action in this.done})


@given(
    state=st.sampled_from(["running", "suspended"]),
    members=st.sampled_from([(), (KILLED,)]),
    pods=st.sampled_from([(), ("app-0",)]),
    target=st.sampled_from(["earliest", "shift:-5"]),
    force=st.booleans(),
)
def test_a_dry_run_changes_nothing(state, members, pods, target, force):
    """It reports the same plan whether or not the application is running, and never has any actions."""
    this = world(state=state, members=members, pods=pods, dry_run=True, to_offset=target, force=force)
    this.run(passes=1)
    assert this.done == []
    assert phase(this) == "Succeeded"
    assert len(this.reset_status.plan.deleted_topics) == 3
    assert this.reset_status.result is None
    assert ("spec.state: suspended" in this.reset_status.message) == (state == "running")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"pods": ("app-0",)}, "app-0"),
        ({"stateful_set": (1, 1, 2, 0)}, "its StatefulSet"),
        ({"stateful_set": (2, 2, 0, 1)}, "its StatefulSet"),
        ({"stateful_set": (2, 1, 0, 0)}, "its StatefulSet"),
        ({"members": (KILLED,)}, "its group has 1 active member"),
        ({"problem": "No broker answered"}, "No broker answered"),
        ({"planned": False}, "topology of StreamsApp app is not known"),
        ({"before": ("StreamsReset older",)}, "StreamsReset older"),
        ({"annotations": {"streams.millrace.dev/pause": "true"}}, "streams.millrace.dev/pause"),
        ({"state": "running"}, "set its spec.state: suspended"),
    ],
)
def test_what_is_in_the_way_is_waited_for(fields, told):
    """While pods are stopping or may still start, members are in the group, or brokers do not answer, it waits and says why."""
    this = world(**fields)
    decision = this.pass_over()
    assert decision.again_after is not None
    assert (phase(this), this.done) == ("Waiting", [])
    assert told in this.reset_status.message
    for name in fields:
        setattr(this, name, getattr(world(), name))
    this.run()
    assert phase(this) == "Succeeded"


def test_of_many_pods_and_volumes_only_some_are_named():
    """A message has room for the names of a few hundred; without it the status could not be written."""
    this = world(pods=tuple(f"app-{index}" for index in range(4000)))
    this.pass_over()
    assert this.reset_status.message.endswith(" and 3995 more.")
    this.pods = ()
    this.claims |= {f"state-app-{index}": f"c-{index}" for index in range(4000)}
    for _ in range(20):
        this.pass_over()
    assert this.reset_status.message.startswith("Volumes are being deleted: state-app-0, ")
    assert this.reset_status.message.endswith(" and 3995 more.")


def test_a_stateful_set_that_asks_for_no_pods_is_not_in_the_way():
    """The StatefulSet stays while an application is suspended."""
    this = world(stateful_set=(2, 2, 0, 0))
    this.run()
    assert phase(this) == "Succeeded"


def test_members_that_were_killed_are_removed_if_that_is_wanted():
    """With `force`, members that are still in the group are removed first."""
    this = world(members=(KILLED,), force=True)
    this.run()
    assert (phase(this), this.members) == ("Succeeded", ())


def test_members_of_another_application_are_not_removed():
    """A member that is not one of this StreamsApp's pods, even if named like one, is waited for, also with `force`."""
    this = world(members=(KILLED, FOREIGN), force=True)
    this.pass_over()
    this.pass_over()
    assert (phase(this), this.members, this.done) == ("Waiting", (KILLED, FOREIGN), [])
    assert "(10.0.0.2, static app-0.x-1)" in this.reset_status.message


def test_members_that_kept_former_ids_are_its_own():
    """Taken-over pods use the ids of an earlier StreamsApp, which their StatefulSet records."""
    former = replace(FOREIGN, client_id="app-0.x-StreamThread-1-consumer")
    this = world(members=(KILLED, former), force=True, stateful_set=(2, 2, 0, 0), pods_uid="x")
    this.run()
    assert (phase(this), this.members) == ("Succeeded", ())


def test_members_that_a_deletion_has_left_are_its_own():
    """The record that an earlier StreamsApp of the same name left behind identifies its members, too."""
    this = world(members=(FOREIGN,), force=True, earlier='{"memberUids": ["x"]}')
    this.run()
    assert (phase(this), this.members) == ("Succeeded", ())


@pytest.mark.parametrize("force", [False, True])
def test_dry_run_lists_the_members_to_wait_for(force):
    """With `force` the application's own members would be removed; any others keep a reset from starting."""
    this = world(members=(KILLED, FOREIGN), force=force, dry_run=True)
    this.run(passes=1)
    waits, removes = (
        "Members that a reset waits for until they have left the group",
        "Members that are removed from the group",
    )
    told = [f"{removes}: {KILLED}", f"{waits}: {FOREIGN}"] if force else [f"{waits}: {KILLED}, {FOREIGN}"]
    assert sorted(this.reset_status.plan.notes) == sorted(told)


def test_a_reset_does_not_lie_in_wait():
    """If the application is not suspended soon, the reset is refused for good, and does not start when that happens later."""
    this = world(state="running")
    this.pass_over()
    this.now += PATIENCE_S - 1
    this.pass_over()
    assert phase(this) == "Waiting"
    this.now += 2
    this.pass_over()
    assert phase(this) == "Refused"
    this.state = "suspended"
    this.run()
    assert (phase(this), this.done) == ("Refused", [])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"exists": False}, "There is no StreamsApp app in namespace default"),
        ({"deleting": True}, "is being deleted"),
    ],
)
def test_a_reset_without_application_fails(fields, told):
    """There is nothing to reset and nothing to wait for."""
    this = world(**fields)
    this.run(passes=1)
    assert phase(this) == "Failed"
    assert told in this.reset_status.message


def test_an_invalid_reset_fails():
    """All the rules that the spec breaks are reported."""
    decision = reconcile_reset(
        DesiredReset("default", "again", "r-1", 1, None, ("toOffset must be earliest",)), ObservedReset(0.0)
    )
    assert (decision.status.phase, decision.status.message) == ("Failed", "toOffset must be earliest")


def test_an_application_that_is_started_midway_fails_the_reset():
    """Starting the application before the reset is done fails the reset, which says so; the remaining work is not done."""
    this = world()
    this.pass_over()
    this.pass_over(1)
    this.state = "running"
    this.run(passes=2)
    assert phase(this) == "Failed"
    assert "was started while the reset was under way" in this.reset_status.message
    this.state = "suspended"
    assert this.pass_over().actions == ()


def test_new_volumes_of_an_application_that_starts_again_are_left():
    """Once all is done and only old volumes are still being deleted, the application may start; its new volumes stay."""
    this = world()
    this.pass_over()
    this.pass_over()
    assert phase(this) == "Running"
    assert this.pass_over().actions == ()
    this.state, this.terminating = "running", {"state-app-1"}
    this.claims["state-app-0"] = "new"
    assert this.pass_over().again_after is not None
    this.volumes_go()
    this.run(passes=2)
    assert (phase(this), this.claims) == ("Succeeded", {"state-app-0": "new"})


def test_only_offsets_may_be_reset():
    """Without topics and volumes the operator keeps its record of the application's state, which stays."""
    this = world(delete_internal_topics=False, delete_volumes=False)
    this.run()
    assert not any(isinstance(action, DeleteTopics | Delete | PatchApp) for action in this.done)
    assert this.committed == {INPUT[0]: 10, INPUT[1]: 0}
    assert (this.status.stable_revision, this.started) == ("old", {"new", "old"})


def test_deleted_or_finished_reset_asks_no_brokers():
    """The brokers are asked only if nothing else blocks the reset."""
    this = world()
    desired, observed = this.look()
    assert question_for(desired, observed) is not None
    assert question_for(replace(desired, deleting=True), observed) is None
    this.run()
    assert question_for(*this.look()) is None
    running = world(state="running")
    assert question_for(*running.look()) is None


def test_too_many_partitions_are_not_shifted():
    """A shift whose offsets cannot be recorded would not survive a crash, so it is refused."""
    this = world(to_offset="shift:-1")
    this.topics["in"] = 1001
    partitions = [INPUT[0]._replace(partition=number) for number in range(1001)]
    this.begins, this.ends = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 9)
    this.run(passes=1)
    assert phase(this) == "Refused"
    assert "1001 partitions" in this.reset_status.message


def test_failed_action_is_reported():
    """The message says what failed, and the phase stays the same."""
    this = world()
    this.pass_over()
    status = with_problem(this.reset_status, "The principal may not delete topics")
    assert (status.phase, status.message) == (
        "Running",
        "Not all could be done yet: The principal may not delete topics",
    )


def begun(**fields):
    """Return a world with a reset that has started and was then deleted."""
    this = world(**fields)
    this.pass_over()
    assert (phase(this), this.finalizers) == ("Running", (FINALIZER,))
    this.deleted_at = this.now
    return this


def gone(this, seconds=120):
    """Let time pass, and return whether the deleted reset is gone."""
    end = this.now + seconds
    while this.finalizers and this.now < end:
        this.pass_over()
        this.now += 5
    return not this.finalizers


def test_a_reset_that_is_deleted_while_it_runs_is_finished():
    """Offsets, topics and volumes belong together: the reset is kept until all of them are done."""
    this = begun()
    assert gone(this, 20)
    assert this.topics.keys() == {"in", "out"}
    assert (this.committed[INPUT[0]], this.terminating) == (10, {"state-app-0", "state-app-1"})
    assert [event.reason for event in this.events] == ["ResetBegun", "ResetSucceeded"]


@pytest.mark.parametrize("fields", [{"problem": "No broker answered."}, {"members": (KILLED,)}, {"pods": ("app-0",)}])
def test_a_reset_that_is_deleted_and_cannot_be_finished_ends(fields):
    """It is retried for a minute; then what was not done is reported, with a remedy."""
    this = begun()
    for name, value in fields.items():
        setattr(this, name, value)
    assert not gone(this, 55)
    assert gone(this, 20)
    assert phase(this) == "Failed"
    assert "another StreamsReset" in this.reset_status.message
    assert this.events[-1].type == "Warning"


def test_a_reset_that_brokers_refuse_does_not_stay_for_ever_when_it_is_deleted():
    """After a minute, refused actions are given up; an operator that was away tries once."""
    this = begun()
    this.now += 3600
    decision = reconcile_reset(*this.look())
    assert any(isinstance(action, DeleteTopics) for action in decision.actions)
    this.reset_status = with_problem(this.reset_status, "the brokers refuse")
    assert gone(this)
    assert "the brokers refuse" in this.reset_status.message


def test_reset_that_has_not_started_is_deleted_immediately():
    """Nothing was done, so there is nothing to finish."""
    this = world(state="running")
    this.pass_over()
    this.deleted_at = this.now
    assert this.pass_over().actions == ()
    assert this.finalizers == ()


def test_a_reset_of_an_application_that_is_deleted_too_ends():
    """As when their namespace is deleted: only what the application's deletion policy says is still done."""
    this = begun()
    this.deleting = True
    assert gone(this, 20)
    assert phase(this) == "Failed"


def test_finalizer_that_was_dropped_is_put_back():
    """`kubectl replace` drops it, and without it a reset that is deleted half done would not be finished."""
    this = world()
    this.pass_over()
    this.finalizers = ()
    this.pass_over()
    assert this.finalizers == (FINALIZER,)
    this.run()
    assert (phase(this), this.finalizers) == ("Succeeded", ())
