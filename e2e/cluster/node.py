"""containerd, the kubelet and kube-proxy: their settings, and what can be done to a node.

The settings suit a machine without systemd, with hybrid cgroups, and without permission to lower a process's oom_score_adj. No
pod is evicted because of a full disk: the node is not responsible for the machine's disk.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from tests.waiting import wait_until

from e2e.cluster import tools
from e2e.cluster.component import Component
from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import Addresses, Machine

NODE_NAME = "node"
PAUSE_IMAGE = "localhost/pause:1"
DNS_SERVICE_NUMBER = 10

_CABLES = tuple(
    (table, chain, flag, f"{prefix}+")
    for table, chain, flag in (("raw", "PREROUTING", "--in-interface"), ("mangle", "POSTROUTING", "--out-interface"))
    for prefix in ("eth", "to")
)
"""Table, chain and condition of a rule for everything that crosses a cable, in either direction: to the host, to other
machines."""

_CONTAINERD = """version = 2
root = "{directory}/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{directory}/cni"
"""


class Node:
    """A real node, whose parts can be killed and restarted.

    Args:
        machine: Where it runs.
        directory: For its data; must exist.
        pki: The cluster's keys and certificates, including the node's own.
        cluster: The addresses of the machine with the control plane: services have addresses from its network.
        name: Its name; also that of its kubeconfig and its certificate.
    """

    def __init__(
        self, machine: Machine, directory: Path, pki: Path, *, cluster: Addresses, name: str = NODE_NAME
    ) -> None:
        self.name = name
        self.machine = machine
        self._directory = directory
        self._pki = pki
        self._cluster = cluster
        logs = directory / "logs"
        self.containerd = Component(
            "containerd", ["containerd", "--config", str(directory / "containerd.toml")], machine, logs
        )
        self.kubelet = Component(
            "kubelet",
            [
                *tools.kubernetes("kubelet"),
                f"--config={directory / 'kubelet.yaml'}",
                f"--kubeconfig={pki / f'kubelet-{name}.kubeconfig'}",
                f"--root-dir={directory / 'kubelet'}",
                f"--cert-dir={directory / 'kubelet/pki'}",
                f"--hostname-override={name}",
                f"--node-ip={machine.addresses.node}",
                "--v=2",
            ],
            machine,
            logs,
        )
        self.proxy = Component(
            "kube-proxy", [*tools.kubernetes("kube-proxy"), f"--config={directory / 'proxy.yaml'}"], machine, logs
        )

    def configure(self) -> None:
        """Write the configuration files."""
        directory = self._directory
        for name in ("logs", "cni", "kubelet", "containerd", "pod-logs"):
            (directory / name).mkdir(exist_ok=True)
        (directory / "containerd.toml").write_text(_CONTAINERD.format(directory=directory, pause=PAUSE_IMAGE))
        (directory / "cni/10-e2e.conflist").write_text(json.dumps(self._network()))
        (directory / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_configuration()))
        (directory / "proxy.yaml").write_text(yaml.safe_dump(self._proxy_configuration()))

    def start_containerd(self) -> None:
        """Start the container runtime, and wait until it answers."""
        self.containerd.start()
        wait_until(
            lambda: self.machine.run("ctr", "version", check=False),
            lambda: f"containerd. {self.containerd.tail()}",
            180,
            error=ClusterError,
        )

    def kill_kubelet(self) -> None:
        """Kill the kubelet: pods keep running, but nothing restarts, probes or reports them."""
        self.kubelet.kill()

    def start_kubelet(self) -> None:
        """Start the kubelet (again), and wait until it is ready; if it ends, it is started once more, as a node's init would.

        It ends if containerd answers but does not know its containers yet.
        """
        self.kubelet.start()
        wait_until(
            self._kubelet_serves, lambda: f"the kubelet. {self.kubelet.tail()}", 180, poll_s=0.5, error=ClusterError
        )

    def _kubelet_serves(self) -> bool:
        if self.kubelet.ended:
            self.kubelet.start()
        return self.machine.run(*_ask("http://127.0.0.1:10248/healthz"), check=False).strip() == "ok"

    def import_image(self, archive: Path) -> None:
        """Load a Docker archive into the node's image store."""
        self.machine.run("ctr", "--namespace", "k8s.io", "images", "import", str(archive), timeout_s=300)

    def export_image(self, name: str, archive: Path) -> None:
        """Write an image from the node's store to an archive, for `import_image` on another node."""
        self.machine.run("ctr", "--namespace", "k8s.io", "images", "export", str(archive), name, timeout_s=300)

    def kill_container(self, container_id: str) -> None:
        """Kill a container's first process like the kernel (SIGKILL).

        Args:
            container_id: `status.containerStatuses[].containerID` of the pod, with or without its scheme.
        """
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container_id.rpartition("/")[2])

    def pause_container(self, container_id: str) -> None:
        """Freeze all processes of a container, like a machine that hangs."""
        self._ctr("tasks", "pause", container_id.rpartition("/")[2])

    def resume_container(self, container_id: str) -> None:
        """Resume a paused container."""
        self._ctr("tasks", "resume", container_id.rpartition("/")[2])

    def container_state(self, container_id: str) -> str | None:
        """Return RUNNING, PAUSED or STOPPED, or nothing if there is no such container."""
        rows = (line.split() for line in self._ctr("tasks", "list").splitlines()[1:])
        return {name: state for name, _, state in rows}.get(container_id.rpartition("/")[2])

    def block(self, pod_address: str, port: int) -> None:
        """Drop what a pod sends to a port anywhere beyond the node, like a network partition."""
        self.machine.run("iptables", "--insert", *_drop(pod_address, port))

    def unblock(self, pod_address: str, port: int) -> None:
        """Undo `block`."""
        self.machine.run("iptables", "--delete", *_drop(pod_address, port))

    def cut_off(self) -> None:
        """Drop everything to and from the machine, like a broken switch; what runs on it keeps running."""
        for rule in _CABLES:
            self.machine.run("iptables", "--wait", "--table", rule[0], "--insert", *rule[1:], "--jump", "DROP")

    def rejoin(self) -> None:
        """Undo `cut_off`."""
        for rule in _CABLES:
            self.machine.run("iptables", "--wait", "--table", rule[0], "--delete", *rule[1:], "--jump", "DROP")

    def reboot(self) -> None:
        """Kill the kubelet, every container and containerd, like a power cut, and start the node again."""
        self.kubelet.kill()
        for task in self._ctr("tasks", "list", "--quiet").split():
            self._ctr("tasks", "kill", "--signal", "SIGKILL", task, check=False)
        self.containerd.kill()
        self.start_containerd()
        self.start_kubelet()

    def _ctr(self, *arguments: str, check: bool = True) -> str:
        try:
            return self.machine.run("ctr", "--namespace", "k8s.io", *arguments, check=check)
        except ClusterError as error:
            raise ClusterError(f"containerd refused: {error}") from None

    def _network(self) -> dict[str, object]:
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": self.machine.addresses.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": str(self._directory / "cni-addresses"),
            },
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": "e2e", "plugins": [bridge, ports]}

    def _kubelet_configuration(self) -> dict[str, object]:
        pki = self._pki
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(pki / f"kubelet-{self.name}-server.crt"),
            "tlsPrivateKeyFile": str(pki / f"kubelet-{self.name}-server.key"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.machine.addresses.name}",
            "failSwapOn": False,
            "failCgroupV1": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [self._cluster.service(DNS_SERVICE_NUMBER)],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "imagefs.available": "0%",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "memory.available": "100Mi",
            },
            "enforceNodeAllocatable": ["pods"],
            "makeIPTablesUtilChains": False,
            "shutdownGracePeriod": "0s",
            "volumePluginDir": str(self._directory / "kubelet/volumeplugins"),
            "podLogsDir": str(self._directory / "pod-logs"),
            # Changed Secrets and ConfigMaps reach pods within seconds, so that tests of rotation need not wait a minute.
            "syncFrequency": "10s",
            "fileCheckFrequency": "10s",
            "nodeStatusUpdateFrequency": "4s",
        }

    def _proxy_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self._pki / "proxy.kubeconfig")},
            "mode": "iptables",
            "clusterCIDR": self.machine.addresses.pods,
            "hostnameOverride": self.name,
            "conntrack": {"maxPerCore": 0, "min": 0},
        }


def _ask(url: str) -> list[str]:
    program = f"import urllib.request as request; print(request.urlopen({url!r}, timeout=2).read().decode())"
    return [sys.executable, "-c", program]


def _drop(pod_address: str, port: int) -> list[str]:
    return ["FORWARD", "--source", pod_address, "--protocol", "tcp", "--dport", str(port), "--jump", "DROP"]
