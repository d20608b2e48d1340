"""The Job that asks an image what its topology needs: the operator itself never runs a user's code.

It is given the manifest and the user's variables and configuration, which the topology may depend on, and nothing else: no
secrets (nor variables that come from them), no API token, no state, and no network where policies are enforced. Its output is its
log; what it says when it fails is its termination message, which falls back to the end of the log.

It is tried twice, unless the program says that another attempt is pointless; a pod lost with its node does not count. It also
ends if the code hangs. The operator deletes it once the plan is stored or no longer wanted; the Job then ends at once, as it has
nothing to finish.
"""

from __future__ import annotations

from typing import Final

from millrace.manifest.fields import quantity_value
from millrace.manifest.pods import APP_CONTAINER
from millrace_operator.children import naming
from millrace_operator.children.canonical_form import canonical_list
from millrace_operator.children.naming import labels
from millrace_operator.children.pod import (
    DEFAULT_CPU,
    DEFAULT_MEMORY,
    Mount,
    Variable,
    Volume,
    common_container_fields,
    common_pod_fields,
    environment_sources,
    manifest_mount,
    manifest_volume,
    program_resources,
    temporary_mount,
)
from millrace_operator.model import AppRevision, Json

DEADLINE_SECONDS: Final = 600
"""How long a plan may take, including pulling the image."""

WRONG_INPUT: Final = 2
"""The exit code of `millrace` when the manifest, the entrypoint or the topology is wrong."""

_DISRUPTED: Final = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
_USELESS_TO_REPEAT: Final = {
    "action": "FailJob",
    "onExitCodes": {"containerName": APP_CONTAINER, "operator": "In", "values": [WRONG_INPUT]},
}
_NO_IDENTITY: Final = {
    "azure.workload.identity/skip-containers": APP_CONTAINER,
    "eks.amazonaws.com/skip-containers": APP_CONTAINER,
}
"""Keeps the clouds' admission webhooks from giving the container the identity of its service account, which may be the pods'."""

_WITHOUT_SECRETS: Final = ("configMap", "downwardAPI", "emptyDir")
"""Kinds of volumes that can carry no secret and belong to one pod only."""


def plan_job(app: AppRevision) -> Json:
    """Return the Job that prints a revision's plan as JSON."""
    of_plan = labels(app.name, "plan", app.revision)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": naming.plan_job(app.name, app.revision),
            "namespace": app.namespace,
            "labels": of_plan,
        },
        "spec": {
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "backoffLimit": 1,
            "podFailurePolicy": {"rules": [_DISRUPTED, _USELESS_TO_REPEAT]},
            "template": {
                "metadata": {
                    # the user's: some keep a service mesh from adding a sidecar, with which a Job may never end
                    "annotations": {**app.spec.pod_template.metadata.annotations, **_NO_IDENTITY},
                    "labels": {**app.spec.pod_template.metadata.labels, **of_plan},
                },
                "spec": {
                    **common_pod_fields(app),
                    "containers": [_program(app)],
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "volumes": _volumes(app),
                },
            },
        },
    }


def _program(app: AppRevision) -> Json:
    variables, sources = _environment(app), _environment_sources(app)
    return {
        **common_container_fields(app),
        "args": ["plan", "-f", naming.MANIFEST_PATH, "--json"],
        **({"env": variables} if variables else {}),
        **({"envFrom": sources} if sources else {}),
        "resources": _resources(app),
        "volumeMounts": _mounts(app),
    }


def _environment(app: AppRevision) -> list[Variable]:
    """Return the variables of the plan Job's container: the user's, which the topology may depend on, without Secrets."""
    variables = canonical_list(app.spec.pod_template.env)
    return [variable for variable in variables if "secretKeyRef" not in variable.get("valueFrom", {})]


def _environment_sources(app: AppRevision) -> list[Json]:
    """Return the ConfigMaps whose keys are variables of the plan Job's container."""
    return [source for source in environment_sources(app) if "secretRef" not in source]


def _volumes(app: AppRevision) -> list[Volume]:
    """Return the volumes of the plan Job's pod: of the user's only those that hold no secrets and no state."""
    return [manifest_volume(app), {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}, *_harmless(app)]


def _mounts(app: AppRevision) -> list[Mount]:
    """Return where the plan Job's container finds its volumes."""
    there = {volume["name"] for volume in _harmless(app)}
    users = [mount for mount in canonical_list(app.spec.pod_template.volume_mounts) if mount["name"] in there]
    return [manifest_mount(), *temporary_mount(users), *users]


def _harmless(app: AppRevision) -> list[Volume]:
    volumes = canonical_list(app.spec.pod_template.volumes)
    return [volume for volume in volumes if any(kind in volume for kind in _WITHOUT_SECRETS)]


def _resources(app: AppRevision) -> Json:
    """Return the resources of the plan Job's container: it requests little, as it holds no state and no records.

    It may still grow to the program's memory, which imports may need, and use one CPU.
    """
    memory = program_resources(app)["limits"]["memory"]
    least = memory if quantity_value(memory) < quantity_value(DEFAULT_MEMORY) else DEFAULT_MEMORY
    return {"limits": {"cpu": "1", "memory": memory}, "requests": {"cpu": DEFAULT_CPU, "memory": least}}
