"""From any state, whatever is lost, late or interrupted, an application converges to its spec."""

from __future__ import annotations

import copy
import os
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.operator.reconcile.world import APP, INPUT, SMALL, Program, RefusedError, World, is_ready, plan

from millrace.plan.diff import diff_plans
from millrace_operator import model
from millrace_operator.children.naming import RETAINED_LABEL
from millrace_operator.model import Key
from millrace_operator.reconcile.reconciler import reconcile
from millrace_operator.reconcile.revisions import revision_of

PROGRAMS = {
    "good:1": Program(),
    "good:2": Program(),
    "more-stores": Program(plan=plan(["counts", "totals"])),
    "other-stores": Program(plan=plan(["sums"])),
    "other-totals": Program(plan=plan(["counts", "totals"], kinds={"totals": "window"})),
    "crashing": Program(crashes=True),
    "crashing-with-more": Program(plan=plan(["counts", "totals"]), crashes=True),
    "never-ready": Program(becomes_ready=False),
    "not-there": Program(pulls=False),
    "without-plan": Program(plan=None),
}
GOOD = {"good:1", "good:2", "more-stores", "other-stores", "other-totals"}

Command = tuple[str, Any]

TURNS = st.one_of(
    st.tuples(st.just("run_pass"), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 6)),
    st.tuples(st.just("stale"), st.integers(1, 6)),
    st.tuples(st.just("controller"), st.integers(0, 3)),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("tick"), st.sampled_from([1, 3, 10, 70])),
    st.tuples(st.just("run"), st.sampled_from([10, 60])),
)
WISHES = st.one_of(
    st.tuples(st.just("replicas"), st.integers(1, 4)),
    st.tuples(st.just("image"), st.sampled_from(sorted(PROGRAMS))),
    st.tuples(st.just("state"), st.sampled_from(["running", "suspended"])),
    st.tuples(st.just("restart"), st.integers(0, 3)),
    st.tuples(st.just("size"), st.sampled_from(["1Gi", "2Gi", "3Gi"])),
)
MISHAPS = st.one_of(
    st.tuples(st.just("brokers"), st.booleans()),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("remove"), st.sampled_from(["Service", "PodDisruptionBudget", "StatefulSet"])),
    st.tuples(st.just("remove_in_the_foreground"), st.none()),
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.just("forget"), st.none()),
    st.tuples(st.just("renew"), st.none()),
)
PACE = settings(
    max_examples=int(os.environ.get("MILLRACE_HISTORIES", "20")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def histories(*kinds: st.SearchStrategy[Command]) -> st.SearchStrategy[list[Command]]:
    """Return lists of events: most happen after the application has started, each followed by a few passes."""
    turns = st.lists(TURNS, max_size=5)
    started = st.sampled_from([[], [("run", 60)], [("run", 60)], [("run", 60)]])
    if not kinds:
        return turns
    episodes = st.lists(st.tuples(st.one_of(*kinds), turns), max_size=5)
    return st.builds(
        lambda first, episodes: [*first, *(command for what, after in episodes for command in (what, *after))],
        started,
        episodes,
    )


class Story:
    """A world in which events happen one after another."""

    def __init__(self) -> None:
        self.world = World(manifest=copy.deepcopy(SMALL) | {"image": "good:1", "replicas": 3}, programs=PROGRAMS)
        self.world.boot_seconds = 4
        self.seen = [(self.world.desired(), self.world.observed())]

    def tell(self, history: list[Command]) -> Story:
        """Play a history."""
        for what, value in history:
            getattr(self, what)(value)
            self.seen.append((self.world.desired(), self.world.observed()))
        return self

    def run_pass(self, _: None) -> None:
        self.world.pass_over()

    def crash(self, actions: int) -> None:
        """Carry out only some of the actions, and write no status."""
        self.world.pass_over(actions)

    def stale(self, age: int) -> None:
        """Act on an outdated observation."""
        with suppress(RefusedError):
            self.world.carry_out(reconcile(*self.seen[-min(age, len(self.seen))]))

    def controller(self, which: int) -> None:
        world = self.world
        (world.jobs, world.end_pods, world.scale_pods, world.start_pods)[which]()

    def settle(self, _: None) -> None:
        self.world.settle()

    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    def run(self, seconds: float) -> None:
        self.world.run(seconds)

    def replicas(self, count: int) -> None:
        self.world.change(replicas=count)

    def image(self, name: str) -> None:
        self.world.change(image=name)

    def state(self, name: str) -> None:
        self.world.change(state=name)

    def restart(self, nonce: int) -> None:
        self.world.change(restartNonce=nonce)

    def size(self, size: str) -> None:
        if size > self.world.manifest.get("storage", {}).get("size", "1Gi"):
            self.world.change(storage={**self.world.manifest.get("storage", {}), "size": size})

    def brokers(self, up: bool) -> None:  # noqa: FBT001
        self.world.brokers_up = up

    def kill(self, index: int) -> None:
        """Lose a pod."""
        self.world.objects.pop(Key("Pod", f"{APP}-{index}"), None)

    def remove(self, kind: str) -> None:
        """Somebody deletes a child."""
        self.world.objects.pop(Key(kind, APP), None)

    def remove_in_the_foreground(self, _: None) -> None:
        """Somebody deletes the StatefulSet with foreground propagation, so it goes after its pods."""
        found = self.world.objects.get(Key("StatefulSet", APP))
        if found is not None:
            found["metadata"].setdefault("deletionTimestamp", self.world.timestamp())

    def scale(self, replicas: int) -> None:
        """Somebody scales the StatefulSet by hand."""
        found = self.world.objects.get(Key("StatefulSet", APP))
        if found is not None:
            found["spec"]["replicas"] = replicas
            found["metadata"]["generation"] += 1

    def renew(self, _: None) -> None:
        """The certificates change."""
        self.world.renew_certificates()

    def forget(self, _: None) -> None:
        """The status is lost."""
        self.world.status = None

    def calm(self) -> World:
        """Let nothing more happen, and let the operator settle."""
        self.world.brokers_up = True
        return self.world.rest()


def assert_at_rest(world: World) -> None:
    """Check that nothing is left to do, and that the result matches the spec or the status says why not."""
    decision = world.pass_over()
    assert decision.actions == ()
    assert decision.status == world.status
    assert decision.events == ()
    suspended = world.manifest.get("state") == "suspended"
    program = world.manifest["image"]
    stalled = world.condition("Stalled")[0] == "True"
    if suspended:
        assert world.pods() == []
        assert world.members == set()
    elif program in GOOD and not stalled:
        assert world.revisions() == [revision_of(world.desired().spec)] * world.manifest["replicas"]
        assert all(map(is_ready, world.pods()))
        assert world.condition("Ready")[0] == "True"
        assert world.status.stable_revision == world.revisions()[0]
        assert world.members == {f"{APP}-{index}" for index in range(world.manifest["replicas"])}
    elif program in GOOD:  # kubelets that were idle for a long time make a good revision fail
        late = world.condition("RolledBack")[1] == "ReadyTimeout" or "not ready within" in world.message("Stalled")
        assert late or world.condition("TopologyCompatible")[0] == "False"
    else:
        assert stalled
    if world.pods():
        assert len(world.pods()) == world.manifest["replicas"]
        started = world.condition("Stalled")[1] != "StartFailed"  # leaving what ran before, which never settled
        known = world.status.stable_revision is not None  # if the status was lost, there is nothing to roll back to
        assert not (started and known) or len(set(world.revisions())) == 1


@PACE
@given(histories(WISHES, MISHAPS))
def test_it_comes_to_rest(history):
    """After any history, with stale views, interrupted passes, lost pods and a lost status, the operator settles."""
    assert_at_rest(Story().tell(history).calm())


@PACE
@given(histories(WISHES, MISHAPS))
def test_nothing_retained_is_deleted(history):
    """By default no claim and no topic is ever deleted, whatever happens."""
    world = Story().tell(history).calm()
    assert not [a for a in world.done(model.Delete) if a.key.kind == "PersistentVolumeClaim"]
    assert not world.done(model.DeleteTopics)
    assert not world.done(model.DeleteGroup)


@PACE
@given(histories(WISHES))
def test_no_pod_that_runs_is_replaced_while_another_is_down(history):
    """While any pod is down no other pod is deleted, even after stale observations or repeated actions."""
    assert Story().tell(history).calm().reckless == []


@PACE
@given(histories(WISHES, MISHAPS))
def test_no_pod_gets_state_that_it_misreads(history):
    """Whatever ran before, stable, rolled back or lost, no pod starts with a topology that does not fit the existing state."""
    world = Story().tell([command for command in history if command[0] != "stale"]).calm()
    images = list(dict.fromkeys(world.ran))
    for number, later in enumerate(images):
        for earlier in images[:number]:
            reasons = diff_plans(PROGRAMS[earlier].plan, PROGRAMS[later].plan).reasons
            assert not [reason for reason in reasons if reason.needs_reset and not reason.leaves_behind]
    assert "other-stores" not in images or set(images) == {"other-stores"}


@PACE
@given(histories(WISHES, MISHAPS), st.sampled_from(["Retain", "Purge", "Orphan"]), st.booleans(), histories())
def test_deletion_ends_and_honours_its_policy(history, policy, brokers_up, afterwards):
    """The finalizer is removed in bounded time, brokers up or down; what the policy keeps remains and the rest is deleted."""
    story = Story().tell(history)
    world = story.world
    world.run(10)
    world.change(deletionPolicy=policy)
    world.brokers_up = brokers_up
    claims, topics, pods = world.names("PersistentVolumeClaim"), set(world.topics), world.names("Pod")
    world.delete()
    story.seen = [(world.desired(), world.observed())]
    story.tell(afterwards)
    world.run(300, step=10)
    assert not world.exists
    kept = world.names("PersistentVolumeClaim")
    if policy == "Orphan":
        assert set(pods) <= set(world.names("Pod"))
        assert set(claims) <= set(kept)
        return
    assert world.names("StatefulSet") == world.names("Pod") == world.names("Job") == []
    left = [item["metadata"]["labels"] for key, item in world.objects.items() if key.kind == "ConfigMap"]
    if policy == "Retain":
        assert all(marks.get(RETAINED_LABEL) == "true" for marks in left)
        assert set(claims) <= set(kept)
        assert topics <= set(world.topics)
    else:
        assert left == kept == []
        if brokers_up:
            assert set(world.topics) == {INPUT}
            assert not world.group_exists


LIVES = st.lists(
    st.tuples(
        histories(
            st.tuples(st.just("brokers"), st.booleans()),
            st.tuples(st.just("state"), st.sampled_from(["running", "suspended"])),
        ),
        st.sampled_from(["Retain", "Orphan"]),
        st.booleans(),
        histories(),
    ),
    min_size=1,
    max_size=3,
)
"""The life of an application: what happens to it, how it is deleted, whether brokers answer then, and what follows."""


@PACE
@given(LIVES)
def test_an_application_that_is_created_again_runs(lives):
    """However earlier ones of its name ended, it starts without help once the sessions of leftover members have expired."""
    story = Story()
    world = story.world
    for before, policy, brokers_up, after in lives:
        story.tell([command for command in before if command[0] != "stale"])
        world.brokers_up = brokers_up
        world.change(deletionPolicy=policy)
        world.delete()
        story.tell([command for command in after if command[0] != "stale"])
        world.run(400, step=10)
        assert not world.exists
        world.recreate(state="running")
    world.brokers_up = True
    world.run(60)
    world.members &= {pod["metadata"]["name"] for pod in world.pods()}
    world.run(600, step=20)
    assert world.condition("Ready")[0] == "True"
    assert world.condition("ApplicationIdUnique") == ("True", "Unique")
