"""What tests ask of any Kubernetes: kubectl, the Python client, and manifests."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path

from kubernetes import client, config

from e2e.cluster import tools
from e2e.cluster.errors import ClusterError

_HANDSHAKES = 6
"""How often kubectl may give up a handshake, each after ten seconds."""


class KubernetesApi:
    """The API of a cluster. Its user is the administrator."""

    directory: Path
    """For what belongs to this cluster."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        raise NotImplementedError

    @functools.cached_property
    def client(self) -> client.ApiClient:
        """Kubernetes' client, as administrator."""
        return config.new_client_from_config(str(self.kubeconfig))

    @property
    def kubectl_command(self) -> list[str]:
        """The command line of kubectl as administrator; its cache is removed with the cluster."""
        flags = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.directory / 'kubectl-cache'}"]
        return [*tools.kubernetes("kubectl"), *flags]

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout_s: float = 660.0) -> str:
        """Run kubectl as administrator and return its standard output.

        Raises:
            ClusterError: It failed, and `check` was asked for.
        """
        for _ in range(_HANDSHAKES):
            result = subprocess.run(
                [*self.kubectl_command, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            if not (check and result.returncode and "TLS handshake timeout" in result.stderr):
                break  # otherwise the API server was frozen, and nothing was sent
        if check and result.returncode:
            raise ClusterError(f"`kubectl {' '.join(arguments)}` failed: {result.stderr.strip()}")
        return result.stdout

    def apply(self, *objects: dict[str, object]) -> None:
        """Apply manifests."""
        self.kubectl("apply", "--server-side", "--filename", "-", stdin=json.dumps(_list_of(objects)))


def _list_of(objects: tuple[dict[str, object], ...]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
