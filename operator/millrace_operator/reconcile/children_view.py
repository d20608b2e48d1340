"""The children of an application, parsed: its pods by ordinal, claims, revisions and plans."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydantic import ValidationError

from millrace.manifest.pods import parse_last_message
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.children import naming
from millrace_operator.children.config_maps import PLAN_KEY
from millrace_operator.children.naming import (
    COMPONENT_LABEL,
    DRAIN_ANNOTATION,
    NODE_LABELS_ANNOTATION,
    REVISION_LABEL,
    TEMPLATE_ANNOTATION,
)
from millrace_operator.children.pod import DRAIN_FILE_VARIABLE, NODE_LABELS_VARIABLE
from millrace_operator.model import DesiredApp, Key, Object, ObservedApp, labels_of
from millrace_operator.reconcile.ownership import is_own, is_own_pod
from millrace_operator.reconcile.timestamps import seconds

_IMAGE_TROUBLE: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
_START_TROUBLE: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_CRASHING: Final = "CrashLoopBackOff"
_NOT_APPLIED: Final = frozenset({"Pod", "PersistentVolumeClaim"})
"""The kinds of children that a StatefulSet's controller creates, which do not carry the application's uid."""
_TIME_TO_PLACE: Final = 30.0
"""Seconds within which a new pod usually gets a node and its volume, if they are available."""
_MOST_PLANS: Final = 1024
"""How many parsed plans are cached, of all applications together."""


class Trouble(NamedTuple):
    """Why a pod cannot start by itself."""

    reason: str
    """Kubernetes' own reason, for example `CrashLoopBackOff`."""
    message: str
    is_image: bool = False
    is_crash: bool = False
    ended: float | None = None
    """When it crashed last."""
    restarts: int = 0

    @property
    def shown(self) -> str:
        """A description that stays the same for as long as the trouble does."""
        if self.is_image:
            return "its image cannot be pulled."
        what = "it crashes" if self.is_crash else f"{self.reason}"
        return f"{what}: {self.message}" if self.message else f"{what}."


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the application."""

    name: str
    index: int
    uid: str
    revision: str | None
    template: str | None
    """The hash of the template that it was made from; None if an older operator made it, which did not add one."""
    created: float
    terminating: bool = False
    ends: float | None = None
    """When its grace period ends; None unless it is being deleted."""
    ready_since: float | None = None
    """None while it is not ready."""
    unready_since: float = 0
    """Since when it has not been ready; meaningless while it is."""
    trouble: Trouble | None = None
    last_words: str = ""
    """Its message when it last crashed, even if it is running again; empty if it never did."""
    dead_members: frozenset[str] = frozenset()
    """The ids of group members whose process has ended: those of its previous container, or of one that has just ended."""
    drains_since: int | None = None
    """Since when it is supposed to hand over its tasks."""
    reads_drain: bool = True
    """Whether it learns that from a file; pods made by older operators do not."""

    node: str | None = None
    """The name of its node; None until it has one."""
    untold_labels: tuple[str, ...] = ()
    """The labels of its node that it wants to know and has not been told."""

    @property
    def ready(self) -> bool:
        """Whether it runs all its tasks and is not being deleted."""
        return self.ready_since is not None and not self.terminating

    def is_old(self, now: float) -> bool:
        """Return whether it should have a node and a volume by now."""
        return now - self.created >= _TIME_TO_PLACE


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a pod's volume."""

    name: str
    index: int
    uid: str
    asked: str
    """The size that was asked for."""
    bound: bool = True
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class ChildrenView:
    """All children of one application, without objects that merely have its labels."""

    app: str
    objects: Mapping[Key, Object]
    pods: Mapping[int, Pod] = field(default_factory=dict)
    claims: Mapping[int, Claim] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> Object | None:
        """Return a child, or None."""
        return self.objects.get(Key(kind, name))

    def pods_of(self, revision: str) -> list[Pod]:
        """Return the pods of a revision, by ordinal."""
        return [pod for _, pod in sorted(self.pods.items()) if pod.revision == revision]

    @property
    def stateful_set(self) -> Object | None:
        """The StatefulSet, if it exists and is not being deleted."""
        found = self.get("StatefulSet", self.app)
        return None if found is None or is_terminating(found) else found

    @property
    def running_revision(self) -> str | None:
        """The revision that new pods get."""
        found = self.stateful_set
        return None if found is None else labels_of(found["spec"]["template"]).get(REVISION_LABEL)

    @property
    def revision_of_pods(self) -> str | None:
        """The revision of most pods, among those whose manifest still exists: what is running when there is no StatefulSet."""
        found = Counter(
            pod.revision for pod in self.pods.values() if self.revision_config_map(pod.revision) is not None
        )
        return max(sorted(filter(None, found)), key=lambda revision: found[revision], default=None)

    @property
    def replicas(self) -> int | None:
        """How many pods the StatefulSet should have."""
        return None if self.stateful_set is None else int(self.stateful_set["spec"].get("replicas", 1))

    @property
    def has_pods(self) -> bool:
        """Whether there are pods, or should be: a deleted one is about to come back."""
        return bool(self.pods or self.replicas)

    @property
    def pods_follow(self) -> bool:
        """Whether the StatefulSet's controller has seen the newest template, so that a deleted pod comes back with it."""
        found = self.stateful_set
        if found is None:
            return False
        seen = found.get("status", {}).get("observedGeneration", 0)
        return bool(seen >= found["metadata"].get("generation", 0))

    @property
    def may_get_pods(self) -> bool:
        """Whether the StatefulSet wants or still counts pods, or its controller has not yet seen that it wants none."""
        found = self.stateful_set
        if found is None:
            return False
        return bool(self.replicas or found.get("status", {}).get("replicas")) or not self.pods_follow

    def revision_config_map(self, revision: str | None) -> Object | None:
        """Return the ConfigMap with a revision's manifest."""
        return None if revision is None else self.get("ConfigMap", naming.revision_config_map(self.app, revision))

    def plan_config_map(self, revision: str | None) -> Object | None:
        """Return the ConfigMap with a revision's plan."""
        return None if revision is None else self.get("ConfigMap", naming.plan_config_map(self.app, revision))

    def plan_text(self, revision: str | None) -> str | None:
        """Return the JSON of a revision's plan."""
        found = self.plan_config_map(revision)
        return None if found is None or is_terminating(found) else found.get("data", {}).get(PLAN_KEY)

    def plan(self, revision: str | None) -> TopologyPlan | None:
        """Return a revision's plan; None if it does not exist or cannot be read."""
        text = self.plan_text(revision)
        return None if text is None else read_plan(text)

    def plans(self) -> list[TopologyPlan]:
        """Return all plans that exist."""
        texts = [
            item["data"][PLAN_KEY]
            for key, item in self.objects.items()
            if key.kind == "ConfigMap" and PLAN_KEY in item.get("data", {})
        ]
        return [plan for plan in map(read_plan, texts) if plan is not None]

    def revisions(self) -> set[str]:
        """Return the revisions that have ConfigMaps or Jobs."""
        kinds = {"ConfigMap", "Job"}
        return {
            labels_of(item)[REVISION_LABEL]
            for key, item in self.objects.items()
            if key.kind in kinds and labels_of(item).get(REVISION_LABEL)
        }


def view_of(desired: DesiredApp, observed: ObservedApp) -> ChildrenView:
    """Return the parsed children of an application."""
    app = desired.name
    pods, claims = {}, {}
    pod_name, claim_name = (
        re.compile(rf"{re.escape(app)}-(\d+)"),
        re.compile(rf"{re.escape(naming.claim(app, 0)[:-1])}(\d+)"),
    )
    own = {
        key: item
        for key, item in observed.objects.items()
        if key.kind not in _NOT_APPLIED and is_own(key, item, app, desired.uid)
    }
    set_key = Key("StatefulSet", app)
    others = None if set_key in own else observed.objects.get(set_key)
    others_uid = None if others is None else others["metadata"]["uid"]
    for key, item in observed.objects.items():
        component = labels_of(item).get(COMPONENT_LABEL)
        if key.kind == "Pod" and component == "plan":
            own[key] = item
        elif key.kind == "Pod" and component == "runtime" and (match := pod_name.fullmatch(key.name)):
            known_as_others = set_key not in own and key in observed.taken
            if not known_as_others and is_own_pod(item, app, own.get(set_key), others_uid):
                own[key], pods[int(match[1])] = item, _pod(item, int(match[1]))
        elif key.kind == "PersistentVolumeClaim" and (match := claim_name.fullmatch(key.name)):
            own[key], claims[int(match[1])] = (
                item,
                Claim(
                    name=key.name,
                    index=int(match[1]),
                    uid=item["metadata"]["uid"],
                    asked=str(item["spec"]["resources"]["requests"]["storage"]),
                    bound=item.get("status", {}).get("phase", "Bound") == "Bound",
                    terminating=is_terminating(item),
                ),
            )
    return ChildrenView(app, own, pods, claims)


@functools.lru_cache(maxsize=_MOST_PLANS)
def read_plan(text: str) -> TopologyPlan | None:
    """Return a plan from its JSON; None if it is invalid. Plans never change and are read many times in a pass."""
    try:
        return TopologyPlan.from_json(text)
    except ValidationError:
        return None


def is_terminating(item: Object) -> bool:
    """Return whether an object is being deleted."""
    return item["metadata"].get("deletionTimestamp") is not None


def trouble_of(pod: Object) -> Trouble | None:
    """Return why a pod does not start: an image that is missing, a container that crashes or cannot be created."""
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in _IMAGE_TROUBLE:
            return Trouble(reason, waiting.get("message", ""), is_image=True)
        if reason == _CRASHING:
            finished = (container.get("lastState", {}).get("terminated") or {}).get("finishedAt")
            return Trouble(
                reason,
                _last_words(container),
                is_crash=True,
                ended=None if finished is None else seconds(finished),
                restarts=container.get("restartCount", 0),
            )
        if reason in _START_TROUBLE:
            return Trouble(reason, waiting.get("message", ""))
    if status.get("phase") == "Failed":
        return Trouble(status.get("reason", "Failed"), status.get("message", ""), is_crash=True)
    return next(
        (
            Trouble("Unschedulable", item.get("message", ""))
            for item in status.get("conditions", ())
            if item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable"
        ),
        None,
    )


def _last_words(container: Object) -> str:
    ended = container.get("lastState", {}).get("terminated") or container.get("state", {}).get("terminated") or {}
    words = parse_last_message(ended.get("message", ""))[1].strip()
    code = f"exit code {ended['exitCode']}" if "exitCode" in ended else ""
    cause = ended.get("reason", "")
    first = ", ".join(part for part in (code, cause if cause not in {"", "Error"} else "") if part)
    lines = " | ".join(line.strip() for line in words.splitlines()[-5:] if line.strip())
    return ": ".join(part for part in (first, lines[-600:]) if part)


def untold_labels(pod: Object) -> tuple[str, ...]:
    """Return the labels of its node that a pod wants to know and has not been told."""
    if NODE_LABELS_ANNOTATION in (pod["metadata"].get("annotations") or {}):
        return ()
    variables = [each for container in pod["spec"].get("containers", ()) for each in container.get("env") or ()]
    wanted = next((each.get("value", "") for each in variables if each["name"] == NODE_LABELS_VARIABLE), "")
    return tuple(filter(None, wanted.split(",")))


def _pod(item: Object, index: int) -> Pod:
    metadata, status = item["metadata"], item.get("status", {})
    created = seconds(metadata["creationTimestamp"])
    ready_since, unready_since = None, created
    for condition in status.get("conditions", ()):
        if condition["type"] == "Ready":
            changed = condition.get("lastTransitionTime")
            since = created if not changed else seconds(changed)
            is_ready = condition["status"] == "True"
            ready_since, unready_since = (since, since) if is_ready else (None, max(since, created))
    containers = status.get("containerStatuses", ())
    variables = [each for container in item["spec"]["containers"] for each in container.get("env", ())]
    draining = metadata.get("annotations", {}).get(DRAIN_ANNOTATION, "")
    return Pod(
        name=metadata["name"],
        index=index,
        uid=metadata["uid"],
        revision=labels_of(item).get(REVISION_LABEL),
        template=(metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION),
        created=created,
        terminating=is_terminating(item),
        ends=seconds(metadata["deletionTimestamp"]) if is_terminating(item) else None,
        ready_since=ready_since,
        unready_since=unready_since,
        trouble=trouble_of(item),
        drains_since=int(draining) if draining.isdecimal() else None,
        reads_drain=any(variable["name"] == DRAIN_FILE_VARIABLE for variable in variables),
        node=item["spec"].get("nodeName"),
        untold_labels=untold_labels(item),
        dead_members=frozenset().union(
            *(
                parse_last_message(((each.get(state) or {}).get("terminated") or {}).get("message", ""))[0]
                for each in containers
                for state in ("state", "lastState")
            )
        ),
        last_words=next((_last_words(each) for each in containers if each.get("lastState", {}).get("terminated")), ""),
    )
