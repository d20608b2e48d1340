"""How Flux and Argo CD see a StreamsApp in every state it can be in, using Flux's library and the script for Argo CD.

The states come from the operator's decisions about the small simulated cluster of the reconciliation tests.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lupa.lua51
import pytest
from tests.operator.reconcile.world import APP, INPUT, NAMESPACE, Program, World, plan

from e2e.cluster import tools
from millrace.manifest import StreamsAppStatus
from millrace.manifest.streamsapp_status import UNSEEN_GENERATION
from millrace_operator.app.refusals import stalled_status
from millrace_operator.children.naming import PAUSE_ANNOTATION, TEMPLATE_ANNOTATION
from millrace_operator.model import ConsumerGroupMember
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.reconciler import reconcile

HEALTH = Path(__file__).parents[1] / "charts/argocd/resource_customizations/streams.millrace.dev/StreamsApp/health.lua"


def running(**spec: Any) -> World:
    """Return a healthy application with two pods."""
    world = World()
    world.change(replicas=2, **spec)
    world.run(300)
    return world


def until(world: World, state: str) -> World:
    """Continue until an application does this."""
    for _ in range(200):
        world.pass_over()
        if world.status is not None and world.status.lifecycle_state == state:
            return world
        world.settle()
        world.tick(2)
    raise AssertionError(f"it was never {state}")


def changed(**spec: Any) -> World:
    """Return a healthy application that was changed long enough ago to have settled."""
    world = running()
    world.change(**spec)
    world.run(600)
    return world


def upgraded_to(program: Program, **spec: Any) -> World:
    """Return a healthy application that was upgraded to this program, long enough ago to have settled."""
    world = running()
    world.programs["new"] = program
    world.change(image="new", **spec)
    world.run(600)
    return world


def new(program: Program) -> World:
    """Return an application that has never run, with this program."""
    world = World()
    world.programs[world.manifest["image"]] = program
    world.run(600)
    return world


def refused(*kinds: str) -> World:
    """Return an application whose upgrade is not allowed to write these kinds of children."""
    world = running()
    world.refuses = set(kinds)
    world.change(image="registry.example/words:2", replicas=3, podDisruptionBudget={"maxUnavailable": 2})
    world.run(600)
    return world


def failed_pass(reason: str) -> World:
    """Return an application for which a pass could not reach a decision."""
    world = running()
    world.change(replicas=3)
    world.status = stalled_status(world.desired(), reason, "It did not work.")
    return world


def unseen() -> World:
    """Return an application that no operator has seen."""
    return World(status=StreamsAppStatus(observed_generation=UNSEEN_GENERATION))


def newer() -> World:
    """Return an application whose manifest has just changed."""
    world = running()
    world.change(replicas=3)
    return world


def first_seen() -> World:
    """Return an application that has been reconciled once."""
    world = World()
    world.pass_over()
    return world


def scaling_in() -> World:
    """Return an application that is removing a pod."""
    world = running()
    world.change(replicas=1)
    return until(world, "Draining")


def suspending() -> World:
    """Return an application whose pods are ending."""
    world = running()
    world.change(state="suspended")
    world.pass_over()
    return world


def paused() -> World:
    """Return an application that the operator has been told to leave alone."""
    world = running()
    world.annotations[PAUSE_ANNOTATION] = "true"
    world.run(30)
    return world


def invalid() -> World:
    """Return an application whose spec has become invalid."""
    world = running()
    world.change(replicas=3)
    broken = world.desired_without_spec("spec.threads: must be at least 1")
    world.status = reconcile(broken, world.observed()).status
    return world


def without_input() -> World:
    """Return an application whose input topic does not exist yet."""
    world = World()
    del world.topics[INPUT]
    world.run(300)
    return world


def with_unfit_topic() -> World:
    """Return an application with an internal topic that has the wrong number of partitions."""
    world = running()
    for name, topic in list(world.topics.items()):
        if name != INPUT:
            world.topics[name] = type(topic)(topic.id, topic.partitions + 1, topic.replication_factor, topic.config)
    world.run(60)
    return world


def brokers_away() -> World:
    """Return an application that is running while the brokers are down."""
    world = running()
    world.brokers_up = False
    world.run(30)
    return world


def name_taken() -> World:
    """Return an application whose StatefulSet's name is taken by somebody else's StatefulSet."""
    world = World()
    metadata = {"name": APP, "namespace": NAMESPACE, "labels": {"app": "legacy"}}
    world.create({"kind": "StatefulSet", "metadata": metadata, "spec": {"theirs": True}})
    world.run(300)
    return world


def id_in_use() -> World:
    """Return an application with a Java application in its group."""
    java = ConsumerGroupMember("java", "java-0", "10.0.0.3", "java-7f-StreamThread-1-consumer")
    world = World(group_exists=True, strangers=[java])
    world.run(300)
    return world


def renewal_failed() -> World:
    """Return an application whose pod does not become ready when built by this operator."""
    world = World()
    world.run(300)
    (pod,) = world.pods()
    pod["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "another"
    world.programs[world.manifest["image"]] = Program(crashes=True)
    world.start_pods = lambda: None  # type: ignore[method-assign]  # the one that runs does not notice
    world.run(300)
    del world.start_pods
    world.run(900)
    return world


def with_streams_protocol(**trouble: bool) -> World:
    """Return an application that is to use the streams group protocol, where something is in its way."""
    world = running()
    for name, value in trouble.items():
        setattr(world, name, value)
    world.change(kafka={**world.manifest["kafka"], "groupProtocol": "streams"})
    world.run(600)
    return world


def deleting() -> World:
    """Return an application that is being deleted."""
    world = running()
    world.delete()
    world.pass_over()
    return world


def refused_deletion() -> World:
    """Return an application whose topics may not be deleted."""
    world = running(deletionPolicy="Purge")
    world.refused = True
    world.delete()
    world.run(60)
    return world


STATES: dict[str, tuple[Callable[[], World], str, str]] = {
    "nobody has seen it": (unseen, "InProgress", "Progressing"),
    "it is seen for the first time": (first_seen, "InProgress", "Progressing"),
    "it provisions topics": (lambda: until(World(), "Provisioning"), "InProgress", "Progressing"),
    "pods start": (lambda: until(World(boot_seconds=30), "Starting"), "InProgress", "Progressing"),
    "it runs": (running, "Current", "Healthy"),
    "the manifest has changed": (newer, "InProgress", "Progressing"),
    "it is rolled": (lambda: until(newer_image(), "RollingOut"), "InProgress", "Progressing"),
    "it is scaled in": (scaling_in, "InProgress", "Progressing"),
    "it was rolled": (lambda: upgraded_to(Program()), "Current", "Healthy"),
    "pods end to be suspended": (suspending, "InProgress", "Suspended|Progressing"),
    "it is suspended": (lambda: changed(state="suspended"), "Current", "Suspended"),
    "it is scaled to zero": (lambda: changed(replicas=0), "Current", "Healthy"),
    "it is paused": (paused, "Current", "Suspended"),
    "it waits for its input topic": (without_input, "InProgress", "Progressing"),
    "the brokers are away": (brokers_away, "Current|InProgress", "Healthy|Degraded"),
    "InvalidSpec": (invalid, "Failed", "Degraded"),
    "PlanFailed": (lambda: upgraded_to(Program(plan=None)), "Failed", "Degraded"),
    "PlanImageUnavailable": (lambda: upgraded_to(Program(pulls=False)), "Failed", "Degraded"),
    "TopologyHeldBack": (lambda: upgraded_to(Program(plan=plan(["sums"]))), "Failed", "Degraded"),
    "TopicsUnfit": (with_unfit_topic, "Failed", "Degraded"),
    "StartFailed": (lambda: new(Program(crashes=True)), "Failed", "Degraded"),
    "UpgradeFailed": (lambda: upgraded_to(Program(crashes=True)), "Failed", "Degraded"),
    "UpgradeFailed, not rolled back": (
        lambda: upgraded_to(Program(crashes=True), upgrade={"rollback": {"enabled": False}}),
        "Failed",
        "Degraded",
    ),
    "RefusedByApiServer: a StatefulSet": (lambda: refused("StatefulSet"), "Failed", "Degraded"),
    "RefusedByApiServer: a ConfigMap": (lambda: refused("ConfigMap"), "Failed", "Degraded"),
    "RefusedByApiServer: a plan Job": (lambda: refused("Job"), "Failed", "Degraded"),
    "RefusedByApiServer: a PodDisruptionBudget": (lambda: refused("PodDisruptionBudget"), "Failed", "Degraded"),
    "NameTaken": (name_taken, "Failed", "Degraded"),
    "ApplicationIdInUse": (id_in_use, "Failed", "Degraded"),
    "GroupProtocolNotServed": (lambda: with_streams_protocol(serves_streams=False), "Failed", "Degraded"),
    "GroupSettingsUnknown": (lambda: with_streams_protocol(hides_group_settings=True), "Failed", "Degraded"),
    "RenewalFailed": (renewal_failed, "Failed", "Degraded"),
    "RefusedByKafka": (lambda: failed_pass("RefusedByKafka"), "Failed", "Degraded"),
    "ActionFailed": (lambda: failed_pass("ActionFailed"), "Failed", "Degraded"),
    "OperatorError": (lambda: failed_pass("OperatorError"), "Failed", "Degraded"),
    "it is deleted": (deleting, "Terminating", "Progressing"),
    "it is deleted, and that is refused": (refused_deletion, "Terminating", "Degraded"),
}
"""How an application gets into a state, and what the tools should make of it; where there are two answers, either is fine."""


def newer_image() -> World:
    """Return an application whose image has just changed."""
    world = running()
    world.change(image="registry.example/words:2")
    return world


def resource_of(world: World) -> dict[str, Any]:
    """Return the resource as the API server returns it."""
    assert world.status is not None
    metadata: dict[str, Any] = {"name": "words", "namespace": "team", "generation": world.generation}
    if world.deleted_at is not None:
        metadata["deletionTimestamp"] = world.timestamp()
    return {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": metadata,
        "spec": world.manifest,
        "status": world.status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def flux_says(resource: dict[str, Any]) -> dict[str, str]:
    """Return the answer of Flux's library."""
    asked = json.dumps([resource])
    answer = subprocess.run([str(tools.path("kstatus"))], input=asked, capture_output=True, text=True, check=True)
    (found,) = json.loads(answer.stdout)
    return dict(found)


def argo_says(resource: dict[str, Any]) -> dict[str, str]:
    """Return the script's answer, run by Argo CD's Lua."""
    lua = lupa.lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(resource, recursive=True)
    return dict(lua.execute(HEALTH.read_text()))


@pytest.mark.parametrize(("make", "flux", "argo"), STATES.values(), ids=STATES)
def test_tools_understand_every_state(make: Callable[[], World], flux: str, argo: str) -> None:
    """Tools that wait for a StreamsApp stop when it matches the manifest, and fail when somebody has to act."""
    resource = resource_of(make())
    said = flux_says(resource)
    assert said["status"] in flux.split("|"), (said, resource["status"])
    said = argo_says(resource)
    assert said["status"] in argo.split("|"), (said, resource["status"])


def test_every_reason_to_stall_has_a_case() -> None:
    """Every reason to stall that a pass itself can reach has a test case."""
    known = {reason for reason in ConditionReason if reason.condition == "Stalled"} - {ConditionReason.NOT_STALLED}
    assert known <= {ConditionReason(name.partition(":")[0].partition(",")[0]) for name in STATES if name[0].isupper()}
