"""The Job that asks an image what its topology needs: the operator itself never runs a user's code.

It is given the manifest and nothing else: no secrets, no API token, no state, and no network where policies are enforced. Its
output is its log; what it says when it fails is its termination message, which falls back to the log's end. It is
tried twice, so that a lost node is no failed plan, and has an end also if the code hangs. The operator deletes it once the plan
is kept.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children import names, paths
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import labels
from millrace_operator.children.pod import CONTAINER, image, manifest_mount, manifest_volume
from millrace_operator.children.security import container_security_context, pod_security_context

DEADLINE_SECONDS = 600
"""How long a plan may take, the pulling of the image included."""


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
            "template": {
                "metadata": {"labels": of_plan},
                "spec": {
                    "automountServiceAccountToken": False,
                    "containers": [_container(app)],
                    "enableServiceLinks": False,
                    "restartPolicy": "Never",
                    "securityContext": pod_security_context(),
                    "serviceAccountName": names.service_account(app.name),
                    "volumes": [manifest_volume(app), {"name": "tmp", "emptyDir": {}}],
                },
            },
        },
    }


def _container(app: AppRevision) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        **image(app),
        "command": ["millrace"],
        "args": ["plan", "-f", paths.MANIFEST, "--json"],
        "securityContext": container_security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            manifest_mount(),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (the container's own)
        ],
    }
