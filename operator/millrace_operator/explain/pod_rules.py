"""Rules about pods, claims, Jobs and the StatefulSet, for problems that conditions do not report, or not in detail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from millrace_operator.explain.facts import Facts
from millrace_operator.explain.findings import Finding, Severity, age
from millrace_operator.model import Json, Object

_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_CONFIG: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_NO_VOLUME: Final = ("ProvisioningFailed", "FailedBinding")
_ENDED_BY_SIGNAL: Final = {137: "killed", 143: "terminated"}
_WRONG_INPUT: Final = 2
_SLOW_START_SECONDS: Final = 120
_SKIPS_RECORDS: Final = re.compile(r"\b(deserialization|processing)\.exception\.handler\b")
"""The settings that errors about single records end with; in a manifest they are `spec.processing.errorPolicy`."""


def _plans(facts: Facts) -> Iterator[Finding]:
    for pod in facts.plan_pods():
        if pod["status"].get("phase") in {"Succeeded", "Running"} or facts.is_condition("Stalled", "True"):
            continue
        for finding in _container(facts, pod):
            yield Finding(finding.severity, f"Plan {finding.subject}", finding.what, finding.remedy)
        yield from _unscheduled(facts, pod)


def _set(facts: Facts) -> Iterator[Finding]:
    if facts.stateful_set is None:
        return
    name = facts.stateful_set["metadata"]["name"]
    there = sum(1 for _ in facts.runtime_pods())
    if there >= facts.stateful_set["spec"].get("replicas", 1):
        return
    for event in facts.events_about("StatefulSet", name, "FailedCreate"):
        message = event["message"]
        remedy = "The cluster rejects the pod: fix what the message says."
        if "exceeded quota" in message:
            remedy = "Raise the namespace's ResourceQuota, or lower the pods' requests (spec.podTemplate)."
        elif "PodSecurity" in message:
            remedy = (
                "Correct spec.podTemplate: the namespace enforces a Pod Security Standard, which the defaults satisfy."
            )
        yield Finding(Severity.BLOCKING, f"StatefulSet {name}", message, remedy)
        return


def _claims(facts: Facts) -> Iterator[Finding]:
    for claim in facts.claims:
        name, phase = claim["metadata"]["name"], claim["status"].get("phase")
        subject = f"PersistentVolumeClaim {name}"
        if phase == "Lost":
            yield Finding(
                Severity.BLOCKING,
                subject,
                "Its volume no longer exists.",
                "Delete the claim and the pod: the state is restored from the changelog topics.",
            )
        elif phase == "Pending":
            event = next(facts.events_about("PersistentVolumeClaim", name, *_NO_VOLUME), None)
            if event is not None:
                yield Finding(
                    Severity.BLOCKING,
                    subject,
                    f"It has no volume: {event['message']}",
                    "Check the StorageClass (spec.storage.storageClassName) and its provisioner.",
                )
        for condition in claim["status"].get("conditions", ()):
            if condition["type"] == "FileSystemResizePending" and condition["status"] == "True":
                yield Finding(Severity.WAITING, subject, "Its file system is enlarged when its pod restarts.")


def _pods(facts: Facts) -> Iterator[Finding]:
    for pod in facts.runtime_pods():
        status = pod["status"]
        if pod["metadata"].get("deletionTimestamp") is not None:
            yield _terminating(facts, pod)
        elif any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", ())):
            yield from _restarted(pod)
        else:
            found = [*_unscheduled(facts, pod), *_container(facts, pod)]
            if status.get("phase") == "Failed" and status.get("reason"):
                evicted = Finding(
                    Severity.BLOCKING,
                    _name(pod),
                    f"{status['reason']}: {status.get('message', 'the node gave no message')}",
                    "Give the pods more resources (spec.podTemplate, resources), or the cluster more nodes.",
                )
                found.insert(0, evicted)
            yield from found or _unready(facts, pod)


def _unscheduled(facts: Facts, pod: Object) -> Iterator[Finding]:
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = condition.get("message", "no node fits")
            remedy = "Add nodes, or change what the pods request (spec.podTemplate)."
            if "volume" in message.lower():
                remedy = (
                    "Check the claims: the pod's volume is missing, or is on a node that accepts no more pods. If that node is "
                    "gone for good, delete the claim and the pod: the state is restored from the changelog topics."
                )
            elif "nsufficient" in message:
                remedy = "Add nodes, or lower the requests of the pods (spec.podTemplate, resources)."
            yield Finding(Severity.BLOCKING, _name(pod), f"It cannot be scheduled: {message}", remedy)
            return
    for event in facts.events_about("Pod", pod["metadata"]["name"], "FailedMount", "FailedAttachVolume"):
        if pod["status"].get("phase") == "Pending":
            yield Finding(
                Severity.BLOCKING,
                _name(pod),
                event["message"],
                "Create what is missing: the pod starts within two minutes after that.",
            )
            return


def _container(facts: Facts, pod: Object) -> Iterator[Finding]:
    status = pod["status"]
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container["state"].get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _IMAGE:
            # What the registry said: the back-off's own message does not say it.
            events = (str(event["message"]) for event in facts.events_about("Pod", pod["metadata"]["name"], "Failed"))
            why = next((text for text in events if "ull" in text and "Error:" not in text), message)
            yield Finding(
                Severity.BLOCKING,
                _name(pod),
                f"The image {container['image']} cannot be pulled ({reason}): {why}",
                "Correct spec.image, push the image, or set spec.imagePullSecrets.",
            )
        elif reason in _CONFIG:
            yield Finding(
                Severity.BLOCKING,
                _name(pod),
                f"{reason}: {message}",
                "Create the Secret or ConfigMap that is missing, or correct spec.podTemplate.",
            )
        else:
            ended = container["state"].get("terminated") or (container.get("lastState") or {}).get("terminated")
            if ended is not None and ended.get("exitCode") != 0:
                yield _crashed(facts, pod, container, ended)


def _crashed(facts: Facts, pod: Object, container: Object, ended: Object) -> Finding:
    restarts, code = container.get("restartCount", 0), ended.get("exitCode")
    times = "once" if restarts == 1 else f"{restarts} times"
    last = _last_lines(ended.get("message"))
    again = f"It was restarted {times}. " if restarts else ""
    if ended.get("reason") == "OOMKilled":
        own: Json = next((item for item in pod["spec"]["containers"] if item["name"] == container["name"]), {})
        memory = ((own.get("resources") or {}).get("limits") or {}).get("memory")
        limit = "" if memory is None else f" of {memory}"
        return Finding(
            Severity.BLOCKING,
            _name(pod),
            f"{again}It was killed because it used more memory than its limit{limit}.",
            "Raise the container's memory limit (spec.podTemplate), lower spec.storage.memoryFraction, or run more replicas.",
        )
    log = f"`kubectl -n {facts.namespace} logs {pod['metadata']['name']} --previous`"
    if code in _ENDED_BY_SIGNAL:
        failed_probes = (item["message"] for item in facts.events_about("Pod", pod["metadata"]["name"], "Unhealthy"))
        because = next((f" {message}" for message in failed_probes if not message.startswith("Readiness")), "")
        return Finding(
            Severity.BLOCKING,
            _name(pod),
            f"{again}It was {_ENDED_BY_SIGNAL[code]} (exit code {code}).{because}",
            f"The liveness probe restarts a container with a thread that is stuck in the program's own code. Read the log: {log}",
        )
    if code == _WRONG_INPUT:
        return Finding(
            Severity.BLOCKING,
            _name(pod),
            f"{again}The program did not start (exit code 2){last}",
            "Fix the manifest or the topology: a restart does not help.",
        )
    remedy = f"Read the log of the previous container: {log}"
    if policy := _SKIPS_RECORDS.search(ended.get("message") or ""):
        remedy = (
            f"Fix the program, or skip such records: spec.processing.errorPolicy.{policy[1]}: Continue. "
            "spec.processing.deadLetterTopic keeps them."
        )
    return Finding(Severity.BLOCKING, _name(pod), f"{again}The program ended (exit code {code}){last}", remedy)


def _unready(facts: Facts, pod: Object) -> Iterator[Finding]:
    running = (
        item["state"]["running"] for item in pod["status"].get("containerStatuses", ()) if "running" in item["state"]
    )
    started = next((state.get("startedAt") for state in running), None)
    if started is None:
        yield Finding(Severity.WAITING, _name(pod), "It is starting.")
        return
    seconds = facts.age_seconds(started)
    probe = next(facts.events_about("Pod", pod["metadata"]["name"], "Unhealthy"), None)
    what = f"It has been running for {age(seconds)} but is not ready."
    what += "" if probe is None else f" {probe['message']}"
    slow = seconds > _SLOW_START_SECONDS and not facts.is_condition("StateRestored", "False")
    forward = f"`kubectl -n {facts.namespace} port-forward {pod['metadata']['name']} 8080`"
    remedy = f"{forward}, then http://localhost:8080/readyz says what is missing."
    yield Finding(Severity.WAITING, _name(pod), what, remedy if slow else "")


def _restarted(pod: Object) -> Iterator[Finding]:
    for container in pod["status"].get("containerStatuses", ()):
        ended = (container.get("lastState") or {}).get("terminated")
        if ended is not None and ended.get("exitCode") != 0:
            yield Finding(
                Severity.NOTE,
                _name(pod),
                f"It is running, but was restarted {container['restartCount']} times; the last time it ended with "
                f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}{_last_lines(ended.get('message'))}",
            )


def _terminating(facts: Facts, pod: Object) -> Finding:
    metadata = pod["metadata"]
    over = facts.age_seconds(metadata["deletionTimestamp"])  # the time by which it should have ended
    if over > _SLOW_START_SECONDS:
        return Finding(
            Severity.BLOCKING,
            _name(pod),
            f"It should have terminated {age(over)} ago.",
            f"If node {pod['spec'].get('nodeName', '?')} is gone for good, delete the Node; its pods then end.",
        )
    return Finding(Severity.WAITING, _name(pod), "It is stopping: it is committing and closing its state stores.")


def _last_lines(message: str | None) -> str:
    if not message or not message.strip():
        return "."
    return ":\n" + "\n".join(message.strip().splitlines()[-5:])


def _name(pod: Object) -> str:
    return f"Pod {pod['metadata']['name']}"


POD_RULES: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (_plans, _set, _claims, _pods)
"""The rules, in the order of causes."""
