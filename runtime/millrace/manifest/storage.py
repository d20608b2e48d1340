"""`spec.storage`: the volumes that hold each replica's state stores."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from millrace.manifest.fields import ObjectName, Quantity
from millrace.manifest.model import Change, ManifestModel, Rule

MemoryFraction = Annotated[
    float,
    Rule(lambda value: 0.05 <= value <= 0.9, "self >= 0.05 && self <= 0.9", "must be between 0.05 and 0.9"),
]


class Retention(ManifestModel):
    """What becomes of volumes that no pod uses."""

    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """When the StreamsApp is deleted. `spec.deletionPolicy: Purge` deletes them in any case."""
    when_scaled: Literal["Retain", "Delete"] = "Retain"
    """When there are fewer replicas."""


class Storage(ManifestModel):
    """Where each replica keeps its state stores."""

    size: Quantity = "1Gi"
    """The size of each replica's volume. It can grow, if the storage class allows that, but not shrink."""
    storage_class_name: ObjectName | None = None
    """The class of the volumes; the cluster's default if not given. Immutable."""
    retention: Retention = Retention()
    """What becomes of volumes that no pod uses."""
    memory_fraction: MemoryFraction | None = None
    """The part of the container's memory limit that RocksDB may use for its caches and write buffers. A number of bytes as
    `rocksdb.memory.max.bytes` in `kafka.config` goes before it; without either, or without a limit, it is 256 MiB."""

    changes: ClassVar[tuple[Change, ...]] = (
        Change(
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "size must not shrink: volumes can only grow",
        ),
        Change(
            "has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "storageClassName is immutable: volumes cannot move to another class",
        ),
    )
