"""The Debian packages that a node and the image builds need."""

from __future__ import annotations

import os
import shutil
import subprocess

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import phase, say

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "socat": "socat",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "iproute2": "ip",
    "util-linux": "nsenter",
}
"""A program from each package: if the program exists, so does the package."""


def provide_packages() -> None:
    """Install the packages that are missing.

    Raises:
        ClusterError: They are missing, and this is not Debian, or not root.
    """
    if os.geteuid() != 0:
        raise ClusterError("A Kubernetes node needs root: containers, namespaces and mounts. Run it as root")
    missing = [package for package, program in PACKAGES.items() if shutil.which(program) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"There is no apt-get here: install {', '.join(missing)} by other means")
    say(f"Installing {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with phase("Installing the packages"):
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            command = ["apt-get", "--quiet=2", *arguments]
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if result.returncode:
                raise ClusterError(f"`{' '.join(command)}` failed: {result.stderr.strip()[-2000:]}")
