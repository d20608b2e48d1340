"""Every field of a spec affects the children, or is known to serve another purpose."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from tests.operator.children.apps import BOUND, FULL, MSK, OAUTH, rendered, revision_of

from millrace.manifest import StreamsAppSpec
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template
from millrace_operator.reconcile import revisions

IN_CHILDREN: dict[str, Any] = {
    "applicationId": "orders-v2",
    "image": "registry.example/orders:8",
    "imagePullPolicy": "Never",
    "imagePullSecrets": [],
    "kafka.tls.caSecretRef.name": "other",
    "kafka.tls.caSecretRef.keys": {},
    "kafka.tls.clientCertSecretRef.name": "other",
    "kafka.tls.clientCertSecretRef.keys": {},
    "kafka.auth.type": "oauthbearer",
    "kafka.auth.secretRef.name": "other",
    "kafka.auth.secretRef.keys": {},
    "kafka.auth.tokenEndpointCaSecretRef.name": "other",
    "kafka.auth.tokenEndpointCaSecretRef.keys": {},
    "kafka.bindingSecretRef.name": "other",
    "kafka.schemaRegistry.secretRef.name": "other",
    "kafka.schemaRegistry.secretRef.keys": {},
    "storage.size": "20Gi",
    "storage.storageClassName": "slow",
    "drain.terminationGracePeriodSeconds": 30,
    "standby.replicas": 0,
    "kafka.groupProtocol": "streams",
    "racks.nodeLabel": "topology.kubernetes.io/region",
    "racks.tags": {},
    "podDisruptionBudget.enabled": False,
    "podDisruptionBudget.maxUnavailable": "25%",
    "networkPolicy.enabled": False,
    "networkPolicy.ingressFrom": [],
    "networkPolicy.ingress": [],
    "networkPolicy.egress": [],
    "serviceAccountName": None,
    "podTemplate.metadata.labels": {},
    "podTemplate.metadata.annotations": {},
    "podTemplate.resources.requests": {},
    "podTemplate.resources.limits": {"memory": "3Gi"},
    "podTemplate.env": [],
    "podTemplate.nodeSelector": {},
    "podTemplate.tolerations": [],
    "podTemplate.affinity": None,
    "podTemplate.topologySpreadConstraints": [],
    "podTemplate.priorityClassName": None,
    "podTemplate.envFrom": [],
    "podTemplate.runtimeClassName": None,
    "podTemplate.schedulerName": None,
    "podTemplate.hostAliases": [],
    "podTemplate.dnsPolicy": "Default",
    "podTemplate.dnsConfig.nameservers": ["10.0.0.11"],
    "podTemplate.dnsConfig.searches": [],
    "podTemplate.dnsConfig.options": [],
    "podTemplate.volumes": [],
    "podTemplate.volumeMounts": [],
    "podTemplate.initContainers": [],
    "podTemplate.sidecars": [],
    "podTemplate.securityContext.runAsUser": 7,
    "podTemplate.securityContext.runAsGroup": 7,
    "podTemplate.securityContext.fsGroup": 7,
    "podTemplate.securityContext.fsGroupChangePolicy": "OnRootMismatch",
    "podTemplate.securityContext.supplementalGroups": [7],
    "observability.otlp.endpoint": "http://other:4318",
    "observability.otlp.headersSecretRef.name": "other",
    "observability.otlp.headersSecretRef.keys": {},
    "observability.otlp.sampler.type": "traceidratio",
    "observability.otlp.sampler.ratio": 0.2,
    "observability.metrics.podMonitor.enabled": False,
    "observability.metrics.podMonitor.interval": "60s",
    "observability.metrics.podMonitor.labels": {},
}
"""By field: a value other than in `FULL`, which changes a child other than the revision's ConfigMap."""

FOR_THE_RUNTIME: dict[str, Any] = {
    "app.entrypoint": "orders:other",
    "app.args": [],
    "app.config": {},
    "threads": 1,
    "kafka.bootstrapServers": ["other:9092"],
    "kafka.auth.scope": "other",
    "kafka.auth.extensions": {},
    "kafka.auth.region": "eu-west-1",
    "kafka.config": {},
    "kafka.schemaRegistry.url": "https://other.example",
    "processing.guarantee": "at_least_once",
    "processing.commitInterval": "300ms",
    "processing.deadLetterTopic": "other",
    "processing.errorPolicy.deserialization": "Fail",
    "processing.errorPolicy.processing": "Fail",
    "processing.errorPolicy.production": "Fail",
    "standby.maxWarmups": 5,
    "standby.acceptableRecoveryLag": 7,
    "membership.static": False,
    "membership.sessionTimeout": "50s",
    "internalTopics.replicationFactor": 5,
    "internalTopics.minInsyncReplicas": 1,
    "internalTopics.config": {},
    "storage.memoryFraction": 0.25,
    "observability.metrics.level": "INFO",
    "observability.logs.level": "INFO",
    "observability.logs.format": "text",
}
"""Fields that the runtime reads from the manifest: they change the revision's ConfigMap and nothing else."""

FOR_BOTH = {"kafka.groupProtocol", "observability.metrics.podMonitor.enabled", "standby.replicas"}
"""Fields that change a child and are read by the runtime too."""

FOR_RECONCILIATION: dict[str, Any] = {
    "state": "suspended",
    "restartNonce": 4,
    "replicas": 2,
    "standby.catchUpTimeout": "3m",
    "internalTopics.management": "VerifyOnly",
    "internalTopics.deletionPolicy": "Retain",
    "storage.retention.whenDeleted": "Retain",
    "storage.retention.whenScaled": "Retain",
    "upgrade.strategy": "Recreate",
    "upgrade.topologyPolicy": "Enforce",
    "upgrade.gate.readyTimeout": "6m",
    "upgrade.gate.maxLag": 7,
    "upgrade.gate.minStable": "7s",
    "upgrade.rollback.enabled": True,
    "handover.from.name": "older",
    "handover.from.group": None,
    "handover.allowForeignMembers": False,
    "autoscaling.mode": "Recommend",
    "autoscaling.min": 2,
    "autoscaling.max": 9,
    "autoscaling.targetCatchUp": "3m",
    "autoscaling.cooldown.rebalance": "2m",
    "autoscaling.cooldown.scaleDown": "6m",
    "deletionPolicy": "Retain",
}
"""Fields that decide when and how many: the children of a revision do not depend on them."""


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field's value, through `Optional` and `Annotated`, but not through a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        extra = annotation.model_config.get("extra")
        return None if extra == "allow" else annotation
    if getattr(annotation, "__origin__", None) in {tuple, list, dict}:
        return None
    return next((model for argument in get_args(annotation) if (model := _model(argument))), None)


def fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the paths of a model's leaf fields."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        inner = _model(field.annotation)
        if inner is None:
            yield here
        else:
            yield from fields(inner, f"{here}.")


OTHER_WAYS = {
    "kafka.auth.scope": OAUTH,
    "kafka.auth.extensions": OAUTH,
    "kafka.auth.tokenEndpointCaSecretRef.name": OAUTH,
    "kafka.auth.tokenEndpointCaSecretRef.keys": OAUTH,
    "kafka.auth.region": MSK,
    "kafka.bindingSecretRef.name": BOUND,
}
"""`spec.kafka` for fields that the full application cannot set."""


def _usual(path: str) -> dict[str, Any]:
    """Return a spec that sets a field."""
    return FULL | {"kafka": OTHER_WAYS.get(path, FULL["kafka"])}


def _changed(path: str, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(_usual(path))
    *parents, last = path.split(".")
    place = spec
    for parent in parents:
        place = place[parent]
    assert last in place, f"apps.FULL says nothing about {path}"
    if value is None:
        del place[last]
    else:
        place[last] = value
    if path == "kafka.auth.type":
        spec["kafka"]["auth"]["secretRef"]["keys"] = {}
    if path == "podTemplate.volumes":
        spec["podTemplate"]["volumeMounts"] = []
    return spec


def _children(spec: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    objects = rendered(revision_of(spec), spec)
    (manifest,) = (item for item in objects if item["metadata"]["name"] == "orders-rev-0123456789")
    return [item for item in objects if item is not manifest], manifest


ALL = {**IN_CHILDREN, **FOR_THE_RUNTIME, **FOR_RECONCILIATION}


def test_every_field_is_known_here():
    """A new or removed field must be added to or removed from the tables above, depending on where it takes effect."""
    assert set(fields(StreamsAppSpec)) == set(ALL)
    assert len(ALL) == len(IN_CHILDREN) + len(FOR_THE_RUNTIME) + len(FOR_RECONCILIATION)


@pytest.mark.parametrize("path", IN_CHILDREN)
def test_field_changes_children(path):
    """A field about pods or their supporting objects changes a child."""
    assert _children(_changed(path, IN_CHILDREN[path]))[0] != _children(_usual(path))[0]


@pytest.mark.parametrize("path", [*FOR_THE_RUNTIME, *FOR_RECONCILIATION])
def test_field_is_only_handed_on(path):
    """A field for the runtime or for reconciliation changes the manifest that pods get and no other child."""
    changed, manifest = _children(_changed(path, ALL[path]))
    usual, usual_manifest = _children(_usual(path))
    assert changed == usual
    assert manifest != usual_manifest


@pytest.mark.parametrize("path", ALL)
def test_field_makes_a_revision_exactly_if_pods_depend_on_it(path):
    """Pods roll for changes to them or to what their program reads, and for a requested restart; for nothing else."""
    spec = _changed(path, ALL[path])
    before, after = revision_of(_usual(path)), revision_of(spec)
    pods_differ = (pod_template(before), plan_job(before)) != (pod_template(after), plan_job(after))
    matters = pods_differ or path in {*FOR_THE_RUNTIME, *FOR_BOTH, "restartNonce"}
    assert (revisions.revision_of(after.spec) != revisions.revision_of(before.spec)) == matters
