"""A volume that really fills up: a small file system, and somebody who uses up its space."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.cluster import Cluster
from e2e.cluster.node import NODE_NAME
from e2e.support.application import Application
from e2e.support.word_count import Words

_SIZE = "64Mi"


@dataclass(frozen=True, slots=True)
class SmallVolume:
    """A volume with its own file system.

    Args:
        cluster: Where it is.
        name: The name of the volume and its storage class.
    """

    cluster: Cluster
    name: str

    @property
    def path(self) -> str:
        """Its path on the node."""
        return str(self.cluster.directory / self.name)

    @property
    def _filler(self) -> str:
        return f"{self.path}/filler"

    def mount(self) -> None:
        """Create it, and register it with the cluster."""
        run = self.cluster.machine.run
        run("mkdir", "--parents", self.path)
        run("mount", "-t", "tmpfs", "-o", "size=64m", self.name, self.path)
        storage_class = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": self.name},
            "provisioner": "kubernetes.io/no-provisioner",
        }
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self.name},
            "spec": {
                "capacity": {"storage": _SIZE},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.name,
                "local": {"path": self.path},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        }
        self.cluster.apply(storage_class, volume)

    def unmount(self) -> None:
        """Remove it."""
        self.cluster.kubectl("delete", "persistentvolume", self.name, "--wait=false")
        self.cluster.kubectl("delete", "storageclass", self.name)
        self.cluster.machine.run("umount", "--lazy", self.path)

    def fill(self, megabytes: int) -> None:
        """Use up this much of its space, or all of it."""
        self.cluster.machine.run("dd", "if=/dev/zero", f"of={self._filler}", "bs=1M", f"count={megabytes}", check=False)

    def clear(self) -> None:
        """Free the space."""
        self.cluster.machine.run("rm", self._filler)


@pytest.fixture
def small_volume(cluster: Cluster) -> Iterator[SmallVolume]:
    """Return a volume of 64 MiB that a test may fill."""
    volume = SmallVolume(cluster, f"small-{secrets.token_hex(3)}")
    volume.mount()
    yield volume
    volume.unmount()


@pytest.mark.thorough
def test_full_volume_is_reported_and_loses_no_word(small_volume: SmallVolume, word_count, words: Words) -> None:
    """A nearly full volume is reported; when it is full, the pod says why it cannot start; with space again, counts are exact."""
    storage = {"size": _SIZE, "storageClassName": small_volume.name}
    app: Application = word_count(words, replicas=1, storage=storage)
    app.apply()
    app.wait_ready()
    words.write(times=10)
    words.wait_exact()
    assert app.condition("StorageHealthy")["status"] == "True"

    small_volume.fill(58)
    app.wait_for("StorageHealthy", "False", "VolumeNearlyFull")
    assert _SIZE in app.condition("StorageHealthy")["message"]
    words.write(times=10)
    words.wait_exact()
    assert app.condition("Ready")["status"] == "True"

    small_volume.fill(64)
    words.write(times=10)
    app.kubectl("delete", "pod", f"{app.name}-0", "--wait=false")
    app.wait("told", lambda: "No space left" in app.condition("Ready").get("message", ""))
    assert app.condition("StorageHealthy")["status"] == "False"

    small_volume.clear()
    app.wait_ready()
    words.wait_exact()
    app.wait_for("StorageHealthy", "True", "VolumesFit")
