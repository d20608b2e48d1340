"""A small cluster with a Kafka in it, to reconcile against: a model of the API server, its controllers and the brokers.

Time advances only in `tick`, and controllers act only in `settle`, so that a test decides what happens between two passes.
All that the model knows about Millrace is how pods behave, which a `Program` defines for each image.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from tests.operator.fake_operator import FakeOperator

from millrace.instance_status import (
    DiskUsage,
    ProcessingStatus,
    RestoreProgress,
    StreamsStatus,
    TaskCounts,
    TaskStatus,
)
from millrace.kafka.group_settings import GroupSetting, wrong_group_settings
from millrace.manifest import StreamsAppSpec, StreamsAppStatus, to_group_settings
from millrace.plan.topology_plan import (
    PlannedChangelogTopic,
    PlannedStore,
    PlannedSubtopology,
    TopologyPlan,
)
from millrace_operator import model
from millrace_operator.app.refusals import Refusal, carry_out, with_refusals
from millrace_operator.app.refusals import description_of as words_of
from millrace_operator.children import naming
from millrace_operator.children.config_maps import MANIFEST_KEY
from millrace_operator.children.naming import (
    APP_LABEL,
    APP_UID_LABEL,
    COMPONENT_LABEL,
    DRAIN_ANNOTATION,
    FINALIZER,
    MANAGER,
    NODE_LABELS_ANNOTATION,
    RETAINED_LABEL,
    REVISION_LABEL,
)
from millrace_operator.model import (
    ConsumerGroup,
    ConsumerGroupMember,
    Decision,
    DesiredApp,
    HoldingBackfill,
    KafkaState,
    Key,
    ObservedApp,
    SeenNode,
    Topic,
)
from millrace_operator.reconcile.ownership import conflict_message, is_own
from millrace_operator.reconcile.reconciler import reconcile
from millrace_operator.reconcile.timestamps import seconds

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
    """Return the plan of a topology that keeps some stores; by default, key-value stores fed by one input."""
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
    """What an image contains: how its plan Job ends, and how its pods behave."""

    plan: TopologyPlan | None = field(default_factory=plan)
    """None makes the plan Job fail."""
    pulls: bool = True
    plan_waits: str = ""
    """Why the plan Job's pod cannot start, in Kubernetes' word; empty if it can."""
    pod_pulls: bool = True
    """Whether the nodes of the pods can pull it, too."""
    crashes: bool = False
    becomes_ready: bool = True


class TakenError(Exception):
    """The name belongs to an object that is not ours."""

    def __init__(self, key: Key, message: str) -> None:
        super().__init__(message)
        self.key = key


class RefusedError(Exception):
    """The API server refuses a write, which ends the pass; it never does if the observation is up to date."""


@dataclass
class World(FakeOperator):
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
    serves_streams: bool = True
    """Whether the brokers serve the streams group protocol."""
    group_settings: dict[str, str] = field(default_factory=dict)
    """What was set for the group in the brokers."""
    hides_group_settings: bool = False
    """Whether the brokers do not tell them."""
    joined_with: dict[str, str] = field(default_factory=dict)
    """The group protocol of each member's pod."""
    refused_members: list[str] = field(default_factory=list)
    """Pods that could not join because of members with the other group protocol, which ends their processes."""
    strangers: list[ConsumerGroupMember] = field(default_factory=list)
    """Members of the group that do not belong to the application's pods."""
    neighbours: tuple[model.Neighbour, ...] = ()
    group_exists: bool = False
    rebalancing: bool = False
    drained: set[str] = field(default_factory=set)
    """Uids of pods whose instances have left the group."""
    restarts: int = 3
    """How often a crashing pod has been restarted."""
    stale: set[str] = field(default_factory=set)
    """Uids of pods whose certificates no longer match their Secrets."""
    not_taken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By pod: the tasks that its instance does not take, because the group's leader has another topology."""
    taken: Literal["both", "old", "new"] = "both"
    """Which certificates brokers accept."""
    renewal: model.RenewalPermit = "Now"
    """Whether the application gets a permit to renew its pods, if it has asked for one."""
    asked: bool = False
    """Whether the last decision asked for a permit."""
    deaf: bool = False
    """Whether instances ignore requests to drain, as an older Millrace does."""
    boot_seconds: float = 0
    """How long a pod takes to become ready."""
    restoring: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, tuple[TaskStatus, ...]] = field(default_factory=dict)
    """What each pod's instance reports of its tasks, if it is up."""
    nodes: dict[str, SeenNode] = field(default_factory=dict)
    lost_pods: set[str] = field(default_factory=set)
    """Uids of pods whose nodes are gone."""
    lag: int = 0
    records_per_second: float | None = None
    """Per instance."""
    busy_ratio: float | None = None
    status: StreamsAppStatus | None = None
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    uid: str = "app1-0"
    member: str = ""
    """The prefix of member ids, as pods were last told."""
    joined_as: dict[str, str] = field(default_factory=dict)
    """The prefix of the member ids with which each pod joined."""
    found_taken: dict[Key, str] = field(default_factory=dict)
    """Objects that the executor has found under names that children need."""
    exists: bool = True
    deleted_at: float | None = None
    generation: int = 1
    expandable: bool | None = True
    backfill: str | None = None
    """The backfill that keeps the application stopped."""
    backfill_has_ended: bool = False
    """Whether it has left an inconsistent state."""
    backfill_then: str | None = None
    """Another one that has left an inconsistent state."""
    pod_monitors: bool = True
    """Whether the cluster has the PodMonitor CRD."""
    used_percent: float | None = 10.0
    serial: int = 0
    log: list[model.Action] = field(default_factory=list)
    """Every action that was carried out."""
    events: list[model.Event] = field(default_factory=list)
    warnings: list[model.Event] = field(default_factory=list)
    """Including those sent after the resource was gone."""
    refused: bool = False
    """Whether brokers refuse to delete topics, which ends a pass before its other actions and shows in its status."""
    keeps_members: bool = False
    """Whether brokers refuse to remove members."""
    refuses: set[str] = field(default_factory=set)
    """Kinds of children that the API server refuses to write, as for a quota or an admission policy."""
    stuck: bool = False
    """Whether pods never stop, as on a lost node."""
    status_writes: int = 0
    most_pods_down: int = 0
    """The most pods of the application that were not ready at the same time."""
    ran: list[str] = field(default_factory=list)
    """The images of pods, in the order in which they were started."""
    reckless: list[str] = field(default_factory=list)
    """Deletions of pods that ran well while another one did not."""

    # Deletions of healthy pods while another one was not healthy.

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

    def recreate(self, **fields: Any) -> None:
        """Create the resource again after it has gone: another one of the same name."""
        assert not self.exists
        self.exists, self.deleted_at, self.status, self.finalizers = True, None, None, ()
        self.uid = f"app{int(self.uid.removeprefix('app').partition('-')[0]) + 1}-0"
        self.found_taken.clear()
        self.change(**fields)

    # What the operator sees

    def desired(self) -> DesiredApp:
        """Return the resource."""
        return DesiredApp(
            namespace=NAMESPACE,
            name=APP,
            uid=self.uid,
            created="2026-01-02T00:00:00Z",
            generation=self.generation,
            spec=StreamsAppSpec.model_validate(self.manifest),
            manifest=self.manifest,
            status=self.status,
            annotations=dict(self.annotations),
            finalizers=self.finalizers,
            deleting=self.deleted_at is not None,
            deletion_time=self.deleted_at,
        )

    def desired_without_spec(self, problem: str) -> DesiredApp:
        """Return the resource if its spec breaks a rule."""
        return dataclasses.replace(self.desired(), spec=None, problems=(problem,))

    def observed(self) -> ObservedApp:
        """Return everything the operator can observe."""
        pods = [pod for pod in self.pods() if self._is_up(pod)]
        return ObservedApp(
            now=self.now,
            objects={key: item for key, item in pickle.loads(pickle.dumps(self.objects)).items() if _is_watched(item)},
            kafka=self._kafka(),
            instances={pod["metadata"]["name"]: self._instance(pod) for pod in pods},
            outputs={key.name: item["output"] for key, item in self.objects.items() if item.get("output")},
            storage_class_expandable=self.expandable,
            nodes=self.nodes,
            lost_pods=frozenset(self.lost_pods),
            taken=dict(self.found_taken),
            renewal="Waits" if self.renewal == "Now" and not self.asked else self.renewal,
            neighbours=self.neighbours,
            pod_monitors=self.pod_monitors,
            backfill=HoldingBackfill(self.backfill, self.backfill_has_ended, self.backfill_then)
            if self.backfill
            else None,
        )

    def _kafka(self) -> KafkaState:
        if not self.brokers_up:
            return KafkaState(error="No broker answers at kafka:9092.", reason=self.kafka_reason)
        group = None
        if self.group_exists:
            members = tuple(
                ConsumerGroupMember(
                    f"m-{name}-{thread}",
                    name if self.is_static(name) else None,
                    "10.0.0.1",
                    f"{known_as}-StreamThread-{thread}-consumer",
                    f"{known_as}-{thread}" if self.is_static(name) else None,
                )
                for name in sorted(self.members)
                for known_as in [self._known_as(name)]
                for thread in range(1, self.manifest.get("threads", 1) + 1)
            )
            members += tuple(self.strangers)
            protocol = next((self.joined_with.get(name, "classic") for name in sorted(self.members)), "classic")
            moving = "PreparingRebalance" if protocol == "classic" else "Reconciling"
            state = moving if self.rebalancing else "Stable"
            group = ConsumerGroup(state if members else "Empty", protocol, members)
        state = KafkaState(topics=dict(self.topics), brokers=self.brokers, group=group, lag=self.lag)
        wanted = to_group_settings(self.desired().spec)
        if not wanted:
            return state
        defaults = {"streams.num.standby.replicas": "0"}
        found = {name: GroupSetting(value, is_own=False) for name, value in defaults.items()}
        found |= {name: GroupSetting(value, is_own=True) for name, value in self.group_settings.items()}
        return dataclasses.replace(
            state,
            brokers_assign=self.serves_streams,
            wrong_group_settings={} if self.hides_group_settings else wrong_group_settings(wanted, found),
            group_settings_error="The principal may not describe them" if self.hides_group_settings else None,
        )

    def is_static(self, pod: str) -> bool:
        """Return whether a pod's member is static."""
        return self.joined_with.get(pod, "classic") == "classic" and self.manifest.get("membership", {}).get(
            "static", True
        )

    def _known_as(self, pod: str) -> str:
        """Return the prefix of a pod's member ids: as it joined, or else as pods were last told."""
        if pod in self.joined_as:
            return self.joined_as[pod]
        templates = [
            item.get("spec", {}).get("template") for key, item in self.objects.items() if key.kind == "StatefulSet"
        ]
        for seen in filter(None, [*self.pods(), *templates]):
            self.member = _member_in(seen)
            break
        return (self.member or naming.member("$(POD_NAME)", self.uid)).replace("$(POD_NAME)", pod)

    def renew_certificates(self) -> None:
        """Change the Secrets: running pods do not use the new ones yet."""
        self.stale = {pod["metadata"]["uid"] for pod in self.pods()}

    def _instance(self, pod: Mapping[str, Any]) -> StreamsStatus:
        drained = pod["metadata"]["uid"] in self.drained
        ready = is_ready(pod)
        restoring = self.restoring.get(pod["metadata"]["name"], 0)
        return StreamsStatus(
            state="DRAINED" if drained else "RUNNING" if ready else "REBALANCING",
            task_counts=TaskCounts(active=0 if drained else 1, restoring=restoring),
            restoration=RestoreProgress(eta_seconds=None),
            processing=ProcessingStatus(records_per_second=self.records_per_second, busy_ratio=self.busy_ratio),
            storage=DiskUsage(self.used_percent),
            credentials_stale=pod["metadata"]["uid"] in self.stale,
            refused_tasks=self.not_taken.get(pod["metadata"]["name"], ()),
            tasks=() if drained else self.tasks.get(pod["metadata"]["name"], ()),
        )

    @staticmethod
    def _is_up(pod: Mapping[str, Any]) -> bool:
        states = pod["status"].get("containerStatuses", [{}])
        return "running" in states[0].get("state", {})

    # Passes

    def decide(self) -> Decision:
        """Return the decision about the application."""
        return reconcile(self.desired(), self.observed())

    def carry_out(self, decision: Decision, crash_after: int | None = None) -> Decision:
        """Carry out a decision, or only its first actions; what is refused is reported as the controller does."""
        self.asked = decision.renewal is not None
        desired = self.desired()
        try:
            refusals = carry_out(decision.actions[:crash_after], self._try)
        except TakenError:
            return decision
        if refusals:
            decision = with_refusals(desired, decision, refusals)
        self.warnings.extend(event for event in decision.events if event.type == "Warning")
        if crash_after is None and self.exists:
            if decision.status is not None and decision.status != self.status:
                self.status = decision.status
                self.status_writes += 1
            self.events.extend(decision.events)
        return decision

    def run(self, seconds: float = 120, step: float = 5) -> Decision:
        """Let time pass, with a pass and all controllers at each step; return the last decision.

        Most tests begin in the same way. If nothing exists yet, this becomes a copy of what an equal world was like after
        that time; so a test may replace parts of the operator only after its first run.
        """
        if self.serial:
            return self._run(seconds, step)
        after, decision = pickle.loads(_beginning(pickle.dumps(self), seconds, step))
        vars(self).update(vars(after))
        return decision

    def _run(self, seconds: float, step: float) -> Decision:
        end = self.now + seconds
        while True:
            decision = self.pass_over()
            self.settle()
            if self.now >= end:
                return decision
            self.tick(step)

    def rest(self, limit: int = 200) -> World:
        """Continue until nothing has been done for longer than any wait."""
        idle = 0
        for _ in range(limit):
            before = self.status
            idle = 0 if self.pass_over().actions or self.status != before else idle + 1
            self.settle()
            if idle * 10 > 80 or not self.exists:
                break
            self.tick(10)
        return self

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    # The executor

    def _try(self, action: model.Action) -> Refusal | None:
        """Carry out an action, or refuse it."""
        if self.refused and isinstance(action, model.DeleteTopics):
            return Refusal(action, "RefusedByKafka", "Topics may not be deleted.")
        if isinstance(action, model.ResizeClaim) and "PersistentVolumeClaim" in self.refuses:
            return Refusal(action, "RefusedByApiServer", f"{words_of(action)}: exceeded quota.")
        if isinstance(action, model.RemoveMembers) and self.keeps_members:
            return Refusal(action, "RefusedByKafka", "Members may not be removed.")
        if isinstance(action, model.Apply) and action.object["kind"] in self.refuses:
            return Refusal(action, "RefusedByApiServer", f"{words_of(action)}: exceeded quota.")
        if isinstance(action, model.DrainPod) and "Pod" in self.refuses:
            return Refusal(action, "RefusedByApiServer", f"{words_of(action)}: denied by a webhook.")
        try:
            self.do(action)
        except TakenError as error:
            if error.key not in self.found_taken:
                self.found_taken[error.key] = str(error)
                raise
        return None

    def do(self, action: model.Action) -> None:
        """Carry out an action as the API server and the brokers would."""
        self.log.append(action)
        hands: dict[type, Any] = {
            model.SetFinalizer: self._set_finalizer,
            model.Apply: self._apply,
            model.Delete: self._delete_object,
            model.Release: self._release,
            model.ResizeClaim: self._resize_claim,
            model.ProvisionTopics: self._provision_topics,
            model.DeleteTopics: self._delete_topics,
            model.RemoveMembers: self._remove_members,
            model.ConfigureGroup: self._configure_group,
            model.DeleteGroup: self._delete_group,
            model.DrainPod: self._drain_pod,
            model.TellNodeLabels: self._tell_node_labels,
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
        if action.uid is None and seen is None:
            self.create(wanted)
            self.found_taken.pop(key, None)
            return
        if action.uid is None and not is_own(key, seen, APP, self.uid):
            raise TakenError(key, conflict_message(seen, APP))
        if seen is None or (action.uid is not None and seen["metadata"]["uid"] != action.uid):
            raise RefusedError(f"{key.name} is gone or is another one")
        if seen["metadata"].get("deletionTimestamp"):
            return
        if key.kind == "StatefulSet":
            for name in ("serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates"):
                if wanted["spec"][name] != seen["spec"][name]:
                    raise RefusedError(f"{key.name}: {name} cannot be changed")
        if key.kind == "ConfigMap" and seen.get("immutable") and wanted["data"] != seen["data"]:
            raise RefusedError(f"{key.name} is immutable")
        metadata = {**seen["metadata"], **wanted["metadata"]}
        metadata["ownerReferences"] = wanted["metadata"].get("ownerReferences", [])
        if wanted.get("spec") != seen.get("spec"):
            metadata["generation"] += 1
        self.objects[key] = {**seen, **wanted, "metadata": metadata}

    def _release(self, action: model.Release) -> None:
        metadata = self.objects[action.key]["metadata"]
        assert metadata["uid"] == action.uid
        metadata["labels"].pop(APP_UID_LABEL, None)
        metadata["labels"] |= {RETAINED_LABEL: "true"} if action.retained else {}
        owners = metadata.get("ownerReferences", [])
        metadata["ownerReferences"] = [owner for owner in owners if owner["uid"] != self.uid]

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
        if action.key.kind == "StatefulSet" and action.orphan:
            for pod in self.pods():
                pod["metadata"]["ownerReferences"] = []
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
            self.members -= {name for name in self.members if f"m-{name}-1" in action.member_ids}
            self.strangers = [item for item in self.strangers if item.member_id not in action.member_ids]

    def _configure_group(self, action: model.ConfigureGroup) -> None:
        for name, value in action.settings.items():
            self.group_settings.pop(name, None)
            if value is not None:
                self.group_settings[name] = value

    def _delete_group(self, _: model.DeleteGroup) -> None:
        if self.brokers_up and not self.members:
            self.group_exists = False

    def _drain_pod(self, action: model.DrainPod) -> None:
        pod = self.objects.get(Key("Pod", action.pod))
        if pod is None or pod["metadata"]["uid"] != action.uid:
            return
        pod["metadata"].setdefault("annotations", {})[DRAIN_ANNOTATION] = str(action.since)
        if self._is_up(pod) and not self.deaf:
            self.drained.add(action.uid)
            self.members.discard(action.pod)
            set_ready(pod, False, self.timestamp())

    def _tell_node_labels(self, action: model.TellNodeLabels) -> None:
        pod = self.objects.get(Key("Pod", action.pod))
        if pod is not None and pod["metadata"]["uid"] == action.uid:
            pod["metadata"]["annotations"][NODE_LABELS_ANNOTATION] = json.dumps(dict(action.labels))

    # The controllers

    def settle(self) -> None:
        """Let all controllers and kubelets act once."""
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
            if job["status"].get("conditions") or "template" not in job["spec"]:
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
                if not self.is_static(pod["metadata"]["name"]) and self.brokers_up:
                    self.members.discard(pod["metadata"]["name"])
                del self.objects[Key("Pod", pod["metadata"]["name"])]
        for key in [key for key in self.objects if key.kind == "PersistentVolumeClaim"]:
            if self.objects[key]["metadata"].get("deletionTimestamp") and not self._claimant(key.name):
                del self.objects[key]

    def scale_pods(self) -> None:
        found = self.objects.get(Key("StatefulSet", APP))
        if found is None or "template" not in found["spec"]:
            return
        if found["metadata"].get("deletionTimestamp"):  # foreground deletion: garbage collection deletes its pods first
            for pod in self.pods():
                pod["metadata"].setdefault("deletionTimestamp", self.timestamp())
            if not self.pods():
                del self.objects[Key("StatefulSet", APP)]
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
                owner = {"kind": "StatefulSet", "name": APP, "uid": found["metadata"]["uid"], "controller": True}
                pod["metadata"]["ownerReferences"] = [owner]
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
                protocol = self.protocol_of(pod)
                if any(self.joined_with.get(other, "classic") != protocol for other in self.members - {name}):
                    self.refused_members.append(name)
                    continue
                if self.brokers_up:
                    self.group_exists = True
                    self.members.add(name)
                    self.joined_with[name] = protocol
                    self.joined_as[name] = _member_in(pod).replace("$(POD_NAME)", name)
                booted = self.now - seconds(pod["metadata"]["creationTimestamp"]) >= self.boot_seconds
                admitted = self.taken == "both" or (self.taken == "old") == (pod["metadata"]["uid"] in self.stale)
                set_ready(pod, program.becomes_ready and self.brokers_up and booted and admitted, self.timestamp())

    # Queries

    def protocol_of(self, pod: Mapping[str, Any]) -> str:
        """Return the group protocol in a pod's manifest."""
        kept = self.objects.get(
            Key("ConfigMap", naming.revision_config_map(APP, pod["metadata"]["labels"][REVISION_LABEL]))
        )
        if kept is None:  # a running program has read it before
            return self.joined_with.get(pod["metadata"]["name"], "classic")
        manifest = json.loads(kept["data"][MANIFEST_KEY])
        return str(manifest["spec"]["kafka"].get("groupProtocol", "classic"))

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the running application."""
        return [
            item
            for key, item in sorted(self.objects.items())
            if key.kind == "Pod" and item["metadata"]["labels"][COMPONENT_LABEL] == "runtime"
        ]

    def revisions(self) -> list[str]:
        """Return the revisions of the pods."""
        return [pod["metadata"]["labels"][REVISION_LABEL] for pod in self.pods()]

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


@cache
def _beginning(before: bytes, seconds: float, step: float) -> bytes:
    """Return what a world has become after a time, and the last decision."""
    world = pickle.loads(before)
    decision = world._run(seconds, step)
    return pickle.dumps((world, decision))


def _member_in(seen: Mapping[str, Any]) -> str:
    """Return the prefix of member ids in the arguments of a pod or pod template."""
    arguments = seen["spec"]["containers"][0].get("args", [])
    given = [argument for argument in arguments if argument.startswith("client.id=")]
    return str(given[0].removeprefix("client.id=")) if given else "$(POD_NAME)"


def _is_watched(item: Mapping[str, Any]) -> bool:
    """Return whether an object has the labels that the operator's watches select."""
    labels = item["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/managed-by") == MANAGER and labels.get(APP_LABEL) == APP


def waiting(reason: str) -> dict[str, Any]:
    """Return the status of a container that waits."""
    return {"state": {"waiting": {"reason": reason}}}


def task_with_store(task_id: str, role: str, remaining: int | None = 0) -> TaskStatus:
    """Return a task as an instance reports it."""
    return TaskStatus(task_id, state="RUNNING", stores=("counts",), role=role, remaining=remaining)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready."""
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", ()))


def set_ready(pod: dict[str, Any], ready: bool, timestamp: str) -> None:  # noqa: FBT001
    """Set a pod's Ready condition, with the time if it changes."""
    if is_ready(pod) != ready or not pod["status"].get("conditions"):
        status = "True" if ready else "False"
        pod["status"]["conditions"] = [{"type": "Ready", "status": status, "lastTransitionTime": timestamp}]
