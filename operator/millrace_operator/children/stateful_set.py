"""The StatefulSet of an application's pods.

It gives pods their names and volumes and starts what is missing, all at once. It replaces nothing by itself (`OnDelete`):
the operator deletes pods one by one, when the group and the restoration allow it. It deletes no volume either: the operator does,
as `storage.retention` says, because it also knows whether the application is deleted or only its StatefulSet made anew.

Every pod has a claim, also when all stores are in memory: the directory then holds only the instance's lock and
process id, a claim template cannot be added later, and a topology may get a persistent store with its next revision.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children import names
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import labels, selector
from millrace_operator.children.pod import pod_template
from millrace_operator.children.quantities import canonical_quantity


def stateful_set(app: AppRevision, replicas: int) -> dict[str, Any]:
    """Return the StatefulSet that runs a revision.

    Args:
        app: The revision.
        replicas: How many pods there are to be, which autoscaling, draining and suspending make other than the spec's.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": names.stateful_set(app.name), "namespace": app.namespace, "labels": labels(app.name)},
        "spec": {
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "podManagementPolicy": "Parallel",
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector(app.name)},
            "serviceName": names.service(app.name),
            "template": pod_template(app),
            "updateStrategy": {"type": "OnDelete"},
            "volumeClaimTemplates": [_claim_template(app)],
        },
    }


def _claim_template(app: AppRevision) -> dict[str, Any]:
    storage = app.spec.storage
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": canonical_quantity(storage.size)}},
    }
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": names.STATE_VOLUME, "labels": labels(app.name)},
        "spec": spec,
    }
