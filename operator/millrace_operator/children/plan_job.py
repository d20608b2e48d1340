"""The Job that asks an image what its topology needs: the operator itself never runs a user's code.

It is given the manifest, the user's variables and configuration, which the topology may depend on, and nothing else: no secrets
(nor variables that come from them), no API token, no state, and no network where policies are enforced. Its output is its log;
what it says when it fails is its termination message, which falls back to the log's end.
It is tried twice, unless the program says that trying again is of no
use; a pod that its node loses does not count. It ends also if the code hangs. The operator deletes it once the plan is kept, or
no longer wanted; it then ends at once, as it has nothing to finish.
"""

from __future__ import annotations

from typing import Any, Final

from millrace.manifest.pods import APP_CONTAINER
from millrace_operator.children import names, paths
from millrace_operator.children.app import AppRevision
from millrace_operator.children.environment import plan_environment, plan_environment_sources
from millrace_operator.children.labels import labels
from millrace_operator.children.pod import common_container_fields, common_pod_fields
from millrace_operator.children.resources import plan_resources
from millrace_operator.children.volumes import plan_mounts, plan_volumes

DEADLINE_SECONDS: Final = 600
"""How long a plan may take, the pulling of the image included."""

WRONG_INPUT: Final = 2
"""What `millrace` exits with when the manifest, the entrypoint or the topology is wrong."""

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


def plan_job(app: AppRevision) -> dict[str, Any]:
    """Return the Job that prints a revision's plan as JSON."""
    of_plan = labels(app.name, "plan", app.revision)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.plan_job(app.name, app.revision),
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
                    "volumes": plan_volumes(app),
                },
            },
        },
    }


def _program(app: AppRevision) -> dict[str, Any]:
    variables, sources = plan_environment(app), plan_environment_sources(app)
    return {
        **common_container_fields(app),
        "args": ["plan", "-f", paths.MANIFEST, "--json"],
        **({"env": variables} if variables else {}),
        **({"envFrom": sources} if sources else {}),
        "resources": plan_resources(app),
        "volumeMounts": plan_mounts(app),
    }
