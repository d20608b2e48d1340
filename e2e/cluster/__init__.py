"""A real Kubernetes on this machine: from Go modules to a running node, without a registry or a downloaded binary.

Each cluster runs in its own *machine*: a network, a mount and a process namespace. So clusters cannot clash with each other or
with the host, and when the machine's first process ends, so does everything in it: processes, mounts, network interfaces,
iptables rules.
"""

from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError

__all__ = ["Cluster", "ClusterError"]
