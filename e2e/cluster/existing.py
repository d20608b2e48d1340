"""A cluster that somebody else has started, such as one of kind, k3d or minikube, by its kubeconfig."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest
from kubernetes import config

from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.tools import FROM_PATH

_LOADERS = {
    "kind-": "kind load image-archive {archive} --name {name}",
    "k3d-": "k3d image import {archive} --cluster {name}",
    "minikube": "minikube image load {archive} --profile minikube",
}
"""How to load an archive into the nodes, by how the name of the kubeconfig's context begins. The rest is the cluster's name."""


class ExistingCluster(Cluster):
    """A cluster of somebody else. Tests that stop parts of a cluster, or add nodes, skip themselves.

    kubectl and helm are those on the PATH, if they are there.

    Args:
        kubeconfig: Its administrator's kubeconfig; the current context counts.
        directory: For caches, and for what is known of the cluster.
        host_address: Where pods reach this machine, if it is not its address in the nodes' network.
        load_image: The command that loads a Docker archive into the nodes, with `{archive}` in it; chosen by the context if None.
    """

    def __init__(
        self, kubeconfig: Path, directory: Path, *, host_address: str | None = None, load_image: str | None = None
    ) -> None:
        os.environ[FROM_PATH] = "1"
        self._kubeconfig = kubeconfig.absolute()
        self.directory = directory
        self._load_image = load_image
        self._host_address = host_address or self._address_in_the_nodes_network()

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig."""
        return self._kubeconfig

    @property
    def host_address(self) -> str:
        """Where pods can reach a server on this machine."""
        return self._host_address

    def import_image(self, archive: Path) -> None:
        """Load a Docker archive into the nodes.

        Raises:
            ClusterError: It is not known how, or the command failed.
        """
        command = shlex.split(self._loader().replace("{archive}", shlex.quote(str(archive))))
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ClusterError(f"`{shlex.join(command)}` failed: {(result.stdout + result.stderr).strip()[-2000:]}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"`{name}` is only there in the cluster that `make e2e` builds")

    def another_node(self, *_: Any, **__: Any) -> NoReturn:
        """Skip the test."""
        pytest.skip("only the cluster that `make e2e` builds gets another node")

    def restart_api_server(self) -> NoReturn:
        """Skip the test."""
        pytest.skip("only the API server that `make e2e` starts is restarted")

    @property
    def audit_log(self) -> NoReturn:
        """Skip the test."""
        pytest.skip("only the cluster that `make e2e` builds has an audit log here")

    def _loader(self) -> str:
        if self._load_image:
            return self._load_image
        _, active = config.list_kube_config_contexts(str(self._kubeconfig))
        for prefix, command in _LOADERS.items():
            if active["name"].startswith(prefix):
                return command.replace("{name}", shlex.quote(active["name"].removeprefix(prefix)))
        raise ClusterError(
            f"How are images loaded into the nodes of {active['name']}? Pass --load-image 'COMMAND {{archive}}', "
            "or load them yourself and pass --images-loaded"
        )

    def _address_in_the_nodes_network(self) -> str:
        addresses = self.kubectl(
            "get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}"
        )
        if not addresses:
            raise ClusterError(
                "The cluster has no node with an InternalIP: pass --host-address, where pods reach this machine"
            )
        node = addresses.split()[0]
        with socket.socket(socket.AF_INET6 if ":" in node else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((node, 9))  # sends nothing: it only chooses the interface
            return str(probe.getsockname()[0])
