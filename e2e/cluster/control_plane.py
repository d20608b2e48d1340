"""etcd, the API server, the controller manager and the scheduler, and their settings.

etcd does not sync its writes to disk, since nothing here outlives the machine. The API server listens on the node's address,
which both the host and the pods can reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import tools
from e2e.cluster.component import Component
from e2e.cluster.machine import Machine

API_PORT = 6443
_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"
WATCHED_NAMESPACE = "audited"
"""The namespace of ServiceAccounts whose reads are logged too."""
_AUDIT_POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {
            "level": "Request",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [{"group": "coordination.k8s.io"}],
        },
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
        },
        {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{WATCHED_NAMESPACE}"]},
        {"level": "None"},
    ],
}
"""Writes by pods are logged, with their content for Leases; reads only for one namespace; nothing from the cluster's own
parts."""


def etcd(machine: Machine, directory: Path) -> Component:
    """Return the API server's store."""
    options = {
        "name": "e2e",
        "data-dir": directory / "etcd",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
        "listen-client-urls": _ETCD,
        "advertise-client-urls": _ETCD,
        "listen-peer-urls": _ETCD_PEER,
        "initial-advertise-peer-urls": _ETCD_PEER,
        "initial-cluster": f"e2e={_ETCD_PEER}",
    }
    return _component("etcd", machine, directory, options)


def api_server(machine: Machine, directory: Path) -> Component:
    """Return the API server; writes by pods are in its `audit_log`."""
    pki = directory / "pki"
    options = {
        "etcd-servers": _ETCD,
        "secure-port": API_PORT,
        "advertise-address": machine.addresses.node,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "kubelet-client-certificate": pki / "apiserver-kubelet.crt",
        "kubelet-client-key": pki / "apiserver-kubelet.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP,Hostname",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "service-cluster-ip-range": machine.addresses.services,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "audit-policy-file": _audit_policy(directory),
        "audit-log-path": audit_log(directory),
        "requestheader-client-ca-file": pki / "ca.crt",
        "requestheader-allowed-names": "front-proxy",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": pki / "front-proxy.crt",
        "proxy-client-key-file": pki / "front-proxy.key",
    }
    return _component("kube-apiserver", machine, directory, options)


def audit_log(directory: Path) -> Path:
    """Return the file in which the API server logs writes by pods: one JSON object per line."""
    return directory / "logs/audit.log"


def configure(directory: Path) -> None:
    """Write the configuration files."""
    _audit_policy(directory).write_text(yaml.safe_dump(_AUDIT_POLICY))


def _audit_policy(directory: Path) -> Path:
    return directory / "audit-policy.yaml"


def controller_manager(machine: Machine, directory: Path) -> Component:
    """Return the controllers of Kubernetes' own kinds."""
    pki = directory / "pki"
    options = {
        **_identity(pki / "controller-manager.kubeconfig"),
        "service-account-private-key-file": pki / "sa.key",
        "root-ca-file": pki / "ca.crt",
        "use-service-account-credentials": "true",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "service-cluster-ip-range": machine.addresses.services,
        # By default it sends 20 requests a second: then a thousand StatefulSets take twenty minutes to get their pods.
        "kube-api-qps": 200,
        "kube-api-burst": 400,
    }
    return _component("kube-controller-manager", machine, directory, options)


def scheduler(machine: Machine, directory: Path) -> Component:
    """Return the scheduler, which chooses a node for a pod."""
    return _component("kube-scheduler", machine, directory, _identity(directory / "pki/scheduler.kubeconfig"))


def _identity(kubeconfig: Path) -> dict[str, object]:
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
    }


def _component(name: str, machine: Machine, directory: Path, options: dict[str, object]) -> Component:
    return Component(name, [*tools.kubernetes(name), *_flags(options)], machine, directory / "logs")


def _flags(options: dict[str, object]) -> Iterator[str]:
    return (f"--{name}={value}" for name, value in options.items())
