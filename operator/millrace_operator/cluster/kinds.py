"""Which kinds of objects the operator handles, and where the API serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from millrace_operator.backfills.spark_application import SPARK_GROUPS


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of objects."""

    kind: str
    group: str
    """Empty for the core group."""
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The group and version as manifests write them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of an object, of all in a namespace, or of all.

        >>> PODS.path("shop", "orders-0", "log")
        '/api/v1/namespaces/shop/pods/orders-0/log'
        """
        parts = [*(("apis", self.group) if self.group else ("api",)), self.version]
        parts += ["namespaces", namespace] if namespace and self.namespaced else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


GROUP: Final = "streams.millrace.dev"
APPS: Final = ResourceKind("StreamsApp", GROUP, "v1alpha1", "streamsapps")
RESETS: Final = ResourceKind("StreamsReset", GROUP, "v1alpha1", "streamsresets")
BACKFILLS: Final = ResourceKind("StreamsBackfill", GROUP, "v1alpha1", "streamsbackfills")
RESOURCES: Final = (APPS, RESETS, BACKFILLS)
"""The kinds that the operator serves."""

PODS: Final = ResourceKind("Pod", "", "v1", "pods")
CONFIG_MAPS: Final = ResourceKind("ConfigMap", "", "v1", "configmaps")
CLAIMS: Final = ResourceKind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
STATEFUL_SETS: Final = ResourceKind("StatefulSet", "apps", "v1", "statefulsets")
JOBS: Final = ResourceKind("Job", "batch", "v1", "jobs")
POD_MONITORS: Final = ResourceKind("PodMonitor", "monitoring.coreos.com", "v1", "podmonitors")

CHILDREN: Final = (
    STATEFUL_SETS,
    PODS,
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    ResourceKind("Service", "", "v1", "services"),
    ResourceKind("ServiceAccount", "", "v1", "serviceaccounts"),
    ResourceKind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    ResourceKind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
)
"""The kinds of children on every cluster; `POD_MONITORS` are added where the cluster knows the kind."""

SPARK_APPLICATIONS: Final = tuple(
    ResourceKind("SparkApplication", group, version, "sparkapplications")
    for group, _, version in (api_version.partition("/") for api_version in SPARK_GROUPS.values())
)
"""Those of both Spark operators; no more than one of them has to exist."""

NAMESPACES: Final = ResourceKind("Namespace", "", "v1", "namespaces", namespaced=False)
SECRETS: Final = ResourceKind("Secret", "", "v1", "secrets")
EVENTS: Final = ResourceKind("Event", "", "v1", "events")
LEASES: Final = ResourceKind("Lease", "coordination.k8s.io", "v1", "leases")
NODES: Final = ResourceKind("Node", "", "v1", "nodes", namespaced=False)
STORAGE_CLASSES: Final = ResourceKind("StorageClass", "storage.k8s.io", "v1", "storageclasses", namespaced=False)

KINDS: Final = {kind.kind: kind for kind in (*CHILDREN, POD_MONITORS, *RESOURCES)}
"""The kinds of objects that the operator writes, by name."""
