"""A new topology has to fit everything that ran before it, whether or not that was ever stable."""

import pytest
from tests.operator.reconcile.world import APP, Program, World, is_ready, plan

from millrace_operator import model
from millrace_operator.model import Key
from millrace_operator.reconcile.revisions import revision_of

FIRST = "registry.example/words:1"
NEXT = "registry.example/words:2"
OTHER = "registry.example/words:3"
TOTALS = plan(["counts", "totals"])
WINDOWED_TOTALS = plan(["counts", "totals"], kinds={"totals": "window"})


def started(first: Program | None = None) -> World:
    """Return a world whose first revision has pods, and is not yet stable."""
    world = World(programs={} if first is None else {FIRST: first})
    world.change(replicas=2, upgrade={"gate": {"readyTimeout": "60s", "minStable": "1h"}})
    world.run(60)
    assert world.pods()
    assert world.status.stable_revision is None
    return world


def assert_held_back(world: World, *told: str) -> None:
    """Check that the newest revision is refused and why, and that no pod runs it or was touched for it."""
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")
    assert world.condition("Stalled") == ("True", "TopologyHeldBack")
    for words in told:
        assert words in world.message("TopologyCompatible")
    assert revision_of(world.desired().spec) not in world.revisions()


@pytest.mark.parametrize("first", [Program(), Program(becomes_ready=False), Program(crashes=True)])
def test_a_first_revision_need_not_be_stable_to_be_compared_with(first):
    """Its pods may have written state as soon as they started, whether they run well, not yet or never."""
    world = started(first)
    uids = [pod["metadata"]["uid"] for pod in world.pods()]
    world.programs[NEXT] = Program(plan=plan(["totals"]))
    world.change(image=NEXT)
    world.run(60)
    assert_held_back(world, "counts was renamed to totals")
    assert [pod["metadata"]["uid"] for pod in world.pods()] == uids
    world.change(image=FIRST)
    world.run(60)
    assert world.condition("TopologyCompatible")[0] == "True"


def test_a_first_revision_without_pods_is_compared_with_nothing():
    """While it waits for its input topic there is no state, so the next topology may be anything."""
    world = World(topics={})
    world.run(30)
    assert world.pods() == []
    world.programs[NEXT] = Program(plan=plan(["totals"]))
    world.change(image=NEXT)
    world.run(30)
    assert world.condition("TopologyCompatible")[0] == "True"


def test_an_application_that_was_always_suspended_has_no_state():
    """Its StatefulSet has a revision but never had a pod."""
    world = World()
    world.change(state="suspended")
    world.run(30)
    world.programs[NEXT] = Program(plan=plan(["totals"]))
    world.change(image=NEXT, state="running")
    world.run()
    assert world.condition("Ready")[0] == "True"


@pytest.mark.parametrize("mishap", ["none", "the StatefulSet is gone", "the status is lost", "both"])
def test_suspending_forgets_nothing(mishap):
    """The revision before a suspension still counts after it, even with no pods, or if children were lost meanwhile."""
    world = started()
    world.change(state="suspended")
    world.run(60)
    assert world.pods() == []
    if mishap in {"the StatefulSet is gone", "both"}:
        del world.objects[Key("StatefulSet", APP)]
    if mishap in {"the status is lost", "both"}:
        world.status = None
    world.programs[NEXT] = Program(plan=plan(["totals"]))
    world.change(image=NEXT)
    world.run(60)
    world.change(state="running")
    world.run(60)
    assert_held_back(world, "counts was renamed to totals")


def test_a_revision_that_was_rolled_back_has_left_state_too():
    """The next revision must not misread a store that only a failed revision had; dropping that store is not a loss."""
    world = World(programs={NEXT: Program(plan=TOTALS, becomes_ready=False)})
    world.run()
    world.change(image=NEXT)
    world.run(300)
    failed = revision_of(world.desired().spec)
    assert world.condition("RolledBack")[0] == "True"
    world.programs[OTHER] = Program(plan=WINDOWED_TOTALS)
    world.change(image=OTHER)
    world.run(120)
    assert_held_back(world, "store totals was key-value and is window", f"(revision {failed} ran before)")
    world.programs["registry.example/words:4"] = Program(plan=plan(["counts", "sums"]))
    world.change(image="registry.example/words:4")
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert world.revisions() == [world.status.stable_revision]
    assert f"{APP}-plan-{failed}" in world.names("ConfigMap")


def test_a_roll_that_is_not_done_is_compared_with():
    """State that an unfinished roll-out has created must not be left behind, but going back to the stable revision is fine."""
    world = World()
    world.change(replicas=3)
    world.run()
    first = world.manifest["image"]
    world.programs[NEXT] = Program(plan=TOTALS)
    world.restoring[f"{APP}-0"] = 1
    for _ in range(3):
        world.change(image=NEXT)
        world.run(10)
    world.restoring.clear()
    for _ in range(8):
        world.pass_over()
        world.settle()
    assert len(set(world.revisions())) == 2
    world.programs[OTHER] = Program(plan=plan(["counts", "others"]))
    world.change(image=OTHER)
    for _ in range(8):
        world.pass_over()
        world.settle()
    assert_held_back(world, "totals was renamed to others")
    world.change(image=first)
    world.run()
    assert world.condition("TopologyCompatible")[0] == "True"
    assert set(world.revisions()) == {world.status.stable_revision}


def test_plans_that_say_nothing_new_are_not_kept():
    """Once a later revision is stable, earlier plans are deleted unless they describe other state."""
    world = World()
    for image in (FIRST, NEXT, OTHER):
        world.change(image=image)
        world.run()
    assert len(world.names("ConfigMap")) == 2


def test_state_that_was_left_behind_knowingly_is_not_misread_later():
    """With Warn a store may be given up, but reusing its name for another kind is reported again."""
    world = World()
    world.run()
    before = world.status.stable_revision
    warn = {**world.manifest["upgrade"], "topologyPolicy": "Warn"}
    world.programs[NEXT] = Program(plan=plan(["sums"]))
    world.change(image=NEXT, upgrade=warn)
    world.run(10)
    assert world.condition("TopologyCompatible") == ("False", "NeedsResetIgnored")
    assert "counts was renamed to sums" in world.message("TopologyCompatible")
    world.run()
    assert world.condition("TopologyCompatible") == ("True", "Compatible")
    world.programs[OTHER] = Program(plan=plan(["sums", "counts"], kinds={"counts": "session"}))
    world.change(image=OTHER, upgrade={**warn, "topologyPolicy": "Enforce"})
    world.run()
    assert_held_back(world, "counts was key-value and is session", f"(revision {before} ran before)")


def test_marking_what_has_started_is_done_once():
    """The mark is set before pods start and keeps its time; a settled application's status is not written."""
    world = World()
    world.run()
    applied = [action.object for action in world.done(model.Apply)]
    kinds = [(item["kind"], "streams.millrace.dev/started" in item["metadata"]["annotations"]) for item in applied]
    assert kinds.count(("ConfigMap", True)) == 1
    assert kinds.index(("ConfigMap", True)) < kinds.index(("StatefulSet", False))
    assert world.pass_over().actions == ()


def test_after_a_reset_any_topology_may_come():
    """A reset clears the marks and the stable revision; the next topology is compared with nothing."""
    world = World()
    world.run()
    world.change(state="suspended")
    world.run(60)
    for key, item in world.objects.items():
        if key.kind == "ConfigMap":
            item["metadata"]["annotations"].pop("streams.millrace.dev/started", None)
    world.status = world.status.model_copy(update={"stable_revision": None, "internal_topics": ()})
    world.programs[NEXT] = Program(plan=plan(["totals"]))
    world.change(image=NEXT, state="running")
    world.run()
    assert all(map(is_ready, world.pods()))
    assert world.condition("TopologyCompatible")[0] == "True"
    assert len(world.names("ConfigMap")) == 2


@pytest.mark.parametrize(
    ("program", "reason"), [(Program(crashes=True), "PodCrashed"), (Program(plan=None), "UpgradeNotBegun")]
)
def test_a_restart_nonce_has_a_failed_revision_tried_again(program, reason):
    """If the fault was not in the manifest, the same manifest with another restartNonce is planned and rolled out again."""
    world = World(programs={NEXT: program})
    world.run()
    world.change(image=NEXT)
    world.run(300)
    assert world.condition("RolledBack") == ("True", reason)
    assert "restartNonce" in world.message("RolledBack") + world.message("Stalled")
    del world.programs[NEXT]
    world.run()
    assert world.condition("RolledBack")[0] == "True"
    world.change(restartNonce=1)
    world.run()
    assert world.condition("RolledBack")[0] == "False"
    assert world.condition("Ready")[0] == "True"
    assert world.revisions() == [revision_of(world.desired().spec)] == [world.status.stable_revision]


def test_the_old_manifest_and_then_the_failed_one_is_a_second_try():
    """Reverting a failed change clears its failure, but not the possibility that its pods left state."""
    world = World(programs={NEXT: Program(plan=TOTALS, crashes=True)})
    world.run()
    for image in (NEXT, FIRST):
        world.change(image=image)
        world.run(200)
    world.programs[NEXT] = Program(plan=TOTALS)
    world.change(image=NEXT)
    world.run()
    assert world.condition("RolledBack")[0] == "False"
    assert world.revisions() == [revision_of(world.desired().spec)] == [world.status.stable_revision]
