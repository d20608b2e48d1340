"""The environment of the program: who it is, where telemetry goes, and what the user adds.

No variable of the operator's holds a secret; one of the user's may come from a Secret, and is then not in the plan Job. What the
operator sets wins over the user's variable of that name; but those that only describe the application (`OTEL_SERVICE_NAME`,
`OTEL_RESOURCE_ATTRIBUTES`) the user may change.
"""

from __future__ import annotations

from typing import Any

from millrace.manifest.pods import APP_CONTAINER
from millrace_operator.children import names, paths
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import POD_INDEX
from millrace_operator.children.passed_on import all_as_kept

Variable = dict[str, Any]

DRAIN_FILE = "MILLRACE_DRAIN_FILE"
"""Names the file that has a pod drained. It is a variable and not an option, because an image with an older Millrace would refuse
an option that it does not know, and so never start. Such a pod is ended without having been drained, which loses nothing."""

_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"


def environment(app: AppRevision) -> list[Variable]:
    """Return the variables of the program's container; later ones may refer to earlier ones."""
    users = {variable["name"]: variable for variable in all_as_kept(app.spec.pod_template.env)}
    variables = [
        _field("POD_NAME", "metadata.name"),
        _field("POD_UID", "metadata.uid"),
        _field("POD_INDEX", f"metadata.labels['{POD_INDEX}']"),
        _field("POD_NODE_NAME", "spec.nodeName"),
        {"name": DRAIN_FILE, "value": paths.DRAIN_FILE},
        _service_name(app),
        _attributes(app, users.pop(_ATTRIBUTES, None)),
        *users.values(),
        *_exporter(app),
    ]
    return list({variable["name"]: variable for variable in variables}.values())


def plan_environment(app: AppRevision) -> list[Variable]:
    """Return the variables of the plan Job's container: the user's, which the topology may depend on, without Secrets."""
    variables = all_as_kept(app.spec.pod_template.env)
    return [variable for variable in variables if "secretKeyRef" not in variable.get("valueFrom", {})]


def environment_sources(app: AppRevision) -> list[dict[str, Any]]:
    """Return the ConfigMaps and Secrets whose keys are variables of the program's container."""
    return all_as_kept(app.spec.pod_template.env_from)


def plan_environment_sources(app: AppRevision) -> list[dict[str, Any]]:
    """Return those of them that the plan Job has: no Secrets."""
    return [source for source in environment_sources(app) if "secretRef" not in source]


def _field(name: str, path: str) -> Variable:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _service_name(app: AppRevision) -> Variable:
    return {"name": "OTEL_SERVICE_NAME", "value": app.spec.application_id}


def _attributes(app: AppRevision, users: Variable | None) -> Variable:
    if users is not None and "value" not in users:
        return users
    attributes = {
        "k8s.namespace.name": app.namespace,
        "k8s.statefulset.name": names.stateful_set(app.name),
        "k8s.pod.name": "$(POD_NAME)",
        "k8s.node.name": "$(POD_NODE_NAME)",
        "k8s.container.name": APP_CONTAINER,
    }
    own = ",".join(f"{name}={value}" for name, value in attributes.items())
    return {"name": _ATTRIBUTES, "value": own if users is None else f"{own},{users['value']}"}


def _exporter(app: AppRevision) -> list[Variable]:
    otlp = app.spec.observability.otlp
    if otlp is None:
        return []
    variables = [
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": otlp.endpoint},
        {"name": "OTEL_TRACES_SAMPLER", "value": otlp.sampler.type},
    ]
    if otlp.sampler.ratio is not None:
        variables.append({"name": "OTEL_TRACES_SAMPLER_ARG", "value": str(otlp.sampler.ratio)})
    return variables
