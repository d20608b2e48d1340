"""The pod template: how an instance of an application is started, watched and secured.

The container's command is the operator's, so an image needs nothing but Millrace and the program in it. All that pods read
comes from their revision's ConfigMap, which the template names; nothing here depends on the number of replicas or the
time, so the same revision gives the same template.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children import names, paths
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import POD_INDEX, labels, selector
from millrace_operator.children.ports import HTTP_PORT, HTTP_PORT_NAME
from millrace_operator.children.probes import probes
from millrace_operator.children.security import container_security_context, pod_security_context

CONTAINER = "millrace"


def pod_template(app: AppRevision) -> dict[str, Any]:
    """Return the template of an application's pods."""
    return {
        "metadata": {"labels": labels(app.name, revision=app.revision)},
        "spec": {
            "affinity": _affinity(app),
            "automountServiceAccountToken": False,
            "containers": [_container(app)],
            "enableServiceLinks": False,
            "securityContext": pod_security_context(),
            "serviceAccountName": names.service_account(app.name),
            "terminationGracePeriodSeconds": 60,
            "topologySpreadConstraints": [_spread(app)],
            "volumes": [manifest_volume(app), {"name": "tmp", "emptyDir": {}}],
        },
    }


def image(app: AppRevision) -> dict[str, str]:
    """Return the fields of a container that say which image it runs."""
    policy = app.spec.image_pull_policy
    return {"image": app.spec.image, **({} if policy is None else {"imagePullPolicy": policy})}


def manifest_volume(app: AppRevision) -> dict[str, Any]:
    """Return the volume with the manifest of the revision."""
    return {
        "name": "app",
        "configMap": {"name": names.revision_config_map(app.name, app.revision), "defaultMode": 0o444},
    }


def manifest_mount() -> dict[str, Any]:
    """Return where the manifest's volume is mounted."""
    return {"name": "app", "mountPath": paths.APP, "readOnly": True}


def _container(app: AppRevision) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        **image(app),
        "command": ["millrace"],
        "args": [
            "run",
            *("-f", paths.MANIFEST),
            *("--replica", "$(POD_INDEX)"),
            *("--state-dir", paths.STATE),
            *("--http", f"0.0.0.0:{HTTP_PORT}"),
            *("--secrets-dir", paths.SECRETS),
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": _field("metadata.name")},
            {"name": "POD_INDEX", "valueFrom": _field(f"metadata.labels['{POD_INDEX}']")},
        ],
        "ports": [{"containerPort": HTTP_PORT, "name": HTTP_PORT_NAME, "protocol": "TCP"}],
        **probes(),
        "securityContext": container_security_context(),
        "volumeMounts": [
            manifest_mount(),
            {"name": names.STATE_VOLUME, "mountPath": paths.STATE},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (the container's own)
        ],
    }


def _field(path: str) -> dict[str, Any]:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def _affinity(app: AppRevision) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": selector(app.name)}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term, "weight": 100}]
        }
    }


def _spread(app: AppRevision) -> dict[str, Any]:
    return {
        "labelSelector": {"matchLabels": selector(app.name)},
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
    }
