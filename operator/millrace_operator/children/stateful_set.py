"""The StatefulSet of an application's pods, with the claim template of their volumes; the pods are in `pod`.

It gives pods their names and volumes and starts what is missing, all at once. It never replaces a pod on its own (`OnDelete`):
the operator deletes pods one by one, when the group and the restoration allow it. It deletes no volume either: the operator does,
as `storage.retention` says, because it knows whether the application is deleted or only its StatefulSet recreated.

Every pod has a claim, even when all stores are in memory: the directory then holds only the instance's lock and
process id, but a claim template cannot be added later, and the next revision of the topology may have a persistent store.
"""

from __future__ import annotations

from typing import Final

from millrace_operator.children import naming
from millrace_operator.children.canonical_form import canonical_quantity
from millrace_operator.children.naming import labels, selector
from millrace_operator.children.pod import pod_template
from millrace_operator.model import AppRevision, Json

IMMUTABLE_FIELDS: Final = ("serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates")
"""Fields of the spec that the API server lets nobody change: a StatefulSet that differs in one has to be recreated."""


def stateful_set(app: AppRevision, replicas: int) -> Json:
    """Return the StatefulSet that runs a revision.

    Args:
        app: The revision.
        replicas: How many pods there should be; autoscaling, draining and suspending make it differ from the spec.
    """
    storage = app.spec.storage
    claim: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": canonical_quantity(storage.size)}},
    }
    if storage.storage_class_name is not None:
        claim["storageClassName"] = storage.storage_class_name
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": app.name, "namespace": app.namespace, "labels": labels(app.name)},
        "spec": {
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "podManagementPolicy": "Parallel",
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector(app.name)},
            "serviceName": app.name,
            "template": pod_template(app),
            "updateStrategy": {"type": "OnDelete"},
            "volumeClaimTemplates": [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": naming.STATE_VOLUME, "labels": labels(app.name)},
                    "spec": claim,
                }
            ],
        },
    }
