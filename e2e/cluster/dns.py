"""The cluster's name server: CoreDNS next to the node, behind a Service like any other.

It only knows the cluster's own names, since pods cannot reach the outside.
"""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import tools
from e2e.cluster.component import Component
from e2e.cluster.machine import Machine
from e2e.cluster.node import DNS_SERVICE_NUMBER

_PORT = 53
"""The Service's port too: for a NetworkPolicy, the port is the one where the packet arrives."""
_COREFILE = """.:{port} {{
    bind {address}
    errors
    ready {address}:8181
    cache 5
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig} e2e
        pods insecure
        ttl 2
    }}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def name_server(machine: Machine, directory: Path) -> Component:
    """Write the configuration and return the component."""
    file = directory / "Corefile"
    kubeconfig = directory / "pki/admin.kubeconfig"
    file.write_text(_COREFILE.format(port=_PORT, address=machine.addresses.node, kubeconfig=kubeconfig))
    return Component("coredns", [str(tools.path("coredns")), "-conf", str(file)], machine, directory / "logs")


def service(machine: Machine) -> list[dict[str, object]]:
    """Return the Service that pods use, and its endpoint."""
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": machine.addresses.service(DNS_SERVICE_NUMBER),
                "ports": [{"name": name, "protocol": protocol, "port": 53} for name, protocol in ports],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [machine.addresses.node], "conditions": {"ready": True}}],
            "ports": [{"name": name, "protocol": protocol, "port": _PORT} for name, protocol in ports],
        },
    ]
