"""Replacing pods of the current revision: for changed certificates, and for a template that is built differently."""

from __future__ import annotations

import pytest
from tests.operator.reconcile.world import APP, Program, World

from millrace_operator import model
from millrace_operator.children import pod
from millrace_operator.children.naming import TEMPLATE_ANNOTATION


@pytest.fixture
def world():
    """A healthy application with three pods, whose certificates have just changed."""
    world = World()
    world.change(replicas=3)
    world.run()
    assert world.condition("Ready")[0] == "True"
    world.most_pods_down = 0
    world.log.clear()
    world.renew_certificates()
    return world


def deleted_pods(world):
    """Return the names of the deleted pods, in order."""
    return [action.key.name for action in world.done(model.Delete) if action.key.kind == "Pod"]


def test_pods_are_restarted_one_by_one_for_new_certificates(world):
    """Each is restarted once, highest ordinal first; the revision stays, no member is removed, and then nothing is left to do."""
    revisions = world.revisions()
    world.pass_over()
    assert world.condition("Reconciling") == ("True", "RenewingCredentials")
    assert world.status.lifecycle_state == "RollingOut"
    world.run()
    assert deleted_pods(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]
    assert world.most_pods_down == 1
    assert world.revisions() == revisions
    assert world.done(model.RemoveMembers) == []
    assert world.condition("Reconciling")[0] == "False"
    assert world.pass_over().actions == ()


def test_the_gate_of_a_roll_holds(world):
    """No pod is deleted while tasks restore."""
    world.restoring = {f"{APP}-0": 1}
    world.run(60)
    assert deleted_pods(world) == []
    assert world.condition("Reconciling") == ("True", "WaitingForGate")
    world.restoring = {}
    world.run()
    assert len(deleted_pods(world)) == 3


def test_certificates_that_do_not_do_cost_one_pod(world):
    """If the first pod does not become ready with the new certificates, the others keep the old ones."""
    world.taken = "old"
    world.run(1200)
    assert deleted_pods(world) == [f"{APP}-2"]
    assert world.condition("Ready")[0] == "False"
    world.taken = "both"
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert sorted(set(deleted_pods(world))) == [f"{APP}-{index}" for index in range(3)]


def test_nothing_is_restarted_while_brokers_are_away(world):
    """A new pod could not become ready."""
    world.brokers_up = False
    world.run(600)
    assert deleted_pods(world) == []
    world.brokers_up = True
    world.run()
    assert len(deleted_pods(world)) == 3


def test_pods_that_the_old_certificates_have_cut_off_do_not_wait(world):
    """Once brokers reject the old certificates, pods can never become ready, so the gate is not waited for."""
    world.taken = "new"
    world.run(30)
    assert len(deleted_pods(world)) == 3
    assert world.condition("Ready")[0] == "True"


@pytest.fixture
def upgraded(monkeypatch):
    """A healthy application with three pods, whose operator was just replaced by one that builds pods differently."""
    world = World()
    world.change(replicas=3)
    world.run()
    assert world.condition("PodsCurrent") == ("True", "TemplateInUse")
    world.most_pods_down = 0
    world.log.clear()
    build_differently(monkeypatch)
    world.renewal = "Now"
    return world


def build_differently(monkeypatch, timeout=7):
    """Give probes another timeout than the operator that created the pods."""
    before = pod.PROBES
    changed = {name: {**probe, "timeoutSeconds": timeout} for name, probe in before.items()}
    monkeypatch.setattr(pod, "PROBES", changed)


def run_until_pods_are_replaced(world, count):
    """Run until this many pods have been deleted."""
    for _ in range(60):
        if len(deleted_pods(world)) >= count:
            return
        world.tick(5)
        world.run(0)
    pytest.fail(f"deleted: {deleted_pods(world)}")


def timeouts(world):
    """Return the timeouts of the pods' liveness probes."""
    return [item["spec"]["containers"][0]["livenessProbe"].get("timeoutSeconds") for item in world.pods()]


def test_a_template_that_is_built_differently_reaches_all_pods_one_by_one(upgraded):
    """Each is replaced once, highest ordinal first; revision and members stay, and then nothing is left to do."""
    revisions = upgraded.revisions()
    upgraded.run(10)
    assert upgraded.condition("PodsCurrent") == ("False", "RenewalUnderWay")
    assert upgraded.condition("Reconciling")[0] == "True"
    assert upgraded.status.lifecycle_state == "RollingOut"
    upgraded.run()
    assert deleted_pods(upgraded) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]
    assert timeouts(upgraded) == [7, 7, 7]
    assert upgraded.most_pods_down == 1
    assert upgraded.revisions() == revisions
    assert upgraded.done(model.RemoveMembers) == []
    assert upgraded.condition("PodsCurrent") == ("True", "TemplateInUse")
    assert upgraded.condition("Reconciling")[0] == "False"
    decision = upgraded.pass_over()
    assert decision.actions == ()
    assert decision.renewal is None


def test_pods_of_an_operator_that_gave_templates_no_hash_are_replaced_too(world, monkeypatch):
    """Nothing records which template they were created from."""
    world.stale.clear()
    for item in (*world.pods(), world.objects[model.Key("StatefulSet", APP)]["spec"]["template"]):
        del item["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    world.renewal = "Now"
    world.run()
    assert deleted_pods(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]
    assert world.most_pods_down == 1


@pytest.mark.parametrize(
    ("turn", "words"), [("Waits", "until it is the application's turn"), ("Never", "restartNonce")]
)
def test_without_a_permit_an_application_keeps_its_pods(upgraded, turn, words):
    """They keep running; the condition says how many wait and for what; a permit is requested; the status is not rewritten."""
    upgraded.renewal = turn
    upgraded.run(600)
    assert deleted_pods(upgraded) == []
    assert upgraded.condition("Ready")[0] == "True"
    assert upgraded.condition("Reconciling")[0] == "False"
    assert upgraded.condition("ScalingAllowed")[0] == "True"
    assert upgraded.condition("PodsCurrent") == ("False", "TemplateOutdated")
    assert "3 of 3 pods" in upgraded.message("PodsCurrent")
    assert words in upgraded.message("PodsCurrent")
    assert [event.type for event in upgraded.events if event.reason == "TemplateOutdated"] == ["Normal"]
    before = upgraded.status
    decision = upgraded.pass_over()
    assert decision.actions == ()
    assert decision.status == before
    assert decision.renewal == model.Renewal(left=3, coming=False)


def test_a_new_revision_takes_the_new_template_along(upgraded):
    """Pods that are replaced for a changed spec are not replaced again for the template."""
    upgraded.change(image="registry.example/words:2")
    upgraded.run()
    assert len(deleted_pods(upgraded)) == 3
    assert timeouts(upgraded) == [7, 7, 7]
    assert upgraded.condition("PodsCurrent") == ("True", "TemplateInUse")


def test_a_change_of_the_spec_while_pods_are_renewed_replaces_the_others_once(upgraded):
    """Only the pod that was already renewed is replaced twice."""
    run_until_pods_are_replaced(upgraded, 1)
    upgraded.change(image="registry.example/words:2")
    upgraded.run(240)
    assert sorted(deleted_pods(upgraded)) == [f"{APP}-0", f"{APP}-1", f"{APP}-2", f"{APP}-2"]
    assert upgraded.condition("PodsCurrent") == ("True", "TemplateInUse")
    assert upgraded.most_pods_down == 1


def test_the_gate_of_a_roll_holds_for_a_template(upgraded):
    """No pod is deleted while tasks restore, and the application keeps its permit."""
    upgraded.restoring = {f"{APP}-0": 1}
    upgraded.run(60)
    assert deleted_pods(upgraded) == []
    assert upgraded.condition("Reconciling") == ("True", "WaitingForGate")
    assert upgraded.pass_over().renewal == model.Renewal(left=3, coming=False)
    upgraded.restoring = {}
    upgraded.run()
    assert len(deleted_pods(upgraded)) == 3


def test_a_template_by_which_pods_do_not_come_up_costs_one_pod(upgraded):
    """The failing pod and its reason are reported; others stay; no revision is blamed; renewal resumes once it is ready."""
    upgraded.programs["registry.example/words:1"] = Program(crashes=True)
    upgraded.start_pods = lambda: None  # running pods do not notice
    run_until_pods_are_replaced(upgraded, 1)
    del upgraded.start_pods
    others = [upgraded.objects.pop(model.Key("Pod", f"{APP}-{index}")) for index in (0, 1)]
    upgraded.start_pods()
    for each in others:
        upgraded.objects[model.Key("Pod", each["metadata"]["name"])] = each
    upgraded.start_pods = lambda: None
    upgraded.run(1200)
    assert deleted_pods(upgraded) == [f"{APP}-2"]
    assert upgraded.condition("Stalled") == ("True", "RenewalFailed")
    assert f"Pod {APP}-2 crashes" in upgraded.message("Stalled")
    assert f"left as they are: {APP}-0, {APP}-1." in upgraded.message("Stalled")
    assert upgraded.condition("RolledBack")[0] == "False"
    assert upgraded.pass_over().renewal == model.Renewal(left=2, coming=True)
    upgraded.renewal = "Waits"  # no progress for a long time: the permit goes to other applications
    upgraded.run(60)
    assert upgraded.condition("Stalled") == ("True", "RenewalFailed")
    del upgraded.start_pods
    upgraded.programs.clear()
    upgraded.objects[model.Key("Pod", f"{APP}-2")]["status"].clear()
    upgraded.run(30)
    assert upgraded.condition("Stalled")[0] == "False"
    assert deleted_pods(upgraded) == [f"{APP}-2"]
    upgraded.renewal = "Now"
    upgraded.run()
    assert deleted_pods(upgraded) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]


def test_a_single_pod_that_does_not_come_up_keeps_the_turn(monkeypatch):
    """All pods use the new template, but it is not known to work yet, so the next application does not start."""
    world = World()
    world.run()
    build_differently(monkeypatch)
    world.renewal = "Now"
    world.log.clear()
    world.programs["registry.example/words:1"] = Program(becomes_ready=False)
    world.start_pods = lambda: None  # the running pod does not notice
    run_until_pods_are_replaced(world, 1)
    del world.start_pods
    world.run(300)
    assert world.pass_over().renewal == model.Renewal(left=0, coming=True)
    assert world.condition("Stalled") == ("True", "RenewalFailed")
    assert world.status.lifecycle_state == "Failed"


def test_a_turn_lasts_until_the_last_pod_has_run_well(upgraded):
    """A pod that has only just become ready may still crash."""
    upgraded.change(upgrade={"gate": {"minStable": "30s"}})
    run_until_pods_are_replaced(upgraded, 3)
    upgraded.settle()
    decision = upgraded.pass_over()
    assert timeouts(upgraded) == [7, 7, 7]
    assert decision.renewal is not None
    upgraded.run(60)
    assert upgraded.pass_over().renewal is None


@pytest.mark.parametrize(
    "stop",
    [
        lambda world: world.annotations.update({"streams.millrace.dev/pause": "true"}),
        lambda world: world.change(state="suspended"),
        lambda world: world.change(image="registry.example/unplanned:1"),
        lambda world: world.delete(),
    ],
    ids=["paused", "suspended", "held back", "deleted"],
)
def test_an_application_that_must_not_roll_asks_for_no_turn(upgraded, stop):
    """Paused, suspended, held back or being deleted: other applications get the permit."""
    upgraded.programs["registry.example/unplanned:1"] = Program(plan=None)
    upgraded.run(0)
    stop(upgraded)
    before = deleted_pods(upgraded)
    decisions = [upgraded.run(0) for _ in range(3)]
    assert decisions[-1].renewal is None
    assert deleted_pods(upgraded)[len(before) :] == []


def test_nothing_is_renewed_while_brokers_are_away(upgraded):
    """A new pod could not become ready."""
    upgraded.brokers_up = False
    upgraded.run(600)
    assert deleted_pods(upgraded) == []
    upgraded.brokers_up = True
    upgraded.run()
    assert len(deleted_pods(upgraded)) == 3


def test_pod_that_restarted_by_chance_is_not_replaced_again(upgraded):
    """An evicted pod comes back with the new template; only the others still have to be replaced."""
    upgraded.renewal = "Waits"
    upgraded.run(10)
    del upgraded.objects[model.Key("Pod", f"{APP}-1")]
    upgraded.run(30)
    assert "2 of 3 pods" in upgraded.message("PodsCurrent")
    upgraded.renewal = "Now"
    upgraded.run()
    assert deleted_pods(upgraded) == [f"{APP}-2", f"{APP}-0"]


def test_a_revision_becomes_stable_while_its_pods_wait_to_be_renewed(monkeypatch):
    """Whether a revision is stable does not depend on which operator version built its pods."""
    world = World()
    world.change(upgrade={"gate": {"minStable": "60s"}})
    world.run(30)
    assert world.status.stable_revision is None
    build_differently(monkeypatch)
    world.renewal = "Waits"
    world.run(120)
    assert world.status.stable_revision == world.status.current_revision
    assert world.condition("PodsCurrent") == ("False", "TemplateOutdated")


def test_replicas_are_changed_while_pods_wait_to_be_renewed(upgraded):
    """New pods use the new template, and the old ones keep waiting."""
    upgraded.renewal = "Waits"
    upgraded.change(replicas=4)
    upgraded.run(60)
    assert timeouts(upgraded)[3] == 7
    assert "3 of 4 pods" in upgraded.message("PodsCurrent")
    upgraded.change(replicas=2)
    upgraded.run(240)
    assert upgraded.names("Pod") == [f"{APP}-0", f"{APP}-1"]
    assert "2 of 2 pods" in upgraded.message("PodsCurrent")
    assert upgraded.condition("Reconciling")[0] == "False"
