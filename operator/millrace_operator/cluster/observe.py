"""Observes the current state: resources as they are in the API, the output of plan Jobs, storage classes, and neighbours.

Neighbours are other StreamsApps on an application's brokers: with the same `applicationId` they share its group and topics.
Brokers are the same if their cluster has the same id; until that is known of both, if they have an address in common.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from millrace.manifest import check
from millrace.manifest.streamsapp_status import UNSEEN_GENERATION
from millrace_operator.children.config_maps import PLAN_KEY
from millrace_operator.children.naming import COMPONENT_LABEL
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import (
    APPS,
    BACKFILLS,
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    PODS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
)
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.model import (
    DesiredApp,
    DesiredResource,
    HoldingBackfill,
    Key,
    Neighbour,
    Object,
    ResourceRef,
    app_named_by,
    labels_of,
)
from millrace_operator.reconcile.children_view import read_plan
from millrace_operator.reconcile.topics import needed_topics

log = logging.getLogger(__name__)
_D = TypeVar("_D", bound=DesiredResource[Any, Any])
_S = TypeVar("_S", bound=BaseModel)

_LOG_LIMIT_BYTES: Final = 4 << 20
_PLAN_BEGINS: Final = '{"version"'
_FAILURE_TAIL_CHARACTERS: Final = 2000
_MOST_OUTPUTS: Final = 64
_OUTPUT_LOST: Final = "The Job's pod is gone, and its output with it. The Job has to run again."
_STORAGE_CLASS_KEPT_SECONDS: Final = 600.0


def desired_from(body: Object, kind: type[_D]) -> _D:
    """Return a resource from the API as desired state; a spec that breaks a rule becomes `problems`."""
    metadata: Object = body["metadata"]
    deleted = metadata.get("deletionTimestamp")
    manifest = {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": body.get("spec"),
    }
    resource, problems = check(manifest, kind.resource)
    return kind(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        spec=resource.spec if resource else None,
        problems=tuple(map(str, problems)),
        status=_status(body, kind.status_model),
        finalizers=tuple(metadata.get("finalizers") or ()),
        deleting=deleted is not None,
        deletion_time=None if deleted is None else datetime.fromisoformat(deleted).timestamp(),
        created=metadata.get("creationTimestamp") or "",
        manifest=body.get("spec") or {},
        annotations=metadata.get("annotations") or {},
    )


def _status(body: Object, model: type[_S]) -> _S | None:
    """Return the status; fields that this version cannot read are dropped one by one, so that the others are not lost."""
    status = dict(body.get("status") or {})
    # The API server's default: no status has been written yet.
    if status.get("observedGeneration") == UNSEEN_GENERATION:
        return None
    while status:
        try:
            return model.model_validate(status)
        except ValidationError as error:
            unreadable = {str(item["loc"][0]) for item in error.errors() if item["loc"]} & set(status)
            log.warning("status of %s: cannot read %s", body["metadata"]["name"], ", ".join(sorted(unreadable)))
            if not unreadable:
                return None
            for name in unreadable:
                del status[name]
    return None


class PlanJobOutputs:
    """The output of plan Jobs, each read once: a finished Job's log does not change.

    Args:
        requests: How to reach the API server.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._read: dict[str, str] = {}

    def of(self, namespace: str, objects: Mapping[Key, Object]) -> dict[str, str]:
        """Return the outputs of the finished Jobs among an app's objects, by name of the Job.

        A Job is left out until its pod is seen to have ended: the two observations may be of different ages.

        Raises:
            ApiError: A log could not be read; the next pass tries again.
        """
        found: dict[str, str] = {}
        for job in (obj for key, obj in objects.items() if key.kind == JOBS.kind):
            result, uid = _result(job), job["metadata"]["uid"]
            if result is None:
                continue
            output = self._read.get(uid)
            if output is None and (output := self._ask(namespace, job, result, objects)) is not None:
                self._keep(uid, output)
            if output is not None:
                found[job["metadata"]["name"]] = output
        return found

    def _keep(self, uid: str, output: str) -> None:
        while len(self._read) >= _MOST_OUTPUTS:
            self._read.pop(next(iter(self._read)), None)
        self._read[uid] = output

    def _ask(self, namespace: str, job: Object, result: str, objects: Mapping[Key, Object]) -> str | None:
        name, names = job["metadata"]["name"], ("batch.kubernetes.io/job-name", "job-name")
        pods = [
            obj
            for key, obj in objects.items()
            if key.kind == PODS.kind and name in {labels_of(obj).get(label) for label in names}
        ]
        if not pods:
            return _why_failed(job) if result == "Failed" else _OUTPUT_LOST
        wanted = "Succeeded" if result == "Complete" else "Failed"
        ended = [pod for pod in pods if pod.get("status", {}).get("phase") == wanted]
        if not ended:
            is_older = any("deletionTimestamp" not in pod["metadata"] for pod in pods)
            return _why_failed(job) if result == "Failed" and not is_older else None
        pod = max(ended, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        if result == "Failed" and (message := _termination_message(pod)):
            return message
        try:
            log_text = self._requests.get(
                PODS, namespace, pod["metadata"]["name"], "log", limitBytes=str(_LOG_LIMIT_BYTES)
            )
        except ApiError as error:
            if not error.not_found:
                raise
            return _why_failed(job) if result == "Failed" else None
        text = str(log_text)
        if result == "Failed":
            return text[-_FAILURE_TAIL_CHARACTERS:] or _why_failed(job)
        plans = [line for line in text.splitlines() if line.startswith(_PLAN_BEGINS)]
        return plans[-1] if plans else text  # a pod's log also has other output of the program


class StorageClasses:
    """Whether storage classes let claims grow; asked now and then, as it hardly ever changes.

    Args:
        requests: How to reach the API server.
        clock: Seconds that only go forward.
    """

    def __init__(self, requests: Requests, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._clock = clock
        self._known: dict[str, tuple[float, bool | None]] = {}

    def of(self, objects: Mapping[Key, Object]) -> bool | None:
        """Return it for the claims among an app's objects; None if there are none or it could not be read."""
        claims = [obj for key, obj in objects.items() if key.kind == CLAIMS.kind]
        names = {claim.get("spec", {}).get("storageClassName") for claim in claims}
        if len(names) != 1 or not (name := names.pop()):
            return None
        asked_at, answer = self._known.get(name, (float("-inf"), None))
        if self._clock() - asked_at >= _STORAGE_CLASS_KEPT_SECONDS:
            answer = self._ask(name)
            self._known[name] = self._clock(), answer
        return answer

    def _ask(self, name: str) -> bool | None:
        try:
            return bool(self._requests.get(STORAGE_CLASSES, None, name).get("allowVolumeExpansion", False))
        except ApiError:
            return None


def _result(job: Object) -> str | None:
    for condition in job.get("status", {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in {"Complete", "Failed"}:
            return str(condition["type"])
    return None


def _why_failed(job: Object) -> str:
    conditions = job.get("status", {}).get("conditions") or ()
    messages = [str(c.get("message") or c.get("reason") or "") for c in conditions if c.get("type") == "Failed"]
    return next(filter(None, messages), "the plan Job failed and left no output")


def _termination_message(pod: Object) -> str:
    for status in pod.get("status", {}).get("containerStatuses") or ():
        message = (status.get("state", {}).get("terminated") or {}).get("message")
        if message:
            return str(message)
    return ""


def holding_backfill(resources: Cache, ref: ResourceRef, *, ended: bool = True) -> HoldingBackfill | None:
    """Return the newest backfill that keeps an application stopped; None if none does.

    One that has ended counts only if no other does: the others wait until the application knows that it is stopped for them.

    Args:
        resources: All that are known.
        ref: The application.
        ended: Whether to count those that have ended and left an inconsistent state. They no longer write, so a deletion does not
            wait for them.
    """
    found = [
        (
            not obj["status"].get("completionTime"),
            str(obj["metadata"].get("creationTimestamp", "")),
            str(obj["metadata"]["name"]),
        )
        for obj in resources.of_kind(BACKFILLS)
        if obj["metadata"]["namespace"] == ref.namespace
        and app_named_by(obj) == ref.name
        and (obj.get("status") or {}).get("holdsApp")
        and (ended or not obj["status"].get("completionTime"))
    ]
    if not found:
        return None
    computes, _, name = max(found)
    left = [item for item in found if not item[0]]
    return HoldingBackfill(name, has_ended=not computes, then=max(left)[2] if computes and left else None)


def neighbours_of(
    desired: DesiredApp, resources: Cache, children: Cache, cluster_id: Callable[[ResourceRef], str | None]
) -> tuple[Neighbour, ...]:
    """Return the neighbours of an application.

    Args:
        desired: The application.
        resources: The cache of StreamsApps and StreamsBackfills.
        children: The cache of their children.
        cluster_id: Returns the id of an application's Kafka cluster, None if it is not known yet.
    """
    application_id, servers = desired.manifest.get("applicationId"), _servers(desired.manifest)
    here = cluster_id(desired.ref)
    found = []
    for obj in resources.of_kind(APPS):
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        same_id = spec.get("applicationId") == application_id
        predecessor = ((spec.get("handover") or {}).get("from") or {}).get("name")
        if metadata["uid"] == desired.uid or not (same_id or desired.deleting):
            continue
        namespace, name = metadata["namespace"], metadata["name"]
        there = cluster_id(ResourceRef(APPS.kind, namespace, name))
        if here != there if here and there else not servers & _servers(spec):
            continue
        objects = children.of_app(namespace, name).values()
        backfill = holding_backfill(resources, ResourceRef(APPS.kind, namespace, name))
        found.append(
            Neighbour(
                namespace=namespace,
                name=name,
                uid=metadata["uid"],
                created=metadata.get("creationTimestamp") or "",
                same_id=same_id,
                runs=any(map(_is_or_has_pods, objects)),
                backfill=None if backfill is None else backfill.name,
                takes_over=namespace == desired.namespace and predecessor == desired.name,
                topics=_named_topics(objects) if desired.deleting else frozenset(),
            )
        )
    return tuple(found)


def _servers(spec: Object) -> set[str]:
    return {str(server).lower() for server in (spec.get("kafka") or {}).get("bootstrapServers") or ()}


def _is_or_has_pods(obj: Object) -> bool:
    if obj["kind"] == STATEFUL_SETS.kind:
        return bool(obj["spec"].get("replicas", 1))
    return bool(obj["kind"] == PODS.kind and labels_of(obj).get(COMPONENT_LABEL) == "runtime")


def _named_topics(objects: Iterable[Object]) -> frozenset[str]:
    texts = [obj["data"][PLAN_KEY] for obj in objects if obj["kind"] == CONFIG_MAPS.kind and PLAN_KEY in obj["data"]]
    plans = [plan for plan in map(read_plan, texts) if plan is not None]
    return frozenset(name for plan in plans for name in needed_topics(plan))
