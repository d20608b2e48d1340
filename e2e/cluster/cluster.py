"""A whole cluster: a machine, a control plane and, unless only the API is needed, a node with name server and volumes.

Everything is in one directory and one machine. If a cluster was killed, the next start in its directory cleans up.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.waiting import wait_until

from e2e.cluster import control_plane, dns, tools, volumes
from e2e.cluster.api import KubernetesApi
from e2e.cluster.build import provide_all
from e2e.cluster.component import Component
from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import Machine
from e2e.cluster.node import PAUSE_IMAGE, Node
from e2e.cluster.packages import provide_packages
from e2e.cluster.pki import write_cluster_pki, write_node_pki
from e2e.images.archive import write_archive

_ROOT = Path(__file__).parents[2]
_LONGEST_DIRECTORY = 60


class Cluster(KubernetesApi):
    """A running cluster.

    Example::

        with Cluster.start(Path("/tmp/my-cluster")) as cluster:
            print(cluster.kubectl("get", "nodes"))
    """

    def __init__(self, directory: Path, machine: Machine, *, with_node: bool) -> None:
        self.directory = directory
        self.machine = machine
        pki = directory / "pki"
        self.node = Node(machine, directory, pki, cluster=machine.addresses) if with_node else None
        self._etcd = control_plane.etcd(machine, directory)
        self.api_server = control_plane.api_server(machine, directory)
        self._controllers = control_plane.controller_manager(machine, directory)
        self._scheduler = control_plane.scheduler(machine, directory)

    @classmethod
    def start(cls, directory: Path, *, with_node: bool = True, owned: bool = True) -> Self:
        """Start a cluster and wait until it accepts pods; packages and programs must exist, see `prepare`.

        Args:
            directory: For its data, logs and keys; leftovers of a dead cluster are removed.
            with_node: Whether to start a node, or only the API with its controllers.
            owned: Whether the cluster ends with this thread, even if that is killed.

        Raises:
            ClusterError: It does not start; the message has the end of the log of the failed part.
        """
        directory = directory.absolute()
        if len(str(directory)) > _LONGEST_DIRECTORY:
            raise ClusterError(f"{directory} is too long a name for the sockets in it: {_LONGEST_DIRECTORY} at most")
        if cls.find(directory):
            raise ClusterError(f"A cluster runs in {directory}: stop it, or take another directory")
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "logs").mkdir(parents=True)
        machine = Machine.start(directory / "logs/machine.log", owned=owned)
        try:
            machine.save(_machine_file(directory))
            _options_file(directory).write_text(json.dumps({"with_node": with_node}))
            cluster = cls(directory, machine, with_node=with_node)
            cluster._start_control_plane()
            if cluster.node:
                cluster._start_node(cluster.node)
                cluster._start_services()
        except BaseException:
            machine.stop()
            raise
        return cluster

    @classmethod
    def find(cls, directory: Path) -> Self | None:
        """Return the cluster running in a directory, whoever started it."""
        directory = directory.absolute()
        machine = Machine.load(_machine_file(directory))
        if machine is None:
            return None
        return cls(directory, machine, **json.loads(_options_file(directory).read_text()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self, *, keep_logs: bool = False) -> None:
        """Stop everything immediately and remove the directory; pods are not shut down first."""
        self.machine.stop()
        if not keep_logs:
            shutil.rmtree(self.directory)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; it works on the host and inside the machine."""
        return self.directory / "pki/admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """What pods have written to the API server: one JSON object per line, in the format of Kubernetes' audit log."""
        return control_plane.audit_log(self.directory)

    @property
    def host_address(self) -> str:
        """Where pods can reach a server on the host."""
        return self.machine.addresses.host

    def import_image(self, archive: Path) -> None:
        """Load a Docker archive into the node.

        Raises:
            ClusterError: There is no node, or the archive is damaged.
        """
        if self.node is None:
            raise ClusterError("This cluster has a control plane only")
        self.node.import_image(archive)

    @contextmanager
    def another_node(self, name: str, images: Iterable[str] = ()) -> Iterator[Node]:
        """Add a node, on a separate machine connected to the first; `node.machine.stop()` loses it suddenly.

        Args:
            name: Its name, also of its directory; must be short.
            images: Names of images that it gets from the first node.

        Raises:
            ClusterError: It does not start, or the cluster has no first node.
        """
        if self.node is None:
            raise ClusterError("This cluster has a control plane only")
        directory = self.directory / name
        directory.mkdir()
        machine = Machine.start(directory / "machine.log", owned=True)
        try:
            machine.connect(self.machine)
            node = Node(machine, directory, self.directory / "pki", cluster=self.machine.addresses, name=name)
            self._start_node(node)
            for image in images:
                archive = directory / "image.tar"
                self.node.export_image(image, archive)
                node.import_image(archive)
                archive.unlink()
            yield node
        finally:
            machine.stop()
            self.kubectl("delete", "node", name, "--ignore-not-found")
            shutil.rmtree(directory)

    def restart_api_server(self) -> None:
        """Kill the API server and restart it: clients lose their watches."""
        self.api_server.kill()
        self.api_server.start()
        self._wait_for_api()

    @property
    def _server(self) -> str:
        return f"https://{self.machine.addresses.node}:{control_plane.API_PORT}"

    def _start_control_plane(self) -> None:
        addresses = self.machine.addresses
        write_cluster_pki(
            self.directory / "pki",
            server=self._server,
            address=addresses.node,
            service_address=addresses.service(1),
        )
        control_plane.configure(self.directory)
        for component in (self._etcd, self.api_server):
            component.start()
        self._wait_for_api()
        for component in (self._controllers, self._scheduler):
            component.start()
        wait_until(
            lambda: self.kubectl("--namespace=default", "get", "serviceaccount", "default", check=False),
            lambda: f"the default service account. {self._controllers.tail()}",
            90,
            error=ClusterError,
        )

    def _start_node(self, node: Node) -> None:
        address = node.machine.addresses.node
        write_node_pki(self.directory / "pki", server=self._server, name=node.name, address=address)
        node.configure()
        node.start_containerd()
        archive = self.directory / f"{node.name}-pause.tar"
        write_archive(archive, PAUSE_IMAGE, tools.path("pause"))
        node.import_image(archive)
        node.start_kubelet()
        node.proxy.start()
        wait_until(
            lambda: self._is_ready(node),
            lambda: f"the node to register. {node.kubelet.tail()}",
            120,
            error=ClusterError,
        )

    def _start_services(self) -> None:
        name_server = dns.name_server(self.machine, self.directory)
        name_server.start()
        for name, arguments in (("volumes", [str(self.directory / "volumes")]), ("policies", [])):
            command = [sys.executable, "-m", f"e2e.cluster.{name}", str(self.kubeconfig), *arguments]
            Component(name, command, self.machine, self.directory / "logs", {"PYTHONPATH": str(_ROOT)}).start()
        self.apply(*dns.service(self.machine), *volumes.storage_classes())

    def _is_ready(self, node: Node) -> bool:
        query = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", node.name, "--output", query, check=False) == "True"

    def _wait_for_api(self) -> None:
        wait_until(
            lambda: self.kubectl("get", "--raw", "/readyz", check=False),
            lambda: f"the API server. {self.api_server.tail()}",
            180,
            error=ClusterError,
        )


def prepare(*, thorough: bool = False) -> None:
    """Provide everything a cluster needs: packages and programs; what exists already costs nothing.

    Args:
        thorough: Whether to also provide what only thorough tests need.

    Raises:
        ClusterError: Something cannot be provided; the message says what.
    """
    provide_packages()
    provide_all(thorough=thorough)


def _machine_file(directory: Path) -> Path:
    return directory / "machine.json"


def _options_file(directory: Path) -> Path:
    return directory / "options.json"
