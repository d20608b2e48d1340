"""What `millrace explain` says about applications recorded from a real cluster, and about these with a changed status."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from millrace_operator.explain.explanation import Explanation, ProcessingState, explain, rendered
from millrace_operator.explain.facts import Facts
from millrace_operator.explain.findings import Severity

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.stem for path in RECORDED.glob("*.yaml"))


def recorded(name: str) -> Facts:
    """Return the facts recorded from an application in a real cluster."""
    found = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
    return Facts(
        now=datetime.fromisoformat(found.pop("now")),
        app=found.pop("app"),
        stateful_set=found.pop("stateful_set"),
        **{kind: tuple(items) for kind, items in found.items()},
    )


def changed(facts: Facts, *, metadata: Any = None, spec: Any = None, **status: Any) -> Facts:
    """Return facts with other metadata, spec or status for the application."""
    app = deepcopy(dict(facts.app))
    app["metadata"] |= metadata or {}
    app["spec"] |= spec or {}
    app["status"] |= status
    return replace(facts, app=app)


def with_condition(facts: Facts, kind: str, status: str, reason: str, message: str = "It is so.") -> Facts:
    """Return facts in which a condition is as given, for a minute now."""
    since = (facts.now - timedelta(seconds=60)).isoformat()
    others = [item for item in facts.status["conditions"] if item["type"] != kind]
    condition = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
    return changed(facts, conditions=[*others, condition])


def first(explanation: Explanation) -> str:
    """Return the first finding as text."""
    finding = explanation.findings[0]
    return f"{finding.severity}: {finding.subject}: {finding.what} → {finding.remedy}"


@pytest.mark.parametrize(
    ("name", "verdict", "parts"),
    [
        (
            "crash",
            ProcessingState.NOT_PROCESSING,
            ["blocking: Pod crash-0", "exit code 1", "topic orders does not exist", "--previous"],
        ),
        ("healthy", ProcessingState.PROCESSING, ["note: Lag"]),
        ("image-missing", ProcessingState.NOT_PROCESSING, ["registry.invalid/shop:2", "i/o timeout", "spec.image"]),
        ("insecure", ProcessingState.NOT_PROCESSING, ["StatefulSet insecure", "PodSecurity", "spec.podTemplate"]),
        (
            "no-volume",
            ProcessingState.NOT_PROCESSING,
            ["PersistentVolumeClaim state-no-volume-0", '"fastest" not found', "storageClassName"],
        ),
        ("not-ready", ProcessingState.WAITING, ["waiting: Pod not-ready-0", "Readiness probe failed", "port-forward"]),
        ("out-of-memory", ProcessingState.NOT_PROCESSING, ["its limit of 64Mi", "memory limit"]),
        ("over-quota", ProcessingState.NOT_PROCESSING, ["exceeded quota", "ResourceQuota"]),
        (
            "secret-not-mounted",
            ProcessingState.NOT_PROCESSING,
            ['secret "kafka-credentials" not found', "Create what is missing"],
        ),
        (
            "stuck",
            ProcessingState.NOT_PROCESSING,
            ["exit code 137", "Liveness probe failed", "stuck in the program's own code"],
        ),
        ("too-large", ProcessingState.NOT_PROCESSING, ["Insufficient cpu", "lower the requests"]),
        ("variable-missing", ProcessingState.NOT_PROCESSING, ['configmap "settings" not found', "ConfigMap"]),
        (
            "wrong-input",
            ProcessingState.NOT_PROCESSING,
            ["exit code 2", "store 'orders' is added twice", "a restart does not help"],
        ),
    ],
)
def test_recorded_application(name: str, verdict: ProcessingState, parts: list[str]) -> None:
    """The first finding names the actual cause, in the cluster's own words, and what to do."""
    explanation = explain(recorded(name))
    assert explanation.verdict == verdict
    assert [part for part in parts if part not in first(explanation)] == []


def test_every_recording_is_explained() -> None:
    """Each recording is among the cases above, and each has a first finding."""
    cases = next(mark for mark in test_recorded_application.pytestmark if mark.name == "parametrize").args[1]
    assert sorted(case[0] for case in cases) == NAMES


@pytest.mark.parametrize(
    ("kind", "status", "reason", "remedy"),
    [
        ("BrokersReachable", "False", "Unreachable", "bootstrapServers"),
        ("BrokersReachable", "False", "AuthenticationFailed", "Secret"),
        ("TopologyCompatible", "False", "NeedsReset", "StreamsReset"),
        ("TopicsReady", "False", "InputTopicMissing", "Create it"),
        ("TopicsReady", "False", "ChangelogLost", "StreamsReset"),
        ("Stalled", "True", "InvalidSpec", "Correct what the message names"),
        ("Stalled", "True", "PlanFailed", "Fix the program"),
    ],
)
def test_condition_is_the_cause(kind: str, status: str, reason: str, remedy: str) -> None:
    """The condition that blocks the application comes before its consequences, with its message and the remedy."""
    explanation = explain(with_condition(recorded("not-ready"), kind, status, reason, "The message."))
    assert explanation.verdict == ProcessingState.NOT_PROCESSING
    assert explanation.findings[0].subject == f"{kind}={status}, {reason}"
    assert "The message. (for 60 s)" in first(explanation)
    assert remedy in explanation.findings[0].remedy


def test_condition_that_only_points_elsewhere_is_left_out() -> None:
    """Stalled with TopologyHeldBack refers to TopologyCompatible, whose own finding is enough."""
    facts = with_condition(recorded("not-ready"), "TopologyCompatible", "False", "NeedsReset", "Store counts is gone.")
    found = explain(with_condition(facts, "Stalled", "True", "TopologyHeldBack")).findings
    assert "Store counts is gone." in found[0].what
    assert not any("TopologyHeldBack" in finding.subject for finding in found)


def test_condition_that_points_elsewhere_stays_when_it_is_all_there_is() -> None:
    """A condition that nothing else explains is at least reported."""
    facts = replace(with_condition(recorded("healthy"), "Ready", "False", "NothingRuns"), pods=())
    assert [finding.subject for finding in explain(changed(facts, lag={})).findings] == ["Ready=False, NothingRuns"]


def test_what_is_wrong_while_records_are_processed_is_a_problem() -> None:
    """An upgrade that is held back does not keep the running revision from processing."""
    explanation = explain(with_condition(recorded("healthy"), "TopologyCompatible", "False", "NeedsReset"))
    assert explanation.verdict == ProcessingState.PROCESSING_WITH_PROBLEMS
    assert explanation.findings[0].severity == Severity.PROBLEM


@pytest.mark.parametrize(
    ("spec", "what"), [({"state": "suspended"}, "spec.state to running"), ({"replicas": 0}, "spec.replicas to 1")]
)
def test_application_that_is_to_stand_still(spec: dict[str, Any], what: str) -> None:
    """A stopped application is not a problem; the answer says how to start it."""
    facts = with_condition(recorded("healthy"), "Ready", "False", "Suspended")
    explanation = explain(replace(changed(facts, spec=spec), pods=()))
    assert explanation.verdict == ProcessingState.STOPPED
    assert what in explanation.findings[0].remedy


def test_stuck_deletion_points_at_the_operator() -> None:
    """If a resource has been deleting for long, nobody is removing its finalizer."""
    facts = recorded("healthy")
    since = (facts.now - timedelta(hours=3)).isoformat()
    explanation = explain(
        changed(with_condition(facts, "Ready", "False", "Deleting"), metadata={"deletionTimestamp": since})
    )
    assert explanation.verdict == ProcessingState.STOPPED
    assert "for 3 h" in first(explanation)
    assert "operator is running" in first(explanation)


@pytest.mark.parametrize(("seconds", "severity"), [(10, Severity.WAITING), (600, Severity.BLOCKING)])
def test_operator_that_does_not_look(seconds: int, severity: Severity) -> None:
    """For a minute a resource without a status is new; after that the operator is missing or does not watch the namespace."""
    facts = recorded("healthy")
    created = (facts.now - timedelta(seconds=seconds)).isoformat()
    app = deepcopy(dict(facts.app))
    app["metadata"]["creationTimestamp"] = created
    del app["status"]
    explanation = explain(Facts(now=facts.now, app=app))
    assert explanation.findings[0].severity == severity
    assert "operator has not seen the application yet" in first(explanation)
    assert ("watches this namespace" in first(explanation)) == (severity == Severity.BLOCKING)


def test_operator_that_has_not_seen_the_last_change() -> None:
    """The status describes an older manifest: the age of the newer one comes from the managed fields."""
    facts = changed(recorded("healthy"), metadata={"generation": 7})
    explanation = explain(replace(facts, now=facts.now + timedelta(minutes=10)))
    assert explanation.verdict == ProcessingState.PROCESSING_WITH_PROBLEMS
    assert "has not seen the latest change" in first(explanation)


def test_restoration_says_how_much_is_left() -> None:
    """Restoration is reported with the remaining records and time, and with a remedy only if it takes long."""
    facts = with_condition(recorded("not-ready"), "StateRestored", "False", "Restoring")
    facts = changed(facts, tasks={"restoring": 3}, restoration={"remainingRecords": 1_200_000, "etaSeconds": 600})
    found = {finding.subject: finding for finding in explain(facts).findings}["StateRestored=False"]
    assert found.severity == Severity.WAITING
    assert (
        found.what
        == "3 tasks are restoring their state before they process records; 1,200,000 changelog records remain, about 10 min."
    )
    assert not found.remedy
    later = replace(facts, now=facts.now + timedelta(hours=2))
    assert "at their limits" in {item.subject: item for item in explain(later).findings}["StateRestored=False"].remedy


@pytest.mark.parametrize(("replicas", "remedy"), [(2, "Raise spec.replicas"), (4, "more replicas do not.")])
def test_lag_that_grows(replicas: int, remedy: str) -> None:
    """More replicas are advised only while there are tasks for them."""
    facts = changed(recorded("healthy"), spec={"replicas": replicas}, lag={"total": 5000, "trend": "Growing"})
    explanation = explain(facts)
    assert explanation.verdict == ProcessingState.PROCESSING_WITH_PROBLEMS
    assert "5,000 input records" in first(explanation)
    assert remedy in first(explanation)


def test_replicas_without_tasks_are_reported() -> None:
    """Replicas beyond the number of tasks are idle: not a problem, but worth knowing."""
    notes = [finding.what for finding in explain(changed(recorded("healthy"), spec={"replicas": 6})).findings]
    assert any("only 4 tasks: 2 are idle" in note for note in notes)


def test_what_could_not_be_read_is_named() -> None:
    """An explanation based on incomplete facts says so."""
    explanation = explain(replace(recorded("healthy"), unreadable=("events",)))
    assert any("You are not allowed to list events" in finding.what for finding in explanation.findings)


def test_pause_is_mentioned() -> None:
    """A paused operator changes nothing, which explains why a change has no effect."""
    explanation = explain(with_condition(recorded("healthy"), "ReconciliationPaused", "True", "PausedByAnnotation"))
    assert explanation.verdict == ProcessingState.PROCESSING
    assert any("Remove the annotation" in finding.remedy for finding in explanation.findings)


def test_pod_that_does_not_end() -> None:
    """A pod on a lost node stays forever, and so does its volume."""
    facts = recorded("stuck")
    pod = deepcopy(dict(facts.pods[0]))
    pod["metadata"]["deletionTimestamp"] = (facts.now - timedelta(minutes=20)).isoformat()
    assert "should have terminated 20 min ago" in first(explain(replace(facts, pods=(pod,))))


@pytest.mark.parametrize(
    "conflict", ["had volume node affinity conflict", "didn't match PersistentVolume's node affinity"]
)
def test_pod_whose_volume_is_on_a_lost_node(conflict: str) -> None:
    """However the scheduler words it: the claim may be deleted too, because changelog topics hold the state."""
    facts = recorded("too-large")
    pod = deepcopy(dict(facts.pods[0]))
    message = f"0/2 nodes are available: 1 node(s) {conflict}, 1 node(s) had untolerated taint(s)."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    told = first(explain(replace(facts, pods=(pod,))))
    assert conflict in told
    assert "If that node is gone for good, delete the claim and the pod: the state is restored" in told


def test_evicted_pod() -> None:
    """The node's message about the eviction is shown."""
    facts = recorded("crash")
    pod = {
        **facts.pods[0],
        "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
    }
    assert "Evicted: The node was low on memory." in first(explain(replace(facts, pods=(pod,))))


def test_lost_volume() -> None:
    """A claim whose volume is gone may be deleted, because changelog topics hold the state."""
    facts = recorded("healthy")
    claim = {**facts.claims[0], "status": {"phase": "Lost"}}
    assert "restored from the changelog topics" in first(explain(replace(facts, claims=(claim,))))


def test_restarts_of_a_ready_pod_are_a_note() -> None:
    """A healthy application that was restarted reports how the last container ended."""
    facts = recorded("healthy")
    pod = deepcopy(dict(facts.pods[0]))
    crashed = recorded("crash").pods[0]["status"]["containerStatuses"][0]
    ended = crashed["lastState"].get("terminated") or crashed["state"]["terminated"]
    pod["status"]["containerStatuses"][0] |= {"restartCount": 3, "lastState": {"terminated": ended}}
    explanation = explain(replace(facts, pods=(pod,)))
    assert explanation.verdict == ProcessingState.PROCESSING
    assert any(
        "restarted 3 times" in finding.what and "exit code 1" in finding.what for finding in explanation.findings
    )


@pytest.mark.parametrize("kind", ["deserialization", "processing"])
def test_record_that_fails(kind: str) -> None:
    """If single records crash a program, the finding shows the manifest setting that skips them."""
    facts = recorded("crash")
    pod = deepcopy(dict(facts.pods[0]))
    status = pod["status"]["containerStatuses"][0]
    ended = status["lastState"].get("terminated") or status["state"]["terminated"]
    ended["message"] = f"Error: it fails at offset 7 of orders-3. Set {kind}.exception.handler to skip such records."
    told = first(explain(replace(facts, pods=(pod,))))
    assert "offset 7 of orders-3" in told
    assert f"spec.processing.errorPolicy.{kind}: Continue" in told


def test_plan_that_cannot_start() -> None:
    """A plan Job's pod is distinguished from the pods that process records."""
    facts = recorded("image-missing")
    pod = deepcopy(dict(facts.pods[0]))
    pod["metadata"]["labels"]["app.kubernetes.io/component"] = "plan"
    running = with_condition(replace(facts, pods=(pod,)), "Stalled", "False", "NotStalled")
    assert first(explain(running)).startswith("blocking: Plan Pod image-missing-0")


@pytest.mark.parametrize("name", NAMES)
def test_json_and_text_tell_the_same(name: str) -> None:
    """Both forms contain the verdict and every finding with its remedy."""
    explanation = explain(recorded(name))
    data = json.loads(json.dumps(explanation.to_dict()))
    console = Console(file=StringIO(), width=400)
    console.print(rendered(explanation))
    text = "".join(console.file.getvalue().split())
    assert data["verdict"] == explanation.verdict
    assert len(data["findings"]) == len(explanation.findings)
    for finding in data["findings"]:
        assert {*finding} == {"severity", "subject", "what", "remedy"}
        for value in finding.values():
            assert "".join(value.split()) in text
