"""Enforces NetworkPolicies: `python -m e2e.cluster.policies KUBECONFIG` runs as a part of the cluster.

It turns all policies of the cluster into iptables rules, in the table `security`, which nothing else uses and which it replaces
as a whole whenever something changes. A packet passes if the policies of its source let it out and those of its destination let
it in; existing connections stay. Bridged packets are treated like routed ones (`bridge-nf-call-iptables`). Traffic from the node
itself (the kubelet's probes, the API server's proxy) passes. Policies apply to pods on the cluster's first node; a policy takes
effect within two seconds, not from a pod's first packet.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kubernetes import client, config

Object = dict[str, Any]

_POLL_S = 1.0
_CHEAPLY: Object = {"resource_version": "0", "_preload_content": False, "_request_timeout": 10}
"""From the API server's cache, and as raw data: the client's objects would cost ten times as much."""
_BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def table(policies: Iterable[Object], namespaces: Iterable[Object], pods: Iterable[Object]) -> str:
    """Return the table in the format of `iptables-restore`."""
    known = _Known(namespaces, pods)
    chains: dict[str, list[str]] = {}
    jumps: list[str] = []
    for policy in policies:
        spec, namespace = policy["spec"], policy["metadata"]["namespace"]
        for pod in known.pods_of(namespace, spec["podSelector"]):
            for direction in map(_Direction, spec["policyTypes"]):
                chain = f"{direction.kind}-{pod['status']['podIP']}"
                if chain not in chains:
                    chains[chain] = []
                    jumps += [
                        f"-A {hook} {direction.own} {pod['status']['podIP']} -j {chain}" for hook in direction.hooks
                    ]
                for rule in direction.rules(spec):
                    chains[chain] += direction.matches(rule, pod, known.peers(namespace, rule.get(direction.peers)))
    lines = ["*security", ":INPUT ACCEPT", ":FORWARD ACCEPT", ":OUTPUT ACCEPT", *(f":{chain} -" for chain in chains)]
    lines += [f"-A {hook} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT" for hook in ("INPUT", "FORWARD")]
    lines += jumps
    for chain, matches in chains.items():
        lines += [f"-A {chain} {match} -j RETURN" for match in dict.fromkeys(matches)]
        lines.append(f"-A {chain} -j DROP")
    return "\n".join([*lines, "COMMIT", ""])


class _Known:
    """The namespaces, and the pods that have their own address."""

    def __init__(self, namespaces: Iterable[Object], pods: Iterable[Object]) -> None:
        self._namespaces = {item["metadata"]["name"]: item["metadata"].get("labels", {}) for item in namespaces}
        self._pods = [pod for pod in pods if _has_an_address(pod)]

    def pods_of(self, namespace: str, selector: Object) -> list[Object]:
        """Return the pods in a namespace that a selector chooses."""
        return [
            pod
            for pod in self._pods
            if pod["metadata"]["namespace"] == namespace and chooses(selector, pod["metadata"].get("labels", {}))
        ]

    def peers(self, own: str, peers: list[Object] | None) -> list[tuple[str, Object | None]] | None:
        """Return the networks of a rule's peers, with the pod for those of pods; None for everybody."""
        if not peers:
            return None
        found: list[tuple[str, Object | None]] = []
        for peer in peers:
            if "ipBlock" in peer:
                found += [(str(network), None) for network in _without(peer["ipBlock"])]
                continue
            chosen = peer.get("namespaceSelector")
            for namespace, labels in self._namespaces.items():
                if (namespace == own) if chosen is None else chooses(chosen, labels):
                    pods = self.pods_of(namespace, peer.get("podSelector") or {})
                    found += [(pod["status"]["podIP"], pod) for pod in pods]
        return found


class _Direction:
    """Into a pod, or out of it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.comes_in = kind == "Ingress"
        self.peers = "from" if self.comes_in else "to"
        self.own, self._other = ("-d", "-s") if self.comes_in else ("-s", "-d")
        self.hooks = (
            ("FORWARD",) if self.comes_in else ("FORWARD", "INPUT")
        )  # the node itself is a possible destination

    def rules(self, spec: Object) -> list[Object]:
        """Return a policy's rules for it; without any, nothing passes."""
        return spec.get(self.kind.lower()) or []

    def matches(self, rule: Object, pod: Object, peers: list[tuple[str, Object | None]] | None) -> Iterator[str]:
        """Return the iptables conditions under which a rule lets a pod's packets pass."""
        for network, peer in [("0.0.0.0/0", None)] if peers is None else peers:
            for ports in _ports(rule.get("ports"), pod if self.comes_in else peer):
                yield f"{self._other} {network} {ports}".rstrip()


def chooses(selector: Object, labels: Object) -> bool:
    """Return whether a label selector matches these labels."""
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(item, labels) for item in selector.get("matchExpressions") or ()
    )


def _holds(expression: Object, labels: Object) -> bool:
    key, values = expression["key"], expression.get("values", ())
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _ports(ports: list[Object] | None, target: Object | None) -> Iterator[str]:
    """Return the conditions for a rule's ports; a port's name refers to the target's own containers."""
    for item in ports or [{}]:
        protocol = item.get("protocol", "TCP" if item else None)
        port = item.get("port")
        if isinstance(port, str):
            port = _named(port, target)
            if port is None:
                continue
        condition = [] if protocol is None else ["-p", protocol.lower()]
        if port is not None:
            condition += ["--dport", f"{port}:{item.get('endPort', port)}"]
        yield " ".join(condition)


def _named(name: str, pod: Object | None) -> int | None:
    containers = [] if pod is None else pod["spec"]["containers"]
    ports = (port for container in containers for port in container.get("ports", ()))
    return next((port["containerPort"] for port in ports if port.get("name") == name), None)


def _without(block: Object) -> list[ipaddress.IPv4Network]:
    """Return the networks that make up a block without its exceptions; IPv6 is not used here."""
    cidr: str = block["cidr"]
    if ":" in cidr:
        return []
    networks = [ipaddress.IPv4Network(cidr)]
    for part in map(ipaddress.IPv4Network, block.get("except", ())):
        networks = [
            left
            for network in networks
            for left in (network.address_exclude(part) if part.subnet_of(network) else (network,))
        ]
    return networks


def _has_an_address(pod: Object) -> bool:
    status = pod["status"]
    ended = status.get("phase") in {"Succeeded", "Failed"}
    return bool(status.get("podIP")) and not ended and not pod["spec"].get("hostNetwork")


def main(kubeconfig: str) -> None:
    """Run until killed; an API server that does not answer is asked again."""
    config.load_kube_config(kubeconfig)
    core, networking = client.CoreV1Api(), client.NetworkingV1Api()
    lists = (
        networking.list_network_policy_for_all_namespaces,
        core.list_namespace,
        core.list_pod_for_all_namespaces,
    )
    if not _BRIDGED.exists():
        subprocess.run(["modprobe", "br_netfilter"], check=True)
    _BRIDGED.write_text("1")
    applied = ""
    while True:
        try:
            wanted = table(*(_items(each(**_CHEAPLY)) for each in lists))
            if wanted != applied:
                subprocess.run(["iptables-restore", "--wait"], input=wanted, text=True, check=True)
                applied = wanted
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201 (the component's log)
        time.sleep(_POLL_S)


def _items(answer: Any) -> list[Object]:
    items: list[Object] = json.loads(answer.data)["items"]
    return items


if __name__ == "__main__":
    main(*sys.argv[1:])
