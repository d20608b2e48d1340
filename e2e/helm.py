"""helm on a test cluster: releases of a chart, and helm's messages if it fails."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import Cluster, ClusterError, tools

OPERATOR_CHART = Path(__file__).parents[1] / "charts/millrace-operator"
OPERATOR_NAMESPACE = "millrace-system"


def image_values(image: str) -> dict[str, Any]:
    """Return the chart's values for an operator's image."""
    repository, _, tag = image.rpartition(":")
    return {"image": {"repository": repository, "tag": tag}}


@dataclass(frozen=True, slots=True)
class Release:
    """A release's name and namespace, installed or not."""

    cluster: Cluster
    namespace: str
    name: str = "millrace-operator"
    chart: Path = OPERATOR_CHART

    def apply(self, values: Mapping[str, Any], *, timeout_s: int = 600) -> None:
        """Install the release or upgrade it, and wait until everything in it is ready.

        Raises:
            ClusterError: It does not become ready, or helm refused.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            flags = ["--create-namespace", "--wait", f"--timeout={timeout_s}s", f"--values={file.name}"]
            self.helm("upgrade", "--install", self.name, str(self.chart), *flags)

    def uninstall(self) -> None:
        """Remove the release and wait until it is gone."""
        self.helm("uninstall", self.name, "--wait")

    def helm(self, *arguments: str) -> str:
        """Run helm in the release's namespace and return its standard output.

        Raises:
            ClusterError: It failed.
        """
        with tempfile.TemporaryDirectory(prefix="millrace-helm-") as home:
            # The user's own helm configuration is neither read nor written.
            environment = {f"HELM_{kind}_HOME": f"{home}/{kind}" for kind in ("CACHE", "CONFIG", "DATA")} | {
                "HOME": home
            }
            result = subprocess.run(
                [str(tools.path("helm")), f"--kubeconfig={self.cluster.kubeconfig}", f"-n{self.namespace}", *arguments],
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
        if result.returncode:
            raise ClusterError(f"`helm {' '.join(arguments)}` failed: {result.stderr.strip()}")
        return result.stdout
