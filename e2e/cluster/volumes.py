"""A provisioner of local volumes: `python -m e2e.cluster.volumes KUBECONFIG DIRECTORY` runs as a part of the cluster.

For each claim of the storage class `e2e-local` whose pod has been scheduled, it creates a directory and a `local` volume. It
deletes released volumes whose policy is Delete. It is also the resizer: a claim that asks for more space gets it, first in the
volume, then in the claim's status. The size is only reported, never enforced.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.rest import ApiException
from kubernetes.utils import parse_quantity

STORAGE_CLASS = "e2e-local"
RETAINING_STORAGE_CLASS = "e2e-local-retain"
PROVISIONER = "millrace.dev/e2e-local"
_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_POLL_S = 0.3


def storage_classes() -> list[dict[str, Any]]:
    """Return the default class, which deletes volumes with their claims, and one that keeps them."""
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": name,
                "annotations": {"storageclass.kubernetes.io/is-default-class": str(name == STORAGE_CLASS).lower()},
            },
            "provisioner": PROVISIONER,
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": True,
            "reclaimPolicy": policy,
        }
        for name, policy in ((STORAGE_CLASS, "Delete"), (RETAINING_STORAGE_CLASS, "Retain"))
    ]


class Provisioner:
    """Creates, resizes and deletes volumes until everything is as it should be; checks again at short intervals."""

    def __init__(self, core: client.CoreV1Api, directory: Path) -> None:
        self._core = core
        self._directory = directory
        self._policies = {each["metadata"]["name"]: each["reclaimPolicy"] for each in storage_classes()}

    def turn(self) -> None:
        """Check every claim and every volume of ours once."""
        volumes = {
            volume.metadata.name: volume
            for volume in self._core.list_persistent_volume().items
            if (volume.metadata.annotations or {}).get(_PROVISIONED_BY) == PROVISIONER
        }
        for claim in self._core.list_persistent_volume_claim_for_all_namespaces().items:
            if claim.spec.storage_class_name in self._policies:
                with contextlib.suppress(ApiException):  # it changed in the meantime: the next round will see it
                    self._provide(claim, volumes)
        for volume in volumes.values():
            released = volume.status.phase == "Released"
            if released and volume.spec.persistent_volume_reclaim_policy == "Delete":
                with contextlib.suppress(ApiException):
                    self._core.delete_persistent_volume(volume.metadata.name)
                    shutil.rmtree(self._path(volume.metadata.name), ignore_errors=True)

    def _provide(self, claim: Any, volumes: dict[str, Any]) -> None:
        name = f"pvc-{claim.metadata.uid}"
        node = (claim.metadata.annotations or {}).get(_NODE_ANNOTATION)
        if claim.metadata.deletion_timestamp is not None:
            return
        if claim.status.phase == "Pending" and node and name not in volumes and not claim.spec.volume_name:
            self._path(name).mkdir(parents=True, exist_ok=True)
            self._core.create_persistent_volume(self._volume(name, claim, node))
        elif claim.status.phase == "Bound" and claim.spec.volume_name in volumes:
            self._grow(claim, claim.spec.volume_name)

    def _grow(self, claim: Any, volume: str) -> None:
        wanted, has = claim.spec.resources.requests["storage"], claim.status.capacity["storage"]
        if parse_quantity(wanted) <= parse_quantity(has):
            return
        self._core.patch_persistent_volume(volume, {"spec": {"capacity": {"storage": wanted}}})
        self._core.patch_namespaced_persistent_volume_claim_status(
            claim.metadata.name, claim.metadata.namespace, {"status": {"capacity": {"storage": wanted}}}
        )

    def _volume(self, name: str, claim: Any, node: str) -> dict[str, Any]:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        return {
            "metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "capacity": {"storage": claim.spec.resources.requests["storage"]},
                "accessModes": claim.spec.access_modes,
                "persistentVolumeReclaimPolicy": self._policies[claim.spec.storage_class_name],
                "storageClassName": claim.spec.storage_class_name,
                "local": {"path": str(self._path(name))},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "name": claim.metadata.name,
                    "namespace": claim.metadata.namespace,
                    "uid": claim.metadata.uid,
                },
            },
        }

    def _path(self, volume: str) -> Path:
        return self._directory / volume


def main(kubeconfig: str, directory: str) -> None:
    """Run until killed; an API server that does not answer is asked again."""
    config.load_kube_config(kubeconfig)
    provisioner = Provisioner(client.CoreV1Api(), Path(directory))
    while True:
        try:
            provisioner.turn()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201 (the component's log)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
