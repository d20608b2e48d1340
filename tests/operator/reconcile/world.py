"""A small cluster with a Kafka in it, to reconcile against: a model of what the API server, its controllers and the brokers do.

Time stands still but for `tick`, and controllers act only in `settle`, so that a test decides what happens between two turns.
What the model knows of Millrace is how pods behave, which a `Program` says for each image.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from millrace.manifest import StreamsAppSpec, StreamsAppStatus
from millrace.topology.plan import (
    PlannedChangelogTopic,
    PlannedStore,
    PlannedSubtopology,
    TopologyPlan,
)
from millrace_operator import model
from millrace_operator.app.stalled import stalled_status
from millrace_operator.children import COMPONENT, REVISION
from millrace_operator.model import (
    FINALIZER,
    Decision,
    Desired,
    Group,
    Instance,
    KafkaState,
    Key,
    Member,
    Observed,
    Topic,
)
from millrace_operator.reconcile import reconcile
from millrace_operator.reconcile.view import seconds

APP = "words"
NAMESPACE = "team"
INPUT = "lines"
SMALL: dict[str, Any] = {
    "applicationId": "words-v1",
    "image": "registry.example/words:1",
    "app": {"entrypoint": "words:topology"},
    "kafka": {"bootstrapServers": ["kafka:9092"]},
    "upgrade": {"gate": {"readyTimeout": "60s", "minStable": "5s"}},
}


def plan(
    stores: Iterable[str] = ("counts",),
    application_id: str = "words-v1",
    kinds: Mapping[str, str] | None = None,
    inputs: tuple[str, ...] = (INPUT,),
) -> TopologyPlan:
    """Return the plan of a topology that keeps some stores; they are key-value stores of one input if nothing else is said."""
    names, kinds = tuple(stores), kinds or {}
    return TopologyPlan(
        application_id=application_id,
        hash=hashlib.sha256(repr((names, sorted(kinds.items()), inputs)).encode()).hexdigest(),
        subtopologies=(
            PlannedSubtopology(
                id=0,
                source_topics=inputs,
                stores=tuple(
                    PlannedStore(
                        name=name,
                        kind=kinds.get(name, "key-value"),
                        value_format="timestamped",
                        persistent=True,
                        changelog_topic=f"{application_id}-{name}-changelog",
                    )
                    for name in names
                ),
                changelog_topics=tuple(
                    PlannedChangelogTopic(
                        name=f"{application_id}-{name}-changelog", config={"cleanup.policy": "compact"}
                    )
                    for name in names
                ),
            ),
        ),
    )


@dataclass(frozen=True)
class Program:
    """What an image holds: how its plan Job ends, and how its pods do."""

    plan: TopologyPlan | None = field(default_factory=plan)
    """None has the plan Job fail."""
    pulls: bool = True
    plan_waits: str = ""
    """Why the plan Job's pod cannot be started, in Kubernetes' word; empty if it can."""
    pod_pulls: bool = True
    """Whether the nodes of pods can pull it, too."""
    crashes: bool = False
    becomes_ready: bool = True


class RefusedError(Exception):
    """The API server refuses a write, which ends the pass; it never does if what was seen is how things are."""


@dataclass
class World:
    """The cluster, the brokers, and one StreamsApp."""

    manifest: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(SMALL))
    programs: dict[str, Program] = field(default_factory=dict)
    now: float = 1_000_000.0
    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=lambda: {INPUT: Topic("input", 4, 1)})
    brokers_up: bool = True
    kafka_reason: str = "Unreachable"
    brokers: int = 3
    members: set[str] = field(default_factory=set)
    """Pods whose instances are in the group."""
    group_exists: bool = False
    drained: set[str] = field(default_factory=set)
    """Uids of pods whose instances have left the group."""
    restarts: int = 3
    """How often a pod that crashes has been restarted."""
    stale: set[str] = field(default_factory=set)
    """Uids of pods that run with certificates which are not those of their Secrets any more."""
    taken: Literal["both", "old", "new"] = "both"
    """Which certificates brokers take."""
    deaf: bool = False
    """Whether instances do not hear that they are to drain."""
    boot_seconds: float = 0
    """How long a pod takes until it is ready."""
    restoring: dict[str, int] = field(default_factory=dict)
    lag: int = 0
    records_per_second: float | None = None
    """Of each instance."""
    busy_ratio: float | None = None
    status: StreamsAppStatus | None = None
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    exists: bool = True
    deleted_at: float | None = None
    generation: int = 1
    expandable: bool | None = True
    used_percent: float | None = 10.0
    serial: int = 0
    log: list[model.Action] = field(default_factory=list)
    """Every action that was carried out."""
    events: list[model.Event] = field(default_factory=list)
    warnings: list[model.Event] = field(default_factory=list)
    """Those that were told though the resource was gone, too."""
    refused: bool = False
    """Whether brokers refuse to delete topics, which ends a turn before its other actions, and is its status."""
    stuck: bool = False
    """Whether pods do not end, as on a lost node."""
    status_writes: int = 0
    most_pods_down: int = 0
    """The most pods of the application that were not ready at a time."""
    ran: list[str] = field(default_factory=list)
    """The images of pods, in the order in which they were started."""
    reckless: list[str] = field(default_factory=list)
    """Deletions of pods that ran well while another one did not."""

    # What the user does

    def change(self, **fields: Any) -> None:
        """Change fields of the spec."""
        self.manifest = {**self.manifest, **fields}
        self.generation += 1

    def delete(self) -> None:
        """Ask for the resource's deletion."""
        if self.deleted_at is None:
            self.deleted_at = self.now
            self.generation += 1
            if not self.finalizers:
                self.exists = False

    # What the operator sees

    def desired(self) -> Desired:
        """Return the resource."""
        return Desired(
            namespace=NAMESPACE,
            name=APP,
            uid="app",
            generation=self.generation,
            spec=StreamsAppSpec.model_validate(self.manifest),
            manifest=self.manifest,
            status=self.status,
            annotations=dict(self.annotations),
            finalizers=self.finalizers,
            deleting=self.deleted_at is not None,
            deletion_time=self.deleted_at,
        )

    def observed(self) -> Observed:
        """Return everything there is to see."""
        pods = [pod for pod in self.pods() if self._is_up(pod)]
        return Observed(
            now=self.now,
            objects=pickle.loads(pickle.dumps(self.objects)),
            kafka=self._kafka(),
            instances={pod["metadata"]["name"]: self._instance(pod) for pod in pods},
            outputs={key.name: item["output"] for key, item in self.objects.items() if item.get("output")},
            storage_class_expandable=self.expandable,
        )

    def _kafka(self) -> KafkaState:
        if not self.brokers_up:
            return KafkaState(error="No broker answers at kafka:9092.", reason=self.kafka_reason)
        group = None
        if self.group_exists:
            members = tuple(
                Member(f"m-{name}-{thread}", name)
                for name in sorted(self.members)
                for thread in range(1, self.manifest.get("threads", 1) + 1)
            )
            group = Group("Stable" if members else "Empty", members=members)
        return KafkaState(topics=dict(self.topics), brokers=self.brokers, group=group, lag=self.lag)

    def renew_certificates(self) -> None:
        """Change what Secrets hold: who runs does not use it."""
        self.stale = {pod["metadata"]["uid"] for pod in self.pods()}

    def _instance(self, pod: Mapping[str, Any]) -> Instance:
        drained = pod["metadata"]["uid"] in self.drained
        ready = is_ready(pod)
        restoring = self.restoring.get(pod["metadata"]["name"], 0)
        return Instance(
            state="DRAINED" if drained else "RUNNING" if ready else "REBALANCING",
            ready=ready,
            active=0 if drained else 1,
            restoring=restoring,
            records_per_second=self.records_per_second,
            busy_ratio=self.busy_ratio,
            storage_used_percent=self.used_percent,
            credentials_stale=pod["metadata"]["uid"] in self.stale,
        )

    @staticmethod
    def _is_up(pod: Mapping[str, Any]) -> bool:
        states = pod["status"].get("containerStatuses", [{}])
        return "running" in states[0].get("state", {})

    # Turns

    def turn(self, actions: int | None = None) -> Decision:
        """Reconcile once, and carry out the decision or only its first actions, as after a crash."""
        return self.carry_out(reconcile(self.desired(), self.observed()), actions)

    def carry_out(self, decision: Decision, actions: int | None = None) -> Decision:
        """Carry out a decision, or only its first actions."""
        for action in decision.actions[:actions]:
            if self.refused and isinstance(action, model.DeleteTopics):
                self.status = stalled_status(self.desired(), "RefusedByKafka", "Topics may not be deleted.")
                return decision
            self.do(action)
        self.warnings.extend(event for event in decision.events if event.type == "Warning")
        if actions is None and self.exists:
            if decision.status is not None and decision.status != self.status:
                self.status = decision.status
                self.status_writes += 1
            self.events.extend(decision.events)
        return decision

    def run(self, seconds: float = 120, step: float = 5) -> Decision:
        """Let time pass, with a turn and all controllers at each step; return the last decision."""
        end = self.now + seconds
        while True:
            decision = self.turn()
            self.settle()
            if self.now >= end:
                return decision
            self.tick(step)

    def rest(self, limit: int = 200) -> World:
        """Go on until nothing has been done for longer than anything is waited for."""
        idle = 0
        for _ in range(limit):
            before = self.status
            idle = 0 if self.turn().actions or self.status != before else idle + 1
            self.settle()
            if idle * 10 > 80 or not self.exists:
                break
            self.tick(10)
        return self

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    # The hands

    def do(self, action: model.Action) -> None:
        """Carry out an action as the API server and the brokers would."""
        self.log.append(action)
        hands: dict[type, Any] = {
            model.SetFinalizer: self._set_finalizer,
            model.Apply: self._apply,
            model.Delete: self._delete_object,
            model.ResizeClaim: self._resize_claim,
            model.ProvisionTopics: self._provision_topics,
            model.DeleteTopics: self._delete_topics,
            model.RemoveMembers: self._remove_members,
            model.DeleteGroup: self._delete_group,
            model.DrainPod: self._drain_pod,
        }
        hands[type(action)](action)

    def _set_finalizer(self, action: model.SetFinalizer) -> None:
        self.finalizers = (FINALIZER,) if action.present else ()
        if self.deleted_at is not None and not self.finalizers:
            self.exists = False

    def _apply(self, action: model.Apply) -> None:
        wanted = copy.deepcopy(dict(action.object))
        key = Key(wanted["kind"], wanted["metadata"]["name"])
        seen = self.objects.get(key)
        if seen is None:
            self.create(wanted)
            return
        if seen["metadata"].get("deletionTimestamp"):
            return
        if key.kind == "StatefulSet":
            for name in ("serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates"):
                if wanted["spec"][name] != seen["spec"][name]:
                    raise RefusedError(f"{key.name}: {name} cannot be changed")
        if key.kind == "ConfigMap" and wanted["data"] != seen["data"]:
            raise RefusedError(f"{key.name} is immutable")
        metadata = {**seen["metadata"], **wanted["metadata"]}
        if wanted.get("spec") != seen.get("spec"):
            metadata["generation"] += 1
        self.objects[key] = {**seen, **wanted, "metadata": metadata}

    def create(self, item: dict[str, Any]) -> dict[str, Any]:
        """Create an object, with what the API server adds."""
        self.serial += 1
        item["metadata"] |= {"uid": f"uid-{self.serial}", "creationTimestamp": self.timestamp(), "generation": 1}
        item.setdefault("status", {})
        self.objects[Key(item["kind"], item["metadata"]["name"])] = item
        return item

    def _delete_object(self, action: model.Delete) -> None:
        seen = self.objects.get(action.key)
        if seen is None or seen["metadata"]["uid"] != action.uid:
            return
        if action.key.kind == "Pod":
            down = [pod["metadata"]["name"] for pod in self.pods() if not is_ready(pod)]
            if is_ready(seen) and down:
                self.reckless.append(f"{action.key.name} while {down} were down")
        if action.key.kind == "Pod" or (action.key.kind == "PersistentVolumeClaim" and self._claimant(action.key.name)):
            seen["metadata"].setdefault("deletionTimestamp", self.timestamp())
        else:
            del self.objects[action.key]
        if action.key.kind == "StatefulSet" and not action.orphan:
            for pod in self.pods():
                pod["metadata"].setdefault("deletionTimestamp", self.timestamp())
        if action.key.kind == "Job":
            self.objects.pop(Key("Pod", f"{action.key.name}-x"), None)

    def _claimant(self, claim: str) -> bool:
        return Key("Pod", claim.removeprefix("state-")) in self.objects

    def _resize_claim(self, action: model.ResizeClaim) -> None:
        assert self.expandable is not False
        claim = self.objects[Key("PersistentVolumeClaim", action.name)]
        claim["spec"]["resources"]["requests"]["storage"] = action.size

    def _provision_topics(self, action: model.ProvisionTopics) -> None:
        if not self.brokers_up:
            return
        wanted = json.loads(action.plan)
        configs = {item["name"]: item["config"] for sub in wanted["subtopologies"] for item in sub["changelogTopics"]}
        for name in action.names:
            if name not in self.topics:
                self.serial += 1
                partitions = self.topics[INPUT].partitions
                factor = max(1, action.replication_factor)
                self.topics[name] = Topic(f"topic-{self.serial}", partitions, factor, configs[name])

    def _delete_topics(self, action: model.DeleteTopics) -> None:
        if self.brokers_up:
            for name in action.names:
                self.topics.pop(name, None)

    def _remove_members(self, action: model.RemoveMembers) -> None:
        if self.brokers_up:
            self.members -= set(action.instance_ids)

    def _delete_group(self, _: model.DeleteGroup) -> None:
        if self.brokers_up and not self.members:
            self.group_exists = False

    def _drain_pod(self, action: model.DrainPod) -> None:
        pod = self.objects.get(Key("Pod", action.pod))
        if pod is not None and pod["metadata"]["uid"] == action.uid and self._is_up(pod) and not self.deaf:
            self.drained.add(action.uid)
            self.members.discard(action.pod)
            set_ready(pod, False, self.timestamp())

    # The controllers

    def settle(self) -> None:
        """Let all controllers and kubelets do what they have to do, once."""
        self._count_pods_down()
        self.jobs()
        self.end_pods()
        self.scale_pods()
        self.start_pods()

    def _count_pods_down(self) -> None:
        down = [pod for pod in self.pods() if not is_ready(pod) or pod["metadata"].get("deletionTimestamp")]
        self.most_pods_down = max(self.most_pods_down, len(down))

    def jobs(self) -> None:
        for key in [key for key in self.objects if key.kind == "Job"]:
            job = self.objects[key]
            if job["status"].get("conditions"):
                continue
            template = job["spec"]["template"]
            image = template["spec"]["containers"][0]["image"]
            program = self.programs.get(image, Program())
            if not program.pulls or program.plan_waits:
                pod = {
                    "kind": "Pod",
                    "metadata": {"name": f"{key.name}-x", **template["metadata"]},
                    "spec": template["spec"],
                }
                item = copy.deepcopy(pod)
                item["status"] = {"containerStatuses": [waiting(program.plan_waits or "ImagePullBackOff")]}
                self.create(item)
                continue
            job["status"]["conditions"] = [{"type": "Complete" if program.plan else "Failed", "status": "True"}]
            job["output"] = program.plan.to_json() if program.plan else "Traceback:\nImportError: no module words"

    def end_pods(self) -> None:
        for pod in self.pods():
            if pod["metadata"].get("deletionTimestamp") and not self.stuck:
                del self.objects[Key("Pod", pod["metadata"]["name"])]
        for key in [key for key in self.objects if key.kind == "PersistentVolumeClaim"]:
            if self.objects[key]["metadata"].get("deletionTimestamp") and not self._claimant(key.name):
                del self.objects[key]

    def scale_pods(self) -> None:
        found = self.objects.get(Key("StatefulSet", APP))
        if found is None:
            return
        found["status"]["observedGeneration"] = found["metadata"]["generation"]
        replicas = found["spec"]["replicas"]
        for pod in self.pods():
            if int(pod["metadata"]["name"].rpartition("-")[2]) >= replicas:
                pod["metadata"].setdefault("deletionTimestamp", self.timestamp())
        for index in range(replicas):
            claim = copy.deepcopy(found["spec"]["volumeClaimTemplates"][0])
            claim["metadata"]["name"] = f"state-{APP}-{index}"
            if Key("PersistentVolumeClaim", claim["metadata"]["name"]) not in self.objects:
                self.create(claim)
                claim["status"] = {"phase": "Bound"}
            if Key("Pod", f"{APP}-{index}") not in self.objects:
                template = copy.deepcopy(found["spec"]["template"])
                pod = {"kind": "Pod", **template}
                pod["metadata"]["name"] = f"{APP}-{index}"
                self.create(pod)
                self.ran.append(pod["spec"]["containers"][0]["image"])

    def start_pods(self) -> None:
        for pod in self.pods():
            if pod["metadata"].get("deletionTimestamp") or pod["metadata"]["uid"] in self.drained:
                continue
            name = pod["metadata"]["name"]
            program = self.programs.get(pod["spec"]["containers"][0]["image"], Program())
            if not (program.pulls and program.pod_pulls):
                pod["status"] = {"containerStatuses": [waiting("ImagePullBackOff")]}
            elif program.crashes:
                ended = {"exitCode": 1, "message": "ValueError: no such store", "finishedAt": self.timestamp()}
                pod["status"] = {
                    "containerStatuses": [
                        {
                            **waiting("CrashLoopBackOff"),
                            "restartCount": self.restarts,
                            "lastState": {"terminated": ended},
                        }
                    ]
                }
            else:
                pod["status"].setdefault("containerStatuses", [{"state": {"running": {}}}])
                if self.brokers_up:
                    self.group_exists = True
                    self.members.add(name)
                booted = self.now - seconds(pod["metadata"]["creationTimestamp"]) >= self.boot_seconds
                admitted = self.taken == "both" or (self.taken == "old") == (pod["metadata"]["uid"] in self.stale)
                set_ready(pod, program.becomes_ready and self.brokers_up and booted and admitted, self.timestamp())

    # Looking

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the running application."""
        return [
            item
            for key, item in sorted(self.objects.items())
            if key.kind == "Pod" and item["metadata"]["labels"][COMPONENT] == "runtime"
        ]

    def revisions(self) -> list[str]:
        """Return the revisions of the pods."""
        return [pod["metadata"]["labels"][REVISION] for pod in self.pods()]

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind."""
        return sorted(key.name for key in self.objects if key.kind == kind)

    def condition(self, kind: str) -> tuple[str, str]:
        """Return a condition's status and reason."""
        assert self.status is not None
        found = next(item for item in self.status.conditions if item.type == kind)
        return found.status, found.reason

    def message(self, kind: str) -> str:
        """Return a condition's message."""
        assert self.status is not None
        return next(item for item in self.status.conditions if item.type == kind).message

    def set_ready(self, pod: str, ready: bool) -> None:  # noqa: FBT001
        """Set a pod's Ready condition."""
        set_ready(self.objects[Key("Pod", pod)], ready, self.timestamp())

    def timestamp(self) -> str:
        """Return the time as Kubernetes writes it."""
        return datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def done(self, kind: type[model.Action]) -> list[Any]:
        """Return the actions of a kind that were carried out."""
        return [action for action in self.log if isinstance(action, kind)]


def waiting(reason: str) -> dict[str, Any]:
    """Return the status of a container that waits."""
    return {"state": {"waiting": {"reason": reason}}}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready."""
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", ()))


def set_ready(pod: dict[str, Any], ready: bool, timestamp: str) -> None:  # noqa: FBT001
    """Set a pod's Ready condition, with the time if it changes."""
    if is_ready(pod) != ready or not pod["status"].get("conditions"):
        status = "True" if ready else "False"
        pod["status"]["conditions"] = [{"type": "Ready", "status": status, "lastTransitionTime": timestamp}]
