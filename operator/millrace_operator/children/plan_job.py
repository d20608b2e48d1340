"""The Job that asks an image what its topology needs: the operator itself never runs a user's code.

It is given the manifest and the user's variables and configuration, which the topology may depend on, and nothing else: no
secrets (nor variables that come from them), no API token, no state, and no network where policies are enforced. Its output is its
log; what it says when it fails is its termination message, which falls back to the end of the log.

It is tried twice, unless the program says that another attempt is pointless; a pod lost with its node does not count. It also
ends if the code hangs. The operator deletes it once the plan is stored or no longer wanted; the Job then ends at once, as it has
nothing to finish.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from millrace.manifest.fields import quantity_value
from millrace.manifest.pods import APP_CONTAINER
from millrace_operator.children import naming
from millrace_operator.children.canonical_form import canonical_list
from millrace_operator.children.naming import labels
from millrace_operator.children.pod import (
    DEFAULT_CPU,
    DEFAULT_MEMORY,
    MANIFEST_MOUNT,
    common_container_fields,
    common_pod_fields,
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
    template = app.spec.pod_template
    users_volumes = [
        volume for volume in canonical_list(template.volumes) if any(kind in volume for kind in _WITHOUT_SECRETS)
    ]
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
                    "annotations": {**template.metadata.annotations, **_NO_IDENTITY},
                    "labels": {**template.metadata.labels, **of_plan},
                },
                "spec": {
                    **common_pod_fields(app),
                    "containers": [_program(app, {volume["name"] for volume in users_volumes})],
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "volumes": [
                        manifest_volume(app),
                        {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
                        *users_volumes,
                    ],
                },
            },
        },
    }


def _program(app: AppRevision, users_volumes: Collection[str]) -> Json:
    """Return the container: with the user's variables, which the topology may depend on, but none from Secrets.

    It requests little, as it holds no state and no records. It may still grow to the program's memory, which imports may need,
    and use one CPU.

    Args:
        app: The revision.
        users_volumes: The user's volumes that the pod has.
    """
    template = app.spec.pod_template
    variables = [
        variable for variable in canonical_list(template.env) if "secretKeyRef" not in variable.get("valueFrom", {})
    ]
    sources = [source for source in canonical_list(template.env_from) if "secretRef" not in source]
    mounts = [mount for mount in canonical_list(template.volume_mounts) if mount["name"] in users_volumes]
    memory = program_resources(app)["limits"]["memory"]
    least = memory if quantity_value(memory) < quantity_value(DEFAULT_MEMORY) else DEFAULT_MEMORY
    return {
        **common_container_fields(app),
        "args": ["plan", "-f", naming.MANIFEST_PATH, "--json"],
        **({"env": variables} if variables else {}),
        **({"envFrom": sources} if sources else {}),
        "resources": {
            "limits": {"cpu": "1", "memory": memory},
            "requests": {"cpu": DEFAULT_CPU, "memory": least},
        },
        "volumeMounts": [MANIFEST_MOUNT, *temporary_mount(mounts), *mounts],
    }
